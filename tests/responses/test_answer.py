"""The encoder of responses: what its events and its response say of pieces that few engines send."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse, ProviderRateLimit
from gateway.features.responses.wire.answer import ResponseEncoder, response_object
from gateway.features.responses.wire.request import CreateResponse, ToolTable, seal
from gateway.wire.chat import decode, encode
from gateway.wire.pieces import CallArguments, CallStart, End, Piece, ReasoningPiece, TextPiece, UsagePiece, pieces

Json = dict[str, Any]

FUNCTION: Json = {"type": "function", "name": "f"}
TOOLS: list[Json] = [
    {"type": "custom", "name": "patch"},
    FUNCTION,
    {"type": "namespace", "name": "n", "tools": [FUNCTION]},
]
BROKEN = ProviderInvalidResponse("broken")


def encoder(**more: Any) -> ResponseEncoder:
    """Its ids are the prefix and a number; the clock stands at 7.9 s. The tool `s_now` is an MCP server's."""
    request = CreateResponse.parse(json.dumps({"input": "Hi", "tools": TOOLS}).encode())
    tools = ToolTable(request.tools)
    tools.add_remote("s", "now", "", {})
    response = response_object(request, "m", tools, id="resp_1", created_at=5, store=True)
    numbers = iter(range(100))
    return ResponseEncoder(response, tools, lambda: 7.9, id=lambda prefix: f"{prefix}_{next(numbers)}", **more)


def done(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["type"] == f"response.{kind}"]


@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("f", {"id": "fc_0", "type": "function_call", "name": "f", "arguments": '{"input": "x"}'}),
        ("n__f", {"id": "fc_0", "type": "function_call", "name": "f", "namespace": "n", "arguments": '{"input": "x"}'}),
        ("patch", {"id": "ctc_0", "type": "custom_tool_call", "name": "patch", "input": "x"}),
    ],
)
def test_a_call_names_its_tool_as_it_was_declared(name: str, item: Json) -> None:
    encoding = encoder()
    pieces: list[Piece] = [
        CallStart(0, "a", name),
        *(CallArguments(0, part) for part in ('{"inp', 'ut": "', 'x"', "}")),
    ]
    events = encoding.feed(pieces) + encoding.close()
    assert encoding.response["output"] == [{**item, "call_id": "a", "status": "completed"}]
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert deltas == (["x"] if name == "patch" else ['{"inp', 'ut": "', 'x"', "}"])


def test_the_end_of_the_stream_repeats_calls_without_arguments() -> None:
    encoding = encoder()
    encoding.feed([CallStart(0, "a", "f"), CallStart(1, "b", "g")])
    assert encoding.feed([CallArguments(0, "{}")]) == []
    encoding.close()
    assert [item["arguments"] for item in encoding.response["output"]] == ["{}", "{}"]


@pytest.mark.parametrize(
    ("pieces", "late"),
    [
        ([CallStart(0, "a", "f"), CallStart(1, "b", "g")], CallArguments(0, '{"n": 1}')),
        ([CallStart(0, "a", "f"), CallArguments(0, "{}"), CallStart(1, "b", "g")], CallArguments(0, "{}")),
        ([CallStart(0, "a", "f"), CallArguments(0, "{}"), TextPiece("x")], CallArguments(0, "{}")),
        ([TextPiece("x")], CallArguments(0, "{}")),
    ],
    ids=["other arguments", "a call with arguments", "text behind", "no call"],
)
def test_arguments_for_a_call_that_has_ended_are_an_error(pieces: list[Piece], late: Piece) -> None:
    encoding = encoder()
    encoding.feed(pieces)
    with pytest.raises(ProviderInvalidResponse, match="call 0, which has ended"):
        encoding.feed([late])


