"""The project's tiny test model: data, tokenizer, training, export and evaluation."""
