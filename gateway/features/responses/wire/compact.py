"""`POST /v1/responses/compact`: a conversation as a text to summarise, and the summary as an item.

The gateway can't compress what a model has read, as OpenAI's servers may. So the item is a summary that the model has
written; it says so to the model that reads it, and names who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses.wire.answer import new_id, usage_object
from gateway.features.responses.wire.conversations import shown
from gateway.features.responses.wire.request import Item, as_items, messages, seal
from gateway.wire import body
from gateway.wire.body import Name
from gateway.wire.pieces import UsagePiece

TASK = """\
Summarise the conversation below for an assistant who will continue it without seeing it. Keep the user's goals and \
conditions, decisions and their reasons, facts, names, numbers, paths, results of tools, and open tasks. Add nothing \
that isn't there, and answer nothing. Write the summary alone."""
CUT = "\n[The summary ends here: its author reached the limit of tokens.]"


class Compact(Struct, kw_only=True):
    model: Name | None = None
    input: str | list[Item] = field(default_factory=list)
    previous_response_id: str | None = None
    instructions: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> Compact:
        """Raises ProviderInvalidRequest, which names the invalid field."""
        request = body.read(_decoder, data)
        if not request.input and request.previous_response_id is None:
            message = "input: a string, at least one item, or previous_response_id is required"
            raise ProviderInvalidRequest(message, param="input")
        return request

    @property
    def items(self) -> list[Item]:
        return as_items(self.input)


_decoder = msgspec.json.Decoder(Compact)


def chat_fields(request: Compact, items: Iterable[Item]) -> dict[str, Any]:
    """The fields of the chat that writes the summary. items: the whole conversation.

    Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock.
    """
    task = f"{TASK}\n\n{request.instructions}" if request.instructions else TASK
    asked = [{"role": "system", "content": task}, {"role": "user", "content": _transcript(messages(None, items))}]
    return {"messages": asked} if request.model is None else {"model": request.model, "messages": asked}


def compaction(
    items: Iterable[Item], summary: str, *, cut: bool, model: str, usage: UsagePiece, created_at: int
) -> dict[str, Any]:
    """The object with the user's messages as they were, and the summary of everything."""
    kept = [shown({"id": new_id("msg"), **item}) for item in items if item.get("role") == "user"]
    text = f"Summary of the conversation so far, written by {model}:\n{summary}{CUT if cut else ''}"
    item = {"id": new_id("cmp"), "type": "compaction", "encrypted_content": seal(text), "created_by": model}
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": created_at,
        "output": [*kept, item],
        "usage": usage_object(usage),
    }


def _transcript(said: Iterable[dict[str, Any]]) -> str:
    lines = []
    for message in said:
        role = "result of a tool" if message["role"] == "tool" else message["role"]
        if text := _text(message.get("content")):
            lines.append(f"{role}: {text}")
        for call in message.get("tool_calls", ()):
            lines.append(f"{role} calls {call['function']['name']}: {call['function']['arguments']}")
    return "\n\n".join(lines)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] if part["type"] == "text" else "[an image]" for part in content)
    return content or ""
