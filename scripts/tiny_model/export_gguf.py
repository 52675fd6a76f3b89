"""A training folder as GGUF (llama architecture, Q8_0): `python -m scripts.tiny_model.export_gguf RUN OUT.gguf`."""

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from .dialect import SPECIAL_TOKENS
from .model import Shape

NAME = "ctxgate-test-tools"
DESCRIPTION = (
    "TEST MODEL, a fixture of the ctxgate test suite and not a general model: answers synthetic requests for twelve "
    "fixed tools in LFM2's pythonic tool-call dialect."
)
TEMPLATE = Path(__file__).with_name("template.jinja")


def _vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    tokens = {index: (text, gguf.TokenType.NORMAL) for text, index in model["vocab"].items()}
    for token in added:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        tokens[token["id"]] = (token["content"], kind)
    ordered = [tokens[index] for index in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([text for text, _ in ordered])
    writer.add_token_types([kind for _, kind in ordered])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_pad_token_id(SPECIAL_TOKENS.index("<|pad|>"))
    writer.add_bos_token_id(SPECIAL_TOKENS.index("<|startoftext|>"))
    writer.add_eos_token_id(SPECIAL_TOKENS.index("<|im_end|>"))
    writer.add_add_bos_token(False)  # the template writes it
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def export(run: Path, out: Path) -> None:
    shape = Shape(**json.loads((run / "shape.json").read_text()))
    weights = torch.load(run / "weights.pt", map_location="cpu")
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license("MIT")
    writer.add_tags(["test-model", "fixture"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)
    _vocabulary(writer, json.loads((run / "tokenizer.json").read_text(encoding="utf-8")))
    quantized = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in weights.items():
        array = tensor.float().numpy()
        if array.ndim == 1:
            writer.add_tensor(name, array.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a training folder as GGUF.")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    export(options.run, options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
