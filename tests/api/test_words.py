"""Errors in the words, with the fields and with the headers by which clients know them."""

from __future__ import annotations

import re
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from gateway.errors import (
    CATEGORIES,
    LASTING,
    LASTING_STATUS,
    GatewayError,
    ProviderModelNotLoaded,
    ProviderRateLimit,
    ProviderUnavailable,
    WeightsMissing,
    retry_after,
)
from gateway.features.messages.wire.answer import error_object
from tests.gateway.client import chat
from tests.gateway.double import answers
from tests.gateway.running import running
from tests.patience import PATIENCE

LONG = "word " * 2000
SIZES = {"prompt_tokens", "context_window"}


@pytest.fixture
def openai_client(real: str) -> Any:
    with OpenAI(base_url=f"{real}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as client:
        yield client


def overflows(client: OpenAI) -> dict[str, Any]:
    said: Any = [{"role": "user", "content": LONG}]
    return {
        "chat": lambda: client.chat.completions.create(model="tiny", messages=said),
        "streamed": lambda: list(client.chat.completions.create(model="tiny", messages=said, stream=True)),
        "response": lambda: client.responses.create(model="tiny", input=LONG),
        "completion": lambda: client.completions.create(model="tiny", prompt=LONG),
        "embedding": lambda: client.embeddings.create(model="vectors", input=LONG),
    }


@pytest.mark.parametrize("api", ["chat", "streamed", "response", "completion", "embedding"])
def test_overflow_in_openais_words(openai_client: OpenAI, api: str) -> None:
    """litellm's pattern, the code that agents look for, and both numbers as fields."""
    with pytest.raises(openai.BadRequestError) as caught:
        overflows(openai_client)[api]()
    error: Any = caught.value.body
    assert caught.value.code == "context_length_exceeded"
    found = re.search(
        r"This model's maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens",
        error["message"],
    )
    assert found is not None
    assert (int(found[1]), int(found[2])) == (error["context_window"], error["prompt_tokens"])
    assert error["prompt_tokens"] > error["context_window"]


@pytest.mark.parametrize("stream", [False, True])
def test_overflow_in_anthropics_words(real: str, stream: bool) -> None:
    with (
        Anthropic(base_url=real, api_key="unused", max_retries=0, timeout=PATIENCE) as client,
        pytest.raises(anthropic.BadRequestError) as caught,
    ):
        client.messages.create(model="tiny", max_tokens=8, messages=[{"role": "user", "content": LONG}], stream=stream)
    error: Any = caught.value.body
    found = re.search(r"^prompt is too long: (\d+) tokens > (\d+) maximum", error["error"]["message"])
    assert found is not None
    assert (int(found[1]), int(found[2])) == (error["error"]["prompt_tokens"], error["error"]["context_window"])
    assert error["error"]["type"] == "invalid_request_error"


def test_overflow_without_numbers() -> None:
    from gateway.backends.context import context_length_exceeded

    for prompt, window in ((None, 8), (None, None)):
        error = context_length_exceeded(prompt, window)
        assert "maximum context length is" in error.message
        assert error_object(error)["error"]["message"].startswith("prompt is too long;")
    assert "exceeded" in context_length_exceeded(None, None).message


PICTURE = "data:image/png;base64,iVBORw0KGgo="
IMAGE: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]


REFUSALS: dict[str, tuple[int, str]] = {
    "vLLM": (400, "Qwen/Qwen3-4B is not a multimodal model"),
    "vLLM, of one": (400, "At most 0 image(s) may be provided in one prompt."),
    "Ollama": (500, "this model is missing data required for image input"),
    "LM Studio": (400, "Model does not support images. Please use a model that does."),
    "llama.cpp": (
        500,
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
    ),
    "mlx_lm": (404, "Only 'text' content type is supported."),
    "OpenAI": (400, "Invalid content type. image_url is only supported by certain models."),
}


@pytest.mark.parametrize("server", REFUSALS)
async def test_every_servers_refusal_of_an_image(server: str) -> None:
    status, words = REFUSALS[server]
    refusal = answers({"error": {"message": words}}, status)
    async with running(refusal, images="refuse") as gateway, await gateway.connect() as client:
        answer = await client.ask(chat(messages=IMAGE))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_content_block")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("words", ["the image file is too large", "out of memory", "an image, at most 10 images"])
