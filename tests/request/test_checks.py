"""What a checked answer looks like once it conforms, chunk by chunk."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.request import checks
from gateway.request.checks import AnswerBuffer, Check, with_contents
from gateway.request.constraints import Constraint, constraint, named_tool
from gateway.schema.checker import compiled
from gateway.wire.chat import ChatRequest

Json = dict[str, Any]

USER = {"role": "user", "content": "Hi"}
BY_ENGINE = {"by": "checked", "attempts": 1}


def tool(name: str, **function: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **function}}


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": [USER], **fields}).encode())


def check(schema: Json | None = None, kind: Any = "json", **fields: Any) -> Check:
    return Check(
        Constraint(kind, schema=None if schema is None else json.dumps(schema).encode()),
        request(**fields).tools,
        compiled,
    )


def frame(content: str | None = None, reason: str | None = None, index: int = 0, **delta: Any) -> Json:
    said = {} if content is None else {"content": content}
    return {"index": index, "delta": {**said, **delta}, "finish_reason": reason}


def chunks(*frames: Json) -> list[Json]:
    return [{"id": "c", "choices": [each]} for each in frames]


def test_a_chunk_of_several_choices_keeps_the_others() -> None:
    given = [
        {"id": "c", "choices": [frame("a"), frame("x", index=1)]},
        {"id": "c", "choices": [frame("b"), frame("y", index=1)]},
    ]
    found = [json.loads(each)["choices"] for each in with_contents(given, {0: "ab"}, BY_ENGINE)]
    assert found == [[frame("ab"), frame("x", index=1)], [frame("y", index=1)]]


def test_a_cleaned_text_comes_once_and_nothing_else_is_lost() -> None:
    given = chunks(
        frame(role="assistant"),
        frame("```json\n"),
        frame('{"a": 1}'),
        frame("\n```", reasoning_content="Done."),
        frame("\n", reason="stop"),
    )
    given.append({"id": "c", "choices": [], "usage": {"total_tokens": 3}})
    found = [json.loads(each) for each in with_contents(given, {0: '{"a": 1}'}, BY_ENGINE)]
    deltas = [each["choices"][0]["delta"] for each in found if each["choices"]]
    assert deltas == [{"role": "assistant"}, {"content": '{"a": 1}'}, {"reasoning_content": "Done."}, {}]
    assert [each["choices"][0]["finish_reason"] for each in found[:-1]] == [None, None, None, "stop"]
    assert [each.get("ctxgate") for each in found] == [None, None, None, {"enforced": BY_ENGINE}, None]
    assert found[-1] == {"id": "c", "choices": [], "usage": {"total_tokens": 3}}


def test_of_a_chunk_with_two_choices_only_the_spent_one_goes() -> None:
    given: list[Json] = [
        {"choices": [frame("a", index=0), frame("b", index=1)]},
        {"choices": [frame("a", index=0), frame("b", index=1)]},
        {"progress": 0.5},
    ]
    found = [json.loads(each) for each in with_contents(given, {1: "B"}, BY_ENGINE)]
    said = [[(each["index"], each["delta"]["content"]) for each in one["choices"]] for one in found[:-1]]
    assert said == [[(0, "a"), (1, "B")], [(0, "a")]]
    assert found[-1] == {"progress": 0.5}


def test_only_the_choices_that_changed_are_written_anew() -> None:
    given = chunks(frame("a", index=0), frame("b", index=1), frame("c", index=1), frame(reason="stop", index=1))
    found = [json.loads(each)["choices"][0] for each in with_contents(given, {1: "B"}, BY_ENGINE)]
    assert [(each["index"], each["delta"]) for each in found] == [(0, {"content": "a"}), (1, {"content": "B"}), (1, {})]


@pytest.mark.parametrize("content", ['```json\n{"a": 1}\n```', ' {"a": 1}\n', '```\n{"a": 1}```'])
def test_a_streamed_answer_loses_its_fence(content: str) -> None:
    payloads = [json.dumps(each).encode() for each in chunks(frame(content), frame(reason="stop"))]
    found = check().stream(payloads, BY_ENGINE)
    assert isinstance(found, list)
    said = [json.loads(each)["choices"][0]["delta"].get("content") for each in found]
    assert said == ['{"a": 1}', None]


def test_a_fence_goes_from_a_choice_without_an_index() -> None:
    """As some servers write a stream that has one choice alone."""
    fenced, last = frame('```json\n{"a": 1}\n```'), frame(reason="stop")
    del fenced["index"], last["index"]
    found = check().stream([json.dumps(each).encode() for each in chunks(fenced, last)], BY_ENGINE)
    assert isinstance(found, list)
    assert [json.loads(each)["choices"][0]["delta"] for each in found] == [{"content": '{"a": 1}'}, {}]


def test_an_answer_without_a_fence_stays_as_it_came() -> None:
    payloads = [json.dumps(each).encode() for each in chunks(frame('{"a":'), frame(" 1}"), frame(reason="stop"))]
    found = check().stream(payloads, BY_ENGINE)
    assert isinstance(found, list)
    assert [json.loads(each)["choices"][0]["delta"] for each in found] == [{"content": '{"a":'}, {"content": " 1}"}, {}]


@pytest.mark.parametrize(
    ("content", "reason", "fault"),
    [
        ('{"a": 1}', "stop", None),
        ("[1]", "stop", "it is not a JSON object"),
        ('{"a": ', "length", None),
        ('{"a": ', "stop", "it is not JSON"),
        ("I think", "length", "it is not JSON"),
        ("", "stop", "it is not JSON"),
    ],
)
def test_faults_of_a_text(content: str, reason: str, fault: str | None) -> None:
    found = check().fault({"content": content}, reason)
    assert (found is None) == (fault is None)
    assert fault is None or fault in str(found)


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "object", "required": ["n"]}, {"n": 1}, None),
        ({"type": "object", "required": ["n"]}, {}, "the value: "),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "x"}, "/n: "),
    ],
)
def test_a_fault_names_its_place(schema: Json, value: Json, fault: str | None) -> None:
    found = check(schema).fault({"content": json.dumps(value)}, "stop")
    assert found is None if fault is None else str(found).startswith(fault)


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ProviderInvalidRequest, match="not a valid JSON Schema"):
        check({"type": "objekt"}).fault({"content": "{}"}, "stop")


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ([], "no tool was called"),
        ([("now", "{}")], None),
        ([("later", "{}")], "the tool 'later' was called"),
        ([("strict", '{"n": 1}')], None),
        ([("now", "{}"), ("strict", '{"n": "x"}')], "the arguments of strict don't fit: /n: "),
    ],
)
def test_faults_of_calls(calls: list[tuple[str, str]], fault: str | None) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    checked = check(kind="call", tools=[tool("now"), tool("strict", strict=True, parameters=parameters)])
    message = {"tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]}
    found = checked.fault(message, "tool_calls")
    assert found is None if fault is None else str(found).startswith(fault)


def test_a_call_may_stand_where_a_json_text_may() -> None:
    called = {"tool_calls": [{"function": {"name": "now", "arguments": "{}"}}]}
    assert check(kind="json or call", tools=[tool("now")]).fault(called, "tool_calls") is None
    assert check(tools=[tool("now")]).fault(called, "tool_calls") is not None


def test_a_model_that_is_asked_again_learns_what_stays_allowed() -> None:
    fault = "it is not JSON"
    said, correction = check(kind="json or call", tools=[tool("now")]).again({"content": "Well"}, fault)
    assert said == {"role": "assistant", "content": "Well"}
    assert fault in correction["content"]
    assert "calling a tool stays allowed" in correction["content"]
    _, correction = check().again({"content": ""}, fault)
    assert "calling a tool" not in correction["content"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "json"),
        ({"response_format": {"type": "json_object"}, "tools": [tool("now")]}, "json or call"),
        ({"response_format": {"type": "json_object"}, "tools": [tool("now")], "tool_choice": "none"}, "json"),
        ({"response_format": {"type": "json_object"}, "tools": [tool("now")], "tool_choice": "required"}, "call"),
    ],
)
def test_what_a_request_asks_of_its_answer(fields: Json, kind: str | None) -> None:
    found = constraint(request(**fields))
    assert (None if found is None else found.kind) == kind


@pytest.mark.parametrize("kind", ["grammar", "json", "json_objects", "xml", 1, [], False])
def test_an_unknown_format_is_refused(kind: object) -> None:
    with pytest.raises(ProviderInvalidRequest, match="allowed: text, json_object, json_schema"):
        constraint(request(response_format={"type": kind}))


NAMED = {"type": "function", "function": {"name": "b"}}


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ("auto", False),
        ("required", False),
        (NAMED, True),
        ({"function": {"name": "b"}}, True),
        ({"type": "a", "name": "b"}, True),
        ({"type": "function", "function": {"name": "d"}}, False),
    ],
)
def test_a_named_tool_is_all_that_is_left(choice: Any, named: bool) -> None:
    asked = request(tools=[tool("a"), tool("b"), tool("c")], tool_choice=choice)
    found = {name: json.loads(bytes(value)) for name, value in named_tool(asked).items()}
    assert found == ({"tools": [tool("b")]} if named else {})


# Bounds


def called(*arguments: str) -> Json:
    return {"tool_calls": [{"function": {"name": "strict", "arguments": each}} for each in arguments]}


STRICT = tool("strict", strict=True, parameters={"type": "object", "properties": {"n": {"type": "integer"}}})


def test_an_answer_may_hold_a_hundred_calls() -> None:
    checked = check(kind="call", tools=[STRICT])
    assert checked.fault(called(*["{}"] * 100), "tool_calls") is None
    assert checked.fault(called(*["{}"] * 101), "tool_calls") == "more than 100 tools were called"


@pytest.mark.parametrize("arguments", ['{"n": ', "[" * 100_000])
def test_arguments_that_are_not_json(arguments: str) -> None:
    found = check(kind="call", tools=[STRICT]).fault(called("{}", arguments), "tool_calls")
    assert found == "the arguments of strict are not JSON"


def test_a_call_without_arguments_is_checked_as_an_empty_one() -> None:
    needy = tool("strict", strict=True, parameters={"type": "object", "required": ["n"]})
    for arguments in ("", None, "{}"):
        message = {"tool_calls": [{"function": {"name": "strict", "arguments": arguments}}]}
        found = check(kind="call", tools=[needy]).fault(message, "tool_calls")
        assert str(found).startswith("the arguments of strict don't fit: the value: ")


def test_a_strict_tool_with_too_long_a_schema_is_refused() -> None:
    long = {"type": "object", "description": "x" * 2**20}
    checked = check(kind="call", tools=[tool("strict", strict=True, parameters=long)])
    with pytest.raises(ProviderInvalidRequest, match="longer than 1048576 bytes") as caught:
        checked.fault(called("{}"), "tool_calls")
    assert caught.value.param == "tools"


def test_a_fault_that_quotes_the_answer_is_cut() -> None:
    found = check({"properties": {"n": {"type": "integer"}}}).fault({"content": json.dumps({"n": "x" * 9000})}, "stop")
    assert found is not None
    assert len(found) == 500


def test_a_stream_is_held_back_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_HELD", 10)
    buffer = AnswerBuffer()
    buffer.add([b"12345", b"678"])
    buffer.add([b"90"])
    assert buffer.payloads == [b"12345", b"678", b"90"]
    with pytest.raises(ProviderInvalidResponse, match="exceeds 10 bytes"):
        buffer.add([b"1"])


def test_64_megabytes_are_held_back() -> None:
    buffer = AnswerBuffer()
    buffer.add([bytes(2**26)])
    with pytest.raises(ProviderInvalidResponse):
        buffer.add([b"1"])


def test_a_schema_of_a_megabyte_is_checked() -> None:
    bare = {"type": "object", "description": ""}
    long = {**bare, "description": "x" * (2**20 - len(json.dumps(bare)))}
    assert check(long).fault({"content": "{}"}, "stop") is None


def test_a_model_is_asked_three_times() -> None:
    error = check().unmet("it is not JSON")
    assert error.details == {"attempts": 3}
    assert "in 3 attempts" in str(error)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "Well"}, "Well"),
        ({"content": None}, "(nothing)"),
        ({"tool_calls": [{"id": "c", "function": {"name": "f"}}]}, '[{"name":"f"}]'),
    ],
)
def test_what_a_model_said_is_quoted_to_it(message: Json, said: str) -> None:
    assert check().again(message, "it is not JSON")[0] == {"role": "assistant", "content": said}


SCHEMA = b'{"type":"object"}'
NOTHING_ELSE = "and with nothing else: no words around it, no code fence."
WORDS: dict[str, tuple[Constraint, str]] = {
    "any tool": (Constraint("call"), "Call one of the tools now, whatever is said, and write nothing else."),
    "these tools": (Constraint("call", ("a", "b")), "Call a or b now, whatever is said, and write nothing else."),
    "an object": (Constraint("json"), f"Answer with one JSON object, {NOTHING_ELSE}"),
    "a schema": (
        Constraint("json", schema=SCHEMA),
        f"Answer with one JSON value, {NOTHING_ELSE} It has to conform to this JSON Schema: {SCHEMA.decode()}",
    ),
    "an object, or a call": (
        Constraint("json or call"),
        f"Answer with one JSON object, {NOTHING_ELSE} This is about an answer in text: calling a tool stays allowed.",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_constraint_in_words(name: str) -> None:
    of, words = WORDS[name]
    assert of.words() == words


@pytest.mark.parametrize(
    ("of", "schema"),
    [(Constraint("call"), None), (Constraint("json"), b'{"type":"object"}'), (Constraint("json", schema=b"{}"), b"{}")],
)
def test_the_schema_of_a_text(of: Constraint, schema: bytes | None) -> None:
    assert of.text_schema == schema
