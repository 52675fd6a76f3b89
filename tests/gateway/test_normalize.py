"""`normalize.Answer`: an answer reads the same whole and streamed, in whatever pieces it came."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.answer.errors import EngineError
from gateway.answer.normalize import Answer
from gateway.api.chat import WHOLE_HEADERS
from gateway.errors import GatewayError, ProviderInvalidResponse, ProviderUnavailable
from gateway.observe.request_log import repairs
from gateway.wire.chat import MENDED, ChatRequest
from gateway.wire.engine import Fixup
from normalizers import FormatSpec, registry
from normalizers.base import Mended
from normalizers.write.render import render_calls
from tests.gateway.accumulator import Call, from_stream, from_whole
from tests.gateway.client import chat
from tests.gateway.double import chunk, completion
from tests.gateway.normalizing import TOOLS, answer, fed, streamed
from tests.support.thorough import examples

TEXT_FORMATS = [name for name in registry.names() if not registry.get(name).untouched]

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def payload(*args: Any, **kwargs: Any) -> bytes:
    return json.dumps(chunk(*args, **kwargs), ensure_ascii=False).encode()


def stream_of(pieces: list[str], reason: str | None = "stop") -> list[bytes]:
    last = [payload(reason=reason)] if reason else []
    return [payload("", role="assistant"), *map(payload, pieces), *last]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    return [text[a:b] for a, b in pairwise(places)]


def segments(spec: FormatSpec) -> st.SearchStrategy[str]:
    """What such a model may write: prose, thoughts, calls, and every marker in the wrong place."""
    arguments = st.dictionaries(
        st.sampled_from(["city", "days", "x"]), st.integers(-5, 5) | st.text(max_size=5) | st.none() | st.booleans()
    )
    call = st.tuples(st.sampled_from(["get_weather", "fs.list_dir", "unknown"]), arguments).map(
        lambda pair: {"function": {"name": pair[0], "arguments": json.dumps(pair[1])}}
    )
    markers = [*spec.open, *spec.close, *spec.drop, *(m for pair in spec.think for m in pair)] or ["<|x|>"]
    # fmt: off
    return st.one_of(
        st.text(max_size=8),
        st.lists(call, min_size=1, max_size=3).map(lambda calls: render_calls(spec, calls)),
        st.sampled_from(markers), st.sampled_from(markers).map(lambda marker: marker[:-1]),
        st.sampled_from(["\n", " ", "[", "]", "{", "}", "<", "[get_weather(city=", 'get_weather(city="Paris")',
                         '{"name": "get_weather", "arguments": {', "```", "a", "日本", "🎈"]),
    )
    # fmt: on


POLICIES: list[dict[str, Any]] = [
    {},
    {"tool_choice": "none"},
    {"parallel_tool_calls": False},
    {"tool_choice": "auto"},
]


@pytest.mark.parametrize("format", registry.names())
@settings(max_examples=examples(60))
@given(data=st.data())
def test_whole_is_streamed(format: str, data: st.DataObject) -> None:
    spec = registry.get(format)
    parts = st.text(max_size=8) if spec.untouched else segments(spec)
    text = "".join(data.draw(st.lists(parts, max_size=5)))
    reason = data.draw(st.sampled_from(["stop", "stop", "tool_calls", "length"]))
    cuts = data.draw(st.lists(st.integers(0, 400), max_size=12))
    together = data.draw(st.integers(1, 4))
    fields = data.draw(st.sampled_from(POLICIES))
    one = answer(format, **fields)
    [whole] = from_whole(one.whole(json.dumps(completion(text, reason=reason)).encode())).values()
    payloads = stream_of(pieces_of(text, cuts), reason)
    batches = [payloads[at : at + together] for at in range(0, len(payloads), together)]
    [stream] = from_stream(streamed(answer(format, **fields), batches)).values()

    assert stream.content == whole.content
    assert stream.reasoning == whole.reasoning
    assert stream.reason == whole.reason
    assert stream.warnings == whole.warnings
    assert stream.completed == whole.calls
    if reason != "length" and not stream.warnings:
        assert stream.calls == whole.calls
    if fields.get("tool_choice") == "none":
        assert not stream.calls
    if "parallel_tool_calls" in fields:
        assert len(stream.calls) <= 1


TEXT_AND_CALLS = [name for name in TEXT_FORMATS if name not in ("llama4_json", "muse_glimmer", "inkling")]
"""The formats in which a call may stand behind text that has no marks of its own."""


@pytest.mark.parametrize("format", TEXT_AND_CALLS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_calls_in_text_become_calls(format: str, size: int) -> None:
    calls = [
        {"function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'}},
        {"function": {"name": "fs.list_dir", "arguments": "{}"}},
    ]
    text = "Let me see.\n" + render_calls(registry.get(format), calls)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    [stream] = from_stream(streamed(answer(format), [[p] for p in stream_of(pieces)])).values()
    assert stream.content.strip() == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in stream.calls] == [
        ("get_weather", {"city": "Paris", "days": 2}),
        ("fs.list_dir", {}),
    ]
    assert stream.reason == "tool_calls"


@pytest.mark.parametrize("format", TEXT_AND_CALLS)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_tool_choice_none_leaks_no_markup(format: str, size: int) -> None:
    spec = registry.get(format)
    text = "Sure.\n" + render_calls(spec, [{"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    [stream] = from_stream(
        streamed(answer(format, tool_choice="none"), [[p] for p in stream_of(pieces)])
    ).values()  # fmt: skip
    assert (stream.content.strip(), stream.calls, stream.reason) == ("Sure.", [], "stop")
    assert [warning["code"] for warning in stream.warnings] == ["calls_not_allowed"]
    assert "Paris" in stream.warnings[0]["text"]
    [whole] = from_whole(answer(format, tool_choice="none").whole(json.dumps(completion(text)).encode())).values()
    assert whole == stream


# What needs no change

UNTOUCHED_CHUNKS = {
    "text": payload("Hello"),
    "spacing of its own": b'{ "choices" : [ {"delta":{"content":"a"},"index":0,"finish_reason":null} ] , "x":1e2 }',
    "role": payload("", role="assistant"),
    "role with null": payload(role="assistant") .replace(b'"role"', b'"content": null, "role"'),
    "unknown fields": b'{"choices":[{"index":0,"delta":{"content":"a","x_mine":{"b":1}},"x":2}],"timings":{"a":0.10}}',
    "escapes": b'{"choices":[{"index":0,"delta":{"content":"caf\\u00e9 \\ud83c\\udf88 \\/"}}]}',
    "reasoning under both its names": payload(reasoning_content="hm", reasoning="hm"),
    "logprobs": b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a"}]}}]}',
    "usage null": b'{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}',
    "usage only": json.dumps({**chunk(), "choices": [], "usage": USAGE, "timings": {}}).encode(),
    "usage beside text": json.dumps({**chunk("a"), "usage": USAGE}).encode(),
    "finish": payload(reason="stop"),
    "finish with text": payload("bye", reason="stop"),
    "cut": payload(reason="length"),
    "filtered": payload(reason="content_filter"),
}  # fmt: skip


# An answer in functionary_v32 may begin with the rest of the mark `>>>all`, so that an "a" waits.
@pytest.mark.parametrize("format", [name for name in registry.names() if name != "functionary_v32"])
@pytest.mark.parametrize("came", UNTOUCHED_CHUNKS.values(), ids=UNTOUCHED_CHUNKS.keys())
def test_a_chunk_that_needs_nothing_goes_out_as_the_object_that_came(format: str, came: bytes) -> None:
    first = [] if b'"role"' in came else [payload("", role="assistant")]
    *_, clean = fed(answer(format), *first, came)
    assert clean is came


@pytest.mark.parametrize("format", registry.names())
def test_a_whole_answer_that_needs_nothing_goes_out_as_the_object_that_came(format: str) -> None:
    came = b' {"id":"x","created":7,"model":"m","object":"chat.completion", "choices":[{"index":0,'
    came += b'"message":{"role":"assistant","content":"Hi \\u00e9"},'
    came += b'"finish_reason":"stop","x":1.50}],"x_mine":[1 ,2]}'
    assert answer(format).whole(came) is came


WHOLE_ANSWERS: dict[str, dict[str, Any]] = {
    "cut by a filter": completion("Hi", reason="content_filter"),
    "brackets": completion("See [1] and <b>: {x}."),
    "reasoning": completion("Hi", reasoning_content="hm", reasoning="hm"),
    "two choices": {**completion("Hi"), "choices": [{**completion(text)["choices"][0], "index": at}
                                                    for at, text in enumerate(("[Hi]", "{you}"))]},
    "no calls": completion("Hi", tool_calls=None),
}  # fmt: skip


@pytest.mark.parametrize("format", registry.names())
@pytest.mark.parametrize("name", WHOLE_ANSWERS)
def test_a_whole_answer_is_only_written_anew_where_it_changes(format: str, name: str) -> None:
    came = json.dumps(WHOLE_ANSWERS[name], indent=1).encode()
    assert answer(format, n=2).whole(came) is came


# Calls that the engine read itself


def native(*fragments: dict[str, Any]) -> bytes:
    return payload(tool_calls=list(fragments))


def fn(name: str | None = None, arguments: Any = None, **call: Any) -> dict[str, Any]:
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    return {**call, "function": function}


A = Call("get_weather", '{"city": "Paris"}')
B = Call("fs.list_dir", "{}")

NATIVE: dict[str, tuple[list[bytes], list[Call]]] = {
    "as OpenAI does": (
        [
            native(fn("get_weather", "", index=0, id="a", type="function")),
            native(fn(None, '{"city": ', index=0)),
            native(fn(None, '"Paris"}', index=0)),
        ],
        [A],
    ),
    "no id": ([native(fn("get_weather", A.arguments, index=0, type="function"))], [A]),
    "empty id": ([native(fn("get_weather", A.arguments, index=0, id=""))], [A]),
    "no index": ([native(fn("get_weather", A.arguments, id="a")), native(fn("fs.list_dir", "{}", id="b"))], [A, B]),
    "no index, in pieces": (
        [native(fn("get_weather", '{"city": ', id="a")), native(fn(None, '"Paris"}')), native(fn("fs.list_dir", "{}"))],
        [A, B],
    ),
    "index 0 each, ids": (
        [native(fn("get_weather", A.arguments, index=0, id="a")), native(fn("fs.list_dir", "{}", index=0, id="b"))],
        [A, B],
    ),
    "index 0 each, no ids": (
        [native(fn("get_weather", A.arguments, index=0)), native(fn("fs.list_dir", "{}", index=0))],
        [A, B],
    ),
    "index 0 each, the same tool, no ids": (
        [native(fn("get_weather", A.arguments, index=0)), native(fn("get_weather", A.arguments, index=0))],
        [A, A],
    ),
    "index 0 each, the same id": (
        [
            native(fn("get_weather", A.arguments, index=0, id="call_0")),
            native(fn("fs.list_dir", "{}", index=0, id="call_0")),
            native(fn("fs.list_dir", "{}", index=0, id="call_0")),
        ],
        [A, B, B],
    ),
    "index 0 each, in one chunk": (
        [native(fn("get_weather", A.arguments, index=0, id="a"), fn("fs.list_dir", "{}", index=0, id="b"))],
        [A, B],
    ),
    "index 0 each, no arguments": (
        [native(fn("fs.list_dir", "", index=0)), native(fn("get_weather", A.arguments, index=0))],
        [B, A],
    ),
    "index 0 each, the second without arguments": (
        [native(fn("get_weather", A.arguments, index=0)), native(fn("fs.list_dir", "", index=0))],
        [A, B],
    ),
    "the same id at two indices": (
        [native(fn("get_weather", A.arguments, index=0, id="x")), native(fn("fs.list_dir", "{}", index=1, id="x"))],
        [A, B],
    ),
    "indices that begin at 1": (
        [native(fn("get_weather", A.arguments, index=1, id="a")), native(fn("fs.list_dir", "{}", index=2, id="b"))],
        [A, B],
    ),
    "an index only behind the first fragment": (
        [native(fn("get_weather", '{"city": ')), native(fn(None, '"Paris"}', index=0))],
        [A],
    ),
    "in turns": (
        [
            native(fn("get_weather", '{"city": ', index=0, id="a")),
            native(fn("fs.list_dir", "{", index=1, id="b")),
            native(fn(None, '"Paris"}', index=0)),
            native(fn(None, "}", index=1)),
        ],
        [A, B],
    ),
    "an object as arguments": ([native(fn("get_weather", {"city": "Paris"}, index=0, id="a"))], [A]),
    "an empty object as arguments": ([native(fn("fs.list_dir", {}, index=0, id="a"))], [B]),
    "no arguments": ([native(fn("fs.list_dir", index=0, id="a"))], [B]),
    "null arguments": ([native({"index": 0, "id": "a", "function": {"name": "fs.list_dir", "arguments": None}})], [B]),
    "empty arguments": ([native(fn("fs.list_dir", "", index=0, id="a"))], [B]),
    "id and name on every fragment": (
        [
            native(fn("get_weather", '{"city": ', index=0, id="a", type="function")),
            native(fn("get_weather", '"Paris"}', index=0, id="a", type="function")),
            native(fn("get_weather", "", index=0, id="a", type="function")),
        ],
        [A],
    ),
    "name on every fragment, no id": (
        [native(fn("get_weather", '{"city": ', index=0)), native(fn("get_weather", '"Paris"}', index=0))],
        [A],
    ),
    "empty lists between": (
        [payload("", tool_calls=[]), native(fn("get_weather", A.arguments, index=0, id="a")), payload(tool_calls=[])],
        [A],
    ),
    "null beside": (
        [payload(tool_calls=None), native(fn("get_weather", A.arguments, index=0, id="a"))],
        [A],
    ),
}


def same(calls: list[Call]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("piecewise", [False, True], ids=["held", "piecewise"])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "at once"])
@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize(("chunks", "calls"), NATIVE.values(), ids=NATIVE.keys())
def test_native_calls(chunks: list[bytes], calls: list[Call], reason: str, together: bool, piecewise: bool) -> None:
    payloads = [payload("", role="assistant"), *chunks, payload(reason=reason)]
    batches = [payloads] if together else [[p] for p in payloads]
    one = answer("pythonic", guarded=piecewise)
    [choice] = from_stream(streamed(one, batches)).values()
    assert same(choice.calls) == same(calls)
    assert choice.reason == "tool_calls"


def test_good_native_calls_that_leave_piecewise_are_not_written_anew() -> None:
    chunks = NATIVE["as OpenAI does"][0]
    one = answer(guarded=True)
    fed(one, payload("", role="assistant"))
    first, second, third = fed(one, *chunks)
    assert (second, third) == tuple(chunks[1:])
    assert json.loads(first) == json.loads(chunks[0])
    last = payload(reason="tool_calls")
    assert fed(one, last) == [last]


@pytest.mark.parametrize(("chunks", "calls"), NATIVE.values(), ids=NATIVE.keys())
def test_native_calls_cut_keep_their_reason(chunks: list[bytes], calls: list[Call]) -> None:
    [choice] = from_stream(streamed(answer(), [chunks, [payload(reason="length")]])).values()
    assert choice.reason == "length"


def test_disallowed_native_calls_are_dropped_with_a_warning() -> None:
    payloads = [*NATIVE["in turns"][0], payload(reason="tool_calls")]
    [choice] = from_stream(streamed(answer(tool_choice="none"), [[p] for p in payloads])).values()
    assert (choice.calls, choice.reason) == ([], "stop")
    assert choice.warnings == [
        {"code": "calls_not_allowed", "text": 'get_weather{"city": "Paris"}'},
        {"code": "calls_not_allowed", "text": "fs.list_dir{}"},
    ]


def test_the_first_of_parallel_native_calls_stays_and_the_others_cause_warnings() -> None:
    payloads = [*NATIVE["in turns"][0], payload(reason="tool_calls")]
    [choice] = from_stream(streamed(answer(parallel_tool_calls=False), [[p] for p in payloads])).values()
    assert (same(choice.calls), choice.reason) == (same([A]), "tool_calls")
    assert choice.warnings == [{"code": "parallel_call_dropped", "text": "fs.list_dir{}"}]


def test_unknown_fields_of_a_call_are_kept() -> None:
    one = answer()
    fed(one, payload("", role="assistant"))
    assert fed(one, native(fn("get_weather", "{}", index=0, x_mine={"a": 1}))) == []
    clean, _ = fed(one, payload(reason="tool_calls"))
    assert json.loads(clean)["choices"][0]["delta"]["tool_calls"][0]["x_mine"] == {"a": 1}


WHOLE: dict[str, tuple[list[dict[str, Any]], list[Call]]] = {
    "good": ([fn("get_weather", A.arguments, id="a", type="function")], [A]),
    "no id": ([fn("get_weather", A.arguments, type="function"), fn("fs.list_dir", "{}", type="function")], [A, B]),
    "the same id": ([fn("get_weather", A.arguments, id="a"), fn("fs.list_dir", "{}", id="a")], [A, B]),
    "the same call twice": ([fn("get_weather", A.arguments), fn("get_weather", A.arguments)], [A, A]),
    "with an index": ([fn("get_weather", A.arguments, index=0), fn("fs.list_dir", "{}", index=0)], [A, B]),
    "an object as arguments": ([fn("get_weather", {"city": "Paris"}, id="a")], [A]),
    "no arguments": ([fn("fs.list_dir", id="a"), fn("fs.list_dir", "", id="b"), fn("fs.list_dir", {})], [B, B, B]),
}


@pytest.mark.parametrize("content", [None, ""], ids=["null", "empty"])
@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize(("calls", "expected"), WHOLE.values(), ids=WHOLE.keys())
def test_whole_native_calls(
    calls: list[dict[str, Any]], expected: list[Call], reason: str, content: str | None
) -> None:
    body = answer("pythonic").whole(json.dumps(completion(content, reason=reason, tool_calls=calls)).encode())
    [choice] = from_whole(body).values()
    assert same(choice.calls) == same(expected)
    assert choice.reason == "tool_calls"
    assert json.loads(body)["choices"][0]["message"]["content"] is None


def test_whole_native_calls_that_are_not_allowed() -> None:
    came = json.dumps(completion(None, reason="tool_calls", tool_calls=WHOLE["no id"][0])).encode()
    message = json.loads(answer(tool_choice="none").whole(came))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": ""}
    [choice] = from_whole(answer(tool_choice="none").whole(came)).values()
    assert [w["code"] for w in choice.warnings] == ["calls_not_allowed"] * 2
    [choice] = from_whole(answer(parallel_tool_calls=False).whole(came)).values()
    assert (same(choice.calls), [w["code"] for w in choice.warnings]) == (same([A]), ["parallel_call_dropped"])


def test_text_beside_native_calls_stays() -> None:
    came = json.dumps(completion("Let me see.", reason="tool_calls", tool_calls=WHOLE["good"][0])).encode()
    assert json.loads(answer().whole(came))["choices"][0]["message"]["content"] == "Let me see."


@given(
    st.lists(
        st.tuples(st.sampled_from(["get_weather", "fs.list_dir"]), st.sampled_from(["{}", '{"city":"Rome"}', ""])),
        max_size=4,
    ),
    st.booleans(),
    st.sampled_from(["own", "zero", "none"]),
    st.lists(st.integers(1, 6), min_size=8, max_size=8),
)
@example([("get_weather", "{}"), ("get_weather", "")], False, "zero", [1] * 8)
def test_native_whole_is_native_streamed(calls: list[tuple[str, str]], ids: bool, index: str, sizes: list[int]) -> None:
    """However an engine numbers and cuts its calls; whole calls alone where it gives every one index 0 or none."""
    body, chunks = [], [payload("", role="assistant")]
    for at, (name, arguments) in enumerate(calls):
        one: dict[str, Any] = {"id": f"id{at}"} if ids else {}
        body.append(fn(name, arguments, **one))
        if index == "own":
            chunks.append(native(fn(name, "", index=at, **one)))
            size = sizes[at]
            cut = [arguments[i : i + size] for i in range(0, len(arguments), size)]
            chunks += [native(fn(None, part, index=at)) for part in cut]
        else:
            # Two calls of one tool can't be told apart without ids and arguments.
            if not ids and not arguments:
                arguments = "{}"
            chunks.append(native(fn(name, arguments, **one, **({"index": 0} if index == "zero" else {}))))
    message: dict[str, Any] = {"tool_calls": body} if body else {}
    whole = answer().whole(json.dumps(completion("" if not calls else None, **message)).encode())
    [expected] = from_whole(whole).values()
    [choice] = from_stream(streamed(answer(), [[p] for p in [*chunks, payload(reason="stop")]])).values()
    assert (same(choice.calls), choice.reason) == (same(expected.calls), expected.reason)


# Finish reasons

REASONS = [
    ("stop", "stop"), ("tool_calls", "stop"), ("function_call", "stop"), ("length", "length"),
    ("content_filter", "content_filter"),
]  # fmt: skip


@pytest.mark.parametrize(("came", "clean"), REASONS)
def test_the_reason_of_an_answer_without_calls(came: str, clean: str) -> None:
    assert from_whole(answer().whole(json.dumps(completion("Hi", reason=came)).encode()))[0].reason == clean
    assert from_stream(streamed(answer(), [stream_of(["Hi"], came)]))[0].reason == clean


def test_a_whole_answer_without_a_reason_gets_one() -> None:
    came = completion("Hi")
    del came["choices"][0]["finish_reason"]
    assert from_whole(answer().whole(json.dumps(came).encode()))[0].reason == "stop"


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_reason_on_every_chunk_is_none(empty: str | None) -> None:
    """As some servers write `"finish_reason": ""` until the end."""
    payloads = [payload(part, reason=empty) for part in ("Hello", " ", "you")] + [payload(reason="stop")]
    [choice] = from_stream(streamed(answer("pythonic"), [[p] for p in payloads])).values()
    assert (choice.content, choice.reason) == ("Hello you", "stop")


def test_text_behind_the_reason_is_not_lost() -> None:
    payloads = [payload("Hello", reason="stop"), payload(" you", reason="stop")]
    clean = [json.loads(p)["choices"][0] for p in fed(answer(), *payloads)]
    assert "".join(frame["delta"].get("content", "") for frame in clean) == "Hello you"
    assert [frame["finish_reason"] for frame in clean].count("stop") == 1


# Several choices


def test_two_choices_in_turns_do_not_mix() -> None:
    spec = registry.get("pythonic")
    texts = [
        "A " + render_calls(spec, [{"function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}]),
        "Just words, [brackets] and all.",
    ]
    payloads = []
    for at in range(0, 80, 3):
        payloads += [payload(text[at : at + 3], index=i) for i, text in enumerate(texts) if text[at : at + 3]]
    payloads += [payload(index=1, reason="stop"), payload(index=0, reason="stop")]
    for batches in ([[p] for p in payloads], [payloads]):
        choices = from_stream(streamed(answer("pythonic", n=2), batches))
        assert same(choices[0].calls) == [("get_weather", {"city": "Rome"})]
        assert (choices[0].content.strip(), choices[0].reason) == ("A", "tool_calls")
        assert (choices[1].content, choices[1].calls, choices[1].reason) == (texts[1], [], "stop")


def test_two_choices_in_one_chunk() -> None:
    both = chunk("a")
    both["choices"] += chunk("b", index=1)["choices"]
    last = chunk(reason="stop")
    last["choices"] += chunk(index=1, reason="length")["choices"]
    choices = from_stream(streamed(answer(n=2), [[json.dumps(both).encode()], [json.dumps(last).encode()]]))
    assert [(c.content, c.reason) for _, c in sorted(choices.items())] == [("a", "stop"), ("b", "length")]


def test_choices_begin_in_order_whatever_the_engine_sends_first() -> None:
    """Several of one chunk as several of their own: clients build their list of choices as they come."""
    together = chunk("c", index=2)
    together["choices"] += chunk("b", index=1)["choices"]
    alone = [payload("c", index=2), payload("b", index=1)]
    for came in ([json.dumps(together).encode()], alone):
        clean = [json.loads(each)["choices"][0] for each in fed(answer(n=3), *came)]
        assert [(frame["index"], frame["delta"].get("content")) for frame in clean] == [
            *((0, None), (1, None)),
            *((2, "c"), (1, "b")),
        ]
    # A choice that has begun, and one that nobody asked for, open no other.
    one = answer(n=2)
    begun = fed(one, payload("a"), payload("b", index=1), json.dumps(together).encode())
    assert [json.loads(each)["choices"][0]["index"] for each in begun] == [0, 1, 2, 1]
    beyond = fed(answer(n=2), payload("c", index=2))
    assert [json.loads(each)["choices"][0]["index"] for each in beyond] == [2]


def test_warnings_cover_every_choice() -> None:
    body = completion("A")
    text = '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>'
    for index in (0, 1):
        body["choices"][index:] = completion(text)["choices"]
        body["choices"][index]["index"] = index
    report = json.loads(answer("pythonic", n=2, tool_choice="none").whole(json.dumps(body).encode()))["ctxgate"]
    assert [warning["code"] for warning in report["warnings"]] == ["calls_not_allowed"] * 2


# Beside the text


LEXICAL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome", "x": True}}</tool_call>'
BY_THE_SCHEMA = '<tool_call>{"name": "get_weather", "arguments": {"days": "2"}}</tool_call>'


@pytest.mark.parametrize(
    ("texts", "mended"),
    [
        ([], "none"),
        (["Hi", "Hi"], "none"),
        (["Hi", LEXICAL], "lexical"),
        ([LEXICAL, "Hi"], "lexical"),
        ([LEXICAL, BY_THE_SCHEMA], "schema"),
        ([BY_THE_SCHEMA, "Hi"], "schema"),
    ],
)
def test_the_strongest_repair_of_all_choices_counts(texts: list[str], mended: str) -> None:
    one = answer("hermes", n=2)
    last = [payload(reason="stop", index=index) for index in range(len(texts))]
    fed(one, *(payload(text, index=index) for index, text in enumerate(texts)))
    assert one.mended == mended
    fed(one, *last)
    assert one.mended == mended, "the log reads it after the end"


@pytest.mark.parametrize(("unmarked", "level"), [*product((False, True), ("none", "lexical", "schema"))])
def test_a_call_without_marks_is_told_beside_the_strongest_repair(unmarked: bool, level: Mended) -> None:
    told = ", ".join((["unmarked"] if unmarked else []) + ([level] if level != "none" else [])) or "none"
    assert told in MENDED
    assert dict(WHOLE_HEADERS[told])[b"x-ctxgate-mended"] == told.encode()
    one = answer("hermes", n=2)
    fed(one, payload("Hi"), payload("Hi", index=1))
    first, second = (choice.normalizer.told for choice in one.contents.choices.values())
    first.unmarked, second.mended = unmarked, level
    assert one.mended == told
    ended = [json.loads(each) for index in (0, 1) for each in fed(one, payload(reason="stop", index=index))]
    found = [chunk.get("ctxgate", {}).get("mended", "none") for chunk in ended]
    assert found == ["unmarked" if unmarked else "none", level], "each choice tells of its own calls"
    assert one.mended == told, "the log reads it after the end"
    repaired = repairs(one)
    assert (repaired.mended if repaired is not None else "none") == told


def test_what_stands_beside_the_text_stays_when_the_text_changes() -> None:
    came = chunk('a <|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>', role="assistant", x_mine=1)
    came["choices"][0]["logprobs"] = {"content": []}
    came["usage"] = USAGE
    clean = [json.loads(p) for p in fed(answer("pythonic"), json.dumps(came).encode())]
    assert len(clean) > 1
    assert clean[0]["choices"][0]["delta"].items() >= {"role": "assistant", "x_mine": 1, "content": "a "}.items()
    for name in ("role", "x_mine"):
        assert sum(name in frame["choices"][0]["delta"] for frame in clean) == 1
    assert sum("logprobs" in frame["choices"][0] for frame in clean) == 1
    assert sum("usage" in frame for frame in clean) == 1
    assert {frame["id"] for frame in clean} == {"chatcmpl-1"}


def test_usage_on_a_chunk_whose_text_is_held_back_is_not_lost() -> None:
    came = chunk("<|tool_call_sta")
    came["usage"] = USAGE
    clean = [json.loads(p) for p in fed(answer("pythonic"), json.dumps(came).encode())]
    assert [frame["usage"] for frame in clean] == [USAGE]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_in_the_text_joins_the_engines_reasoning_field(name: str) -> None:
    body = completion("<think>two</think>Hi", **{name: "one "})
    message = json.loads(answer("hermes").whole(json.dumps(body).encode()))["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hi", "one two")
    payloads = [payload(None, **{name: "one "}), *map(payload, ["<think>tw", "o</think>Hi"]), payload(reason="stop")]
    [choice] = from_stream(streamed(answer("hermes"), [[p] for p in payloads])).values()
    assert (choice.content, choice.reasoning) == ("Hi", "one two")


def test_null_content_without_calls_stays_null() -> None:
    """E.g. a refusal, or a reasoner that was cut: not ours to change."""
    came = json.dumps(completion(None, reason="length", reasoning_content="hm", reasoning="hm")).encode()
    assert answer("pythonic").whole(came) is came


# Failures

ERROR = b'{"error":{"message":"slot failed","code":500}}'


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_came_with_an_error_frame_is_not_lost(at: int) -> None:
    payloads = [payload("Hello ", role="assistant"), payload("you")]
    out: list[bytes] = []
    with pytest.raises(EngineError) as failed:
        answer().feed([*payloads[:at], ERROR, payload("never")], out)
    assert json.loads(failed.value.payload) == json.loads(ERROR)
    assert out == payloads[:at]


MALFORMED = {
    "no JSON": b"oops",
    "cut": b'{"choices":[{"index":0,"delta":{"content":"a',
    "a list": b"[]",
    "text": b'"x"',
    "choices an object": b'{"choices":{}}',
    "delta a list": b'{"choices":[{"index":0,"delta":[]}]}',
    "content a number": b'{"choices":[{"index":0,"delta":{"content":7}}]}',
    "a call is text": b'{"choices":[{"index":0,"delta":{"tool_calls":["x"]}}]}',
    "a function is text": b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":"x"}]}}]}',
    "a name is a number": b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":7,"arguments":"{}"}}]}}]}',
    "too deep": b'{"x":' + b"[" * 10_000,
}


@pytest.mark.parametrize("came", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("format", ["native_json", "pythonic"])
def test_a_malformed_chunk(format: str, came: bytes) -> None:
    one = answer(format)
    first = payload("Hello", role="assistant")
    assert fed(one, first) == [first]
    with pytest.raises(ProviderInvalidResponse, match="malformed chunk"):
        fed(one, came)


MALFORMED_WHOLE = {
    "no JSON": b"<html>",
    "empty": b"",
    "a list": b"[]",
    "no choices": b"{}",
    "empty choices": b'{"choices":[]}',
    "choices null": b'{"choices":null}',
    "a choice is text": b'{"choices":["x"]}',
    "no message": b'{"choices":[{"index":0}]}',
    "a message is text": b'{"choices":[{"message":"x"}]}',
    "calls are text": b'{"choices":[{"message":{"tool_calls":"x"}}]}',
    "a call is text": b'{"choices":[{"message":{"tool_calls":["x"]}}]}',
    "a function is text": b'{"choices":[{"message":{"tool_calls":[{"function":"x"}]}}]}',
    "arguments a number": b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":7}}]}}]}',
    "too deep": b'{"choices":' + b"[" * 100_000,
}


@pytest.mark.parametrize("came", MALFORMED_WHOLE.values(), ids=MALFORMED_WHOLE.keys())
def test_a_malformed_whole_answer(came: bytes) -> None:
    with pytest.raises(ProviderInvalidResponse, match="the engine's answer"):
        answer("pythonic").whole(came)


def test_a_whole_answer_that_is_an_error() -> None:
    with pytest.raises(EngineError):
        answer().whole(ERROR)


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "x", "stop", "[get_weather("]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "index",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "finish_reason",
                    "role",
                    "usage",
                    "logprobs",
                    "error",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(odd, max_size=2) | odd, st.sampled_from(["native_json", "pythonic"]))
def test_whatever_an_engine_answers_is_passed_on_or_its_own_fault(choices: Any, format: str) -> None:
    came = json.dumps({"choices": choices, "object": "chat.completion"}).encode()
    with contextlib.suppress(GatewayError, EngineError):
        json.loads(answer(format).whole(came))
    with contextlib.suppress(GatewayError, EngineError):
        streamed(answer(format), [[came], [came]])


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("format", ["native_json", "pythonic"])
def test_reasoning_has_both_its_names(format: str, name: str) -> None:
    """Clients know one or the other, and so do engines."""
    one = answer(format)
    chunks = [json.loads(clean) for clean in fed(one, payload(None, **{name: "hm"}), payload("Hi"))]
    assert chunks[0]["choices"][0]["delta"].items() >= {"reasoning_content": "hm", "reasoning": "hm"}.items()
    assert "reasoning" not in chunks[1]["choices"][0]["delta"]
    whole = json.loads(answer(format).whole(json.dumps(completion("Hi", **{name: "hm"})).encode()))
    assert whole["choices"][0]["message"].items() >= {"reasoning_content": "hm", "reasoning": "hm"}.items()


# Usage

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
LAST_CHUNKS: dict[str, list[dict[str, Any]]] = {
    "in a chunk of its own": [chunk(reason="stop"), {**chunk(), "choices": [], "usage": USAGE}],
    "beside the last choice": [{**chunk(reason="stop"), "usage": USAGE}],
    "before an end without a reason": [{**chunk(tool_calls=[]), "usage": USAGE}],
    "both": [{**chunk(reason="stop"), "usage": USAGE}, {**chunk(), "choices": [], "usage": USAGE}],
    "without a reason": [{**chunk(tool_calls=[]), "usage": USAGE}],
    "with each chunk": [{**chunk(tool_calls=[]), "usage": USAGE}, {**chunk(reason="stop"), "usage": USAGE}],
}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("name", LAST_CHUNKS)
def test_usage_comes_once_and_last_and_with_no_choice(name: str, asked: bool) -> None:
    options = {"stream_options": {"include_usage": asked}}
    request = ChatRequest.parse(json.dumps({"messages": [{"role": "user"}], **options}).encode())
    one = Answer(request, registry.get("pythonic"))
    clean = fed(one, payload("Hi"), *(json.dumps(last).encode() for last in LAST_CHUNKS[name]))
    chunks = [json.loads(each) for each in [*clean, *one.finish(done=True)]]
    usages = [(at, each["choices"], each["usage"]) for at, each in enumerate(chunks) if each.get("usage")]
    own = any(not last["choices"] for last in LAST_CHUNKS[name])
    assert usages == ([(len(chunks) - 1, [], USAGE)] if asked or own else [])
    assert one.usage == USAGE


def test_every_payload_of_a_stream_counts() -> None:
    """The log shows the number, and a key pays for it if the engine doesn't say how many tokens it made."""
    one = answer("pythonic")
    assert one.chunks == 0
    for number, came in enumerate([payload("Hi"), payload("<|tool_call_sta"), payload(reason="stop"), b"{}"], 1):
        fed(one, came)
        assert one.chunks == number


