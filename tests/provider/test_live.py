"""The provider against the running gateway, with a real engine and the real test model behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.errors import (
    GatewayError,
    ProviderInvalidRequest,
    ProviderModelNotLoaded,
    ProviderUnsupportedContentBlock,
)
from gateway.provider import (
    AssistantMessage,
    Capabilities,
    ImageBlock,
    InlineSource,
    OpenAIProvider,
    RuntimeConfig,
    SyncProvider,
    TextBlock,
    Tool,
    ToolMessage,
    Transcript,
    UserMessage,
    retry,
)
from gateway.provider.anthropic import AnthropicProvider
from gateway.provider.chat import ChatProvider
from gateway.provider.retrieval import EmbeddingRuntimeConfig, GatewayRerank, OpenAIEmbedding
from tests.ports import free_port

from . import reranker_model
from .conftest import running_gateway
from .server import Receive, Scope, Send, answer, completion, serve

KEY = "test-key"
SMOLLM2 = Path(__file__).parents[2] / "_models/smollm2-135m-instruct.gguf"
CITY = {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}
NUMBERS = {"a": {"type": "number"}, "b": {"type": "number"}}
TOOLS = [
    Tool("get_weather", "Current weather in a city.", {"type": "object", "properties": CITY, "required": ["city"]}),
    Tool("add", "Add two numbers.", {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}),
]
ASK = UserMessage("What is the weather in Paris in celsius?")
EXACT = RuntimeConfig(temperature=0.0, seed=1, max_tokens=64)
EXACT_ANYWHERE = RuntimeConfig(temperature=0.0, max_tokens=64)
"""Anthropic's API has no seed."""


async def upstream(scope: Scope, receive: Receive, send: Send) -> None:
    """Engines that somebody else runs, each in the state that its prefix names."""
    state, _, path = scope["path"].removeprefix("/").partition("/")
    if state == "loading":  # as llama-server says it
        body = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
        await answer(send, 503, body)
    elif state == "busy":
        said = json.dumps({"error": {"message": "slow down", "type": "rate_limit_error"}}).encode()
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"7")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": said})
    elif state == "locked" and dict(scope["headers"]).get(b"authorization") != b"Bearer right":
        await answer(send, 401, {"error": {"message": "Invalid API Key", "type": "authentication_error"}})
    else:
        await answer(send, 200, {"data": []} if path == "v1/models" else completion("I am here."))


CONFIG = """
active_model: tiny
server: {{api_keys: ["${{PROVIDER_TEST_KEY}}"]}}
models:
  tiny:
    {{runtime: llama.cpp, path: {model}, context_window: 512, tool_call_format: pythonic, threads: 1, images: refuse}}
  too-slow: {{runtime: llama.cpp, path: {model}, startup_timeout_seconds: 0.01}}
  no-weights: {{runtime: llama.cpp, path: nowhere.gguf}}
  vectors: {{runtime: llama.cpp, role: embedding, path: {model}, threads: 1, args: [--pooling, mean]}}
  ranker: {{runtime: llama.cpp, role: rerank, path: {ranker}, context_window: 256, threads: 1}}
  smollm2: {{runtime: llama.cpp, path: {smollm2}, context_window: 2048}}
  stopped: {{runtime: openai, base_url: "http://127.0.0.1:{closed}"}}
  there: {{runtime: openai, base_url: "{upstream}/there"}}
  loading: {{runtime: llama.cpp, base_url: "{upstream}/loading"}}
  busy: {{runtime: openai, base_url: "{upstream}/busy"}}
  locked: {{runtime: openai, base_url: "{upstream}/locked"}}
"""


