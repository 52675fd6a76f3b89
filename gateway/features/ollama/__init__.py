"""Below `/api`, as Ollama has it."""
