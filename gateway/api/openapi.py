"""`/openapi.json`: one OpenAPI document, put together from the parts of all APIs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gateway import __version__
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request

PARTS = ("gateway.api.openapi_paths", "gateway.api.openapi_stored", "gateway.rooms.openapi")
"""Modules with `PATHS`, path → OpenAPI path item, and `schemas()`, name → JSON Schema."""


async def describe(request: Request) -> ASGIApp:
    return JSON(description())


def description() -> dict[str, Any]:
    """The gateway's HTTP interface as OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for name in PARTS:
        part = import_module(name)
        paths |= part.PATHS
        schemas |= part.schemas()
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
