"""Every path of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from gateway.feature import Routes, installed
from gateway.wire.chat import ApiName

# Answered by gateway.api.dispatch or the fast protocol, without Starlette; here for whoever asks what paths there are.
DIRECT: Mapping[str, Mapping[str, str]] = {
    "[/v1]/chat/completions": {"POST": "gateway.api.chat:chat_asgi"},
    "[/v1]/": {"GET": "gateway.api.health:answer"},
    "[/v1]/health[/]": {"GET": "gateway.api.health:answer"},
}

# Over WebSocket; the handler takes the services and an ASGI scope of that type, and is imported with its first client.
WEBSOCKETS: Mapping[str, str] = {"[/v1]/responses[/]": "gateway.api.responses.websocket:serve"}

OWN = (
    Routes({
        "[/v1]/messages": {"POST": "gateway.api.messages:create"},
        "[/v1]/messages/count_tokens": {"POST": "gateway.api.messages:count_tokens"},
    }, prefixes=("/v1/messages", "/messages"), errors="gateway.wire.messages.answer:error_object",
        limits="gateway.wire.limits:anthropic_headers"),
    Routes({
        "/api/chat": {"POST": "gateway.api.ollama:chat"},
        "/api/generate": {"POST": "gateway.api.ollama:generate"},
        "/api/embed": {"POST": "gateway.api.ollama:embed"},
        "/api/embeddings": {"POST": "gateway.api.ollama:embeddings"},
        "/api/tags": {"GET": "gateway.api.ollama:tags"},
        "/api/ps": {"GET": "gateway.api.ollama:running"},
        "/api/show": {"POST": "gateway.api.ollama:show"},
        "/api/version": {"GET": "gateway.api.ollama:version"},
    }, prefixes=("/api",), errors="gateway.wire.ollama.answer:error_object"),
    Routes({
        "[/v1]/models[/]": {"GET": "gateway.api.models:models"},
        "[/v1]/models/{name}/ready": {"GET": "gateway.api.models:start"},
        "[/v1]/models/{name}/load": {"POST": "gateway.api.models:load"},
        "[/v1]/models/{name}/unload": {"POST": "gateway.api.models:unload"},
        "[/v1]/models/{name:path}": {"GET": "gateway.api.models:model"},
        "[/v1]/ready": {"GET": "gateway.api.models:ready"},
        "[/v1]/ready/{name:path}": {"GET": "gateway.api.models:ready"},
        "[/v1]/responses[/]": {"POST": "gateway.api.responses.endpoints:create"},
        "[/v1]/responses/compact": {"POST": "gateway.api.responses.endpoints:compact"},
        "[/v1]/responses/input_tokens": {"POST": "gateway.api.responses.endpoints:input_tokens"},
        "[/v1]/responses/{id}": {
            "GET": "gateway.api.responses.endpoints:retrieve", "DELETE": "gateway.api.responses.endpoints:delete",
        },
        "[/v1]/responses/{id}/cancel": {"POST": "gateway.api.responses.endpoints:cancel"},
        "[/v1]/responses/{id}/input_items": {"GET": "gateway.api.responses.endpoints:input_items"},
        "[/v1]/conversations[/]": {"POST": "gateway.api.responses.conversations:create"},
        "[/v1]/conversations/{id}": {
            "GET": "gateway.api.responses.conversations:retrieve",
            "POST": "gateway.api.responses.conversations:update",
            "DELETE": "gateway.api.responses.conversations:delete",
        },
        "[/v1]/conversations/{id}/items": {
            "GET": "gateway.api.responses.conversations:items", "POST": "gateway.api.responses.conversations:add_items",
        },
        "[/v1]/conversations/{id}/items/{item}": {
            "GET": "gateway.api.responses.conversations:item",
            "DELETE": "gateway.api.responses.conversations:delete_item",
        },
        "[/v1]/completions": {"POST": "gateway.api.completions:create"},
        "[/v1]/embeddings": {"POST": "gateway.api.embeddings:embeddings"},
        "[/v1]/rerank": {"POST": "gateway.api.embeddings:rerank"},
        "/metrics": {"GET": "gateway.api.operations.endpoints:metrics"},
        "/-/status": {"GET": "gateway.api.operations.endpoints:status"},
        "/-/plan": {
            "GET": "gateway.api.operations.endpoints:plan", "POST": "gateway.api.operations.endpoints:plan",
        },
        "/-/reload": {"POST": "gateway.api.operations.endpoints:reload"},
        "/-/usage": {"GET": "gateway.api.operations.usage:usage"},
        "/-/events": {"GET": "gateway.api.operations.live:events"},
        "/-/formats": {"GET": "gateway.api.operations.endpoints:formats"},
        "/-/logs/{name:path}": {"GET": "gateway.api.operations.endpoints:logs"},
        "/-/chat/completions": {"POST": "gateway.api.operations.recorded:create"},
        "/-/requests": {"GET": "gateway.api.operations.endpoints:requests"},
        "/-/requests/{key:path}": {"GET": "gateway.api.operations.endpoints:request"},
        "/openapi.json": {"GET": "gateway.api.openapi:describe"},
        "/llms.txt": {"GET": "gateway.api.llms_txt:show"},
    }, prefixes=("/",)),
)  # fmt: skip
"""Those of the APIs; `routes` adds those of the features."""


MODEL_APIS: Mapping[str, ApiName] = {
    "/messages": "messages",
    "/responses": "responses",
    "/completions": "completions",
    "/embeddings": "embeddings",
    "/rerank": "rerank",
    "/audio/transcriptions": "audio",
    "/audio/translations": "audio",
    "/audio/speech": "audio",
    "/images/generations": "images",
    "/images/edits": "images",
    "/images/variations": "images",
    "/infill": "infill",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
    "/api/embed": "ollama",
    "/api/embeddings": "ollama",
    "/-/chat/completions": "chat",
}
"""Paths, without /v1, whose requests ask a model; those that are refused are in the request log, too."""


def spellings(path: str) -> Iterator[str]:
    """`[/v1]/models[/]` → `/v1/models/`, `/v1/models`, `/models/`, `/models`."""
    before, bracket, rest = path.partition("[")
    if not bracket:
        yield path
        return
    optional, _, after = rest.partition("]")
    yield from spellings(before + optional + after)
    yield from spellings(before + after)


@cache
def routes() -> tuple[Routes, ...]:
    """All of them. Where two have the same path, the earlier one answers."""
    return (*OWN, *(table for feature in installed() for table in feature.routes))


def routes_of(path: str) -> Routes:
    """Those with this path, or those whose format its errors have: the ones of the longest prefix."""
    found = max(
        (prefix for table in routes() for prefix in table.prefixes if _is_below(path, prefix)), key=len, default="/"
    )
    return next(table for table in routes() if found in table.prefixes)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix.rstrip("/") + "/")
