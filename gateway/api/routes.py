"""Every path of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.wire.chat import ApiName


class API(NamedTuple):
    """An API's paths and its format of errors.

    Brackets enclose what a path may leave out. Each method names its handler, which is imported when it is first asked.
    errors: import string of a function, GatewayError → JSON value. limits: import string of a function of
    `gateway.wire.limits`, which writes what is left of a key's limits. prefixes: below them, unknown paths and refused
    keys, too, are answered in that format.
    finishes: its handlers run to their end even if their clients leave.
    """

    prefixes: tuple[str, ...]
    errors: str
    paths: Mapping[str, Mapping[str, str]]
    finishes: bool = False
    limits: str = "gateway.wire.limits:openai_headers"


OPENAI_ERRORS = "gateway.errors:GatewayError.body"

# Answered by gateway.api.entry itself, without Starlette.
DIRECT: Mapping[str, Mapping[str, str]] = {
    "[/v1]/chat/completions": {"POST": "gateway.api.chat:chat_asgi"},
    "[/v1]/": {"GET": "gateway.api.health:answer"},
    "[/v1]/health[/]": {"GET": "gateway.api.health:answer"},
}

# Over WebSocket; the handler takes the services and an ASGI scope of that type, and is imported with its first client.
WEBSOCKETS: Mapping[str, str] = {"[/v1]/responses[/]": "gateway.api.responses.websocket:serve"}

APIS = (
    API(("/v1/messages", "/messages"), "gateway.wire.messages.answer:error_object", {
        "[/v1]/messages": {"POST": "gateway.api.messages:create"},
        "[/v1]/messages/count_tokens": {"POST": "gateway.api.messages:count_tokens"},
    }, limits="gateway.wire.limits:anthropic_headers"),
    API(("/llm", "/api/user"), "gateway.rooms.endpoints:error_object", finishes=True, paths={
        "/llm/room[/]": {"GET": "gateway.rooms.endpoints:visible", "POST": "gateway.rooms.endpoints:rent"},
        "/llm/room/{id}[/]": {"GET": "gateway.rooms.endpoints:get", "PATCH": "gateway.rooms.endpoints:update"},
        "/llm/room/{id}/messages[/]": {"POST": "gateway.rooms.endpoints:say"},
        "/llm/room/{id}/wake[/]": {"POST": "gateway.rooms.endpoints:wake"},
        "/llm/room/{id}/events[/]": {"GET": "gateway.rooms.endpoints:events"},
        "/llm/room/{id}/history[/]": {"GET": "gateway.rooms.endpoints:history"},
        "/llm/room/{id}/interrupt[/]": {"POST": "gateway.rooms.endpoints:interrupt"},
        "/llm/room/{id}/release[/]": {"POST": "gateway.rooms.endpoints:release"},
        "/llm/room/{id}/files[/]": {"GET": "gateway.rooms.files:listed"},
        "/llm/room/{id}/files/{path:path}": {
            "GET": "gateway.rooms.files:content", "PUT": "gateway.rooms.files:upload",
            "DELETE": "gateway.rooms.files:delete",
        },
        "/llm/room/{id}/zip[/]": {"GET": "gateway.rooms.files:zipped"},
        "/llm/factory[/]": {"GET": "gateway.rooms.factory:templates"},
        "/llm/factory/runs[/]": {"GET": "gateway.rooms.factory:runs", "POST": "gateway.rooms.factory:runs"},
        "/llm/factory/{name}[/]": {"GET": "gateway.rooms.factory:template", "POST": "gateway.rooms.factory:make"},
        "/llm/describe[/]": {"GET": "gateway.rooms.records:models"},
        "/llm/describe/{model}[/]": {"GET": "gateway.rooms.records:describe", "PUT": "gateway.rooms.records:define"},
        "/llm/data/{model}[/]": {"GET": "gateway.rooms.records:listed", "POST": "gateway.rooms.records:create"},
        "/llm/data/{model}/{id}[/]": {
            "GET": "gateway.rooms.records:get", "PATCH": "gateway.rooms.records:update",
            "DELETE": "gateway.rooms.records:delete",
        },
        "/llm/find/{model}[/]": {"POST": "gateway.rooms.records:find"},
        "/llm/aggregate/{model}[/]": {"POST": "gateway.rooms.records:aggregate"},
        "/api/user/secrets[/]": {
            "GET": "gateway.rooms.endpoints:secrets", "POST": "gateway.rooms.endpoints:add_secret",
        },
        "/api/user/secrets/{id}[/]": {"DELETE": "gateway.rooms.endpoints:delete_secret"},
    }),
    API(("/api",), "gateway.wire.ollama.answer:error_object", {
        "/api/chat": {"POST": "gateway.api.ollama:chat"},
        "/api/generate": {"POST": "gateway.api.ollama:generate"},
        "/api/embed": {"POST": "gateway.api.ollama:embed"},
        "/api/embeddings": {"POST": "gateway.api.ollama:embeddings"},
        "/api/tags": {"GET": "gateway.api.ollama:tags"},
        "/api/ps": {"GET": "gateway.api.ollama:running"},
        "/api/show": {"POST": "gateway.api.ollama:show"},
        "/api/version": {"GET": "gateway.api.ollama:version"},
        "/api/pull": {"POST": "gateway.api.ollama_models:pull"},
        "/api/delete": {"DELETE": "gateway.api.ollama_models:delete"},
    }),
    API(("/",), OPENAI_ERRORS, {
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
        "[/v1]/files[/]": {
            "GET": "gateway.api.batches.endpoints:files", "POST": "gateway.api.batches.endpoints:upload",
        },
        "[/v1]/files/{id}": {
            "GET": "gateway.api.batches.endpoints:file", "DELETE": "gateway.api.batches.endpoints:delete",
        },
        "[/v1]/files/{id}/content": {"GET": "gateway.api.batches.endpoints:content"},
        "[/v1]/batches[/]": {
            "GET": "gateway.api.batches.endpoints:batches", "POST": "gateway.api.batches.endpoints:create",
        },
        "[/v1]/batches/{id}": {"GET": "gateway.api.batches.endpoints:batch"},
        "[/v1]/batches/{id}/cancel": {"POST": "gateway.api.batches.endpoints:cancel"},
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
        "/-/evaluations": {"GET": "gateway.api.operations.evaluations:evaluations"},
        "/-/evaluations/{id}": {"GET": "gateway.api.operations.evaluations:evaluation"},
        "/-/formats": {"GET": "gateway.api.operations.endpoints:formats"},
        "/-/logs/{name:path}": {"GET": "gateway.api.operations.endpoints:logs"},
        "/-/chat/completions": {"POST": "gateway.api.operations.recorded:create"},
        "/-/requests": {"GET": "gateway.api.operations.endpoints:requests"},
        "/-/requests/{key:path}": {"GET": "gateway.api.operations.endpoints:request"},
        "/openapi.json": {"GET": "gateway.api.openapi:describe"},
        "/llms.txt": {"GET": "gateway.api.llms_txt:show"},
        "/ui/{file:path}": {"GET": "gateway.api.page:file"},
    }),
)  # fmt: skip


MODEL_APIS: Mapping[str, ApiName] = {
    "/messages": "messages",
    "/responses": "responses",
    "/completions": "completions",
    "/embeddings": "embeddings",
    "/rerank": "rerank",
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


def api_of(path: str) -> API:
    """The API at this path, or the one whose format its errors have."""
    for api in APIS:
        if any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in api.prefixes):
            return api
    return APIS[-1]
