"""`/openapi.json`: every face tells its part."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from gateway import __version__
from gateway.api import endpoint
from gateway.api.chat import Client
from gateway.api.endpoint import Request, Row

PARTS = ("gateway.api.operations.description", "gateway.rooms.openapi")
"""Modules with `PATHS`, path → OpenAPI path item, and `schemas()`, name → JSON Schema."""


class DescriptionFace(endpoint.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (("GET", r"/openapi\.json", self.describe),)

    async def describe(self, request: Request, client: Client) -> None:
        await endpoint.json(client, description())


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
