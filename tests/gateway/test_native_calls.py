"""Calls that the engine read itself: one law for them whole and streamed, whatever the engine makes of them."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.answer import native_calls
from gateway.answer.normalize import Answer
from gateway.errors import ProviderInvalidResponse
from gateway.wire.chat import ChatRequest
from normalizers import registry
from tests.backends.ollama_double import OllamaDouble
from tests.gateway.accumulator import Call, Choice, from_stream, from_whole
from tests.gateway.client import chat
from tests.gateway.double import Json, answers, chunk, completion, streams
from tests.gateway.running import running
from tests.support.thorough import examples

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
]
PARIS = '{"city": "Paris"}'
FORWARDS = registry.define({"like": "native_json", "unknown_tools": "forward"})


def answer(format: Any = "native_json", *, guarded: bool = False, **fields: Any) -> Answer:
    spec = registry.get(format) if isinstance(format, str) else format
    request = ChatRequest.parse(json.dumps(chat(**{"tools": TOOLS, **fields})).encode())
    return Answer(request, spec, guarded=guarded)


def fn(name: str | None = None, arguments: Any = None, **call: Any) -> Json:
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    return {**call, "function": function}


def native(*fragments: Json) -> bytes:
    return json.dumps(chunk(tool_calls=list(fragments))).encode()


def text(content: str) -> bytes:
    return json.dumps(chunk(content)).encode()


def end(reason: str) -> bytes:
    return json.dumps(chunk(reason=reason)).encode()


def fed(one: Answer, *payloads: bytes) -> list[bytes]:
    out: list[bytes] = []
    one.feed(list(payloads), out)
    return out


def whole_of(one: Answer, content: str | None, calls: list[Json], reason: str) -> Choice:
    message: Json = {"tool_calls": calls} if calls else {}
    return from_whole(one.whole(json.dumps(completion(content, reason=reason, **message)).encode()))[0]


def streamed_of(one: Answer, *payloads: bytes) -> Choice:
    return from_stream([*fed(one, *payloads), *one.finish(done=True)])[0]


# What an engine reads, the reason, what the client gets: content, calls, reason and codes of warnings.
READ: dict[str, tuple[list[Json], str, tuple[str, list[Call], str, list[str]]]] = {
    "good": ([fn("get_weather", PARIS)], "stop", ("", [Call("get_weather", PARIS)], "tool_calls", [])),
    "no arguments": ([fn("ping")], "stop", ("", [Call("ping", "{}")], "tool_calls", [])),
    "blank arguments": ([fn("ping", " \n")], "stop", ("", [Call("ping", "{}")], "tool_calls", [])),
    "blanks before": ([fn("get_weather", f"  {PARIS}")], "stop", ("", [Call("get_weather", PARIS)], "tool_calls", [])),
    "the word null": ([fn("ping", "null")], "stop", ("", [Call("ping", "{}")], "tool_calls", [])),
    "encoded twice": (
        [fn("get_weather", json.dumps(PARIS))],
        "stop",
        ("", [Call("get_weather", PARIS)], "tool_calls", []),
    ),
    "undeclared": (
        [fn("rm", '{"path": "/"}')],
        "tool_calls",
        ('{"name": "rm", "arguments": {"path": "/"}}', [], "stop", ["unknown_tool"]),
    ),
    "undeclared, no arguments": (
        [fn("rm")],
        "tool_calls",
        ('{"name": "rm", "arguments": {}}', [], "stop", ["unknown_tool"]),
    ),
    "without a name": (
        [fn(None, PARIS)],
        "tool_calls",
        ('{"name": "", "arguments": ' + PARIS + "}", [], "stop", ["unknown_tool"]),
    ),
    "half": (
        [fn("get_weather", '{"city": "Pa')],
        "tool_calls",
        ('{"name": "get_weather", "arguments": {"city": "Pa}', [], "stop", ["syntax"]),
    ),
    "more behind": (
        [fn("get_weather", PARIS + "<|im_end|>")],
        "stop",
        ('{"name": "get_weather", "arguments": ' + PARIS + "<|im_end|>}", [], "stop", ["syntax"]),
    ),
    "twice in one": (
        [fn("get_weather", "{}" + PARIS)],
        "stop",
        ('{"name": "get_weather", "arguments": {}' + PARIS + "}", [], "stop", ["syntax"]),
    ),
    "no number of JSON": (
        [fn("get_weather", '{"city": NaN}')],
        "stop",
        ('{"name": "get_weather", "arguments": {"city": NaN}}', [], "stop", ["syntax"]),
    ),
    "a list": (
        [fn("get_weather", '["Paris"]')],
        "stop",
        ('{"name": "get_weather", "arguments": ["Paris"]}', [], "stop", ["arguments_not_an_object"]),
    ),
    "text": (
        [fn("get_weather", '"Paris"')],
        "stop",
        ('{"name": "get_weather", "arguments": "Paris"}', [], "stop", ["syntax"]),
    ),
    "nested too deeply": (
        [fn("get_weather", '{"city":' + "[" * 100_000)],
        "stop",
        ('{"name": "get_weather", "arguments": {"city":' + "[" * 100_000 + "}", [], "stop", ["nested_too_deep"]),
    ),
    "half, then a good one": (
        [fn("get_weather", '{"city": '), fn("ping", "{}")],
        "tool_calls",
        ('{"name": "get_weather", "arguments": {"city":}', [Call("ping", "{}")], "tool_calls", ["syntax"]),
    ),
    "undeclared between": (
        [fn("ping", "{}"), fn("rm", "{}"), fn("get_weather", PARIS)],
        "tool_calls",
        (
            '{"name": "rm", "arguments": {}}',
            [Call("ping", "{}"), Call("get_weather", PARIS)],
            "tool_calls",
            ["unknown_tool"],
        ),
    ),
    "cut": (
        [fn("ping", "{}"), fn("get_weather", '{"city": "Pa')],
        "length",
        ("", [Call("ping", "{}"), Call("get_weather", '{"city": "Pa')], "length", ["truncated_call"]),
    ),
    "cut before its arguments": ([fn("get_weather", "")], "length", ("", [], "length", ["truncated_call"])),
    "cut, and undeclared": (
        [fn("rm", '{"path": "')],
        "length",
        ('{"name": "rm", "arguments": {"path": "}', [], "length", ["unknown_tool"]),
    ),
    "cut behind it": ([fn("get_weather", PARIS)], "length", ("", [Call("get_weather", PARIS)], "length", [])),
    "at the length's end, but no object": (
        [fn("get_weather", "[]"), fn("get_weather", '["Paris')],
        "length",
        (
            '{"name": "get_weather", "arguments": []}\n{"name": "get_weather", "arguments": ["Paris}',
            [],
            "length",
            ["arguments_not_an_object", "syntax"],
        ),
    ),
    "cut, and the one before it broken": (
        [fn("get_weather", '{"city"'), fn("get_weather", '{"city": "Pa')],
        "length",
        (
            '{"name": "get_weather", "arguments": {"city"}',
            [Call("get_weather", '{"city": "Pa')],
            "length",
            ["syntax", "truncated_call"],
        ),
    ),
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", READ)
def test_what_becomes_of_what_an_engine_reads(name: str, size: int) -> None:
    calls, reason, (content, handed_out, clean_reason, codes) = READ[name]
    payloads = [text("")]
    for at, call in enumerate(calls):
        arguments = call["function"].get("arguments") or ""
        payloads.append(native({**call, "index": at, "function": {**call["function"], "arguments": ""}}))
        payloads += [native(fn(None, arguments[a : a + size], index=at)) for a in range(0, len(arguments), size)]
    ended = payloads[-1].replace(b'"finish_reason": null', b'"finish_reason": "%b"' % reason.encode())
    for got in (
        whole_of(answer(), None, calls, reason),
        streamed_of(answer(), *payloads, end(reason)),
        streamed_of(answer(), *payloads[:-1], ended),
    ):
        assert (got.content, got.calls, got.reason) == (content, handed_out, clean_reason)
        assert [warning["code"] for warning in got.warnings] == codes


@pytest.mark.parametrize("declares", [True, False])
def test_a_format_that_forwards_unknown_tools(declares: bool) -> None:
    fields: Json = {} if declares else {"tools": []}
    got = whole_of(answer(FORWARDS, **fields), None, [fn("rm", "{}"), fn("", "{}")], "stop")
    assert got.calls == [Call("rm", "{}")]
    assert got.content == '{"name": "", "arguments": {}}'
    refused = whole_of(answer(**fields), None, [fn("rm", "{}")], "tool_calls")
    assert (refused.calls, refused.reason) == ([], "stop")


WRITTEN = [
    *("{}", PARIS, "", "null", "[]", "7", '{"city": ', '{"city": "a}', '{"city": "\\', '{"city": "\\"}"}', "}", "{}{}"),
    *(json.dumps(PARIS), '{"a": {"b": [1, "]"]}}', "{'city': 'Paris'}", '{"city": "Paris",}', '{"a": Infinity}', "{} "),
]
POLICIES: list[Json] = [{}, {}, {"tool_choice": "none"}, {"parallel_tool_calls": False}]


def cut_up(written: str, cuts: list[int]) -> list[str]:
    places = sorted({0, *(cut % (len(written) + 1) for cut in cuts), len(written)})
    return [written[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize("format", ["native_json", "pythonic", "hermes"])
@settings(max_examples=examples(150))
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["Look: ", " ", "\n", "[ping()]", "<tool_call>", "<think>", '<tool_call>{"name": "ping"}</tool_call>']
            ),
            st.tuples(st.sampled_from(["get_weather", "ping", "rm", ""]), st.sampled_from(WRITTEN)),
        ),
        max_size=6,
    ),
    st.sampled_from(["stop", "tool_calls", "length"]),
    st.sampled_from(POLICIES),
    st.sampled_from(["own", "none", "same"]),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 4),
    st.none() | st.randoms(use_true_random=False),
)
@example(["[ping()]", ("ping", "{}")], "stop", {"parallel_tool_calls": False}, "own", [], 1, None)
@example([("ping", "{}"), "[ping()]", ("get_weather", PARIS)], "stop", {}, "own", [], 1, None)
def test_whole_is_streamed(
    format: str,
    parts: list[Any],
    reason: str,
    policy: Json,
    ids: str,
    cuts: list[int],
    together: int,
    in_turns: Random | None,
) -> None:
    """in_turns: fragments of several calls and of the text come mixed."""
    calls: list[Json] = []
    texts: list[bytes] = []
    streams: list[list[bytes]] = [texts]
    payloads = [text("")]
    for part in parts:
        if isinstance(part, str):
            pieces = [text(piece) for piece in cut_up(part, cuts)]
            texts += pieces
        else:
            name, written = part
            at = len(calls)
            of: Json = {"own": {"id": f"id{at}"}, "none": {}, "same": {"id": "id"}}[ids]
            calls.append(fn(name, written, **of))
            payloads += [native(fn(name, "", index=at, **of))] * (in_turns is not None)
            pieces = [native(fn(name, "", index=at, **of))] * (in_turns is None)
            pieces += [native(fn(None, piece, index=at)) for piece in cut_up(written, cuts)]
            streams.append(pieces)
        payloads += pieces if in_turns is None else []
    while in_turns is not None and any(streams):
        payloads.append(in_turns.choice([each for each in streams if each]).pop(0))
    content = "".join(part for part in parts if isinstance(part, str))
    whole = whole_of(answer(format, **policy), content, calls, reason)
    one = answer(format, **policy)
    payloads.append(end(reason))
    out = [clean for at in range(0, len(payloads), together) for clean in fed(one, *payloads[at : at + together])]
    stream = from_stream([*out, *one.finish(done=True)])[0]
    assert (stream.content, stream.reasoning, stream.calls, stream.reason, stream.warnings) == (
        whole.content,
        whole.reasoning,
        whole.calls,
        whole.reason,
        whole.warnings,
    )
    whole_calls = whole.calls[:-1] if reason == "length" else whole.calls
    assert all(isinstance(json.loads(call.arguments), dict) for call in whole_calls)
    assert {call.name for call in whole.calls} <= {"get_weather", "ping"}
    if policy.get("tool_choice") == "none":
        assert not whole.calls
    if "parallel_tool_calls" in policy:
        assert len(whole.calls) <= 1


def test_calls_leave_at_the_end_each_at_once_with_all_arguments() -> None:
    one = answer()
    fed(one, json.dumps(chunk("", role="assistant")).encode())
    assert fed(one, native(fn("get_weather", "", index=0, id="a")), native(fn(None, '{"city": ', index=0))) == []
    assert one.contents.describe_held() == "calling get_weather characters=9"
    assert fed(one, native(fn(None, '"Paris"}', index=0)), native(fn("ping", "{", index=1, id="b"))) == []
    assert one.contents.describe_held() == "calling ping characters=1"
    clean, _ = fed(one, native(fn(None, "}", index=1)), end("tool_calls"))
    weather, ping = json.loads(clean)["choices"][0]["delta"]["tool_calls"]
    named = {"name": "get_weather", "arguments": PARIS}
    assert weather == {"index": 0, "id": "a", "type": "function", "function": named}
    assert (ping["index"], ping["id"], ping["function"]["arguments"]) == (1, "b", "{}")
    assert one.contents.describe_held() == ""


def test_progress_names_no_tool_that_the_request_does_not_declare() -> None:
    one = answer()
    fed(one, native(fn("a\nb", "{", index=0)))
    assert one.contents.describe_held() == "calling characters=1"
    name = "a\n" + "b" * 80
    one = answer(tools=[{"type": "function", "function": {"name": name}}])
    fed(one, native(fn(name, "{", index=0)))
    assert one.contents.describe_held() == f"calling a?{'b' * 62} characters=1", "no line of its own, and 64 characters"


def test_a_name_that_comes_later() -> None:
    parts = [{"index": 0, "id": "a"}, fn("ping", None, index=0), fn(None, "{", index=0), fn(None, "}", index=0)]
    for piecewise in (False, True):
        one = answer(guarded=piecewise)
        assert streamed_of(one, *map(native, parts), end("stop")).calls == [Call("ping", "{}")]


def test_calls_that_leave_piecewise_are_judged_at_the_end() -> None:
    one = answer(guarded=True)
    fed(one, json.dumps(chunk("", role="assistant")).encode())
    out = fed(one, native(fn("rm", "{", index=0)), native(fn("get_weather", '{"city": ', index=1)))
    assert [json.loads(each)["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] for each in out] == [
        "get_weather"
    ]
    out += one.finish(done=True)
    last = json.loads(out[-1])
    assert [warning["code"] for warning in last["ctxgate"]["warnings"]] == ["unknown_tool", "syntax"]
    assert json.loads(out[-2])["choices"][0]["delta"] == {"content": '{"name": "rm", "arguments": {}'}


def test_the_calls_of_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_calls, "MAX_CHARACTERS", 1000)
    piece = native(fn(None, "x" * 100, index=0))
    for piecewise in (False, True):
        one = answer(guarded=piecewise)
        with pytest.raises(ProviderInvalidResponse, match="longer than 1,000 characters"):
            fed(one, native(fn("ping", "", index=0)), *[piece] * 10)
    with pytest.raises(ProviderInvalidResponse, match="longer than 1,000 characters"):
        whole_of(answer(), None, [fn("ping", "x" * 1000)], "stop")
    with pytest.raises(ProviderInvalidResponse, match="longer than 1,000 characters"):
        fed(answer(), *[native(fn("ping", None, index=at)) for at in range(20)])


def test_when_the_engine_fails_what_was_complete_is_handed_out() -> None:
    one = answer()
    fed(one, native(fn("ping", "{}", index=0)), native(fn("get_weather", '{"ci', index=1)))
    content, calls = (json.loads(payload)["choices"][0]["delta"] for payload in one.remaining())
    assert content == {"content": '{"name": "get_weather", "arguments": {"ci}'}
    assert [call["function"]["name"] for call in calls["tool_calls"]] == ["ping"]


@pytest.mark.parametrize("wanted", ["guarded", "complete", "always"])
async def test_call_deltas_hold_for_what_an_engine_reads(wanted: str) -> None:
    pieces = [
        fn("get_weather", "", index=0, id="a"),
        *(fn(None, piece, index=0) for piece in ('{"city"', ": ", '"a"}')),
    ]
    script = streams(*(chunk(tool_calls=[piece]) for piece in pieces), chunk(reason="tool_calls"))
    whole = answers(completion(None, reason="tool_calls", tool_calls=[fn("get_weather", '{"city": "a"}', id="a")]))
    async with running(script, whole, tool_call_format="native_json", call_deltas=wanted) as gateway:
        payloads = (await gateway.ask(chat(stream=True, tools=TOOLS))).events[:-1]
        same = from_whole((await gateway.ask(chat(tools=TOOLS))).body)[0]
    fragments = [c for p in payloads for c in json.loads(p)["choices"][0]["delta"].get("tool_calls") or ()]
    assert len(fragments) == (4 if wanted == "always" else 1)
    assert from_stream(payloads)[0] == same


OLLAMAS: dict[str, list[Json]] = {
    "good": [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping", "arguments": {}}],
    "undeclared": [{"name": "rm", "arguments": {"path": "/"}}, {"name": "ping", "arguments": {}}],
    "no object": [{"name": "get_weather", "arguments": ["Paris"]}],
    "no arguments": [{"name": "ping", "arguments": None}],
}


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", OLLAMAS)
async def test_calls_of_ollamas_own_protocol(name: str, reason: str) -> None:
    calls = [fn(call["name"], json.dumps(call["arguments"]), id=f"id{at}") for at, call in enumerate(OLLAMAS[name])]
    double = OllamaDouble({"m": ["completion", "tools"]}, script=lambda _: (["Look", "."], calls), reason=reason)
    async with double.serve() as at:
        settings: Json = {
            "runtime": "ollama",
            "base_url": f"http://127.0.0.1:{at.port}",
            "tool_call_format": "native_json",
        }
        async with running(answers(), **settings) as gateway:
            streamed = from_stream((await gateway.ask(chat(stream=True, tools=TOOLS))).events[:-1])[0]
            whole = from_whole((await gateway.ask(chat(tools=TOOLS))).body)[0]
    assert streamed == whole
    assert [call.name for call in whole.calls] == [
        call["name"] for call in OLLAMAS[name] if call["name"] != "rm" and not isinstance(call["arguments"], list)
    ]
    assert ("rm" in whole.content) == (name == "undeclared")
