"""Log-probabilities of a chat's tokens, as in OpenAI's API: beside each token `top_logprobs` others, by default 0.

llama.cpp answers without any if 0 are asked for, and with 20 a token if the number is left out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import ProviderInvalidRequest
from gateway.wire.engine import Fixup

_TRUE, _ZERO, _ONE = Raw(b"true"), Raw(b"0"), Raw(b"1")


def wanted(fields: dict[str, Raw]) -> int | None:
    """How many others each token gets; None without log-probabilities. Asks the engine for at least one, in place.

    Raises ProviderInvalidRequest for `top_logprobs` without `logprobs`.
    """
    top = fields.get("top_logprobs", _ZERO)
    if fields.get("logprobs") != _TRUE:
        fields.pop("top_logprobs", None)
        if top != _ZERO:
            raise ProviderInvalidRequest("top_logprobs: needs logprobs: true", param="top_logprobs")
        return None
    fields["top_logprobs"] = _ONE if top == _ZERO else top
    return msgspec.json.decode(top, type=int)


class LogprobsFixup(Fixup):
    """Gives each token of an answer as many others as were asked for, and the fields that clients expect.

    inner: the engine's own fixup, which goes first.
    """

    every_chunk = True

    def __init__(self, top: int, inner: Fixup | None) -> None:
        self._top = top
        self._inner = inner or Fixup()
        self.warnings = self._inner.warnings

    def answer(self, answer: dict[str, Any]) -> None:
        self._inner.answer(answer)
        self._tidy(answer)

    def chunk(self, chunk: dict[str, Any]) -> None:
        self._inner.chunk(chunk)
        self._tidy(chunk)

    def _tidy(self, body: dict[str, Any]) -> None:
        for choice in body.get("choices") or ():
            logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
            if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
                logprobs.setdefault("refusal", None)
                for token in filter(_is_token, logprobs["content"]):
                    others = token.get("top_logprobs")
                    token["top_logprobs"] = others[: self._top] if isinstance(others, list) else []
                    for one in (token, *filter(_is_token, token["top_logprobs"])):
                        one.setdefault("bytes", _bytes(one["token"]))


def _bytes(token: str) -> list[int] | None:
    """None for a part of a character."""
    return None if "\ufffd" in token else [*token.encode("utf-8", "replace")]


def _is_token(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("token"), str)
