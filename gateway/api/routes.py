"""Every path of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from gateway.feature import Routes, installed
from gateway.server.asgi import Headers
from gateway.wire.chat import ApiName

# Answered by gateway.api.dispatch or the fast protocol, without Starlette; here for whoever asks what paths there are.
DIRECT: Mapping[str, Mapping[str, str]] = {
    "[/v1]/chat/completions": {"POST": "gateway.api.chat:chat_asgi"},
    "[/v1]/": {"GET": "gateway.api.health:answer"},
    "[/v1]/health[/]": {"GET": "gateway.api.health:answer"},
}

OWN = (
    Routes({
        "[/v1]/models[/]": {"GET": "gateway.api.models:models"},
        "[/v1]/models/{name}/ready": {"GET": "gateway.api.models:start"},
        "[/v1]/models/{name}/load": {"POST": "gateway.api.models:load"},
        "[/v1]/models/{name}/unload": {"POST": "gateway.api.models:unload"},
        "[/v1]/models/{name:path}": {"GET": "gateway.api.models:model"},
        "[/v1]/ready": {"GET": "gateway.api.models:ready"},
        "[/v1]/ready/{name:path}": {"GET": "gateway.api.models:ready"},
    }, prefixes=("/",)),
)  # fmt: skip
"""Those of OpenAI's API; `routes` adds those of the features."""


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


@cache
def model_apis() -> Mapping[str, ApiName]:
    """Paths whose requests ask a model, without a slash at their end, and the API of each."""
    tables = [(Routes(DIRECT), "chat"), *((table, table.api) for table in routes())]
    return {
        spelling.rstrip("/"): api
        for table, api in tables
        if api is not None
        for path, handlers in table.paths.items()
        if "POST" in handlers
        for spelling in spellings(path)
    }


@cache
def websockets() -> Mapping[str, str]:
    """Paths over WebSocket; see `gateway.feature.Feature.websockets`."""
    return {path: handler for feature in installed() for path, handler in feature.websockets.items()}


def routes_of(path: str, headers: Headers = ()) -> Routes:
    """The table whose errors and limits a path has: the one with the longest prefix of the path.

    The models have the errors of the API whose client asks for them.
    """
    if "/models/" in f"{path}/" and any(name == b"anthropic-version" for name, _ in headers):
        path = "/v1/messages"
    prefixes = (prefix for table in routes() for prefix in table.prefixes)
    found = max((each for each in prefixes if f"{path}/".startswith(each.rstrip("/") + "/")), key=len, default="/")
    return next(table for table in routes() if found in table.prefixes)
