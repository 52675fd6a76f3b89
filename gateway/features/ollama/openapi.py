"""The part of `/openapi.json` about Ollama's API."""

from __future__ import annotations

from gateway.api.openapi_paths import FLAG, TEXT, Json, described, list_of, object_of, operation, parameter
from gateway.features.ollama.endpoints import VERSION
from gateway.features.ollama.wire.request import Chat, Embed, Generate, Named

REQUESTS: dict[str, type] = {
    "OllamaChat": Chat,
    "OllamaGenerate": Generate,
    "OllamaEmbed": Embed,
    "OllamaNamed": Named,
}

ANSWERS: dict[str, Json] = {
    "OllamaError": object_of("error", error=TEXT),
    "OllamaLine": object_of("model created_at done", model=TEXT, created_at=TEXT, done=FLAG),
    "OllamaEmbeddings": object_of(
        "", embeddings=list_of(list_of({"type": "number"})), embedding=list_of({"type": "number"})
    ),
    "OllamaModels": object_of("models", models=list_of(object_of("name model", name=TEXT, model=TEXT))),
    "OllamaModel": object_of("details model_info capabilities", capabilities=list_of(TEXT)),
    "OllamaVersion": {**object_of("version", version=TEXT), "example": {"version": VERSION}},
}  # fmt: skip

NDJSON = "application/x-ndjson"


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


_ALL = (parameter("all", "query", FLAG),)
"""Models without weights, too."""

PATHS: dict[str, Json] = {
    "/api/chat": {"post": ollama("ollamaChat", "A chat", "OllamaLine", "OllamaChat", NDJSON)},
    "/api/generate": {"post": ollama("ollamaGenerate", "A text", "OllamaLine", "OllamaGenerate", NDJSON)},
    "/api/embed": {"post": ollama("ollamaEmbed", "Vectors", "OllamaEmbeddings", "OllamaEmbed")},
    "/api/embeddings": {"post": ollama("ollamaEmbeddings", "A vector", "OllamaEmbeddings", "OllamaEmbed")},
    "/api/tags": {"get": ollama("ollamaTags", "The models that can be served", "OllamaModels", parameters=_ALL)},
    "/api/ps": {"get": ollama("ollamaPs", "Models with running engines", "OllamaModels")},
    "/api/show": {"post": ollama("ollamaShow", "One model", "OllamaModel", "OllamaNamed")},
    "/api/version": {"get": ollama("ollamaVersion", "The version of the API", "OllamaVersion")},
}


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described(REQUESTS)
