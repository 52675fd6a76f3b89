"""Providers by name, and where their keys come from."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import httpx
import pytest

from gateway.provider import embedder, provider, reranker
from gateway.provider.names import EMBEDDERS, PROVIDERS, RERANKERS, Named


@pytest.fixture(autouse=True)
def _no_keychain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    for named in (*PROVIDERS.values(), *EMBEDDERS.values(), *RERANKERS.values()):
        monkeypatch.delenv(f"{named.credential}_API_KEY".upper(), raising=False)


@pytest.mark.parametrize("named", {*PROVIDERS.values(), *EMBEDDERS.values(), *RERANKERS.values()})
def test_every_row_leads_to_a_class(named: Named) -> None:
    module, _, attribute = named.implementation.partition(":")
    assert getattr(import_module(module), attribute)(named.base_url, "m").model == "m"


def test_a_name_is_enough() -> None:
    assert repr(provider("anthropic", "claude-x")) == "AnthropicProvider('https://api.anthropic.com/v1', 'claude-x')"
    assert repr(embedder("cohere", model="e")) == "CohereEmbedding('https://api.cohere.com', 'e')"
    assert repr(reranker("ctxgate", model="r")) == "GatewayRerank('http://127.0.0.1:4000/v1', 'r')"


def test_an_unknown_name_is_told_the_others() -> None:
    with pytest.raises(ValueError, match="there are: anthropic, ctxgate, gemini, ollama, openai"):
        provider("claude", "m")


async def sent_key(options: dict[str, str]) -> str | None:
    """The key that a request to Anthropic has."""
    seen: list[str | None] = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("x-api-key"))
        return httpx.Response(404, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        built = provider("anthropic", "m", http_client=client, **options)
        with pytest.raises(Exception, match="404"):
            await built.ready()
    return seen[0]


async def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await sent_key({}) is None
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-env")
    assert await sent_key({}) == "from-env"
    assert await sent_key({"api_key": "given"}) == "given"


async def test_a_key_stays_with_its_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-env")
    assert await sent_key({"base_url": "http://elsewhere"}) is None


def test_a_key_that_no_header_can_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "two\nlines")
    with pytest.raises(ValueError, match="header"):
        provider("anthropic", "m")


def test_importing_the_package_loads_no_mapping_but_openais_and_no_sdk() -> None:
    code = "import sys, gateway.provider; print(*sorted(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not {name for name in loaded if name.startswith(("gateway.provider.retrieval", "gateway.config"))}
    assert not {"gateway.provider.anthropic", "gateway.provider.gemini", "gateway.provider.otel"} & loaded
    assert not {"openai", "anthropic", "google", "cohere", "opentelemetry", "keyring", "msgspec"} & loaded
