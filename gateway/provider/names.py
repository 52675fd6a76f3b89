"""Providers by name: `provider("anthropic", model="claude-…")`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gateway.provider.chat import ChatProvider
    from gateway.provider.retrieval import EmbeddingProvider, RerankProvider


class Named(NamedTuple):
    """implementation: `module:class`, imported on first use. credential: the key is in NAME_API_KEY, or in the system's
    keychain; None for servers without keys."""

    implementation: str
    base_url: str
    credential: str | None = None


PROVIDERS: Mapping[str, Named] = {
    "anthropic": Named("gateway.provider.anthropic:AnthropicProvider", "https://api.anthropic.com", "anthropic"),
    "ctxgate": Named("gateway.provider.openai:OpenAIProvider", "http://127.0.0.1:4000"),
    "gemini": Named("gateway.provider.gemini:GeminiProvider", "https://generativelanguage.googleapis.com", "gemini"),
    "ollama": Named("gateway.provider.openai:OpenAIProvider", "http://127.0.0.1:11434"),
    "openai": Named("gateway.provider.openai:OpenAIProvider", "https://api.openai.com", "openai"),
}
EMBEDDERS: Mapping[str, Named] = {
    "cohere": Named("gateway.provider.retrieval:CohereEmbedding", "https://api.cohere.com", "cohere"),
    "ctxgate": Named("gateway.provider.retrieval:OpenAIEmbedding", "http://127.0.0.1:4000"),
    "jina": Named("gateway.provider.retrieval:JinaEmbedding", "https://api.jina.ai", "jina"),
    "openai": Named("gateway.provider.retrieval:OpenAIEmbedding", "https://api.openai.com", "openai"),
    "tei": Named("gateway.provider.retrieval:TEIEmbedding", "http://127.0.0.1:8080"),
}
RERANKERS: Mapping[str, Named] = {
    "cohere": Named("gateway.provider.retrieval:CohereRerank", "https://api.cohere.com", "cohere"),
    "ctxgate": Named("gateway.provider.retrieval:GatewayRerank", "http://127.0.0.1:4000"),
    "jina": Named("gateway.provider.retrieval:JinaRerank", "https://api.jina.ai", "jina"),
    "tei": Named("gateway.provider.retrieval:TEIRerank", "http://127.0.0.1:8080"),
}


def provider(name: str, model: str, **options: Any) -> ChatProvider:
    """A chat provider of `PROVIDERS`. options: as its constructor takes them; base_url and api_key, too.

    Without either, the key is that of the variable NAME_API_KEY, else the keychain's. Raises ValueError for an unknown
    name, and for a key that can't be read or sent.
    """
    built: ChatProvider = _built(PROVIDERS, name, model, options)
    return built


def embedder(name: str, model: str, **options: Any) -> EmbeddingProvider:
    """An EmbeddingProvider of `EMBEDDERS`; see `provider`."""
    built: EmbeddingProvider = _built(EMBEDDERS, name, model, options)
    return built


def reranker(name: str, model: str, **options: Any) -> RerankProvider:
    """A RerankProvider of `RERANKERS`; see `provider`."""
    built: RerankProvider = _built(RERANKERS, name, model, options)
    return built


def _built(table: Mapping[str, Named], name: str, model: str, options: dict[str, Any]) -> Any:
    if (named := table.get(name)) is None:
        raise ValueError(f"no provider {name!r}; there are: {', '.join(table)}")
    module, _, attribute = named.implementation.partition(":")
    elsewhere = "base_url" in options  # a key never goes to another server than its own unless the caller says so
    options.setdefault("base_url", named.base_url)
    if named.credential is not None and options.get("api_key") is None and not elsewhere:
        from gateway.config.secret import credential

        found = credential(named.credential, os.environ)
        options["api_key"] = None if found is None else found.get_secret_value()
    return getattr(import_module(module), attribute)(model=model, **options)
