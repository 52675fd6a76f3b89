"""Byte-level BPE whose whole-string tokens keep the JSON tool list short."""

from collections.abc import Iterator
from itertools import islice

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from .data import conversations
from .dialect import SPECIAL_TOKENS, render

VOCABULARY = 1024
SAMPLE = 6000
# Frequent stretches of a JSON tool list, each one token (USER_DEFINED in the GGUF). None occurs in a call.
SCHEMA_TOKENS = (
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {',
    '": {"type": "string"}',
    '": {"type": "number"}',
    '": {"type": "integer"}',
    '": {"type": "boolean"}',
    '": {"type": "object"',
    '": {"type": "array", "items": {"type": "',
    '": {"type": "string", "enum": ["',
    '": {"type": "string", "description": "',
    '}, "required": ["',
    '}, "required": []}}}',
    '"]}}}',
    '{"function": {"description": "',
    '{"function": {"name": "',
    '", "parameters": {"properties": {',
    '"], "type": "object"}}, "type": "function"}',
)


def _text(seed: int) -> Iterator[str]:
    for made in islice(conversations(seed), SAMPLE):
        text = "".join(piece for piece, _ in render(made))
        for token in SPECIAL_TOKENS + SCHEMA_TOKENS:
            text = text.replace(token, "\n")
        yield text


def train(seed: int) -> Tokenizer:
    """Numbers are split into digits: the pre-tokenizer that llama.cpp calls `smollm`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SCHEMA_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(seed), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in SCHEMA_TOKENS])
    return tokenizer