@pytest.fixture(scope="module")
def url(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if find_spec("xllamacpp") is None:
        pytest.skip("no engine: xllamacpp is not installed")
    path = tmp_path_factory.mktemp("gateway") / "config.yaml"
    with serve(upstream) as engines:
        ranker = reranker_model.write(path.with_name("ranker.gguf"))
        files = {"model": test_model, "smollm2": SMOLLM2, "ranker": ranker}
        path.write_text(CONFIG.format(**files, closed=free_port(), upstream=engines))
        with running_gateway(path, PROVIDER_TEST_KEY=KEY) as url:
            yield url


async def test_ready_means_that_the_next_call_is_answered_at_once(url: str) -> None:
    async with OpenAIProvider(url, "tiny", KEY) as provider:
        await provider.ready()
        response = await provider.complete([ASK], TOOLS, EXACT)
    assert response.finish_reason == "tool_calls"
    (call,) = response.message.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris", "unit": "celsius"})
    assert response.usage.prompt_tokens
    assert response.usage.completion_tokens
    assert response.raw["object"] == "chat.completion"


async def test_a_tools_result_is_answered(url: str) -> None:
    async with OpenAIProvider(url, "tiny", KEY) as provider:
        first = await provider.complete([ASK], TOOLS, EXACT)
        result = ToolMessage('{"temp": 21}', first.message.tool_calls[0].id)
        second = await provider.complete([ASK, first.message, result], TOOLS, EXACT)
    assert (second.finish_reason, bool(second.message.content)) == ("stop", True)


@pytest.mark.parametrize("question", ["What is the weather in Paris in celsius?", "Say hello."])
async def test_a_stream_ends_in_the_same_response(url: str, question: str) -> None:
    async with OpenAIProvider(url, "default", KEY) as provider:
        whole = await provider.complete([UserMessage(question)], TOOLS, EXACT)
        async with await provider.complete([UserMessage(question)], TOOLS, EXACT, stream=True) as stream:
            streamed = await stream.response()

    def calls(message: AssistantMessage) -> list[tuple[str, object]]:
        return [(call.name, call.arguments) for call in message.tool_calls]  # ids differ between two answers

    assert streamed.message.content == whole.message.content
    assert calls(streamed.message) == calls(whole.message)
    assert streamed.finish_reason == whole.finish_reason
    # What the second call finds in the cache is what the first one left there.
    assert replace(streamed.usage, cached_tokens=None) == replace(whole.usage, cached_tokens=None)


@pytest.mark.parametrize("native", [True, None], ids=["native", "learnt"])
async def test_structured_output(url: str, native: bool | None) -> None:
    schema = {
        "type": "object",
        "properties": {"verdict": {"enum": ["yes", "no"]}, "count": {"enum": [1, 2]}},
        "required": ["verdict", "count"],
        "additionalProperties": False,
    }
    capabilities = Capabilities(native_response_format=native)
    async with OpenAIProvider(url, "tiny", KEY, capabilities) as provider:
        response = await provider.complete([UserMessage("Say hello.")], config=EXACT, response_schema=schema)
        assert provider.structured_output == "native"
    assert response.parsed is not None
    assert response.parsed["verdict"] in ("yes", "no")
    assert response.parsed["count"] in (1, 2)


def test_the_facade_for_scripts(url: str) -> None:
    with SyncProvider(OpenAIProvider(f"{url}/v1", "tiny", KEY)) as provider:
        provider.ready()
        assert provider.complete([UserMessage("Say hello.")], config=EXACT).message.content


async def perform(provider: OpenAIProvider, operation: str) -> None:
    if operation == "ready":
        await provider.ready()
    elif operation == "complete":
        await provider.complete([ASK])
    else:
        await provider.complete([ASK], stream=True)


async def refusal(url: str, model: str, key: str | None, operation: str) -> GatewayError:
    async with OpenAIProvider(url, model, key) as provider:
        with pytest.raises(GatewayError) as caught:
            await perform(provider, operation)
    return caught.value


OPERATIONS = ("ready", "complete", "stream")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("model", "key", "category", "retry_after"),
    [
        pytest.param("stopped", KEY, "provider_unavailable", None, id="stopped engine"),
        pytest.param("tiny", "wrong", "provider_authentication", None, id="wrong key"),
        pytest.param("tiny", None, "provider_authentication", None, id="no key"),
        pytest.param("locked", KEY, "provider_authentication", None, id="key that the engine refuses"),
        pytest.param("nope", KEY, "provider_invalid_model", None, id="unknown model"),
        pytest.param("loading", KEY, "provider_model_not_loaded", 1, id="loading model"),
        pytest.param("no-weights", KEY, "provider_invalid_model", None, id="weights missing"),
        pytest.param("busy", KEY, "provider_rate_limit", 7, id="rate limit"),
    ],
)
async def test_the_right_category(
    url: str, model: str, key: str | None, category: str, retry_after: int | None, operation: str
) -> None:
    error = await refusal(url, model, key, operation)
    assert (error.category, error.retry_after) == (category, retry_after)
    assert error.__cause__ is not None or (operation == "ready" and model in ("nope", "no-weights"))
    assert KEY not in str(error)


