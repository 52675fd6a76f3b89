"""`/v1/conversations`: validates requests, and shows items as OpenAI does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses.wire.answer import new_id
from gateway.features.responses.wire.request import Item, add_item, is_reference
from gateway.wire import body
from gateway.wire.chat import encode
from gateway.wire.conversation import Conversation
from gateway.wire.stored import check_metadata

MAX_ITEMS = 20
"""Items that one request may add: OpenAI's limit."""
LONGEST_ID = 256
"""Characters of an item's id, by which it is found again."""
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc", "compaction": "cmp"}
PREFIXES |= {"mcp_call": "mcp", "mcp_list_tools": "mcpl"}
_STATED = (
    *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"),
)
"""Items that have a status."""


class CreateConversation(Struct):
    items: list[Item] | None = None
    metadata: dict[str, str] | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateConversation:
        """Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock, which name the invalid field."""
        request = body.read(_create_decoder, data or b"{}")
        check_metadata(request.metadata)
        check_items(request.items or [])
        return request


class UpdateConversation(Struct):
    metadata: dict[str, str] | None = None

    @classmethod
    def parse(cls, data: bytes) -> UpdateConversation:
        """Raises ProviderInvalidRequest."""
        request = body.read(_update_decoder, data)
        check_metadata(request.metadata)
        return request


class AddItems(Struct):
    items: list[Item] = field(default_factory=list)

    @classmethod
    def parse(cls, data: bytes) -> AddItems:
        """Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock."""
        request = body.read(_add_decoder, data)
        if not request.items:
            raise ProviderInvalidRequest("items: at least one item is required", param="items")
        check_items(request.items)
        return request


_create_decoder = msgspec.json.Decoder(CreateConversation)
_update_decoder = msgspec.json.Decoder(UpdateConversation)
_add_decoder = msgspec.json.Decoder(AddItems)


def check_items(items: list[Item]) -> None:
    """Raises what a request that sent them as input would raise."""
    if len(items) > MAX_ITEMS:
        raise ProviderInvalidRequest(f"items: at most {MAX_ITEMS} at a time", param="items")
    conversation = Conversation()
    for position, item in enumerate(items):
        if not is_reference(item):  # those are read once what they name is there
            add_item(conversation, item, f"items[{position}]")


def with_ids(items: Iterable[Item], known: set[Any]) -> list[Item]:
    """The items, each with its own id. Those without one, with one of `known` or with an endless one get new ones."""
    found = []
    for item in items:
        id = item.get("id")
        if not is_id(id) or id in known:
            id = new_id(PREFIXES.get(_kind(item), "item"))
        known.add(id)
        found.append({**item, "id": id})
    return found


def is_id(value: Any) -> bool:
    """Whether a stored item may have it."""
    return isinstance(value, str) and len(value) <= LONGEST_ID and "\0" not in value


Written = tuple[str, str]
"""The id and the JSON of an item."""


def written(items: Iterable[Item]) -> list[Written]:
    return [(str(item.get("id") or ""), encode(item).decode()) for item in items]


def shown(item: Item) -> Item:
    """The item with all that clients expect: its type, its status, and content as parts."""
    kind = _kind(item)
    found: Item = {**item, "type": kind}
    if kind in _STATED:
        found.setdefault("status", "completed")
    if kind == "message":
        content, said = item.get("content"), item.get("role") == "assistant"
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        found["content"] = [_part(part, said=said) for part in parts]
    if kind == "reasoning":
        found.setdefault("summary", [])
    return found


def _part(part: Item, *, said: bool) -> Item:
    """said: by the model."""
    if part.get("type") not in ("text", "input_text", "output_text"):
        return part
    if said:
        return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
    return {**part, "type": "input_text"}


def _kind(item: Item) -> str:
    return str(item.get("type") or "message")
