"""The part of `/openapi.json` about /v1 and Ollama's API. Schemas of requests come from the types that parse them."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api.ollama import VERSION
from gateway.wire import completions, embeddings
from gateway.wire.messages.request import CreateMessage
from gateway.wire.ollama.request import Chat, Embed, Generate, Named
from gateway.wire.responses.request import CreateResponse

Json = dict[str, Any]

SCHEMAS = "#/components/schemas/"

REQUESTS: dict[str, type] = {
    "CreateResponse": CreateResponse,
    "CreateMessage": CreateMessage,
    "CreateCompletion": completions.Known,
    "CreateEmbedding": embeddings.CreateEmbedding,
    "CreateRerank": embeddings.CreateRerank,
    "OllamaChat": Chat,
    "OllamaGenerate": Generate,
    "OllamaEmbed": Embed,
    "OllamaNamed": Named,
}


def _object(required: str, **properties: Json) -> Json:
    """required: the required fields, separated by spaces; all others are optional."""
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": True}


def _of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": SCHEMAS + name}


TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
FLAG: Json = {"type": "boolean"}
ANY: Json = {}
OBJECT: Json = {"type": "object"}

_MODEL = _object(
    "id object created owned_by type display_name created_at role active available aliases capabilities "
    "tool_call_format",
    id=TEXT, object=_of("model"), created=COUNT, owned_by=TEXT, type=_of("model"), display_name=TEXT, created_at=TEXT,
    role=_of("chat", "embedding", "rerank"), active=FLAG, available=FLAG, aliases=_list(TEXT), capabilities=_list(TEXT),
    context_window=COUNT, context_length=COUNT, max_model_len=COUNT, tool_call_format=TEXT, ready_path=TEXT,
)  # fmt: skip

ANSWERS: dict[str, Json] = {
    "Object": OBJECT,
    "Error": _object("error", error=_object("message type code category", message=TEXT, type=TEXT, code=TEXT)),
    "AnthropicError": _object(
        "type error", type=_of("error"), error=_object("type message", type=TEXT, message=TEXT)
    ),
    "OllamaError": _object("error", error=TEXT),
    "Model": _MODEL,
    "ModelList": _object("object data", object=_of("list"), data=_list(_ref("Model"))),
    "Ready": _object("id ready", id=TEXT, ready=FLAG),
    "Health": _object("status version active_model engines", status=TEXT, version=TEXT, engines=OBJECT),
    "CreateChatCompletion": _object(
        "messages",
        messages={"type": "array", "minItems": 1, "items": _object("role", role=TEXT)},
        model=TEXT, stream=FLAG, tools=_list(OBJECT), tool_choice=ANY, temperature={"type": "number"},
        max_tokens={"type": "integer"}, max_completion_tokens={"type": "integer"}, n=COUNT, seed={"type": "integer"},
        response_format=OBJECT, stream_options=OBJECT, parallel_tool_calls=FLAG, top_p={"type": "number"},
    ),
    "ChatCompletion": _object("choices", id=TEXT, object=_of("chat.completion"), choices=_list(OBJECT), usage=OBJECT),
    "Completion": _object("choices", choices=_list(OBJECT)),
    "EmbeddingList": _object("object data model usage", data=_list(OBJECT), model=TEXT, usage=OBJECT),
    "RerankList": _object("results model", results=_list(_object("index relevance_score"))),
    "Response": _object(
        "id object created_at status output model", id=TEXT, object=_of("response"), created_at=COUNT, model=TEXT,
        status=_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"), output=_list(OBJECT),
    ),
    "ResponseDeleted": _object("id object deleted", id=TEXT, object=_of("response"), deleted=FLAG),
    "ItemList": _object("object data has_more", object=_of("list"), data=_list(OBJECT), has_more=FLAG),
    "InputTokens": _object("input_tokens", input_tokens=COUNT),
    "Message": _object(
        "id type role model content stop_reason usage", id=TEXT, type=_of("message"), role=_of("assistant"),
        model=TEXT, content=_list(OBJECT), usage=OBJECT,
    ),
    "OllamaLine": _object("model created_at done", model=TEXT, created_at=TEXT, done=FLAG),
    "OllamaEmbeddings": _object("", embeddings=_list(_list({"type": "number"})), embedding=_list({"type": "number"})),
    "OllamaModels": _object("models", models=_list(_object("name model", name=TEXT, model=TEXT))),
    "OllamaModel": _object("details model_info capabilities", capabilities=_list(TEXT)),
    "OllamaVersion": {**_object("version", version=TEXT), "example": {"version": VERSION}},
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


def _ollama(
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


def _operations(id: str, summary: str, stream: str | None = None, parameters: tuple[Json, ...] = ()) -> Json:
    return operation(id, summary, "Object", stream=stream, parameters=parameters, tag="ctxgate")


_PAGE = (
    *_ID,
    parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100}),
    parameter("order", "query", _of("asc", "desc")),
    parameter("after", "query"),
)
_NDJSON = "application/x-ndjson"

PATHS: dict[str, Json] = {
    "/health": {"get": operation("health", "Whether the gateway runs; needs no key", "Health", tag="ctxgate")},
    "/ready": {"get": operation("readyNow", "Whether the active model can answer at once", "Object", tag="ctxgate")},
    "/ready/{name}": {
        "get": operation(
            "modelReadyNow", "Whether a model can answer at once", "Object", parameters=_NAME, tag="ctxgate"
        )
    },
    "/metrics": {"get": _operations("metrics", "For Prometheus", stream="text/plain")},
    "/-/status": {"get": _operations("status", "The state of the gateway")},
    "/-/requests": {"get": _operations("requests", "The last requests")},
    "/-/requests/{name}": {"get": _operations("request", "One of them", parameters=_NAME)},
    "/-/plan": {
        "get": _operations("plan", "What a reload of the file would change"),
        "post": {
            **_operations("planOf", "What another file would change"),
            "requestBody": {"required": True, "content": {"application/yaml": {"schema": TEXT}}},
        },
    },
    "/-/reload": {"post": _operations("reload", "Reload the configuration")},
    "/openapi.json": {"get": _operations("openapi", "This document")},
    "/v1/models": {"get": operation("models", "The models that can be served", "ModelList", parameters=_ALL)},
    "/v1/models/{name}": {"get": operation("model", "One of them", "Model", parameters=(*_NAME, *_ALL))},
    "/v1/models/{name}/ready": {
        "get": operation("ready", "Start its engine; answers once it serves", "Ready", parameters=_NAME, tag="ctxgate")
    },
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
    "/api/chat": {"post": _ollama("ollamaChat", "A chat", "OllamaLine", "OllamaChat", _NDJSON)},
    "/api/generate": {"post": _ollama("ollamaGenerate", "A text", "OllamaLine", "OllamaGenerate", _NDJSON)},
    "/api/embed": {"post": _ollama("ollamaEmbed", "Vectors", "OllamaEmbeddings", "OllamaEmbed")},
    "/api/embeddings": {"post": _ollama("ollamaEmbeddings", "A vector", "OllamaEmbeddings", "OllamaEmbed")},
    "/api/tags": {"get": _ollama("ollamaTags", "The models that can be served", "OllamaModels", parameters=_ALL)},
    "/api/ps": {"get": _ollama("ollamaPs", "Models with running engines", "OllamaModels")},
    "/api/show": {"post": _ollama("ollamaShow", "One of them", "OllamaModel", "OllamaNamed")},
    "/api/version": {"get": _ollama("ollamaVersion", "The version of the API", "OllamaVersion")},
}  # fmt: skip


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    found: dict[str, Json] = dict(ANSWERS)
    for name, type in REQUESTS.items():
        _, parts = msgspec.json.schema_components([type], ref_template=f"{SCHEMAS}{name}.{{name}}")
        for part, schema in parts.items():
            # Unknown fields are allowed.
            found[name if part == type.__name__ else f"{name}.{part}"] = {**schema, "additionalProperties": True}
    return found
