"""A server's refusals in the nine categories (OpenArmature §7, §8.1.3), in the words that real servers use."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import respx

from gateway.errors import (
    CATEGORIES,
    GatewayError,
    ProviderInvalidResponse,
    ProviderModelNotLoaded,
    ProviderUnavailable,
)
from gateway.provider import ImageBlock, OpenAIProvider, TextBlock, UrlSource, UserMessage
from tests.ports import reaching_themselves

from .doubles import SERVER, answering, provider_of

HI = UserMessage("hi")
LOOK = UserMessage([TextBlock("look"), ImageBlock(UrlSource("http://x/a.png"))])


def provider(answer: httpx.Response | Exception, api_key: str | None = None) -> OpenAIProvider:
    return provider_of(answering(answer), api_key)


async def failure(answer: httpx.Response | Exception, message: UserMessage = HI, **options: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await provider(answer, **options).complete([message])
    return caught.value


def said(status: int, message: Any, **fields: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, **fields}})


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        pytest.param(
            said(401, "Invalid API Key", type="authentication_error", code=401), "authentication", id="llama.cpp key"
        ),
        pytest.param(said(403, "no access"), "authentication", id="403"),
        pytest.param(
            said(404, "The model `x` does not exist.", type="NotFoundError"), "invalid_model", id="vLLM model"
        ),
        pytest.param(said(404, 'model "m" not found, try pulling it first'), "invalid_model", id="Ollama model"),
        pytest.param(said(400, "model 'nope' not found", code=400), "invalid_model", id="llama.cpp router model"),
        pytest.param(said(404, "x", code="model_not_found"), "invalid_model", id="code alone"),
        pytest.param(httpx.Response(404, json={"detail": "Not Found"}), "invalid_request", id="wrong path"),
        pytest.param(httpx.Response(404, json={"error": "template error"}), "invalid_request", id="error is a string"),
        pytest.param(
            said(503, "Loading model", type="unavailable_error", code=503), "model_not_loaded", id="llama.cpp loading"
        ),
        pytest.param(said(400, "model is not loaded"), "model_not_loaded", id="llama.cpp router, unloaded"),
        pytest.param(said(503, "x", code="model_not_loaded"), "model_not_loaded", id="loading by code"),
        pytest.param(said(503, "down for maintenance"), "unavailable", id="503"),
        pytest.param(said(429, "slow down"), "rate_limit", id="429"),
        pytest.param(said(500, "boom"), "unavailable", id="500"),
        pytest.param(
            said(500, "unable to load model: /models/blobs/sha256-9f3e"), "invalid_model", id="Ollama, broken weights"
        ),
        pytest.param(
            said(500, "error loading model: tensor 'output.weight' data is not within the file bounds"),
            "invalid_model",
            id="llama.cpp, cut weights",
        ),
        pytest.param(said(500, "invalid file magic"), "invalid_model", id="Ollama, no model file"),
        pytest.param(said(503, "weights are missing: m.safetensors"), "invalid_model", id="weights missing"),
        pytest.param(
            said(500, "failed to load model: model requires more system memory (9 GiB) than is available (3 GiB)"),
            "unavailable",
            id="Ollama, too little memory",
        ),
        pytest.param(said(500, "error loading model: CUDA error: out of memory"), "unavailable", id="no VRAM"),
        pytest.param(httpx.Response(502, text="<html>Bad Gateway</html>"), "unavailable", id="502 of a proxy"),
        pytest.param(httpx.Response(504), "unavailable", id="504 without a body"),
        pytest.param(said(408, "too slow"), "unavailable", id="408"),
        pytest.param(said(400, "temperature must be positive"), "invalid_request", id="400"),
        pytest.param(
            said(400, "This model does not support image inputs."), "invalid_request", id="images, but none sent"
        ),
        pytest.param(said(413, "too large"), "invalid_request", id="413"),
        pytest.param(said(422, [{"loc": ["body"]}]), "invalid_request", id="message is no text"),
        pytest.param(httpx.Response(307, headers={"location": "/"}), "invalid_response", id="redirect"),
        pytest.param(httpx.Response(204), "invalid_response", id="204"),
        pytest.param(httpx.Response(200), "invalid_response", id="200 without a body"),
        pytest.param(httpx.Response(200, text="Hello!"), "invalid_response", id="200 that is not JSON"),
        pytest.param(httpx.Response(200, content=b"\xff\xfe"), "invalid_response", id="200 that is no UTF-8"),
        pytest.param(
            httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip")),
            "invalid_response",
            id="200 that can't be decoded",
        ),
        pytest.param(httpx.ConnectError("refused"), "unavailable", id="refused"),
        pytest.param(httpx.ReadTimeout("slow"), "unavailable", id="timeout"),
        pytest.param(httpx.RemoteProtocolError("cut"), "unavailable", id="cut"),
    ],
)
async def test_category(answer: httpx.Response | Exception, category: str) -> None:
    error = await failure(answer)
    assert error.category == f"provider_{category}"
    assert error.message
    if not (isinstance(answer, httpx.Response) and answer.status_code == 200):
        assert isinstance(error.__cause__, httpx.HTTPError)


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        pytest.param(said(400, "x", code="image_content_not_supported"), "unsupported_content_block", id="code"),
        pytest.param(said(400, "This model does not support image inputs."), "unsupported_content_block", id="OpenAI"),
        pytest.param(
            said(500, "image input is not supported - hint: mmproj"), "unsupported_content_block", id="llama.cpp"
        ),
        pytest.param(
            said(400, "meta/llama is not a multimodal model", type="BadRequestError"),
            "unsupported_content_block",
            id="vLLM, text model",
        ),
        pytest.param(
            said(400, "At most 0 image(s) may be provided in one prompt."), "unsupported_content_block", id="vLLM, off"
        ),
        pytest.param(
            said(500, "this model is missing data required for image input"), "unsupported_content_block", id="Ollama"
        ),
        pytest.param(
            said(400, "At most 2 image(s) may be provided in one prompt."), "invalid_request", id="vLLM, too many"
        ),
        pytest.param(said(400, "unsupported media_type image/gif"), "unsupported_content_block", id="media type"),
        pytest.param(
            said(400, "Invalid content part type: image_url is not allowed"), "unsupported_content_block", id="part"
        ),
        pytest.param(said(400, "temperature must be positive"), "invalid_request", id="something else"),
        pytest.param(said(500, "boom"), "unavailable", id="500"),
        pytest.param(said(401, "image input is not supported"), "authentication", id="401 comes first"),
    ],
)
async def test_category_of_a_call_with_an_image(answer: httpx.Response, category: str) -> None:
    assert (await failure(answer, LOOK)).category == f"provider_{category}"


@pytest.mark.parametrize("kind", CATEGORIES.values(), ids=CATEGORIES)
async def test_what_the_gateway_writes_comes_back_as_the_same_category(kind: type[GatewayError]) -> None:
    error = kind("why", code="own_code", param="messages[0]", retry_after=3, details={"n_ctx": 512})
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    back = await failure(httpx.Response(error.status, headers=headers, json=error.body()))
    assert isinstance(back, kind)
    assert (back.category, back.transient) == (kind.category, kind.transient)
    assert (back.message, back.code, back.param, back.retry_after) == ("why", "own_code", "messages[0]", 3)
    assert back.details == {"n_ctx": 512}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        pytest.param("30", 30, id="seconds"),
        pytest.param("0.5", 0.5, id="part of a second"),
        pytest.param("-1", 0, id="past"),
        pytest.param("soon", None, id="neither"),
        pytest.param("nan", None, id="NaN"),
        pytest.param("inf", None, id="infinite"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 GMT", 0, id="past date"),
        pytest.param("Wed, 21 Oct 99999999999999999999 07:28:00 GMT", None, id="date that can't be reckoned with"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 -0000", None, id="date without a zone"),
    ],
)
async def test_retry_after(header: str, seconds: float | None) -> None:
    error = await failure(httpx.Response(429, headers={"Retry-After": header}))
    assert error.retry_after == seconds


async def test_retry_after_as_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    error = await failure(httpx.Response(503, headers={"Retry-After": date}))
    assert error.retry_after is not None
    assert 80 < error.retry_after <= 90


async def test_the_cause_has_the_answer_and_no_text_has_the_key() -> None:
    error = await failure(said(401, "Incorrect key sk-secret given"), api_key="sk-secret")
    assert error.message == "Incorrect key [secret] given"
    assert isinstance(error.__cause__, httpx.HTTPStatusError)
    assert error.__cause__.response.status_code == 401
    assert "sk-secret" not in error.__cause__.response.text
    assert "sk-secret" not in repr(provider(httpx.Response(200), "sk-secret"))


async def test_a_connection_that_reached_itself_is_no_server() -> None:
    async with reaching_themselves() as port, OpenAIProvider(f"http://127.0.0.1:{port}", "m") as provider:
        with pytest.raises(ProviderUnavailable, match="can't be reached: illegal status line"):
            await provider.complete([HI])


async def test_an_endless_message_is_cut() -> None:
    assert len((await failure(said(500, "x" * 100_000))).message) < 10_000


async def test_an_endless_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.provider.server.MAX_BODY_BYTES", 1000)
    error = await failure(httpx.Response(200, content=b" " * 1001))
    assert (error.category, "1000 bytes" in error.message) == ("provider_invalid_response", True)


async def test_a_compressed_body_is_refused() -> None:
    content = gzip.compress(bytes(1_000_000))
    error = await failure(httpx.Response(200, content=content, headers={"Content-Encoding": "gzip"}))
    assert (error.category, "compresses its answer" in error.message) == ("provider_invalid_response", True)


async def test_endless_codes_are_searched_up_to_a_length() -> None:
    body = {"error": {"message": "no", "code": "context " * 1_000_000, "type": "x", "param": None}}
    error = await failure(httpx.Response(400, json=body))
    assert error.category == "provider_invalid_request"


def listed(**entry: Any) -> httpx.Response:
    return httpx.Response(200, json={"data": [{"id": "other"}, {"id": "m", **entry}]})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(listed(), id="no status"),
        pytest.param(listed(status="loaded"), id="loaded"),
        pytest.param(listed(status={"value": "loaded"}), id="llama.cpp router"),
        pytest.param(listed(status=None), id="null"),
        pytest.param(httpx.Response(200, json={"data": [{"id": "/models/x.gguf", "aliases": ["m"]}]}), id="alias"),
    ],
)
async def test_ready(answer: httpx.Response) -> None:
    await provider(answer).ready()


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        pytest.param(listed(status={"value": "unloaded"}), "model_not_loaded", id="llama.cpp router"),
        pytest.param(listed(state="not-loaded"), "model_not_loaded", id="LM Studio"),
        pytest.param(listed(status="loading"), "model_not_loaded", id="loading"),
        pytest.param(said(503, "Loading model", code=503), "model_not_loaded", id="llama.cpp loading"),
        pytest.param(httpx.Response(200, json={"data": []}), "invalid_model", id="no models"),
        pytest.param(httpx.Response(200), "invalid_response", id="empty body"),
        pytest.param(httpx.Response(200, json=[]), "invalid_response", id="no object"),
        pytest.param(httpx.Response(200, json={"data": {}}), "invalid_response", id="no list"),
        pytest.param(httpx.Response(404, text="404 page not found"), "invalid_request", id="no such path"),
        pytest.param(httpx.ConnectTimeout("slow"), "unavailable", id="timeout"),
    ],
)
async def test_not_ready(answer: httpx.Response | Exception, category: str) -> None:
    with pytest.raises(GatewayError) as caught:
        await provider(answer).ready()
    assert caught.value.category == f"provider_{category}"


def listing(ready_path: str, answer: httpx.Response) -> respx.MockRouter:
    """Lists the model with a `ready_path`, and answers there."""
    routes = respx.MockRouter(base_url=SERVER, assert_all_called=False)
    routes.get("/v1/models").respond(json={"data": [{"id": "m", "ready_path": ready_path}]})
    routes.get("/v1/models/m/ready", name="ready").mock(return_value=answer)
    return routes


async def test_ready_asks_where_the_entry_points() -> None:
    routes = listing("models/m/ready", httpx.Response(200, json={}))
    await provider_of(routes).ready()
    assert routes["ready"].call_count == 1
    with pytest.raises(ProviderModelNotLoaded):
        await provider_of(listing("models/m/ready", said(503, "loading", code="model_not_loaded"))).ready()


@pytest.mark.parametrize("path", ["http://evil.test/x", "//evil.test/x", "/admin", "../admin", "models/../../admin"])
async def test_a_ready_path_that_leads_away_is_not_followed(path: str) -> None:
    routes = listing(path, httpx.Response(200, json={}))
    with pytest.raises(ProviderInvalidResponse, match="leads away"):
        await provider_of(routes).ready()
    assert routes.calls.call_count == 1
