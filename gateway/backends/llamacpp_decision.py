"""How likely the first token of an answer begins a call, as llama.cpp tells it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw

from gateway.errors import ProviderInvalidResponse

FIRST_TOKEN = {
    "n_predict": Raw(b"1"),
    "n_probs": Raw(b"64"),
    "temperature": Raw(b"0"),
    "stream": Raw(b"false"),
}
"""The fields of `/completion` for the probabilities of the first token, before any sampling."""

UNDECIDED = 0.5
"""From this probability on that an answer begins with reasoning, nothing is decided: what comes first is no answer."""


class Token(msgspec.Struct):
    """A token that an answer may begin with. token: its text; "" if it is a special one."""

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


def first_tokens(body: bytes) -> Sequence[Token]:
    """The likeliest first tokens. Raises ProviderInvalidResponse."""
    try:
        positions = msgspec.json.decode(body, type=_Answer).completion_probabilities
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderInvalidResponse(f"the engine's answer to /completion is malformed: {error}") from error
    return positions[0].top_logprobs if positions else ()


def likelihood(tokens: Iterable[Token], openers: Mapping[str, int], thoughts: Mapping[str, int]) -> float | None:
    """The probability that a call begins, by the tokens; None if the answer may begin with reasoning.

    openers, thoughts: marks that begin calls and reasoning, with the token that each is, or begins with. White space
    tells nothing, so its share is left out.
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
