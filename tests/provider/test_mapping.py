"""Call to request body and body to Response, beyond what the fixtures say (OpenArmature §3, §6, §8.1)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProviderInvalidResponse
from gateway.provider import (
    AssistantMessage,
    Capabilities,
    ImageBlock,
    InlineSource,
    Message,
    RuntimeConfig,
    SystemMessage,
    TextBlock,
    Tool,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.mapping.openai import OpenAICall as Call

from .server import completion
from .strategies import json_values, texts

HI = UserMessage("hi")
ADD = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def check(messages: Any = (HI,), **arguments: Any) -> Call:
    return Call.check("m", Capabilities(), messages, **arguments)


def body(call: Call) -> dict[str, Any]:
    return dict(json.loads(call.body(native=True)))


def entry(id: Any = "c1", name: Any = "add", arguments: Any = '{"a": 1}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*entries: Any, finish_reason: Any = "tool_calls", content: Any = None) -> dict[str, Any]:
    answer = completion(content, tool_calls=list(entries))
    answer["choices"][0]["finish_reason"] = finish_reason
    return answer


def finished(finish_reason: Any, content: Any = "text") -> dict[str, Any]:
    return called(finish_reason=finish_reason, content=content)


def without(*path: Any) -> dict[str, Any]:
    answer: Any = completion("text")
    place = answer
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return dict(answer)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(None, "not a JSON object", id="null"),
        pytest.param([], "not a JSON object", id="array"),
        pytest.param(without("choices"), "choices", id="no choices"),
        pytest.param(without("choices", 0), "choices", id="empty choices"),
        pytest.param(without("choices", 0, "message"), "message", id="no message"),
        pytest.param(without("choices", 0, "finish_reason"), "finish_reason", id="no finish_reason"),
        pytest.param(finished(None), "finish_reason", id="null finish_reason"),
        pytest.param(completion("text", role="user"), "role", id="another role"),
        pytest.param(finished("stop", [{"type": "text"}]), "content", id="content that is no text"),
        pytest.param(finished("stop", ""), "empty", id="nothing at all"),
        pytest.param(finished("tool_calls", "text"), "empty", id="tool_calls without a call"),
        pytest.param(completion("text", tool_calls={}), "tool_calls", id="calls that are no array"),
        pytest.param(called(entry(id=None)), "id", id="call without id"),
        pytest.param(called(entry(id="")), "id", id="call with an empty id"),
        pytest.param(called(entry(), entry()), "same id", id="id twice"),
        pytest.param(called(entry(name="sub")), "'sub'", id="unknown tool"),
        pytest.param(called(entry(name=None)), "''", id="call without name"),
        pytest.param(called(entry(arguments='{"a": ')), "arguments", id="arguments cut off"),
        pytest.param(called(entry(arguments='{"a": NaN}')), "arguments", id="arguments with NaN"),
        pytest.param(called(entry(arguments="[1]")), "arguments", id="arguments that are an array"),
        pytest.param(called(entry(arguments="")), "arguments", id="empty arguments"),
        pytest.param(called(entry(arguments={"a": 1})), "arguments", id="arguments that are no text"),
        pytest.param(called(entry(arguments="[" * 100_000)), "arguments", id="arguments nested too deeply"),
        pytest.param(called(entry(arguments='{"a": "1"}')), "/a", id="arguments against the schema"),
        pytest.param(called(entry(arguments='{"a": ""}'), finish_reason="length"), "/a", id="the same when cut"),
        pytest.param(called("call"), "id", id="call that is no object"),
    ],
)
def test_a_malformed_answer_is_refused(answer: Any, reason: str) -> None:
    with pytest.raises(ProviderInvalidResponse, match=reason):
        check(tools=[ADD]).response(answer)


def test_a_call_of_a_tool_that_was_not_offered_is_refused() -> None:
    with pytest.raises(ProviderInvalidResponse, match="not a tool of this call"):
        check().response(called(entry()))


@pytest.mark.parametrize(
    ("answer", "content", "calls", "finish_reason"),
    [
        pytest.param(completion("text"), "text", (), "stop", id="text"),
        pytest.param(finished("length", ""), "", (), "length", id="cut before the first word"),
        pytest.param(finished("content_filter", None), "", (), "content_filter", id="blocked"),
        pytest.param(finished("odd"), "text", (), "error", id="unknown finish_reason"),
        pytest.param(called(entry()), "", (ToolCall("c1", "add", {"a": 1}),), "tool_calls", id="call"),
        pytest.param(
            called(entry(), content="So:"), "So:", (ToolCall("c1", "add", {"a": 1}),), "tool_calls", id="text and call"
        ),
        pytest.param(
            called(entry(), finish_reason="stop"), "", (ToolCall("c1", "add", {"a": 1}),), "stop", id="call under stop"
        ),
        pytest.param(
            called(entry(None, None, "{"), "junk", finish_reason="error"),
            "",
            (ToolCall("", "", None), ToolCall("", "", None)),
            "error",
            id="degraded calls are surfaced",
        ),
        pytest.param(completion("text", tool_calls=None), "text", (), "stop", id="null calls"),
        pytest.param(without("choices", 0, "message", "role"), "text", (), "stop", id="role left out"),
    ],
)
def test_answers(answer: dict[str, Any], content: str, calls: tuple[ToolCall, ...], finish_reason: str) -> None:
    before = copy.deepcopy(answer)
    response = check(tools=[ADD]).response(answer)
    assert response.message == AssistantMessage(content, calls)
    assert response.finish_reason == finish_reason
    assert response.raw == before
    assert response.parsed is None


@pytest.mark.parametrize(
    ("extra", "sent"),
    [
        pytest.param({"top_k": 40, "min_p": None}, {"top_k": 40, "min_p": None}, id="any field, as it is"),
        pytest.param({"temperature": 1}, {"temperature": 1.0}, id="the same value again"),
        pytest.param({"stream": False}, {}, id="the mode that the call has"),
        pytest.param({"stream_options": {"x": 1}}, {"stream_options": {"x": 1}}, id="free while not streaming"),
        pytest.param(
            {"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}, id="free without schema"
        ),
    ],
)
def test_extra_fields(extra: dict[str, Any], sent: dict[str, Any]) -> None:
    config = RuntimeConfig(temperature=1.0, extra=extra)
    fixed = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 1.0}
    assert body(check(config=config)) == fixed | sent


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    """A model fills an object in that order: reasoning before the verdict is not the verdict before reasoning."""
    schema = {"type": "object", "properties": {"why": {"type": "string"}, "answer": {"type": "string"}}}
    text = check(response_schema=schema).body(native=True).decode()
    assert text.index('"why"') < text.index('"answer"')


sources = st.builds(UrlSource, texts) | st.builds(InlineSource, texts)
images = st.builds(ImageBlock, sources, st.just("image/png"), st.sampled_from([None, "auto", "low", "high"]))
users = st.builds(UserMessage, texts | st.lists(st.builds(TextBlock, texts) | images, min_size=1, max_size=3))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Any conversation that the contract allows."""
    messages: list[Message] = [SystemMessage(draw(texts))] if draw(st.booleans()) else []
    messages.append(draw(users))
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(texts, max_size=3, unique=True))
        calls = [ToolCall(id, draw(texts), draw(st.dictionaries(texts, json_values, max_size=3))) for id in ids]
        messages.append(AssistantMessage(draw(st.text(st.characters(exclude_categories=["Cs"]))) or "x", calls))
        messages += [ToolMessage(draw(texts), call.id) for call in calls]
        messages.append(draw(users))
    return messages


