"""Builds chat messages that every chat template accepts, from the conversations of other APIs.

Some templates reject a system message after the first message, two user messages in a row, or the role `developer`.
OpenAI's newer APIs and Anthropic's allow all three, and their clients send them.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def text_part(text: str) -> Message:
    return {"type": "text", "text": text}


def image_part(url: str, detail: str | None = None) -> Message:
    """url: `https://…` or `data:image/png;base64,…`."""
    image = {"url": url} if detail is None else {"url": url, "detail": detail}
    return {"type": "image_url", "image_url": image}


def plain(parts: list[Message]) -> str | list[Message]:
    """Returns text-only parts as one string, which every engine accepts."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


class Conversation:
    """Collects chat messages.

    System text before the model's first answer becomes one system message; later system text becomes a user message
    in its place. Adjacent messages of one role are joined.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._messages: list[Message] = []

    def messages(self) -> list[Message]:
        system = [{"role": "system", "content": "\n\n".join(self._system)}] if self._system else []
        return [*system, *map(_finished, self._messages)]

    def system(self, text: str) -> None:
        if not text:
            return
        if any(message["role"] == "assistant" for message in self._messages):
            self.user([text_part(text)])
        else:
            self._system.append(text)

    def user(self, parts: list[Message]) -> None:
        if parts:
            self._turn("user")["content"] += parts

    def assistant(self, *, text: str = "", reasoning: str = "", call: Message | None = None) -> None:
        """call: `{id, name, arguments}`, the arguments as JSON in a string."""
        message = self._turn("assistant")
        if text:
            message["content"].append(text_part(text))
        if reasoning:
            message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
        if call is not None:
            function = {"name": call["name"], "arguments": call["arguments"]}
            message.setdefault("tool_calls", []).append({"id": call["id"], "type": "function", "function": function})

    def result(self, call_id: str, text: str) -> None:
        """Adds a tool call's result."""
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _turn(self, role: str) -> Message:
        if not self._messages or self._messages[-1]["role"] != role:
            self._messages.append({"role": role, "content": []})
        return self._messages[-1]


def _finished(message: Message) -> Message:
    parts = message["content"]
    if isinstance(parts, str):
        return message
    content = plain(parts)
    return {**message, "content": content if content or "tool_calls" not in message else None}
