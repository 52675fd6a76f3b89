"""The reasoning of earlier turns that clients send back, on every API; it has become `reasoning_content`.

Most chat templates drop it, and some keep it if a variable says so. Agents whose reasoning is dropped repeat
themselves.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Raw

from gateway.wire.chat import decode, encode
from normalizers.derive.history import History

KeepReasoning = Literal["auto", "always", "never"]
"""auto: in conversations with calls of tools, if the template can; always: in all, if it can; never: not even if the
template would."""

NAMES = ("reasoning_content", "reasoning")
_MENTIONED = b'"reasoning'


def mentions_reasoning(messages: Raw) -> bool:
    """Whether some of the messages may have reasoning."""
    return _MENTIONED in bytes(messages)


def keep_as_told(fields: dict[str, Raw], keep: KeepReasoning, history: History, *, past: bool) -> None:
    """Edits the fields of a request. history: what the template does with it. past: calls of tools may be in it."""
    asks = history.keeps is not None and (keep == "always" or (keep == "auto" and past))
    if not (asks or keep == "never") or not mentions_reasoning(fields["messages"]):
        return
    if keep == "never":
        fields["messages"] = Raw(encode(_without(decode(fields["messages"]))))
        return
    assert history.keeps is not None
    name, value = history.keeps
    given = decode(fields["chat_template_kwargs"]) if "chat_template_kwargs" in fields else None
    fields["chat_template_kwargs"] = Raw(encode({name: value, **(given if isinstance(given, dict) else {})}))


def _without(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the reasoning of turns before the last question; that of the turn itself is still needed."""
    last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=0)
    return [
        {name: value for name, value in message.items() if name not in NAMES} if at < last else message
        for at, message in enumerate(messages)
    ]
