"""One small module for each kind of engine server. `BACKENDS` maps runtimes to classes, loaded on demand."""

from __future__ import annotations

from importlib import import_module

from gateway.backends.base import Address, Backend, DirectReply, Endpoint, Forward, Forwarded, ReplicaStatus, Reply
from gateway.errors import ProviderUnavailable

BACKENDS = {
    "openai": "gateway.backends.openai:OpenAIBackend",
    "llama.cpp": "gateway.backends.llamacpp:LlamaCppBackend",
    "llama-cpp-python": "gateway.backends.llama_cpp_python:LlamaCppPythonBackend",
    "mlx": "gateway.backends.mlx:MLXBackend",
    "faster-whisper": "gateway.backends.openai:OpenAIBackend",
    "piper": "gateway.backends.openai:OpenAIBackend",
    "ollama": "gateway.backends.ollama:OllamaBackend",
    "echo": "gateway.backends.echo:EchoBackend",
}

__all__ = [
    "BACKENDS",
    "Address",
    "Backend",
    "DirectReply",
    "Endpoint",
    "Forward",
    "Forwarded",
    "ReplicaStatus",
    "Reply",
    "load",
]


def load(runtime: str) -> type[Backend]:
    """Loads the backend class of a runtime: a name in `BACKENDS` or `pkg.mod:Class`. Raises ProviderUnavailable."""
    module, _, name = BACKENDS.get(runtime, runtime).partition(":")
    try:
        backend: type = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"runtime {runtime!r} of config.yaml can't be loaded: {error}"
        raise ProviderUnavailable(message, code="engine_missing") from error
    # A user's class gets the defaults of `Backend` even if it doesn't derive from it.
    return backend if issubclass(backend, Backend) else type(name, (backend, Backend), {})