@given(conversations())
def test_every_valid_conversation_reaches_the_wire_whole(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    sent = body(check(messages))["messages"]
    assert messages == before
    assert [entry["role"] for entry in sent] == [message.role for message in messages]
    for message, wire in zip(messages, sent, strict=True):
        if isinstance(message, ToolMessage):
            assert (wire["tool_call_id"], wire["content"]) == (message.tool_call_id, message.content)
        elif isinstance(message.content, str):
            assert (wire["content"] or "") == message.content
        else:
            assert [block["type"] for block in wire["content"]] == [
                {"text": "text", "image": "image_url"}[block.type] for block in message.content
            ]
        if isinstance(message, AssistantMessage) and message.tool_calls:
            assert [
                ToolCall(e["id"], e["function"]["name"], json.loads(e["function"]["arguments"]))
                for e in wire["tool_calls"]
            ] == list(message.tool_calls)


@given(
    st.lists(
        st.tuples(texts, st.dictionaries(texts, json_values, max_size=3)),
        min_size=1,
        max_size=4,
        unique_by=lambda c: c[0],
    )
)
def test_tool_calls_survive_the_round_trip(calls: list[tuple[str, dict[str, Any]]]) -> None:
    """What one server's answer says goes into the next request with the same ids and the same values (§3)."""
    tool = Tool("f", "", {"type": "object"})
    answer = called(*(entry(id, "f", json.dumps(arguments)) for id, arguments in calls))
    message = check(tools=[tool]).response(answer).message
    again = body(check([HI, message, *(ToolMessage("", id) for id, _ in calls)], tools=[tool]))["messages"][1]
    assert [(e["id"], json.loads(e["function"]["arguments"])) for e in again["tool_calls"]] == calls


@given(json_values)
def test_no_json_answer_escapes_the_categories(answer: Any) -> None:
    for document in (answer, {"choices": [answer]}, {"choices": [{"message": answer, "finish_reason": "stop"}]}):
        try:
            check(tools=[ADD]).response(document)
        except ProviderInvalidResponse:
            continue


@given(json_values)
def test_usage_is_a_count_or_none(value: Any) -> None:
    usage = check().response({**completion("text"), "usage": {"prompt_tokens": value, "total_tokens": 7}}).usage
    expected = value if type(value) is int and value >= 0 else None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (expected, None, 7)
