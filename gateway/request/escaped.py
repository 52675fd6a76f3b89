"""Which texts of a request must not become control tokens; see `gateway.wire.control_tokens`."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from gateway.wire.chat import ChatRequest, encode
from gateway.wire.control_tokens import ControlTokens, count, suspicious
from normalizers import FormatSpec

OPERATORS = ("system", "developer")
"""Roles whose text is the operator's own: some models' instructions for tools are written in control tokens."""


class _Role(msgspec.Struct):
    role: str


_parts = msgspec.json.Decoder(list[Raw]).decode
_role = msgspec.json.Decoder(_Role).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def may_need_escape(request: ChatRequest) -> bool:
    """Whether the request may hold the text of a control token of some model. Cheap: it is asked for every request."""
    messages = b"".join((request.fields["messages"],))  # bytes() of a Raw costs four times as much
    return suspicious(messages) or (request.tools is not None and suspicious(request.tools))


def needs_escape(request: ChatRequest, tokens: ControlTokens, spec: FormatSpec) -> bool:
    """Whether it contains the text of one of these tokens outside the operator's and the model's own text."""
    if request.tools is not None and tokens.found(request.tools):
        return True
    messages = bytes(request.fields["messages"])
    return tokens.found(messages) and count(escape_messages(messages, tokens, spec)) > 0


def escape_messages(messages: bytes, tokens: ControlTokens, spec: FormatSpec) -> bytes:
    """The messages, as JSON, with every text escaped except the operator's.

    The model's own earlier answers keep its marks of reasoning and calls, which chat templates look for.
    """
    if not tokens.found(messages):
        return messages
    own = (*spec.open, *spec.close, *(mark for pair in spec.think for mark in pair))
    return b"[%b]" % b",".join([_escaped(bytes(message), tokens, own) for message in _parts(messages)])


def _escaped(message: bytes, tokens: ControlTokens, own: tuple[str, ...]) -> bytes:
    if not tokens.found(message):
        return message
    role = _role(message).role
    if role in OPERATORS:
        return message
    if role != "assistant":
        return tokens.escape(message)
    fields = _fields(message)
    return encode(
        {
            name: Raw(tokens.escape(bytes(value), own if name in ("content", "reasoning_content") else ()))
            for name, value in fields.items()
        }
    )
