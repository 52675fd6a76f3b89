"""A reranking model of 190 kB, with weights by hand: a document is worth what its words are worth on average.

BERT with one layer, whose attention is the same for all tokens, so the first token becomes their mean; the head reads
one number of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

WORTH = {"good": 1.0, "fair": 0.3, "plain": 0.0, "bad": -1.0}
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WIDTH, HEADS, WINDOW = 64, 2, 256

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def write(path: Path) -> Path:
    import gguf

    words = [*MARKS, *(f"▁{word}" for word in WORTH), "▁is", "▁what", "?"]
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    special = [gguf.TokenType.CONTROL] * len(MARKS)
    writer.add_token_types([*special, *[gguf.TokenType.NORMAL] * (len(words) - len(MARKS))])
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    for name, tensor in _tensors(words):
        writer.add_tensor(name, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(words: list[str]) -> Iterator[tuple[str, Array]]:
    nothing, same, zeros, ones = np.zeros((WIDTH, WIDTH)), np.eye(WIDTH), np.zeros(WIDTH), np.ones(WIDTH)
    embedded = np.zeros((len(words), WIDTH))
    # Noise of one size, so that normalising leaves a word's worth in proportion.
    embedded[:, 2:] = np.where(np.arange(WIDTH - 2) % 2, 1.0, -1.0)
    for index, word in enumerate(words):
        embedded[index, 0] = WORTH.get(word.removeprefix("▁"), 0.0)
    yield "token_embd.weight", embedded
    yield "token_types.weight", np.zeros((2, WIDTH))
    yield "position_embd.weight", np.zeros((WINDOW, WIDTH))
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        yield f"{name}.weight", ones
        yield f"{name}.bias", zeros
    for part, weights in (("q", nothing), ("k", nothing), ("v", same), ("output", same)):
        yield f"blk.0.attn_{part}.weight", weights
        yield f"blk.0.attn_{part}.bias", zeros
    for part in ("up", "down"):
        yield f"blk.0.ffn_{part}.weight", nothing
        yield f"blk.0.ffn_{part}.bias", zeros
    yield "cls.weight", same
    yield "cls.bias", zeros
    yield "cls.output.weight", np.eye(1, WIDTH)
    yield "cls.output.bias", np.zeros(1)
