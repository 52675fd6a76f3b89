"""A model as `/v1/models` shows it: from the configuration alone, so it takes no engine and no file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.core import Gateway, Route

ENDPOINTS = {"chat": (), "embedding": ("embeddings",), "rerank": ("rerank",)}


def model_object(gateway: Gateway, route: Route) -> dict[str, Any]:
    """In OpenAI's shape, with Anthropic's fields and the context length under the names that clients look for.

    What isn't known is left out.
    """
    config, model = gateway.config, route.model
    created = int(config.source.stat().st_mtime) if config.source.exists() else 0
    active = model.name == config.active_model
    shown: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": model.runtime,
        "type": "model",
        "display_name": model.display_name or model.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "role": model.role,
        "active": active,
        "aliases": [*model.aliases, *(["default"] if active else [])],
        "capabilities": [*dict.fromkeys((*model.capabilities, *ENDPOINTS[model.role]))],
        "tool_call_format": route.spec.name,
        "tool_call_format_evidence": route.evidence,
        # Relative to the base URL. The listing asks no engine; this starts it if need be and answers once it serves.
        "ready_path": f"models/{model.name}/ready",
    }
    if model.context_window is not None:
        for name in ("context_window", "context_length", "max_model_len"):
            shown[name] = model.context_window
    return shown


def model_list(gateway: Gateway, routes: Sequence[Route]) -> dict[str, Any]:
    data = [model_object(gateway, route) for route in routes]
    return {
        "object": "list",
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"],
        "last_id": data[-1]["id"],
    }
