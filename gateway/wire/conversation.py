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
    return "\n\n".join(str(part["text"]) for part in parts) if _are_texts(parts) else parts


def _are_texts(parts: list[Message]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "text" and "text" in part for part in parts)


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
    groups: list[list[Message]] = []
    for message in messages:
        if groups and message.get("role") != "tool" and message.get("role") == groups[-1][-1].get("role"):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _one(group: list[Message]) -> Message:
    """Where fields differ, the first has its say; texts, calls and reasoning of all stand in their order."""
    one: Message = {}
    for message in reversed(group):
        one |= message
    one["content"] = _content(group)
    for name in ("tool_calls", "reasoning_content"):
        values = [value for message in group if (value := message.get(name))]
        if values:
            alike = [value for value in values if type(value) is type(values[0])]
            one[name] = _concatenated(alike)
    return one


def _concatenated(values: list[Any]) -> Any:
    """Texts or lists as one; of anything else, which the engine will explain, the first."""
    if isinstance(values[0], str):
        return "".join(values)
    return [each for value in values for each in value] if isinstance(values[0], list) else values[0]


def _content(group: list[Message]) -> str | list[Message]:
    """Texts up to the first picture become one; behind it, each part stays as it is."""
    parts: list[Message] = []
    texts = True
    for at, message in enumerate(group):
        more = _parts(message)
        if texts and not (texts := _are_texts(more)) and at > 1:
            parts = _parts({"content": plain(parts)})
        parts += more
    return plain(parts)


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
