"""Ollama's own API."""

from __future__ import annotations

from gateway.feature import Feature, Routes

ASKED = Routes({
    "/api/chat": {"POST": "gateway.features.ollama.endpoints:chat"},
    "/api/generate": {"POST": "gateway.features.ollama.endpoints:generate"},
    "/api/embed": {"POST": "gateway.features.ollama.endpoints:embed"},
    "/api/embeddings": {"POST": "gateway.features.ollama.endpoints:embeddings"},
}, prefixes=("/api",), errors="gateway.features.ollama.wire.answer:error_object", api="ollama")  # fmt: skip

SHOWN = Routes({
    "/api/tags": {"GET": "gateway.features.ollama.endpoints:tags"},
    "/api/ps": {"GET": "gateway.features.ollama.endpoints:running"},
    "/api/show": {"POST": "gateway.features.ollama.endpoints:show"},
    "/api/version": {"GET": "gateway.features.ollama.endpoints:version"},
})  # fmt: skip

FEATURE = Feature(name="ollama", routes=(ASKED, SHOWN), openapi="gateway.features.ollama.openapi")
