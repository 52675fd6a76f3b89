"""Where a model's own server listens, and what it calls the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Model


def urls(model: Model) -> tuple[str, ...]:
    """Of each replica, or of its one server. Over a socket, the host has no meaning."""
    return model.replicas or (model.base_url or "http://localhost",)


def tagged(name: str) -> str:
    """A model's whole name in Ollama, which adds `:latest` to one without a tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"