async def test_an_engine_that_takes_too_long_to_load(url: str) -> None:
    error = await refusal(url, "too-slow", KEY, "complete")
    assert (error.category, error.retry_after) == ("provider_model_not_loaded", 5)


async def test_what_the_model_cannot_take(url: str) -> None:
    picture = UserMessage([TextBlock("Look:"), ImageBlock(InlineSource("iVBORw0KGgo="), "image/png")])
    async with OpenAIProvider(url, "tiny", KEY) as provider:
        with pytest.raises(ProviderUnsupportedContentBlock):
            await provider.complete([picture])
        with pytest.raises(ProviderInvalidRequest) as caught:
            await provider.complete([UserMessage("word " * 4000)])
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_no_gateway_at_all(operation: str) -> None:
    error = await refusal(f"http://127.0.0.1:{free_port()}", "tiny", None, operation)
    assert error.category == "provider_unavailable"


async def test_an_engine_that_works_and_then_stops(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with ExitStack() as engine:
        address = engine.enter_context(serve(upstream))
        path.write_text(f'active_model: m\nmodels:\n  m: {{runtime: openai, base_url: "{address}/there"}}\n')
        with running_gateway(path) as url:
            async with OpenAIProvider(url, "m") as provider:
                await provider.ready()
                assert (await provider.complete([ASK])).message.content == "I am here."
            engine.close()
            for operation in OPERATIONS:
                assert (await refusal(url, "m", None, operation)).category == "provider_unavailable"


async def test_retry_waits_for_a_model_that_loads() -> None:
    loaded = False

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        if loaded:
            await answer(send, 200, {"data": [{"id": "m"}]})
        else:
            await answer(send, 503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})

    async def load(seconds: float) -> None:
        nonlocal loaded
        loaded = True

    with serve(server) as url:
        async with OpenAIProvider(url, "m") as provider:
            with pytest.raises(ProviderModelNotLoaded):
                await provider.ready()
            await retry(provider.ready, sleep=load)


async def test_two_apis_give_the_same_answer(url: str) -> None:
    """Whole and streamed, by OpenAI's API and by Anthropic's, from the same engine."""
    answers = []
    for kind in (OpenAIProvider, AnthropicProvider):
        async with kind(url, "tiny", KEY) as provider:
            await provider.ready()
            for message in (ASK, UserMessage("Say hello.")):
                whole = await provider.complete([message], TOOLS, EXACT_ANYWHERE)
                async with await provider.complete([message], TOOLS, EXACT_ANYWHERE, stream=True) as stream:
                    streamed = await stream.response()
                for response in (whole, streamed):
                    calls = [(call.name, call.arguments) for call in response.message.tool_calls]
                    answers.append((kind, response.message.text, calls, response.finish_reason, response.usage))
    half = len(answers) // 2
    assert [answer[1:4] for answer in answers[:half]] == [answer[1:4] for answer in answers[half:]]
    assert [a[4].completion_tokens for a in answers[:half]] == [a[4].completion_tokens for a in answers[half:]]
    assert answers[0][2] == [("get_weather", {"city": "Paris", "unit": "celsius"})]


