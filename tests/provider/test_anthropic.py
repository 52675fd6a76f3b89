"""Anthropic's Messages API beyond the fixtures: exchanges as its documentation shows them, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderRateLimit,
    ProviderUnavailable,
)
from gateway.provider import (
    AssistantMessage,
    Capabilities,
    Delta,
    ImageBlock,
    ReasoningDelta,
    Response,
    RuntimeConfig,
    StructuredOutputInvalid,
    TextBlock,
    TextDelta,
    Tool,
    ToolCallDelta,
    UrlSource,
    UserMessage,
)

from .anthropic_exchanges import ANSWERS, CONFIG, HI, Server, call, events, message, sse, text

WEATHER = Tool("get_weather", "", {"type": "object", "properties": {"location": {"type": "string"}}})
NUMBER = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}


@pytest.mark.parametrize(("body", "expected", "finish_reason"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_is_the_same_whole_and_streamed(
    body: dict[str, Any], expected: AssistantMessage, finish_reason: str
) -> None:
    whole = await Server(body).ask(tools=[WEATHER])
    assert (whole.message, whole.finish_reason, whole.raw) == (expected, finish_reason, body)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (10, 5, 15)
    assert whole.usage.cached_tokens is None  # explicit caching, which `raw` shows

    deltas: list[Delta] = []
    async with await Server(sse(events(body))).provider().complete(HI, [WEATHER], CONFIG, stream=True) as stream:
        async for event in stream:
            if isinstance(event, Response):
                assert (event.message, event.finish_reason, event.usage) == (expected, finish_reason, whole.usage)
                assert event.raw["content"] == body["content"]
            else:
                deltas.append(event)
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == expected.text
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == expected.reasoning
    written = "".join(d.arguments for d in deltas if isinstance(d, ToolCallDelta))
    assert [c.arguments for c in expected.tool_calls] == ([json.loads(written or "{}")] if expected.tool_calls else [])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param([], "content", id="array"),
        pytest.param({"type": "message"}, "content", id="no content"),
        pytest.param(message("text"), "not an object", id="a block that is a text"),  # type: ignore[arg-type]
        pytest.param(message(text("a"), role="user"), "role", id="another role"),
        pytest.param(message(text("a"), stop_reason=None), "stop_reason", id="no reason"),
        pytest.param(message(), "empty", id="nothing at all"),
        pytest.param(message(call({"location": 1}), stop_reason="tool_use"), "/location", id="arguments"),
        pytest.param(message(call("{}"), stop_reason="tool_use"), "arguments", id="arguments as text"),
        pytest.param(message(call({}, "other"), stop_reason="tool_use"), "'other'", id="unknown tool"),
    ],
)
async def test_a_malformed_answer_is_refused(body: Any, reason: str) -> None:
    with pytest.raises(ProviderInvalidResponse, match=reason):
        await Server(httpx.Response(200, json=body)).ask(tools=[WEATHER])


BEGUN = {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}


@pytest.mark.parametrize(
    ("stream", "kind", "words"),
    [
        pytest.param([], ProviderInvalidResponse, "no message", id="nothing"),
        pytest.param(list(events(message(text("abc"))))[:-2], ProviderUnavailable, "broke off", id="cut"),
        pytest.param([{"type": "message_delta"}], ProviderInvalidResponse, "before message_start", id="out of order"),
        pytest.param([{"type": "content_block_delta", "delta": {}}], ProviderInvalidResponse, "before", id="no block"),
        pytest.param([{"type": "message_start", "message": 1}], ProviderInvalidResponse, "message", id="no object"),
        pytest.param([BEGUN, {"type": "message_delta", "delta": ["x"]}], ProviderInvalidResponse, "delta", id="delta"),
        pytest.param([BEGUN, {"type": "message_delta", "delta": True}], ProviderInvalidResponse, "delta", id="bool"),
        pytest.param([BEGUN, {"type": "message_delta", "usage": ["x"]}], ProviderInvalidResponse, "usage", id="usage"),
        *(
            pytest.param(
                [{"type": "error", "error": {"type": theirs, "message": "words"}}], ours, "words", id=theirs
            )
            for theirs, ours in (
                ("overloaded_error", ProviderUnavailable),
                ("api_error", ProviderUnavailable),
                ("rate_limit_error", ProviderRateLimit),
                ("authentication_error", ProviderAuthentication),
                ("invalid_request_error", ProviderInvalidRequest),
            )
        ),
    ],
)  # fmt: skip
async def test_a_broken_stream(stream: list[dict[str, Any]], kind: type[GatewayError], words: str) -> None:
    opened = await Server(sse(stream)).provider().complete(HI, config=CONFIG, stream=True)
    with pytest.raises(kind, match=words):
        await opened.response()


async def test_key_and_version_are_headers() -> None:
    server = Server(message(text("Hi")))
    await server.ask()
    headers = server.post.calls.last.request.headers
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("key-1", "2023-06-01")
    assert "authorization" not in headers
    assert "key-1" not in repr(server.provider())


async def test_extra_fields_and_stops_go_along() -> None:
    server = Server(message(text("Hi")))
    thinking = {"type": "enabled", "budget_tokens": 1024}
    extra = {"thinking": thinking, "top_k": 3, "stop_sequences": "b"}
    config = RuntimeConfig(max_tokens=9, stop_sequences=["a"], extra=extra)
    await server.ask(config=config)
    # A text isn't a list of stop sequences: Anthropic takes none.
    assert server.body == {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "model": "claude",
        "stop_sequences": ["a"],
        "thinking": thinking,
        "top_k": 3,
    }


async def test_streaming_can_be_ruled_out() -> None:
    server = Server(message(text("Hi")))
    with pytest.raises(ProviderInvalidRequest, match="streaming"):
        await server.provider(capabilities=Capabilities(streaming=False)).complete(HI, config=CONFIG, stream=True)
    with pytest.raises(ProviderInvalidRequest, match="stream"):
        await server.ask(config=RuntimeConfig(max_tokens=1, extra={"stream": True}))
    assert not server.post.called


@pytest.mark.parametrize("tools", [(), (WEATHER,)], ids=["by tool", "by prompt"])
async def test_a_model_without_structured_output(tools: Any) -> None:
    answer = message(text('{"value": 1}')) if tools else message(call({"value": 1}, "answer"), stop_reason="tool_use")
    server = Server(answer)
    response = await server.ask(
        response_schema=NUMBER, tools=tools, capabilities=Capabilities(native_response_format=False)
    )
    assert response.parsed == {"value": 1}
    assert (json.loads(response.message.text), response.finish_reason) == ({"value": 1}, "stop")
    assert ("tool_choice" in server.body, "system" in server.body) == (not tools, bool(tools))
    assert "output_config" not in server.body


async def test_a_refusal_of_the_schema_field_is_learnt() -> None:
    refusal = {"type": "invalid_request_error", "message": "output_config: Extra inputs are not permitted"}
    server = Server(message(text('{"value": 1}')))
    server.post.side_effect = [
        httpx.Response(400, json={"type": "error", "error": refusal}),
        *[httpx.Response(200, json=message(call({"value": 1}, "answer"), stop_reason="tool_use"))] * 2,
    ]
    provider = server.provider()
    for _ in range(2):
        assert (await provider.complete(HI, config=CONFIG, response_schema=NUMBER)).parsed == {"value": 1}
    sent = [json.loads(one.request.content) for one in server.post.calls]
    assert ["output_config" in body for body in sent] == [True, False, False]


async def test_a_cut_structured_answer_says_so() -> None:
    with pytest.raises(StructuredOutputInvalid) as caught:
        await Server(message(text('{"val'), stop_reason="max_tokens")).ask(response_schema=NUMBER)
    assert (caught.value.output_content, caught.value.finish_reason) == ('{"val', "length")


@pytest.mark.parametrize(
    ("status", "kind", "words", "category"),
    [
        (404, "not_found_error", "model: claude-9", "provider_invalid_model"),
        (404, "not_found_error", "Not Found", "provider_invalid_request"),
        (402, "billing_error", "Your credit balance is too low", "provider_authentication"),
        (529, "overloaded_error", "Overloaded", "provider_unavailable"),
        (400, "invalid_request_error", "image url: not supported", "provider_unsupported_content_block"),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", "provider_invalid_request"),
    ],
)  # fmt: skip
async def test_refusals(status: int, kind: str, words: str, category: str) -> None:
    error = {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_1"}
    server = Server(httpx.Response(status, json=error, headers={"retry-after": "7"}))
    with pytest.raises(GatewayError, match=words.partition(":")[0]) as caught:
        await server.ask([UserMessage((TextBlock("?"), ImageBlock(UrlSource("https://x/y.png"))))])
    assert (caught.value.category, caught.value.retry_after) == (category, 7.0)


async def test_ready_asks_for_the_model() -> None:
    server = Server(message(text("Hi")))
    known = server.routes.get("/v1/models/claude").mock(return_value=httpx.Response(200, json={"id": "claude"}))
    await server.provider().ready()
    known.mock(
        return_value=httpx.Response(404, json={"error": {"type": "not_found_error", "message": "model: claude"}})
    )
    with pytest.raises(GatewayError) as caught:
        await server.provider().ready()
    assert caught.value.category == "provider_invalid_model"
