"""Notices an answer whose call nobody read: tools were offered, none was called, and the text looks like a call."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from gateway.wire.chat import ChatRequest
from normalizers.unread import MAX_CHARACTERS, unread_call

UNREAD = "unread_call"
"""The code of such an answer in the request log, beside those of `normalizers.Warn`."""

_MAX_THOUGHTS = 2048
"""Pieces of reasoning that are kept, the last ones: a call may stand at its end."""

_written_call = re.compile(r"\((?:\s*[){]|\s*\w+\s*=)").search


def may_be_unread(request: ChatRequest) -> bool:
    """Whether an answer to the request may call a tool, and may be text that isn't JSON by the client's order."""
    return request.tools is not None and request.tool_choice != "none" and request.response_format is None


def may_hold_call(text: str) -> bool:
    """False if the text certainly holds no call. Cheap."""
    if "{" in text or "<" in text or "[" in text or ">>>" in text or "ool:" in text or "ction:" in text:
        return True
    return "(" in text and _written_call(text) is not None


class Watch:
    """The beginning of one choice's text, and the end of its reasoning, while it is written."""

    __slots__ = ("_thoughts", "room", "texts")

    def __init__(self) -> None:
        self.room = MAX_CHARACTERS
        self.texts: list[str] = []
        self._thoughts: deque[str] = deque(maxlen=_MAX_THOUGHTS)

    def text(self, text: str) -> None:
        if self.room > 0:
            self.room -= len(text)
            self.texts.append(text)

    def thought(self, text: str) -> None:
        self._thoughts.append(text)

    def message(self, message: Mapping[str, Any]) -> None:
        """A whole message."""
        self.text(message.get("content") or "")
        self.thought(str(message.get("reasoning") or ""))

    def holds_call(self, tools: Collection[str]) -> bool:
        """Whether the text looks like a call of one of the tools; if there is none, whether the reasoning does."""
        text = "".join(self.texts)
        if not text.strip():
            text = "".join(self._thoughts)[-MAX_CHARACTERS:]
        return may_hold_call(text) and unread_call(text, tools) is not None