@pytest.mark.skipif(not SMOLLM2.is_file(), reason=f"no weights: {SMOLLM2.name} is not in _models")
@pytest.mark.parametrize("kind", [OpenAIProvider, AnthropicProvider])
async def test_structured_output_of_a_real_model(url: str, kind: type[ChatProvider]) -> None:
    class City(BaseModel):
        city: str
        country: str

    question = [UserMessage("Name the capital of France and its country.")]
    async with kind(url, "smollm2", KEY) as provider:
        whole = await provider.complete(question, config=EXACT_ANYWHERE, response_schema=City)
        async with await provider.complete(
            question, config=EXACT_ANYWHERE, response_schema=City, stream=True
        ) as stream:
            streamed = await stream.response()
        assert provider.structured_output == "native"
    assert isinstance(whole.parsed, City)
    assert streamed.parsed == whole.parsed
    assert streamed.message == whole.message


async def test_a_conversation_changes_its_api(url: str) -> None:
    async with OpenAIProvider(url, "tiny", KEY) as first, AnthropicProvider(url, "tiny", KEY) as second:
        asked = Transcript((ASK,))
        answer = await second.complete(asked, TOOLS, EXACT_ANYWHERE)
        told = asked.adding(answer.message, ToolMessage('{"temp": 21}', answer.message.tool_calls[0].id))
        by_openai = await first.complete(told, TOOLS, EXACT_ANYWHERE)
        by_anthropic = await second.complete(Transcript.from_json(told.to_json()), TOOLS, EXACT_ANYWHERE)
    assert by_openai.message == by_anthropic.message
    assert by_openai.message.text


async def test_the_gateways_errors_in_anthropics_format(url: str) -> None:
    async with AnthropicProvider(url, "no-such-model", KEY) as provider:
        with pytest.raises(GatewayError) as caught:
            await provider.complete([ASK], config=EXACT_ANYWHERE)
        assert caught.value.category == "provider_invalid_model"
    async with AnthropicProvider(url, "busy", KEY) as provider:
        with pytest.raises(GatewayError) as caught:
            await provider.complete([ASK], config=EXACT_ANYWHERE)
        assert (caught.value.category, caught.value.retry_after) == ("provider_rate_limit", 7)


async def test_the_servers_retry_after_comes_through_the_gateway(url: str) -> None:
    error = await refusal(url, "busy", KEY, "complete")
    assert (error.category, error.retry_after) == ("provider_rate_limit", 7)


async def test_embeddings_of_the_gateway(url: str) -> None:
    async with OpenAIEmbedding(url, "vectors", KEY, chunk_size=2) as provider:
        await provider.ready()
        response = await provider.embed(["one", "two", "one"])
        encoded = await provider.embed(["one"], config=EmbeddingRuntimeConfig(extra={"encoding_format": "base64"}))
    first, second, third = response.vectors
    assert first == pytest.approx(third, abs=1e-5)
    assert first != second
    assert response.dimensions == len(first)
    assert response.usage is not None
    assert encoded.vectors[0] == pytest.approx(first, abs=1e-5)


async def test_reranking_by_the_gateway(url: str) -> None:
    async with GatewayRerank(url, "ranker", KEY) as provider:
        await provider.ready()
        response = await provider.rerank("what is good?", ["bad bad", "good plain", "good good", "plain"])
        best = await provider.rerank("what is good?", ["bad bad", "good plain", "good good", "plain"], top_k=1)
    assert [result.index for result in response.results] == [2, 1, 3, 0]
    assert [result.index for result in best.results] == [2]
    assert best.results[0].relevance_score == pytest.approx(response.results[0].relevance_score, abs=1e-4)
    assert response.usage is not None


async def test_a_rerank_by_a_model_that_cannot(url: str) -> None:
    async with GatewayRerank(url, "tiny", KEY) as provider:
        with pytest.raises(GatewayError) as caught:
            await provider.rerank("q", ["a", "b"])
    assert not caught.value.transient
