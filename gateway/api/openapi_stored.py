"""The part of `/openapi.json` about conversations."""

from __future__ import annotations

from gateway.api.openapi_paths import (
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    Json,
    described,
    object_of,
    one_of,
    operation,
    parameter,
)
from gateway.wire.responses.conversations import AddItems, CreateConversation, UpdateConversation

REQUESTS: dict[str, type] = {
    "CreateConversation": CreateConversation,
    "UpdateConversation": UpdateConversation,
    "AddItems": AddItems,
}

ANSWERS: dict[str, Json] = {
    "Conversation": object_of(
        "id object created_at metadata", id=TEXT, object=one_of("conversation"), created_at=COUNT, metadata=OBJECT
    ),
    "ConversationDeleted": object_of(
        "id object deleted", id=TEXT, object=one_of("conversation.deleted"), deleted=FLAG
    ),
    "Item": object_of("id type", id=TEXT, type=TEXT),
}  # fmt: skip

_CONVERSATION = (parameter("conversation_id"),)
_ITEM = (*_CONVERSATION, parameter("item_id"))
_AFTER = parameter("after", "query")
_ORDER = parameter("order", "query", one_of("asc", "desc"))


_LIMIT = parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100})

PATHS: dict[str, Json] = {
    "/v1/conversations": {
        "post": operation("createConversation", "A conversation", "Conversation", request="CreateConversation")
    },
    "/v1/conversations/{conversation_id}": {
        "get": operation("getConversation", "One conversation", "Conversation", parameters=_CONVERSATION),
        "post": operation(
            "updateConversation", "Change its metadata", "Conversation", request="UpdateConversation",
            parameters=_CONVERSATION,
        ),
        "delete": operation("deleteConversation", "Delete it", "ConversationDeleted", parameters=_CONVERSATION),
    },
    "/v1/conversations/{conversation_id}/items": {
        "get": operation(
            "listConversationItems", "Its items", "ItemList",
            parameters=(*_CONVERSATION, _LIMIT, _AFTER, _ORDER),
        ),
        "post": operation(
            "addConversationItems", "Add items", "ItemList", request="AddItems", parameters=_CONVERSATION
        ),
    },
    "/v1/conversations/{conversation_id}/items/{item_id}": {
        "get": operation("getConversationItem", "One item", "Item", parameters=_ITEM),
        "delete": operation("deleteConversationItem", "Delete it", "Conversation", parameters=_ITEM),
    },
}  # fmt: skip


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described(REQUESTS)
