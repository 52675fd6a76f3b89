"""Every path of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class API(NamedTuple):
    """An API's paths and its format of errors.

    Brackets enclose what a path may leave out. Each method names its handler, which is imported when it is first asked.
    errors: import string of a function, GatewayError → JSON value. prefixes: below them, unknown paths and refused
    keys, too, are answered in that format.
    finishes: its handlers run to their end even if their clients leave.
    """

    prefixes: tuple[str, ...]
    errors: str
    paths: Mapping[str, Mapping[str, str]]
    finishes: bool = False


OPENAI_ERRORS = "gateway.errors:GatewayError.body"

# Answered by gateway.api.entry itself, without Starlette.
DIRECT: Mapping[str, Mapping[str, str]] = {
    "[/v1]/chat/completions": {"POST": "gateway.api.chat:chat_asgi"},
    "[/v1]/": {"GET": "gateway.api.health:answer"},
    "[/v1]/health[/]": {"GET": "gateway.api.health:answer"},
}

APIS = (
    API(("/v1/messages", "/messages"), "gateway.wire.messages.answer:error_object", {
        "[/v1]/messages": {"POST": "gateway.api.messages:create"},
        "[/v1]/messages/count_tokens": {"POST": "gateway.api.messages:count_tokens"},
    }),
    API(("/llm/room", "/api/user"), "gateway.rooms.endpoints:error_object", finishes=True, paths={
        "/llm/room[/]": {"GET": "gateway.rooms.endpoints:visible", "POST": "gateway.rooms.endpoints:rent"},
        "/llm/room/{id}[/]": {"GET": "gateway.rooms.endpoints:get", "PATCH": "gateway.rooms.endpoints:update"},
        "/llm/room/{id}/messages[/]": {"POST": "gateway.rooms.endpoints:say"},
        "/llm/room/{id}/wake[/]": {"POST": "gateway.rooms.endpoints:wake"},
        "/llm/room/{id}/events[/]": {"GET": "gateway.rooms.endpoints:events"},
        "/llm/room/{id}/history[/]": {"GET": "gateway.rooms.endpoints:history"},
        "/llm/room/{id}/interrupt[/]": {"POST": "gateway.rooms.endpoints:interrupt"},
        "/llm/room/{id}/release[/]": {"POST": "gateway.rooms.endpoints:release"},
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
    }),
    API(("/",), OPENAI_ERRORS, {
        "[/v1]/models[/]": {"GET": "gateway.api.models:models"},
        "[/v1]/models/{name}/ready": {"GET": "gateway.api.models:start"},
        "[/v1]/models/{name:path}": {"GET": "gateway.api.models:model"},
        "[/v1]/ready": {"GET": "gateway.api.models:ready"},
        "[/v1]/ready/{name:path}": {"GET": "gateway.api.models:ready"},
        "[/v1]/responses[/]": {"POST": "gateway.api.responses.endpoints:create"},
        "[/v1]/responses/input_tokens": {"POST": "gateway.api.responses.endpoints:input_tokens"},
        "[/v1]/responses/{id}": {
            "GET": "gateway.api.responses.endpoints:retrieve", "DELETE": "gateway.api.responses.endpoints:delete",
        },
        "[/v1]/responses/{id}/cancel": {"POST": "gateway.api.responses.endpoints:cancel"},
        "[/v1]/responses/{id}/input_items": {"GET": "gateway.api.responses.endpoints:input_items"},
        "[/v1]/completions": {"POST": "gateway.api.completions:create"},
        "[/v1]/embeddings": {"POST": "gateway.api.embeddings:embeddings"},
        "[/v1]/rerank": {"POST": "gateway.api.embeddings:rerank"},
        "/metrics": {"GET": "gateway.api.operations.endpoints:metrics"},
        "/-/status": {"GET": "gateway.api.operations.endpoints:status"},
        "/-/plan": {
            "GET": "gateway.api.operations.endpoints:plan", "POST": "gateway.api.operations.endpoints:plan",
        },
        "/-/reload": {"POST": "gateway.api.operations.endpoints:reload"},
        "/-/requests": {"GET": "gateway.api.operations.endpoints:requests"},
        "/-/requests/{key:path}": {"GET": "gateway.api.operations.endpoints:request"},
        "/openapi.json": {"GET": "gateway.api.openapi:describe"},
    }),
)  # fmt: skip


def spellings(path: str) -> Iterator[str]:
    """`[/v1]/models[/]` → `/v1/models/`, `/v1/models`, `/models/`, `/models`."""
    before, bracket, rest = path.partition("[")
    if not bracket:
        yield path
        return
    optional, _, after = rest.partition("]")
    yield from spellings(before + optional + after)
    yield from spellings(before + after)


def errors_for(path: str) -> str:
    """The import string of the error format at this path."""
    for api in APIS:
        if any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in api.prefixes):
            return api.errors
    return OPENAI_ERRORS