# The end of a stream

OPENINGS = {
    "text": [payload("Hello")],
    "role": [payload("", role="assistant")],
    "reasoning": [payload(reasoning_content="hm", reasoning="hm")],
    "held back": [payload("Hello [get_wea")],
    "a call": [native(fn("get_weather", "{}", index=0))],
    "one of two choices ended": [payload("a"), payload("b", index=1), payload(reason="stop", index=1)],
    "no choice at all": [b'{"object":"chat.completion.chunk","choices":[]}'],
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
def test_a_stream_that_was_cut_is_an_error(opening: list[bytes]) -> None:
    one = answer("pythonic")
    fed(one, *opening)
    with pytest.raises(ProviderUnavailable, match="ended in the middle") as cut:
        one.finish(done=False)
    assert cut.value.status == 502


@pytest.mark.parametrize("opening", [*OPENINGS.values()][:-1], ids=[*OPENINGS.keys()][:-1])
def test_a_stream_that_only_forgot_its_reason_gets_one(opening: list[bytes]) -> None:
    one = answer("pythonic")
    clean = [*fed(one, *opening), *one.finish(done=True)]
    choices = from_stream(clean)
    assert choices[0].reason == ("tool_calls" if choices[0].calls else "stop")
    # What we add looks like what came.
    assert {(c["id"], c["model"], c["created"]) for c in map(json.loads, clean)} == {("chatcmpl-1", "m", 7)}


@pytest.mark.parametrize("done", [True, False])
def test_after_the_reason_the_end_owes_nothing(done: bool) -> None:
    one = answer("pythonic")
    fed(one, *stream_of(["Hello"]))
    assert one.finish(done=done) == []


def test_what_was_held_back_comes_out_when_the_engine_fails() -> None:
    one = answer("pythonic")
    clean = fed(one, payload("Hello <|tool_call_"))
    rest = one.remaining()
    text = "".join(json.loads(p)["choices"][0]["delta"].get("content", "") for p in [*clean, *rest])
    assert text == "Hello <|tool_call_"
    assert {json.loads(p)["id"] for p in rest} == {"chatcmpl-1"}


# Menders


class EveryChunk(Fixup):
    every_chunk = True

    def chunk(self, chunk: dict[str, Any]) -> None:
        chunk["seen"] = True

    def answer(self, answer: dict[str, Any]) -> None:
        answer["seen"] = True


def test_a_fixup_sees_every_chunk_first() -> None:
    clean = streamed(answer("pythonic", EveryChunk()), [stream_of(["Hel", "lo"]), [b'{"choices":[],"usage":{}}']])
    assert all(json.loads(p)["seen"] for p in clean)
    assert len(clean) == 5


def test_a_fixup_sees_the_whole_answer() -> None:
    assert json.loads(answer(fixup=EveryChunk()).whole(json.dumps(completion()).encode()))["seen"]


def test_reasoning_in_two_parts_of_one_chunk_stays_whole() -> None:
    one = answer("hermes")
    clean = [json.loads(each) for each in fed(one, payload("<think>first</think><think>second</think>done"))]
    deltas = [frame["choices"][0]["delta"] for frame in clean]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == "firstsecond"
    assert "".join(delta.get("content", "") for delta in deltas) == "done"


BRACKETS = [
    (
        "hermes",
        '{"name": "get_weather", "arguments": {"days": [1, "x" ',
        '{"name": "get_weather", "arguments": {"days": 2}}',
    ),
    (
        "hermes",
        '{"name": "get_weather", "arguments": {"city": "\\"[[" 7',
        '{"name": "get_weather", "arguments": {"days": 2}}',
    ),
    ("pythonic", "[get_weather(days=) (", "[get_weather(days=2)]"),
]


@pytest.mark.parametrize(("like", "malformed", "call"), BRACKETS)
def test_an_end_marker_with_brackets_ends_a_malformed_call(like: str, malformed: str, call: str) -> None:
    """A user's own format. The call behind it is read, wherever the engine cuts its pieces."""
    format = registry.define({"like": like, "open": "[CALL]", "close": "[/CALL]"})
    text = f"a [CALL]{malformed}[/CALL] b [CALL]{call}[/CALL] c"
    request = ChatRequest.parse(json.dumps(chat(tools=TOOLS)).encode())
    whole = from_whole(Answer(request, format).whole(json.dumps(completion(text)).encode()))
    assert [(each.name, each.arguments) for each in whole[0].calls] == [("get_weather", '{"days": 2}')]
    assert whole[0].content.startswith("a ")
    assert whole[0].content.endswith(" c")
    assert "b" in whole[0].content.split()
    for cut in range(1, len(text)):
        batches = [[piece] for piece in stream_of([text[:cut], text[cut:]])]
        assert from_stream(streamed(Answer(request, format), batches)) == whole, cut
    letters = [[piece] for piece in stream_of([*text])]
    assert from_stream(streamed(Answer(request, format), letters)) == whole


def test_a_streamed_answer_has_only_so_many_choices() -> None:
    frames = [
        json.dumps({**chunk(), "choices": [{"index": at, "delta": {"content": "a"}}]}).encode() for at in range(257)
    ]
    one = answer()
    fed(one, *frames[:256])
    with pytest.raises(ProviderInvalidResponse, match="more than 256 choices"):
        fed(one, frames[256])