async def test_other_words_about_images_are_no_such_refusal(words: str) -> None:
    async with running(answers({"error": {"message": words}}, 400)) as gateway, await gateway.connect() as client:
        assert (await client.ask(chat())).error["code"] == "invalid_request"


# Whether a retry helps


def told(error: GatewayError) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in error.headers()}


def test_each_error_says_whether_a_retry_helps() -> None:
    helps = {ProviderModelNotLoaded, ProviderUnavailable, ProviderRateLimit}
    for kind in CATEGORIES.values():
        assert told(kind("x"))["x-should-retry"] == ("true" if kind in helps else "false")
        if kind not in helps:
            assert kind.default_status != 503


@pytest.mark.parametrize("code", sorted(LASTING))
def test_what_lasts_is_no_503(code: str) -> None:
    for kind in (ProviderModelNotLoaded, ProviderUnavailable):
        error = kind("x", code=code, retry_after=5)
        assert (error.status, error.transient, error.lasting) == (LASTING_STATUS, False, True)
        assert told(error)["x-should-retry"] == "false"
        assert "retry-after" not in told(error)
    assert ProviderRateLimit("x", code=code).status == 429
    assert WeightsMissing("x").lasting


@pytest.mark.parametrize(
    ("milliseconds", "header", "seconds"),
    [(None, "2", 2), ("1500", None, 1.5), ("1500", "9", 1.5), ("soon", "9", 9), (None, None, None)],
)
def test_what_a_server_says_of_the_next_try(milliseconds: str, header: str, seconds: float | None) -> None:
    assert retry_after(milliseconds, header) == seconds


HEADERS: dict[str, tuple[int, bytes, dict[str, str | None]]] = {
    "seconds": (503, b"Retry-After: 7\r\n", {"x-should-retry": "true", "retry-after": "7"}),
    "milliseconds": (429, b"retry-after-ms: 2500\r\n", {"x-should-retry": "true", "retry-after": "3"}),
    "a time-out": (408, b"Retry-After: 2\r\n", {"x-should-retry": "true", "retry-after": "2"}),
    "no use": (429, b"x-should-retry: false\r\nRetry-After: 7\r\n", {"x-should-retry": "false", "retry-after": None}),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/completions"]
)
async def test_what_an_engines_server_says_reaches_every_api(name: str, path: str) -> None:
    status, head, expected = HEADERS[name]
    said = {"prompt": "Hi"} if path.endswith("completions") else {"input": "Hi"}
    body = {**chat(), **said, "max_tokens": 8, "stream": False}
    async with running(answers({"error": {"message": "busy"}}, status, head=head)) as gateway:
        answer = await gateway.ask(body, path)
    assert {header: answer.headers.get(header) for header in expected} == expected


async def test_a_spent_quota_is_no_reason_to_wait() -> None:
    script = answers({"error": {"message": "pay", "code": "insufficient_quota"}}, 429)
    async with running(script) as gateway, await gateway.connect() as client:
        answer = await client.ask(chat())
    assert (answer.status, answer.headers["x-should-retry"]) == (429, "false")


async def test_clients_ask_once_where_a_retry_is_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their own retries on: both packages try twice more by default."""
    for sdk in ("openai", "anthropic"):
        script = answers({"error": {"message": "no", "code": "insufficient_quota"}}, 429)
        async with running(script) as gateway:
            said: Any = [{"role": "user", "content": "Hi"}]
            if sdk == "openai":
                async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused") as one:
                    with pytest.raises(openai.RateLimitError):
                        await one.chat.completions.create(model="m", messages=said)
            else:
                async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="unused") as other:
                    with pytest.raises(anthropic.RateLimitError):
                        await other.messages.create(model="m", max_tokens=8, messages=said)
            assert len(gateway.engine.requests) == 1


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_a_key_in_each_header(header: str) -> None:
    async with running(answers(), keys=("secret",)) as gateway:
        value = "Bearer secret" if header == "authorization" else "secret"
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client:
            good = await client.post("/v1/chat/completions", json=chat(), headers={header: value})
            bad = await client.post("/v1/chat/completions", json=chat(), headers={header: value + "x"})
    assert (good.status_code, bad.status_code) == (200, 401)
    assert bad.headers["x-should-retry"] == "false"
