"""The part of `/openapi.json` about /v1 and Ollama's API. Schemas of requests come from the types that parse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from gateway.api.ollama import VERSION
from gateway.config import Role
from gateway.wire import completions, embeddings
from gateway.wire.messages.request import CreateMessage
from gateway.wire.ollama.request import Chat, Embed, Generate, Named
from gateway.wire.responses.compact import Compact
from gateway.wire.responses.request import CreateResponse

Json = dict[str, Any]

SCHEMAS = "#/components/schemas/"

REQUESTS: dict[str, type] = {
    "CreateResponse": CreateResponse,
    "Compact": Compact,
    "CreateMessage": CreateMessage,
    "CreateCompletion": completions.Known,
    "CreateEmbedding": embeddings.CreateEmbedding,
    "CreateRerank": embeddings.CreateRerank,
    "OllamaChat": Chat,
    "OllamaGenerate": Generate,
    "OllamaEmbed": Embed,
    "OllamaNamed": Named,
}


def object_of(required: str, **properties: Json) -> Json:
    """required: the required fields, separated by spaces; all others are optional."""
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": True}


def one_of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def list_of(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
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
    "AnthropicError": object_of(
        "type error", type=one_of("error"), error=object_of("type message", type=TEXT, message=TEXT)
    ),
    "OllamaError": object_of("error", error=TEXT),
    "Model": _MODEL,
    "ModelList": object_of("object data", object=one_of("list"), data=list_of(_ref("Model"))),
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
    "Completion": object_of("choices", choices=list_of(OBJECT)),
    "EmbeddingList": object_of("object data model usage", data=list_of(OBJECT), model=TEXT, usage=OBJECT),
    "RerankList": object_of("results model", results=list_of(object_of("index relevance_score"))),
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
    "Message": object_of(
        "id type role model content stop_reason usage", id=TEXT, type=one_of("message"), role=one_of("assistant"),
        model=TEXT, content=list_of(OBJECT), usage=OBJECT,
    ),
    "OllamaLine": object_of("model created_at done", model=TEXT, created_at=TEXT, done=FLAG),
    "OllamaEmbeddings": object_of(
        "", embeddings=list_of(list_of({"type": "number"})), embedding=list_of({"type": "number"})
    ),
    "OllamaModels": object_of("models", models=list_of(object_of("name model", name=TEXT, model=TEXT))),
    "OllamaModel": object_of("details model_info capabilities", capabilities=list_of(TEXT)),
    "OllamaVersion": {**object_of("version", version=TEXT), "example": {"version": VERSION}},
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
    content: Json = {"application/json": {"schema": _ref(answer)}}
    if stream is not None:
        content[stream] = {"schema": TEXT}
    described: Json = {
        "operationId": id,
        "summary": summary,
        "tags": [tag],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {
                "description": "An error.", "content": {"application/json": {"schema": _ref(error)}},
            },
        },
    }  # fmt: skip
    if request is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    if parameters:
        described["parameters"] = list(parameters)
    return described


def parameter(name: str, place: str = "path", schema: Json = TEXT) -> Json:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


_SSE = "text/event-stream"
_ID = (parameter("response_id"),)
_NAME = (parameter("name"),)
_ALL = (parameter("all", "query", FLAG),)
"""Models without weights, too."""


def _anthropic(id: str, summary: str, answer: str, stream: str | None = None) -> Json:
    return operation(
        id, summary, answer, request="CreateMessage", error="AnthropicError", stream=stream, tag="Anthropic"
    )


def ollama(
    id: str,
    summary: str,
    answer: str,
    request: str | None = None,
    stream: str | None = None,
    parameters: tuple[Json, ...] = (),
) -> Json:
    return operation(
        id,
        summary,
        answer,
        request=request,
        error="OllamaError",
        stream=stream,
        parameters=parameters,
        tag="Ollama",
    )


def operations(id: str, summary: str, stream: str | None = None, parameters: tuple[Json, ...] = ()) -> Json:
    return operation(id, summary, "Object", stream=stream, parameters=parameters, tag="ctxgate")


_PAGE = (
    *_ID,
    parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100}),
    parameter("order", "query", one_of("asc", "desc")),
    parameter("after", "query"),
)
_USAGE = (parameter("by", "query", one_of("day", "key", "model", "client")), parameter("since", "query"))
NDJSON = "application/x-ndjson"

PATHS: dict[str, Json] = {
    "/health": {"get": operation("health", "Whether the gateway runs; needs no key", "Health", tag="ctxgate")},
    "/ready": {"get": operation("readyNow", "Whether the active model can answer at once", "Object", tag="ctxgate")},
    "/ready/{name}": {
        "get": operation(
            "modelReadyNow", "Whether a model can answer at once", "Object", parameters=_NAME, tag="ctxgate"
        )
    },
    "/metrics": {"get": operations("metrics", "For Prometheus", stream="text/plain")},
    "/-/status": {"get": operations("status", "The state of the gateway")},
    "/-/usage": {"get": operations("usage", "Usage by keys and programs", parameters=_USAGE)},
    "/-/events": {"get": operations("events", "The gateway's activity; with follow=true, live", stream=_SSE)},
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
            request="CreateChatCompletion", stream=_SSE, tag="ctxgate",
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
    "/openapi.json": {"get": operations("openapi", "This document")},
    "/llms.txt": {"get": operations("llms", "A list of these endpoints, for language models", stream="text/plain")},
    "/v1/models": {"get": operation("models", "The models that can be served", "ModelList", parameters=_ALL)},
    "/v1/models/{name}": {"get": operation("model", "One model", "Model", parameters=(*_NAME, *_ALL))},
    "/v1/models/{name}/ready": {
        "get": operation("ready", "Start its engine; answers once it serves", "Ready", parameters=_NAME, tag="ctxgate")
    },
    "/v1/models/{name}/load": {"post": operations("load", "Load it into memory", parameters=_NAME)},
    "/v1/models/{name}/unload": {"post": operations("unload", "Unload it from memory", parameters=_NAME)},
    "/v1/chat/completions": {
        "post": operation(
            "createChatCompletion", "A chat", "ChatCompletion", request="CreateChatCompletion", stream=_SSE
        )
    },
    "/v1/completions": {
        "post": operation("createCompletion", "Continue a text", "Completion", request="CreateCompletion", stream=_SSE)
    },
    "/v1/embeddings": {"post": operation("createEmbedding", "Vectors", "EmbeddingList", request="CreateEmbedding")},
    "/v1/rerank": {"post": operation("rerank", "Ranked texts", "RerankList", request="CreateRerank", tag="Jina")},
    "/v1/responses": {
        "post": operation("createResponse", "A response", "Response", request="CreateResponse", stream=_SSE)
    },
    "/v1/responses/input_tokens": {
        "post": operation("countInputTokens", "Count the tokens of its prompt", "InputTokens", request="CreateResponse")
    },
    "/v1/responses/compact": {
        "post": operation("compactResponse", "Summarise a conversation", "Compaction", request="Compact")
    },
    "/v1/responses/{response_id}": {
        "get": operation(
            "getResponse", "A stored response", "Response", stream=_SSE,
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
    "/v1/messages": {"post": _anthropic("createMessage", "A message", "Message", _SSE)},
    "/v1/messages/count_tokens": {"post": _anthropic("countTokens", "Count the tokens of its prompt", "InputTokens")},
    "/api/chat": {"post": ollama("ollamaChat", "A chat", "OllamaLine", "OllamaChat", NDJSON)},
    "/api/generate": {"post": ollama("ollamaGenerate", "A text", "OllamaLine", "OllamaGenerate", NDJSON)},
    "/api/embed": {"post": ollama("ollamaEmbed", "Vectors", "OllamaEmbeddings", "OllamaEmbed")},
    "/api/embeddings": {"post": ollama("ollamaEmbeddings", "A vector", "OllamaEmbeddings", "OllamaEmbed")},
    "/api/tags": {"get": ollama("ollamaTags", "The models that can be served", "OllamaModels", parameters=_ALL)},
    "/api/ps": {"get": ollama("ollamaPs", "Models with running engines", "OllamaModels")},
    "/api/show": {"post": ollama("ollamaShow", "One model", "OllamaModel", "OllamaNamed")},
    "/api/version": {"get": ollama("ollamaVersion", "The version of the API", "OllamaVersion")},
}  # fmt: skip


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described(REQUESTS)


def described(requests: Mapping[str, type]) -> dict[str, Json]:
    """The schemas of the types and of all that they hold."""
    found: dict[str, Json] = {}
    for name, type in requests.items():
        _, parts = msgspec.json.schema_components([type], ref_template=f"{SCHEMAS}{name}.{{name}}")
        for part, schema in parts.items():
            # Unknown fields are allowed.
            found[name if part == type.__name__ else f"{name}.{part}"] = {**schema, "additionalProperties": True}
    return found
