"""Google's Gemini API beyond the fixtures: exchanges as its documentation shows them, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse, ProviderUnavailable
from gateway.provider import (
    AssistantMessage,
    Delta,
    ImageBlock,
    ReasoningDelta,
    Response,
    RuntimeConfig,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolMessage,
    UrlSource,
    UserMessage,
)

from .gemini_exchanges import ANSWERS, HI, Server, call, candidate, sse, text

LIGHTS = Tool("set_light", "", {"type": "object", "properties": {"brightness": {"type": "integer"}}})


@pytest.mark.parametrize(("body", "expected", "finish_reason"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_is_the_same_whole_and_streamed(
    body: dict[str, Any], expected: AssistantMessage, finish_reason: str
) -> None:
    whole = await Server(body).ask(tools=[LIGHTS])
    assert (whole.message, whole.finish_reason, whole.raw) == (expected, finish_reason, body)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (8, 2, 40)
    async with await Server(sse(body)).provider().complete(HI, [LIGHTS], stream=True) as stream:
        *_, last = [event async for event in stream]
    assert isinstance(last, Response)
    assert (last.message, last.finish_reason, last.usage) == (expected, finish_reason, whole.usage)


async def test_pieces_of_a_stream_become_one_text() -> None:
    chunks = [
        candidate(text("Let me", thought=True), reason=None),
        candidate(text(" see.", thought=True), reason=None),
        candidate(text("4"), reason=None),
        candidate(text("2"), reason=None),
        candidate(text("", thoughtSignature="c2ln"), call(), reason="STOP"),
    ]
    deltas: list[Delta] = []
    server = Server(sse(*chunks))
    async with await server.provider().complete(HI, [LIGHTS], stream=True) as stream:
        async for event in stream:
            if isinstance(event, Response):
                response = event
            else:
                deltas.append(event)
    assert response.message == AssistantMessage(
        (ThinkingBlock("Let me see."), TextBlock("42", "c2ln")), (ToolCall("c1", "set_light", {"brightness": 5}),)
    )
    assert deltas == [
        *map(ReasoningDelta, ("Let me", " see.")),
        *map(TextDelta, "42"),
        ToolCallDelta(0, "c1", "set_light", '{"brightness":5}'),
    ]
    assert server.streamed.called
    assert "stream" not in json.loads(server.streamed.calls.last.request.content)


@pytest.mark.parametrize(
    ("stream", "kind", "words"),
    [
        pytest.param([], ProviderInvalidResponse, "no chunk", id="nothing"),
        pytest.param([candidate(text("a"), reason=None)], ProviderUnavailable, "broke off", id="cut"),
        pytest.param([candidate("a", reason=None)], ProviderInvalidResponse, "part", id="a part that is a text"),  # type: ignore[arg-type]
        pytest.param(
            [{"candidates": [{"content": {"parts": 1.5}}]}],
            ProviderInvalidResponse,
            "parts",
            id="no list",
        ),
        pytest.param(
            [{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}],
            ProviderUnavailable,
            "overloaded",
            id="error",
        ),
    ],
)
async def test_a_broken_stream(stream: list[dict[str, Any]], kind: type[GatewayError], words: str) -> None:
    opened = await Server(sse(*stream)).provider().complete(HI, stream=True)
    with pytest.raises(kind, match=words):
        await opened.response()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param([], "not a JSON object", id="array"),
        pytest.param({}, "candidates", id="no candidates"),
        pytest.param({"candidates": [{"content": {}}]}, "finishReason", id="no reason"),
        pytest.param({"candidates": [{"content": {"parts": 1}, "finishReason": "STOP"}]}, "parts", id="parts"),
        pytest.param(candidate("text"), "not an object", id="a part that is a text"),  # type: ignore[arg-type]
        pytest.param(candidate(), "empty", id="nothing at all"),
        pytest.param(candidate(call({"brightness": "5"})), "/brightness", id="arguments"),
        pytest.param(candidate({"functionCall": {"args": {}}}), "''", id="a call without a name"),
    ],
)
async def test_a_malformed_answer_is_refused(body: Any, reason: str) -> None:
    with pytest.raises(ProviderInvalidResponse, match=reason):
        await Server(httpx.Response(200, json=body)).ask(tools=[LIGHTS])


async def test_calls_without_ids_get_different_ones() -> None:
    bare = {"functionCall": {"name": "set_light"}}
    response = await Server(candidate(bare, bare)).ask(tools=[LIGHTS])
    first, second = response.message.tool_calls
    assert first.id != second.id
    assert first.arguments == {}
    server = Server(candidate(text("done")))
    await server.ask([*HI, response.message, ToolMessage("ok", first.id), ToolMessage("no", second.id)], tools=[LIGHTS])
    results = server.body["contents"][-1]["parts"]
    assert [part["functionResponse"]["name"] for part in results] == ["set_light"] * 2


async def test_where_extra_fields_go() -> None:
    server = Server(candidate(text("ok")))
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    config = RuntimeConfig(temperature=0.5, extra={"topK": 3, "safetySettings": safety, "temperature": 0.5})
    await server.ask(config=config)
    assert server.body["generationConfig"] == {"temperature": 0.5, "topK": 3}
    assert server.body["safetySettings"] == safety
    with pytest.raises(ProviderInvalidRequest, match="toolConfig"):
        await server.ask(tools=[LIGHTS], tool_choice="auto", config=RuntimeConfig(extra={"toolConfig": {}}))


async def test_the_key_is_a_header_and_never_in_the_url() -> None:
    server = Server(candidate(text("ok")))
    await server.ask()
    request = server.whole.calls.last.request
    assert request.headers["x-goog-api-key"] == "key-1"
    assert "key-1" not in str(request.url)


@pytest.mark.parametrize(
    ("status", "words", "category"),
    [
        (404, "models/gemini-9 is not found for API version v1beta, or is not supported", "provider_invalid_model"),
        (404, "Requested entity was not found.", "provider_invalid_request"),
        (400, "API key not valid. Please pass a valid API key.", "provider_authentication"),
        (403, "Unsupported MIME type: image/heic", "provider_unsupported_content_block"),
        (403, "Permission denied", "provider_authentication"),
        (400, "Cannot fetch content: image url is not supported", "provider_unsupported_content_block"),
        (429, "Quota exceeded", "provider_rate_limit"),
        (504, "Deadline expired", "provider_unavailable"),
    ],
)
async def test_refusals(status: int, words: str, category: str) -> None:
    error = {"error": {"code": status, "message": words, "status": "WHATEVER"}}
    with pytest.raises(GatewayError, match=words[:20]) as caught:
        await Server(httpx.Response(status, json=error)).ask(
            [UserMessage((ImageBlock(UrlSource("https://x/y.heic")),))]
        )
    assert caught.value.category == category


async def test_ready_asks_for_the_model() -> None:
    server = Server(candidate(text("ok")))
    known = server.routes.get("/v1beta/models/gemini-x").mock(return_value=httpx.Response(200, json={}))
    await server.provider().ready()
    assert known.called


async def test_a_picture_s_url_is_the_server_s_to_judge() -> None:
    picture = ImageBlock(UrlSource("http://[bad"))
    server = Server(httpx.Response(200, json=candidate(text("a"))))
    await server.ask([UserMessage((picture,))])
    assert server.body["contents"][0]["parts"] == [{"fileData": {"fileUri": "http://[bad"}}]
