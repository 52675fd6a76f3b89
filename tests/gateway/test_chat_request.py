"""`ChatRequest.parse`: what is refused, in which words, and what goes on untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import (
    DEFAULT,
    FLEX,
    NOBODY,
    PRIORITY,
    ChatRequest,
    compact,
    encode,
    rank_of,
    tier_in,
    with_tier,
)
from gateway.wire.nulls import MAX_KEPT_BYTES

MESSAGES = b'"messages":[{"role":"user","content":"Hi"}]'


def body(rest: bytes) -> bytes:
    return b"{" + MESSAGES + b"," + rest + b"}"


NOT_JSON = {
    "empty": b"",
    "cut": b"{" + MESSAGES,
    "more behind": body(b'"x":1') + b" x",
    "two values": body(b'"x":1') + body(b'"x":1'),
    "byte order mark": b"\xef\xbb\xbf" + body(b'"x":1'),
    "NaN": body(b'"x":NaN'),
    "Infinity": body(b'"x":[1,-Infinity]'),
    "single quotes": body(b"'x':1"),
    "comma at the end": body(b'"x":1,'),
    "line break in an unread string": body(b'"x":"a\nb"'),
    "NUL in an unread string": body(b'"x":"a\x00b"'),
    "unknown escape in an unread string": body(b'"x":"\\q"'),
    "cut escape": body(b'"x":"\\u12"'),
    "leading zero": body(b'"x":01'),
    "lone surrogate in an unread field": body(b'"x":"\\ud800"'),
    "lone surrogate, low first": body(b'"x":"\\udc00 "'),
    "lone surrogate in a message": b'{"messages":[{"role":"user","content":"\\ud83d!"}]}',
    "lone surrogate in a name": body(b'"\\ud800":1'),
    "lone surrogate in tool_choice": body(b'"tool_choice":"\\ud800"'),
    "too deep": body(b'"x":' + b"[" * 40_000 + b"]" * 40_000),
    "too deep in messages": b'{"messages":[{"role":"user","x":' + b'{"a":' * 40_000 + b"1" + b"}" * 40_000 + b"}]}",
    "not UTF-8": body(b'"x":"\xff"'),
    "half a character": b'{"messages":[{"role":"user","content":"\xe2\x82"}]}',
}  # fmt: skip


@pytest.mark.parametrize("raw", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_no_json_is_refused_as_a_whole(raw: bytes) -> None:
    with pytest.raises(ProviderInvalidRequest, match="the request body is not valid") as refused:
        ChatRequest.parse(raw)
    assert refused.value.param is None
    assert len(str(refused.value)) < 200


WRONG: dict[str, tuple[bytes, str | None, str]] = {
    "null": (b"null", None, "expected `object`, got `null`"),
    "a list": (b"[]", None, "expected `object`, got `array`"),
    "a string": (b'"hi"', None, "expected `object`, got `str`"),
    "no messages": (b'{"model":"m"}', "messages", "missing required field `messages`"),
    "messages null": (b'{"messages":null}', "messages", "missing required field `messages`"),
    "messages empty": (b'{"messages":[]}', "messages", "at least one message is required"),
    "messages an object": (b'{"messages":{}}', "messages", "expected `array`, got `object`"),
    "a message is text": (b'{"messages":["Hi"]}', "messages[0]", "expected `object`, got `str`"),
    "a message without role": (
        b'{"messages":[{"role":"user"},{"content":"x"}]}',
        "messages[1].role",
        "missing required field `role`",
    ),
    "role is a number": (b'{"messages":[{"role":7}]}', "messages[0].role", "expected `str`, got `int`"),
    "model is a number": (body(b'"model":7'), "model", "expected `str | null`, got `int`"),
    "stream is text": (body(b'"stream":"yes"'), "stream", "expected `bool | null`, got `str`"),
    "stream is 1": (body(b'"stream":1'), "stream", "expected `bool | null`, got `int`"),
    "include_usage": (
        body(b'"stream_options":{"include_usage":"a"}'),
        "stream_options.include_usage",
        "expected `bool | null`",
    ),
    "tools an object": (body(b'"tools":{}'), "tools", "expected `array | null`"),
    "a tool is text": (body(b'"tools":["get_weather"]'), "tools[0]", "expected `object`"),
    "a nameless tool": (
        body(b'"tools":[{"type":"function","function":{}}]'),
        "tools[0].function.name",
        "missing required field `name`",
    ),
    "a tool whose name is empty": (
        body(b'"tools":[{"type":"function","function":{"name":""}}]'),
        "tools[0].function.name",
        "expected `str` of length >= 1",
    ),
    "a tool without a function": (
        body(b'"tools":[{"function":{"name":"f"}},{"type":"function"}]'),
        "tools[1].function.name",
        "a tool needs a function with a name",
    ),
    "a tool whose function is null": (
        body(b'"tools":[{"type":"function","function":null}]'),
        "tools[0].function.name",
        "a tool needs a function with a name",
    ),
    "a flat tool without a name": (
        body(b'"tools":[{"type":"function","name":""}]'),
        "tools[0].function.name",
        "a tool needs a function with a name",
    ),
    "a description that is none": (
        body(b'"tools":[{"function":{"name":"f","description":7}}]'),
        "tools[0].function.description",
        "expected `str | null`, got `int`",
    ),
    "tool_choice": (body(b'"tool_choice":7'), "tool_choice", "expected `str | object | null`, got `int`"),
    "parallel_tool_calls": (body(b'"parallel_tool_calls":"no"'), "parallel_tool_calls", "expected `bool | null`"),
    "temperature": (body(b'"temperature":"hot"'), "temperature", "expected `float | null`, got `str`"),
    "temperature out of range": (body(b'"temperature":1e400'), "temperature", "number out of range"),
    "top_p": (body(b'"top_p":[]'), "top_p", "expected `float | null`"),
    "max_tokens": (body(b'"max_tokens":1.5'), "max_tokens", "expected `int | null`"),
    "max_tokens is text": (body(b'"max_tokens":"9"'), "max_tokens", "expected `int | null`, got `str`"),
    "n": (body(b'"n":true'), "n", "expected `int | null`, got `bool`"),
    "stop": (body(b'"stop":["a",1]'), "stop[1]", "expected `str`, got `int`"),
    "seed of 5000 digits": (body(b'"seed":' + b"9" * 5000), "seed", "integer value out of range"),
}


@pytest.mark.parametrize(("raw", "param", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_type_is_refused_by_the_name_of_its_field(raw: bytes, param: str | None, reason: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as refused:
        ChatRequest.parse(raw)
    assert refused.value.param == param
    assert reason.replace("object missing", "missing") in str(refused.value)
    assert str(refused.value).startswith(param or "the request body")


UNTOUCHED = {
    "unknown": b'"x_mine":{"a" : [1, 2.50 ,1e3],"b":null}',
    "white space": b'"temperature" :\t0.70',
    "a number's own spelling": b'"temperature":1.0E+0',
    "an integer above 64 bits": b'"seed":123456789012345678901234567890',
    "an escape": b'"user":"caf\\u00e9 \\ud83d\\ude00 \\/"',
    "nested 500 deep": b'"x":' + b"[" * 500 + b"]" * 500,
    "duplicate within an unknown field": b'"x":{"a":1,"a":2}',
    "UTF-8": '"x":"日本 🎈"'.encode(),
}


@pytest.mark.parametrize("field", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_a_field_goes_on_byte_for_byte(field: bytes) -> None:
    request = ChatRequest.parse(body(field))
    name, _, value = field.partition(b":")
    key = json.loads(name)
    assert bytes(request.fields[key]) == value.strip()
    assert bytes(request.fields["messages"]) == MESSAGES.partition(b":")[2]
    assert value.strip() in encode(request.fields)


def test_of_a_duplicate_key_the_last_one_counts_for_us_and_for_the_engine() -> None:
    request = ChatRequest.parse(body(b'"model":"first","stream":true,"model":"second","stream":false'))
    assert (request.model, request.stream) == ("second", False)
    assert encode(request.fields).count(b'"model"') == 1
    assert bytes(request.fields["model"]) == b'"second"'


TOOLS: dict[str, tuple[bytes, bytes | None]] = {
    "absent": (b'"x":1', None),
    "null": (b'"tools":null', None),
    "empty": (b'"tools":[]', None),
    "empty with a space": (b'"tools":[ ]', None),
    "one": (b'"tools":[{"function":{"name":"f"}}]', b'[{"type":"function","function":{"name":"f"}}]'),
    "a flat one": (b'"tools":[{"type":"function","name":"f"}]', b'[{"type":"function","name":"f"}]'),
    "of another kind": (b'"tools":[{"type":"custom","function":null}]', b'[{"type":"custom"}]'),
    "described by null": (
        b'"tools":[{"function":{"name":"f","description":null,"x": 1}},{"type":"custom"}]',
        b'[{"type":"function","function":{"name":"f","x":1}},{"type":"custom"}]',
    ),
}


@pytest.mark.parametrize(("field", "tools"), TOOLS.values(), ids=TOOLS.keys())
def test_tools(field: bytes, tools: bytes | None) -> None:
    request = ChatRequest.parse(body(field))
    assert request.tools == tools
    if tools is not None:
        assert bytes(request.fields["tools"]) == tools, "what the engine gets"


def test_a_long_list_of_tools_is_checked_each_time() -> None:
    long = b"x" * MAX_KEPT_BYTES
    request = ChatRequest.parse(body(b'"tools":[{"function":{"name":"f","description":null,"x":"%b"}}]' % long))
    assert request.tools == b'[{"type":"function","function":{"name":"f","x":"%b"}}]' % long
    with pytest.raises(ProviderInvalidRequest, match="a tool needs a function with a name"):
        ChatRequest.parse(body(b'"tools":[{"type":"function","x":"%b"}]' % long))


READ: dict[str, tuple[bytes, dict[str, Any]]] = {
    "nothing": (b'"x":1', {"stream": False, "model": None, "parallel_tool_calls": True, "tool_choice": None}),
    "stream": (b'"stream":true', {"stream": True}),
    "stream null": (b'"stream":null', {"stream": False}),
    "usage": (b'"stream_options":{"include_usage":true,"x":1}', {"include_usage": True}),
    "usage null": (b'"stream_options":null', {"include_usage": False}),
    "one at a time": (b'"parallel_tool_calls":false', {"parallel_tool_calls": False}),
    "parallel null": (b'"parallel_tool_calls":null', {"parallel_tool_calls": True}),
    "choice": (b'"tool_choice":"none"', {"tool_choice": "none"}),
    "named choice": (
        b'"tool_choice":{"type":"function","function":{"name":"f"}}',
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "choice null": (b'"tool_choice":null', {"tool_choice": None}),
    "what the API alone sets": (
        b'"x":1',
        {"api": "chat", "caller": NOBODY, "fallback": None, "functions": False, "recorded": False, "call_deltas": None},
    ),
    "deltas": (b'"call_deltas":"always"', {"call_deltas": "always"}),
    "deltas null": (b'"call_deltas":null', {"call_deltas": None}),
    "threshold": (b'"call_threshold":0.25', {"call_threshold": 0.25}),
    "threshold null": (b'"call_threshold":null', {"call_threshold": None}),
    "words alone": (b'"x":1', {"constrained": False, "past_calls": False, "plain": True}),
    "with tools": (b'"tools":[{"type":"function","function":{"name":"f"}}]', {"constrained": False, "plain": False}),
    "tools to choose from": (b'"tool_choice":"auto"', {"constrained": False, "plain": True}),
    "no tool": (b'"tool_choice":"none"', {"constrained": False, "plain": True}),
    "a tool": (b'"tool_choice":"required"', {"constrained": True, "plain": False}),
    "one tool": (b'"tool_choice":{"type":"function"}', {"constrained": True, "plain": False}),
    "a format": (b'"response_format":{"type":"json_object"}', {"constrained": True, "plain": False}),
    "format null": (b'"response_format":null', {"constrained": False, "plain": True}),
    "past calls": (
        b'"messages":[{"role":"assistant","tool_calls":[]}]',
        {"constrained": False, "past_calls": True, "plain": False},
    ),
    "past results": (b'"messages":[{"role":"tool","tool_call_id":"c"}]', {"past_calls": True, "plain": False}),
}


@pytest.mark.parametrize(("field", "expected"), READ.values(), ids=READ.keys())
def test_what_is_read(field: bytes, expected: dict[str, Any]) -> None:
    request = ChatRequest.parse(body(field))
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("field", "tier"),
    [
        (b'"x":1', None),
        (b'"service_tier":null', None),
        (b'"service_tier":"flex"', "flex"),
        (b'"service_tier":"auto"', "auto"),
        (b'"service_tier":"scale"', "auto"),  # of another server
    ],
)
def test_the_tier_that_is_asked_for(field: bytes, tier: str | None) -> None:
    assert ChatRequest.parse(body(field)).serving.tier == tier


def test_a_schema_is_the_one_of_its_format() -> None:
    def schema(format: str) -> bytes:
        request = ChatRequest.parse(body(b'"response_format":' + format.encode()))
        assert request.response_format is not None
        return request.response_format.schema

    assert schema('{"type":"json_schema","json_schema":{"name":"n","schema":{"a" :1}}}') == b'{"a" :1}'
    assert schema('{"type":"json_schema","json_schema":{"name":"n"}}') == b"null"
    assert schema('{"type":"json_object"}') == b"null"


def test_more_messages_go_behind_those_of_the_request() -> None:
    """A copy: the request itself stays as it is, and the copy waits anew."""
    request = ChatRequest.parse(body(b'"model":"m"'))
    request.serving.tell(lambda: "prompt tokens=7")
    more = request.continued([{"role": "assistant", "content": "Ho"}])
    assert json.loads(encode(more.fields)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
    }
    assert bytes(request.fields["messages"]) == MESSAGES.partition(b":")[2]
    assert (request.serving.describe(), more.serving.describe()) == ("prompt tokens=7", "waiting")


FIELD_TIERS: dict[str, tuple[dict[str, Raw], str | None]] = {
    "none": ({}, None),
    "null": ({"service_tier": Raw(b"null")}, None),
    "known": ({"service_tier": Raw(b'"priority"')}, "priority"),
    "any": ({"service_tier": Raw(b'"auto"')}, "auto"),
    "of another server": ({"service_tier": Raw(b'"scale"')}, "auto"),
}


@pytest.mark.parametrize("name", FIELD_TIERS)
def test_the_tier_that_fields_name(name: str) -> None:
    fields, tier = FIELD_TIERS[name]
    assert tier_in(fields) == tier


def test_a_tier_is_a_string() -> None:
    with pytest.raises(ProviderInvalidRequest, match="service_tier: must be a string") as refused:
        tier_in({"service_tier": Raw(b"1")})
    assert refused.value.param == "service_tier"


def test_priority_goes_first_and_flex_last() -> None:
    assert rank_of("priority") == PRIORITY < rank_of("default") == DEFAULT < rank_of("flex") == FLEX
    assert rank_of(None) == rank_of("auto") == DEFAULT


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b' {"id":"x"}', b'{"service_tier":"flex","id":"x"}'),
        (b'{"service_tier":"scale","id":"x"}', b'{"service_tier":"scale","id":"x"}'),
        (b'{"id":"x","service_tier":null}', b'{"id":"x","service_tier":"flex"}'),
        (b'{"id":"\\"service_tier\\""}', b'{"service_tier":"flex","id":"\\"service_tier\\""}'),
    ],
)
def test_an_answer_names_its_tier_unless_a_server_did(answer: bytes, named: bytes) -> None:
    assert with_tier(answer, "flex") == named


def test_white_space_between_tokens_is_left_out() -> None:
    assert compact(b'{"a" : [1,\n "b  c"] }') == b'{"a":[1,"b  c"]}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=6), st.booleans())
def test_any_valid_object_goes_on_with_the_same_meaning(fields: dict[str, Any], ascii_only: bool) -> None:
    fields = {"x-" + name: value for name, value in fields.items()}
    sent = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    request = ChatRequest.parse(json.dumps(sent, ensure_ascii=ascii_only).encode("utf-8", "replace"))
    given = {name: value for name, value in sent.items() if value is not None}
    assert json.loads(encode(request.fields)) == json.loads(json.dumps(given))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_read_or_refused_and_what_is_read_is_json(noise: bytes, at: int) -> None:
    """Nothing that an engine could choke on gets through, nothing but a refusal comes out."""
    good = body(b'"tools":[{"type":"function","function":{"name":"f"}}],"x":"y"')
    try:
        request = ChatRequest.parse(good[:at] + noise + good[at:])
    except ProviderInvalidRequest:
        return
    assert isinstance(json.loads(encode(request.fields)), dict)


def test_the_fields_are_raw() -> None:
    assert all(isinstance(value, Raw) for value in ChatRequest.parse(body(b'"x":1')).fields.values())
