"""The part of `/openapi.json` about Ollama's pull and delete."""

from __future__ import annotations

from gateway.api.openapi_paths import NDJSON, Json, ollama

PATHS: dict[str, Json] = {
    "/api/pull": {"post": ollama("ollamaPull", "Fetch a model", "OllamaLine", "OllamaNamed", NDJSON)},
    "/api/delete": {"delete": ollama("ollamaDelete", "Remove a model", "OllamaLine", "OllamaNamed")},
}
