"""How likely the first token of an answer begins a call, as engines tell it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from gateway.errors import ProviderInvalidResponse

T = TypeVar("T")

FIRST_TOKEN = {"n_predict": Raw(b"1"), "n_probs": Raw(b"64"), "temperature": Raw(b"0"), "stream": Raw(b"false")}
"""The fields of llama.cpp's `/completion` for the probabilities of the first token, before any sampling."""

FIRST_OF_CHAT = {
    "max_tokens": Raw(b"1"),
    "logprobs": Raw(b"true"),
    "top_logprobs": Raw(b"11"),
    "temperature": Raw(b"0"),
    "stream": Raw(b"false"),
}
"""The same for mlx_lm's chat endpoint, which tells 11 at most."""

NO_TOKEN = -2
"""The id of a mark whose token isn't known."""

_SET_TO_NOTHING = (b"null", b"false", b'{"type":"text"}', b'{"type": "text"}')

UNDECIDED = 0.5
"""From this probability on that an answer begins with reasoning, nothing is decided: what comes first is no answer."""

BYTE_LEVEL = {ord("Ġ"): " ", ord("Ċ"): "\n", ord("ĉ"): "\t", ord("▁"): " "}
"""White space as vocabularies write it."""


class Token(msgspec.Struct):
    """A token that an answer may begin with. token: its text; llama.cpp leaves that of a special one empty."""

    id: int = -1
    token: str = ""
    logprob: float | None = None

    @property
    def probability(self) -> float:
        return 0.0 if self.logprob is None else math.exp(self.logprob)


class _Position(msgspec.Struct):
    top_logprobs: Sequence[Token] = ()


class _Answer(msgspec.Struct):
    completion_probabilities: Sequence[_Position] = ()


class _Logprobs(msgspec.Struct, frozen=True):
    content: Sequence[_Position] = ()


class _Choice(msgspec.Struct):
    logprobs: _Logprobs = _Logprobs()


class _Chat(msgspec.Struct):
    choices: Sequence[_Choice] = ()


def first_tokens(body: bytes) -> Sequence[Token]:
    """The likeliest first tokens, by llama.cpp's `/completion`. Raises ProviderInvalidResponse."""
    positions = _read(body, _Answer).completion_probabilities
    return positions[0].top_logprobs if positions else ()


def first_tokens_of_chat(body: bytes) -> Sequence[Token]:
    """The same, by a chat endpoint that names tokens as the vocabulary does. Raises ProviderInvalidResponse."""
    choices = _read(body, _Chat).choices
    positions = choices[0].logprobs.content if choices else ()
    found = positions[0].top_logprobs if positions else ()
    return [Token(token.id, token.token.translate(BYTE_LEVEL), token.logprob) for token in found]


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderInvalidResponse(f"the engine doesn't tell its first token: {error}") from error


def likelihood(tokens: Iterable[Token], openers: Mapping[str, int], thoughts: Mapping[str, int]) -> float | None:
    """The probability that a call begins, by the tokens; None if the answer may begin with reasoning.

    openers, thoughts: marks that begin calls and reasoning, with the token that each is, or begins with; NO_TOKEN where
    tokens are known by their text alone. White space tells nothing, so its share is left out.
    """
    calls = reasons = blank = 0.0
    for token in tokens:
        text = token.token.lstrip()
        if _begins(token.id, text, thoughts):
            reasons += token.probability
        elif _begins(token.id, text, openers):
            calls += token.probability
        elif not text:
            blank += token.probability
    if reasons >= UNDECIDED:
        return None
    return min(1.0, calls / (1.0 - blank)) if blank < 1.0 else 0.0


def _begins(id: int, text: str, marks: Mapping[str, int]) -> bool:
    if id in marks.values():
        return True
    return bool(text) and any(text.startswith(mark) or mark.startswith(text) for mark in marks)


def may_decide(fields: Mapping[str, Raw]) -> bool:
    """Whether nothing else in the request says how the answer begins, or may forbid its end."""
    if several(fields):
        return False
    return not any(is_set(name, fields) for name in ("grammar", "json_schema", "logit_bias", "ignore_eos"))


def several(fields: Mapping[str, Raw]) -> bool:
    """Whether more than one choice is asked for."""
    return "n" in fields and bytes(fields["n"]) not in (b"1", b"null")


def is_set(name: str, fields: Mapping[str, Raw]) -> bool:
    return name in fields and bytes(fields[name]) not in _SET_TO_NOTHING