@pytest.mark.parametrize(
    ("pieces", "item"),
    [
        (
            [TextPiece("Hel"), TextPiece("lo")],
            {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
        ),
        ([ReasoningPiece("Hm.")], {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}),
        ([CallStart(0, "a", "f"), CallArguments(0, '{"n"')], {"type": "function_call", "arguments": '{"n"'}),
        ([CallStart(0, "a", "patch"), CallArguments(0, '{"input": "x')], {"type": "custom_tool_call", "input": "x"}),
        (
            [CallStart(0, "a", "s_now"), CallArguments(0, '{"n"')],
            {"type": "mcp_call", "arguments": '{"n"', "output": None, "error": None},
        ),
    ],
    ids=["text", "reasoning", "a call", "a custom call", "an MCP server's call"],
)
@pytest.mark.parametrize("way", ["cancelled", "failed", "limited"])
def test_an_unfinished_item_keeps_what_had_come(pieces: list[Piece], item: Json, way: str) -> None:
    encoding = encoder()
    encoding.feed(pieces)
    if way == "cancelled":
        encoding.cancel()
    elif way == "failed":
        encoding.fail(BROKEN)
    else:
        encoding.feed([End("length")])
        encoding.close()
    assert encoding.response["status"] == {"limited": "incomplete"}.get(way, way)
    (found,) = encoding.response["output"]
    assert found["status"] == "incomplete"
    for part in found.get("content", ()):
        part.pop("annotations", None), part.pop("logprobs", None)
    assert found.items() >= item.items()


@pytest.mark.parametrize("way", ["close", "fail", "cancel"])
def test_a_remote_call_without_a_result_is_cut_off(way: str) -> None:
    encoding = encoder()
    encoding.feed([CallStart(0, "a", "s_now"), CallArguments(0, '{"n":1}'), End("tool_calls")])
    paused = encoding.paused()
    assert [event["type"] for event in paused] == ["response.mcp_call_arguments.done"]
    assert encoding.response["output"][0]["status"] == "in_progress"
    events = {"close": encoding.close, "fail": lambda: encoding.fail(BROKEN), "cancel": encoding.cancel}[way]() or []
    if way != "cancel":
        assert [event["type"] for event in events[:2]] == ["response.mcp_call.failed", "response.output_item.done"]
    (item,) = encoding.response["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"n":1}')
    assert encoding.close() == [], "it ends once"


@pytest.mark.parametrize(("output", "error", "state"), [("noon", None, "completed"), (None, "late", "failed")])
def test_the_result_of_a_remote_call(output: str | None, error: str | None, state: str) -> None:
    encoding = encoder()
    begun = encoding.feed([CallStart(0, "a", "s_now"), CallArguments(0, "{}")])
    assert [event["type"] for event in begun] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
    ]
    encoding.paused()
    ended, closed = encoding.called("a", output, error)
    assert ended == {"type": f"response.mcp_call.{state}", "sequence_number": 4, "item_id": "mcp_0", "output_index": 0}
    assert closed["item"] == {
        "id": "mcp_0",
        "type": "mcp_call",
        "server_label": "s",
        "name": "now",
        "arguments": "{}",
        "output": output,
        "error": error,
        "approval_request_id": None,
        "status": state,
    }
    encoding.feed([TextPiece("It is noon.")])
    encoding.close()
    assert [item["status"] for item in encoding.response["output"]] == [state, "completed"]


def test_calls_of_each_answer_in_a_turn_count_from_0() -> None:
    """After the results, the model's next answer has indices, bare calls and token counts of its own."""
    encoding = encoder()
    counts = UsagePiece(prompt=10, completion=3, cached=2, reasoning=1)
    encoding.feed([CallStart(0, "a", "s_now"), End("tool_calls"), counts])
    encoding.paused()
    encoding.called("a", "noon", None)
    encoding.feed(
        [CallStart(1, "b", "f"), CallArguments(1, "{}"), UsagePiece(prompt=30, completion=3, cached=6, reasoning=1)]
    )
    with pytest.raises(ProviderInvalidResponse, match="has ended"):
        encoding.feed([CallArguments(0, "{}")])
    assert encoding.response["usage"] == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 46,
    }
    assert counts == UsagePiece(prompt=10, completion=3, cached=2, reasoning=1)


def test_counts_that_come_again_replace_those_of_the_same_answer() -> None:
    encoding = encoder()
    encoding.feed([UsagePiece(prompt=10, completion=1)])
    encoding.feed([UsagePiece(prompt=10, completion=3)])
    assert encoding.response["usage"]["total_tokens"] == 13


@pytest.mark.parametrize("error", [None, "no such host"])
def test_the_tools_of_an_mcp_server(error: str | None) -> None:
    encoding = encoder()
    tools: list[Json] = [] if error else [{"name": "now"}]
    added, begun, ended, closed = encoding.listed("s", tools, error)
    assert [event["sequence_number"] for event in (added, begun, ended, closed)] == [0, 1, 2, 3]
    empty = {"id": "mcpl_0", "type": "mcp_list_tools", "server_label": "s", "tools": []}
    assert (added["type"], added["output_index"], added["item"]) == ("response.output_item.added", 0, empty)
    assert begun["type"] == "response.mcp_list_tools.in_progress"
    assert ended["type"] == f"response.mcp_list_tools.{'failed' if error else 'completed'}"
    assert (ended["item_id"], ended["output_index"]) == ("mcpl_0", 0)
    item = {**empty, "error": error} if error else {**empty, "tools": tools}
    assert (closed["type"], closed["item"]) == ("response.output_item.done", item)
    assert encoding.response["output"] == [item]


