"""`/openapi.json`: one OpenAPI document, put together from the parts of all APIs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gateway import __version__
from gateway.api.openapi_paths import Json, operations
from gateway.feature import installed
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request

PATHS: dict[str, Json] = {
    "/openapi.json": {"get": operations("openapi", "This document")},
    "/llms.txt": {"get": operations("llms", "A list of these endpoints, for language models", stream="text/plain")},
}


def parts() -> list[Any]:
    """The modules of OpenAI's API and of the features; see `gateway.feature.Feature.openapi`."""
    of_features = (feature.openapi for feature in installed() if feature.openapi is not None)
    return [import_module(name) for name in ("gateway.api.openapi_paths", *of_features)]


async def describe(request: Request) -> ASGIApp:
    return JSON(description())


def description() -> dict[str, Any]:
    """The gateway's HTTP interface as OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for part in parts():
        paths |= part.PATHS
        schemas |= getattr(part, "schemas", dict)()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ctxgate",
            "version": __version__,
            "description": "One endpoint for the models on this machine, as OpenAI, Anthropic and Ollama serve theirs.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }
