"""The part of `/openapi.json` about OpenAI's API, and what all parts need.

Schemas of requests come from the types that parse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from gateway.config import Role

Json = dict[str, Any]

SCHEMAS = "#/components/schemas/"


def object_of(required: str, **properties: Json) -> Json:
    """required: the required fields, separated by spaces; all others are optional."""
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": True}


def one_of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def list_of(items: Json) -> Json:
    return {"type": "array", "items": items}


def ref(name: str) -> Json:
    return {"$ref": SCHEMAS + name}


TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
FLAG: Json = {"type": "boolean"}
ANY: Json = {}
ROLE = one_of(*get_args(Role))
OBJECT: Json = {"type": "object"}

_MODEL = object_of(
    "id object created owned_by type display_name created_at role roles active available aliases capabilities "
    "tool_call_format",
    id=TEXT, object=one_of("model"), created=COUNT, owned_by=TEXT, type=one_of("model"), display_name=TEXT,
    created_at=TEXT, role=ROLE, roles=list_of(ROLE), active=FLAG, available=FLAG, aliases=list_of(TEXT),
    capabilities=list_of(TEXT), context_window=COUNT, context_length=COUNT, max_model_len=COUNT, tool_call_format=TEXT,
    ready_path=TEXT,
)  # fmt: skip

ANSWERS: dict[str, Json] = {
    "Object": OBJECT,
    "Error": object_of("error", error=object_of("message type code category", message=TEXT, type=TEXT, code=TEXT)),
    "Model": _MODEL,
    "ModelList": object_of("object data", object=one_of("list"), data=list_of(ref("Model"))),
    "Ready": object_of("id ready", id=TEXT, ready=FLAG),
    "Health": object_of("status active_model", status=TEXT, version=TEXT, engines=OBJECT),
    "CreateChatCompletion": object_of(
        "messages",
        messages={"type": "array", "minItems": 1, "items": object_of("role", role=TEXT)},
        model=TEXT, stream=FLAG, tools=list_of(OBJECT), tool_choice=ANY, temperature={"type": "number"},
        max_tokens={"type": "integer"}, max_completion_tokens={"type": "integer"}, n=COUNT, seed={"type": "integer"},
        response_format=OBJECT, stream_options=OBJECT, parallel_tool_calls=FLAG, top_p={"type": "number"},
    ),
    "ChatCompletion": object_of(
        "choices", id=TEXT, object=one_of("chat.completion"), choices=list_of(OBJECT), usage=OBJECT
    ),
}  # fmt: skip


def operation(
    id: str,
    summary: str,
    answer: str,
    *,
    request: str | None = None,
    error: str = "Error",
    stream: str | None = None,
    parameters: tuple[Json, ...] = (),
    tag: str = "OpenAI",
) -> Json:
    """One method of a path. answer, request, error: names of schemas. stream: media type of a streamed answer."""
    content: Json = {"application/json": {"schema": ref(answer)}}
    if stream is not None:
        content[stream] = {"schema": TEXT}
    described: Json = {
        "operationId": id,
        "summary": summary,
        "tags": [tag],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error.", "content": {"application/json": {"schema": ref(error)}}},
        },
    }  # fmt: skip
    if request is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(request)}}}
    if parameters:
        described["parameters"] = list(parameters)
    return described


def parameter(name: str, place: str = "path", schema: Json = TEXT) -> Json:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


SSE = "text/event-stream"
_NAME = (parameter("name"),)
_ALL = (parameter("all", "query", FLAG),)
"""Models without weights, too."""


def operations(id: str, summary: str, stream: str | None = None, parameters: tuple[Json, ...] = ()) -> Json:
    return operation(id, summary, "Object", stream=stream, parameters=parameters, tag="ctxgate")


PATHS: dict[str, Json] = {
    "/health": {"get": operation("health", "Whether the gateway runs; needs no key", "Health", tag="ctxgate")},
    "/ready": {"get": operation("readyNow", "Whether the active model can answer at once", "Object", tag="ctxgate")},
    "/ready/{name}": {
        "get": operation(
            "modelReadyNow", "Whether a model can answer at once", "Object", parameters=_NAME, tag="ctxgate"
        )
    },
    "/v1/models": {"get": operation("models", "The models that can be served", "ModelList", parameters=_ALL)},
    "/v1/models/{name}": {"get": operation("model", "One model", "Model", parameters=(*_NAME, *_ALL))},
    "/v1/models/{name}/ready": {
        "get": operation("ready", "Start its engine; answers once it serves", "Ready", parameters=_NAME, tag="ctxgate")
    },
    "/v1/models/{name}/load": {"post": operations("load", "Load it into memory", parameters=_NAME)},
    "/v1/models/{name}/unload": {"post": operations("unload", "Unload it from memory", parameters=_NAME)},
    "/v1/chat/completions": {
        "post": operation(
            "createChatCompletion", "A chat", "ChatCompletion", request="CreateChatCompletion", stream=SSE
        )
    },
}  # fmt: skip


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS


def described(requests: Mapping[str, type]) -> dict[str, Json]:
    """The schemas of the types and of all that they hold."""
    found: dict[str, Json] = {}
    for name, type in requests.items():
        _, parts = msgspec.json.schema_components([type], ref_template=f"{SCHEMAS}{name}.{{name}}")
        for part, schema in parts.items():
            # Unknown fields are allowed.
            found[name if part == type.__name__ else f"{name}.{part}"] = {**schema, "additionalProperties": True}
    return found
