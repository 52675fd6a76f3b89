"""OpenAI's Responses and Conversations APIs."""

from __future__ import annotations

from gateway.feature import Feature, Routes

ASKED = Routes(
    {"[/v1]/responses[/]": {"POST": "gateway.features.responses.endpoints:create"}},
    prefixes=("/v1/responses", "/responses"),
    errors="gateway.features.responses.wire.errors:error_object",
    api="responses",
)

STORED = Routes({
    "[/v1]/responses/compact": {"POST": "gateway.features.responses.endpoints:compact"},
    "[/v1]/responses/input_tokens": {"POST": "gateway.features.responses.endpoints:input_tokens"},
    "[/v1]/responses/{id}": {
        "GET": "gateway.features.responses.endpoints:retrieve",
        "DELETE": "gateway.features.responses.endpoints:delete",
    },
    "[/v1]/responses/{id}/cancel": {"POST": "gateway.features.responses.endpoints:cancel"},
    "[/v1]/responses/{id}/input_items": {"GET": "gateway.features.responses.endpoints:input_items"},
})  # fmt: skip

CONVERSATIONS = Routes({
    "[/v1]/conversations[/]": {"POST": "gateway.features.responses.conversations:create"},
    "[/v1]/conversations/{id}": {
        "GET": "gateway.features.responses.conversations:retrieve",
        "POST": "gateway.features.responses.conversations:update",
        "DELETE": "gateway.features.responses.conversations:delete",
    },
    "[/v1]/conversations/{id}/items": {
        "GET": "gateway.features.responses.conversations:items",
        "POST": "gateway.features.responses.conversations:add_items",
    },
    "[/v1]/conversations/{id}/items/{item}": {
        "GET": "gateway.features.responses.conversations:item",
        "DELETE": "gateway.features.responses.conversations:delete_item",
    },
})  # fmt: skip

FEATURE = Feature(
    name="responses",
    routes=(ASKED, STORED, CONVERSATIONS),
    websockets={"[/v1]/responses[/]": "gateway.features.responses.websocket:serve"},
    prunes=(
        "gateway.features.responses.response_store:prune",
        "gateway.features.responses.conversation_store:prune",
    ),
    migrations="gateway.features.responses.migrations",
    openapi="gateway.features.responses.openapi",
)
