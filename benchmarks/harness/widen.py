"""A Llama model made wider with zeros: it says the same, and costs what a model of its new size costs.

    python -m benchmarks.harness.widen _models/smollm2-135m-instruct.gguf wide.gguf      # 0.6 billion weights, Q8_0

A model of 135 million weights writes a token in 5 ms, so what a server adds to each token shows more than on the models
that people use. Zeros are multiplied like other numbers, so this is a larger model as far as time and memory go.
The words stay, as far as the new quantisation lets them: added heads and channels feed nothing, and each norm's weights
and epsilon make up for the mean, which is now taken over more channels.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants


@dataclass(frozen=True)
class Shape:
    """heads: of queries. The number of query heads that share one of keys and values stays, as do layers and words."""

    width: int = 1280
    heads: int = 24
    inner: int = 3584


def widen(source: Path, target: Path, shape: Shape, kind: str = "Q8_0") -> None:
    """kind: the quantisation of the matrices, one of those that gguf can write.

    Raises ValueError for a model of another architecture, and for a shape that can't hold it.
    """
    reader = GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if values["general.architecture"] != "llama":
        raise ValueError(f"{source}: its architecture is {values['general.architecture']}; only llama can be widened")
    width, heads = values["llama.embedding_length"], values["llama.attention.head_count"]
    shared = heads // values["llama.attention.head_count_kv"]
    size = values.get("llama.attention.key_length", width // heads)
    if shape.width < width or shape.heads < heads or shape.inner < values["llama.feed_forward_length"]:
        raise ValueError(f"{source}: it is wider than {shape}")
    if shape.heads % shared:
        raise ValueError(f"{source}: the heads must be a multiple of {shared}")
    writer = GGUFWriter(target, "llama")
    changed = {
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads // shared,
        "llama.attention.key_length": size,
        "llama.attention.value_length": size,
        "llama.attention.layer_norm_rms_epsilon": values["llama.attention.layer_norm_rms_epsilon"]
        * width
        / shape.width,
    }
    for name in {**values, **changed}:
        if name != "general.architecture":
            _copy(writer, reader, name, changed.get(name, values.get(name)))
    queries, keys = shape.heads * size, shape.heads // shared * size
    sizes = {
        **{"attn_q": (queries, shape.width), "attn_k": (keys, shape.width), "attn_v": (keys, shape.width)},
        **{"attn_output": (shape.width, queries), "ffn_down": (shape.width, shape.inner)},
        **{"ffn_gate": (shape.inner, shape.width), "ffn_up": (shape.inner, shape.width)},
    }
    matrix = GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        given = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if given.ndim == 1:
            writer.add_tensor(tensor.name, _padded(given * np.float32((width / shape.width) ** 0.5), (shape.width,)))
            continue
        made = _padded(given, sizes.get(tensor.name.split(".")[-2], (given.shape[0], shape.width)))
        writer.add_tensor(tensor.name, quants.quantize(made, matrix), raw_dtype=matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy(writer: GGUFWriter, reader: GGUFReader, name: str, value: Any) -> None:
    field = reader.fields.get(name)
    if field is None:
        writer.add_uint32(name, value)
        return
    kind, *inner = field.types
    writer.add_key_value(name, value, kind, inner[-1] if kind == GGUFValueType.ARRAY else None)


def _padded(given: Any, shape: tuple[int, ...]) -> Any:
    made: Any = np.zeros(shape, np.float32)
    made[tuple(slice(length) for length in given.shape)] = given
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.harness.widen", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    shape = Shape()
    parser.add_argument("--width", type=int, default=shape.width, help=f"channels (default: {shape.width})")
    parser.add_argument("--heads", type=int, default=shape.heads, help=f"of queries (default: {shape.heads})")
    parser.add_argument(
        "--inner", type=int, default=shape.inner, help=f"feed-forward channels (default: {shape.inner})"
    )
    parser.add_argument("--kind", default="Q8_0", help="quantisation, such as Q4_0 or F16 (default: Q8_0)")
    given = parser.parse_args()
    widen(given.source, given.target, Shape(given.width, given.heads, given.inner), given.kind)


if __name__ == "__main__":
    main()