TOO_LONG = ProviderInvalidRequest("too long", code="context_length_exceeded", param="input")
FAILURES: dict[str, tuple[GatewayError, str]] = {
    "the prompt": (ProviderInvalidRequest("no"), "invalid_prompt"),
    "its length": (TOO_LONG, "context_length_exceeded"),
    "a limit": (ProviderRateLimit("later"), "rate_limit_exceeded"),
    "the engine": (BROKEN, "server_error"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_its_cause(name: str) -> None:
    error, code = FAILURES[name]
    encoding = encoder()
    event, failed = encoding.fail(error)
    told = {"code": error.code, "message": error.message, "param": error.param}
    assert event == {"type": "error", "sequence_number": 0, **told, "error": {"type": error.type, **told}}
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": code, "message": error.message}


@pytest.mark.parametrize(
    ("reason", "limit", "why"),
    [
        ("length", None, "max_output_tokens"),
        ("content_filter", None, "content_filter"),
        ("stop", "max_tool_calls", "max_tool_calls"),
        ("stop", None, None),
        ("tool_calls", None, None),
    ],
)
def test_how_an_answer_ends(reason: str, limit: str | None, why: str | None) -> None:
    encoding = encoder()
    encoding.feed([TextPiece("Hello"), End(reason)])
    (item,) = done(encoding.close(limit), "output_item.done")
    response = encoding.response
    if why is None:
        assert (response["status"], response["incomplete_details"], response["completed_at"]) == ("completed", None, 7)
    else:
        assert response["status"] == "incomplete"
        assert (response["incomplete_details"], response["completed_at"]) == ({"reason": why}, None)
    assert item["item"]["status"] == response["status"]
    assert encoding.last()["type"] == f"response.{response['status']}"


@pytest.mark.parametrize("pieces", [[], [TextPiece("")], [TextPiece("Hi")]], ids=["nothing", "no text", "a text"])
def test_an_answer_has_a_message(pieces: list[Piece]) -> None:
    encoding = encoder()
    events = encoding.feed(pieces) + encoding.close()
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["output_item.added", "content_part.added"]
    assert kinds[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
    assert {event["content_index"] for event in events if "content_index" in event} == {0}
    (item,) = encoding.response["output"]
    assert (item["id"], item["role"]) == ("msg_0", "assistant")
    assert [part["text"] for part in item["content"]] == ["".join(p.text for p in pieces if isinstance(p, TextPiece))]


def test_an_answer_in_the_background_begins_once_the_engine_does() -> None:
    encoding = encoder()
    encoding.response["status"] = "queued"
    assert [event["response"]["status"] for event in encoding.opening()] == ["queued", "in_progress"]


def test_an_answer_that_is_skipped_has_no_output() -> None:
    encoding = encoder()
    encoding.skip()
    assert (encoding.response["output"], encoding.response["status"]) == ([], "completed")
    assert encoding.response["completed_at"] == 7


def test_log_probabilities_belong_to_the_text() -> None:
    first, second = {"token": "a", "logprob": -1}, {"token": "", "logprob": -2}
    encoding = encoder()
    events = encoding.feed([ReasoningPiece("Hm."), TextPiece("a", [first]), TextPiece("", [second]), TextPiece("")])
    deltas = done(events, "output_text.delta")
    assert [decode(encode(event["logprobs"])) for event in deltas] == [[first], [second]]
    assert "logprobs" not in done(events, "reasoning_text.delta")[0]
    ended = decode(encode(encoding.close()))
    assert done(ended, "output_text.done")[0]["logprobs"] == [first, second]
    assert "logprobs" not in done(events, "reasoning_text.done")[0]
    part = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [first, second]}
    assert done(ended, "content_part.done")[0]["part"] == part
    assert decode(encode(encoding.response["output"][1]["content"])) == [part]


def test_many_log_probabilities_are_kept_as_json() -> None:
    """At the end, several events have all of them: objects would be written again and again, while everybody waits."""
    likeliest = [{"token": f"t{number}", "logprob": -1.5, "bytes": [116]} for number in range(20)]
    payload = encode({"choices": [{"text": "a", "logprobs": {"content": [{"top_logprobs": likeliest}]}}]})
    encoding, count = encoder(), 500
    tracemalloc.start()
    try:
        for _ in range(count):
            encoding.feed(pieces(payload))
        encoding.close()
        assert tracemalloc.get_traced_memory()[0] < 3 * count * len(payload)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("more", "sealed"), [({"sealed": True}, True), ({}, False)])
def test_only_sealed_reasoning_has_encrypted_content(more: Json, sealed: bool) -> None:
    encoding = encoder(**more)
    encoding.feed([ReasoningPiece("Hm."), TextPiece("Yes.")])
    encoding.close()
    reasoning, message = encoding.response["output"]
    assert (reasoning["id"], reasoning["summary"], "role" in reasoning) == ("rs_0", [], False)
    assert reasoning.get("encrypted_content") == (seal("Hm.") if sealed else None)
    assert "encrypted_content" not in message


def test_an_event_shows_the_response_at_its_time() -> None:
    encoding = encoder()
    created, begun = encoding.opening()
    (added,) = done(encoding.feed([CallStart(0, "a", "f"), CallArguments(0, "{}")]), "output_item.added")
    encoding.close()
    for event in (created, begun):
        assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
    assert (added["item"]["status"], added["item"]["arguments"]) == ("in_progress", "")
    assert json.dumps(encoding.last()["response"]) == json.dumps(encoding.response)
