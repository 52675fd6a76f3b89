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
    if all(isinstance(part, dict) and part.get("type") == "text" and "text" in part for part in parts):
        return "\n\n".join(str(part["text"]) for part in parts)
    return parts


SYSTEM = ("system", "developer")
"""Roles of instructions to the model. Templates know the first, OpenAI's newer models the second."""


def one_system(messages: list[Message]) -> list[Message]:
    """System texts before the model's first answer become one system message at the start; a later one becomes a
    user's message in its place."""
    system: list[Message] = []
    others: list[Message] = []
    answered = False
    for message in messages:
        role = message.get("role")
        if role in SYSTEM and not answered:
            system.append({**message, "role": "system"})
        else:
            others.append({**message, "role": "user"} if role in SYSTEM else message)
            answered = answered or role == "assistant"
    return [*joined(system), *others]


def joined(messages: list[Message]) -> list[Message]:
    """Adjacent messages of one role become one, but for tool calls' results."""
    found: list[Message] = []
    for message in messages:
        if found and message.get("role") != "tool" and message.get("role") == found[-1].get("role"):
            found[-1] = _both(found[-1], message)
        else:
            found.append(message)
    return found


def _both(first: Message, second: Message) -> Message:
    both = {**second, **first, "content": plain([*_parts(first), *_parts(second)])}
    for name in ("tool_calls", "reasoning_content"):
        values = [value for value in (first.get(name), second.get(name)) if value]
        if values:
            both[name] = values[0] + values[1] if len({*map(type, values)}) < len(values) else values[0]
    return both


def _parts(message: Message) -> list[Message]:
    content = message.get("content")
    return content if isinstance(content, list) else [text_part(content)] if content else []


class Conversation:
    """Collects chat messages, and joins them as `one_system` and `joined` say."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def messages(self) -> list[Message]:
        return [_finished(message) for message in joined(one_system(self._messages))]

    def system(self, text: str) -> None:
        if text:
            self._messages.append({"role": "system", "content": [text_part(text)]})

    def user(self, parts: list[Message]) -> None:
        if parts:
            self._messages.append({"role": "user", "content": parts})

    def assistant(self, *, text: str = "", reasoning: str = "", call: Message | None = None) -> None:
        """call: `{id, name, arguments}`, the arguments as JSON in a string."""
        message: Message = {"role": "assistant", "content": [text_part(text)] if text else []}
        if reasoning:
            message["reasoning_content"] = reasoning
        if call is not None:
            function = {"name": call["name"], "arguments": call["arguments"]}
            message["tool_calls"] = [{"id": call["id"], "type": "function", "function": function}]
        self._messages.append(message)

    def result(self, call_id: str, text: str) -> None:
        """Adds a tool call's result."""
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def _finished(message: Message) -> Message:
    parts = message["content"]
    if isinstance(parts, str):
        return message if parts or "tool_calls" not in message else {**message, "content": None}
    content = plain(parts)
    return {**message, "content": content if content or "tool_calls" not in message else None}
