"""The part of `/openapi.json` about managing models."""

from __future__ import annotations

from gateway.api.openapi_paths import OBJECT, Json, operations, parameter
from gateway.features.ollama.openapi import NDJSON, ollama

_NAME = (parameter("name"),)


def _taking(operation: Json) -> Json:
    """With a JSON object as its body."""
    return {**operation, "requestBody": {"required": True, "content": {"application/json": {"schema": OBJECT}}}}


PATHS: dict[str, Json] = {
    "/api/pull": {"post": ollama("ollamaPull", "Fetch a model", "OllamaLine", "OllamaNamed", NDJSON)},
    "/api/delete": {"delete": ollama("ollamaDelete", "Remove a model", "OllamaLine", "OllamaNamed")},
    "/-/jobs": {
        "get": operations("jobs", "Downloads and measurements"),
        "post": _taking(operations("beginJob", "Begin a download, a tuning or an evaluation")),
    },
    "/-/jobs/{id}": {"delete": operations("stopJob", "Stop a job", parameters=(parameter("id"),))},
    "/-/hub": {"get": operations("searchHub", "Search the hub", parameters=(parameter("q", "query"),))},
    "/-/hub/{repo}": {"get": operations("hubOffer", "What a repository has", parameters=(parameter("repo"),))},
    "/-/default": {"post": _taking(operations("makeDefault", "Make a model the default"))},
    "/-/readings": {
        "get": operations("readings", "A recorded answer in every format", parameters=(parameter("request", "query"),))
    },
    "/-/models/{name}": {"get": operations("describeModel", "What is known of a model", parameters=_NAME)},
    "/-/models/{name}/format": {"post": _taking(operations("setFormat", "Set its tool-call format", parameters=_NAME))},
}
