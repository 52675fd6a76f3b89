"""The part of `/openapi.json` about responses and conversations."""

from __future__ import annotations

from gateway.api.openapi_paths import (
    COUNT,
    FLAG,
    OBJECT,
    SSE,
    TEXT,
    Json,
    described,
    list_of,
    object_of,
    one_of,
    operation,
    parameter,
)
from gateway.features.responses.wire.compact import Compact
from gateway.features.responses.wire.conversations import AddItems, CreateConversation, UpdateConversation
from gateway.features.responses.wire.request import CreateResponse

REQUESTS: dict[str, type] = {
    "CreateResponse": CreateResponse,
    "Compact": Compact,
    "CreateConversation": CreateConversation,
    "UpdateConversation": UpdateConversation,
    "AddItems": AddItems,
}

ANSWERS: dict[str, Json] = {
    "Response": object_of(
        "id object created_at status output model", id=TEXT, object=one_of("response"), created_at=COUNT, model=TEXT,
        status=one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        output=list_of(OBJECT),
    ),
    "ResponseDeleted": object_of("id object deleted", id=TEXT, object=one_of("response"), deleted=FLAG),
    "ItemList": object_of("object data has_more", object=one_of("list"), data=list_of(OBJECT), has_more=FLAG),
    "Compaction": object_of(
        "id object created_at output usage", id=TEXT, object=one_of("response.compaction"), created_at=COUNT,
        output=list_of(OBJECT), usage=OBJECT,
    ),
    "InputTokens": object_of("input_tokens", input_tokens=COUNT),
    "Conversation": object_of(
        "id object created_at metadata", id=TEXT, object=one_of("conversation"), created_at=COUNT, metadata=OBJECT
    ),
    "ConversationDeleted": object_of(
        "id object deleted", id=TEXT, object=one_of("conversation.deleted"), deleted=FLAG
    ),
    "Item": object_of("id type", id=TEXT, type=TEXT),
}  # fmt: skip

_ID = (parameter("response_id"),)
_CONVERSATION = (parameter("conversation_id"),)
_ITEM = (*_CONVERSATION, parameter("item_id"))
_AFTER = parameter("after", "query")
_ORDER = parameter("order", "query", one_of("asc", "desc"))


_LIMIT = parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100})

_PAGE = (*_ID, _LIMIT, _ORDER, _AFTER)

PATHS: dict[str, Json] = {
    "/v1/responses": {
        "post": operation("createResponse", "A response", "Response", request="CreateResponse", stream=SSE)
    },
    "/v1/responses/input_tokens": {
        "post": operation("countInputTokens", "Count the tokens of its prompt", "InputTokens", request="CreateResponse")
    },
    "/v1/responses/compact": {
        "post": operation("compactResponse", "Summarise a conversation", "Compaction", request="Compact")
    },
    "/v1/responses/{response_id}": {
        "get": operation(
            "getResponse", "A stored response", "Response", stream=SSE,
            parameters=(
                *_ID, parameter("stream", "query", FLAG), parameter("starting_after", "query", COUNT),
            ),
        ),
        "delete": operation("deleteResponse", "Delete it", "ResponseDeleted", parameters=_ID),
    },
    "/v1/responses/{response_id}/cancel": {
        "post": operation("cancelResponse", "Cancel a background response", "Response", parameters=_ID)
    },
    "/v1/responses/{response_id}/input_items": {
        "get": operation("listInputItems", "The input of a response", "ItemList", parameters=_PAGE)
    },
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
