"""The law: gateway → HTTP → provider gives the same category back, over the real application."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.app import build
from gateway.config import load
from gateway.errors import CATEGORIES, GatewayError
from gateway.provider import OpenAIProvider, RuntimeConfig, TextDelta, UserMessage
from tests.gateway.backend import PLACES, RUNTIME, TOLD

from .server import serve

NAMES = (*CATEGORIES, "bug")
CONFIG = f"active_model: {NAMES[0]}\nmodels:\n" + "".join(f"  {name}: {{runtime: '{RUNTIME}'}}\n" for name in NAMES)


@pytest.fixture(scope="module", params=["gateway.server.fast_protocol:FastProtocol", "h11"], ids=["fast", "asgi"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway as `ctxgate serve` wires it, on its own protocol class and on a plain ASGI server."""
    path = tmp_path_factory.mktemp("gateway") / "config.yaml"
    path.write_text(CONFIG)
    with serve(build(load(path)), lifespan="on", http=request.param) as url:
        yield url


async def raised(url: str, category: str, place: str, stream: bool) -> GatewayError:
    """The error of a call whose backend fails there; a token that came before it has to arrive."""
    asked = [UserMessage("Hi")]
    fail = {"with": category, "at": place, **(TOLD if category in CATEGORIES else {})}
    config = RuntimeConfig(extra={"fail": fail})
    deltas: list[object] = []
    async with OpenAIProvider(url, NAMES[0]) as provider:

        async def complete() -> None:
            if not stream:
                await provider.complete(asked, config=config)
                return
            async with await provider.complete(asked, config=config, stream=True) as answer:
                async for delta in answer:
                    deltas.append(delta)

        with pytest.raises(GatewayError) as caught:
            await complete()
    assert deltas == ([TextDelta("Hello")] if stream and place == "later" else [])
    return caught.value


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", CATEGORIES.values(), ids=CATEGORIES)
async def test_complete(url: str, kind: type[GatewayError], place: str, stream: bool) -> None:
    error = await raised(url, kind.category, place, stream)
    assert isinstance(error, kind)
    assert (error.category, error.transient) == (kind.category, kind.transient)
    assert (error.message, error.code, error.param) == ("told to fail", "asked", "messages")
    assert error.details == {"n_ctx": 512}
    # A frame inside a stream has no headers.
    assert error.retry_after == (None if stream and place == "later" else 7)


@pytest.mark.parametrize("kind", CATEGORIES.values(), ids=CATEGORIES)
async def test_ready(url: str, kind: type[GatewayError]) -> None:
    async with OpenAIProvider(url, kind.category) as provider:
        with pytest.raises(kind) as caught:
            await provider.ready()
    assert (type(caught.value).category, caught.value.retry_after) == (kind.category, 7)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_bug_stays_a_bug_and_tells_nothing(url: str, place: str, stream: bool) -> None:
    error = await raised(url, "bug", place, stream)
    assert (error.category, error.transient) == ("internal_error", False)
    assert "division" not in error.message.lower()
    assert "secret" not in error.message
