"""An MLX folder (float16) from a llama GGUF with a byte-level BPE: `python scripts/tiny_model/export_mlx.py GGUF OUT`.

Needs gguf and numpy alone, so that a test can make the folder on the fly.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

FILE_OF_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def _name(gguf_name: str) -> str:
    stem = gguf_name.removesuffix(".weight")
    if stem in OUTER:
        return f"{OUTER[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{FILE_OF_BLOCK[part]}.weight"


def _weights(reader: gguf.GGUFReader, path: Path) -> None:
    """safetensors: the header's length, the header as JSON, the arrays."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    arrays: list[bytes] = []
    offset = 0
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
        data = array.tobytes()
        header[_name(tensor.name)] = {
            "dtype": "F16",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
        arrays.append(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.writelines(arrays)


def _tokenizer(tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, Any]:
    whole = {gguf.TokenType.CONTROL: True, gguf.TokenType.USER_DEFINED: False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": text, **flags, "special": whole[kind]}
            for index, (text, kind) in enumerate(zip(tokens, map(gguf.TokenType, kinds), strict=True))
            if kind in whole
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {
                text: index
                for index, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
                if kind != gguf.TokenType.USER_DEFINED
            },
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def export(model: Path, out: Path) -> None:
    """Raises ValueError if the GGUF is not of the kind that the test model is."""
    reader = gguf.GGUFReader(model)

    def value(key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise ValueError(f"{model} has no {key}")
        return field.contents()

    kind = (value("general.architecture"), value("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise ValueError(f"{model} is {kind[0]} with {kind[1]} tokens; only llama with smollm tokens is supported")
    out.mkdir(parents=True, exist_ok=True)
    _weights(reader, out / "model.safetensors")
    tokens = value("tokenizer.ggml.tokens")
    special = {name: value(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")}
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float16",
        "hidden_size": value("llama.embedding_length"),
        "num_hidden_layers": value("llama.block_count"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_attention_heads": value("llama.attention.head_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": value("llama.rope.freq_base"),
        "rope_traditional": True,  # GGUF keeps q and k for rotation of neighbouring pairs
        "max_position_embeddings": value("llama.context_length"),
        "vocab_size": len(tokens),
        "tie_word_embeddings": True,
        "bos_token_id": special["bos"],
        "eos_token_id": special["eos"],
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[special["bos"]],
        "eos_token": tokens[special["eos"]],
        "pad_token": tokens[special["padding"]],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    tokenizer = _tokenizer(tokens, value("tokenizer.ggml.token_type"), value("tokenizer.ggml.merges"))
    for name, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (out / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    (out / "chat_template.jinja").write_text(value("tokenizer.chat_template"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an MLX folder from the test model's GGUF.")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    export(options.model, options.out)


if __name__ == "__main__":
    main()
