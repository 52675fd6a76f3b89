"""The part of `/openapi.json` about what the gateway does."""

from __future__ import annotations

from gateway.api.openapi_paths import COUNT, SSE, TEXT, Json, one_of, operation, operations, parameter

_NAME = (parameter("name"),)
_USAGE = (parameter("by", "query", one_of("day", "key", "model", "client")), parameter("since", "query"))

PATHS: dict[str, Json] = {
    "/metrics": {"get": operations("metrics", "For Prometheus", stream="text/plain")},
    "/-/status": {"get": operations("status", "The state of the gateway")},
    "/-/usage": {"get": operations("usage", "Usage by keys and programs", parameters=_USAGE)},
    "/-/events": {"get": operations("events", "The gateway's activity; with follow=true, live", stream=SSE)},
    "/-/formats": {"get": operations("formats", "Names of tool-call formats")},
    "/-/logs/{name}": {
        "get": operations(
            "engineLog", "The last lines of an engine's log", stream="text/plain",
            parameters=(*_NAME, parameter("lines", "query", COUNT)),
        )
    },
    "/-/chat/completions": {
        "post": operation(
            "createRecordedChatCompletion", "A chat that the request log records", "ChatCompletion",
            request="CreateChatCompletion", stream=SSE, tag="ctxgate",
        )
    },
    "/-/requests": {
        "get": operations(
            "requests", "The last requests",
            parameters=(parameter("limit", "query", COUNT), parameter("after", "query", COUNT)),
        )
    },
    "/-/requests/{name}": {
        "get": operations(
            "request", "One request, with its recording",
            parameters=(
                *_NAME, parameter("as", "query"), parameter("raw", "query", COUNT), parameter("clean", "query", COUNT),
            ),
        )
    },
    "/-/plan": {
        "get": operations("plan", "What a reload of the file would change"),
        "post": {
            **operations("planOf", "What another file would change"),
            "requestBody": {"required": True, "content": {"application/yaml": {"schema": TEXT}}},
        },
    },
    "/-/reload": {"post": operations("reload", "Reload the configuration")},
}  # fmt: skip
