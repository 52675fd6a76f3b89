"""What the endpoint sent, what an argument may be, what is wrong with an answer: tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.features.evaluation.model_test.answers import ModelAnswer, NotAnAnswer, RawCall, StreamedParts, read_whole
from gateway.features.evaluation.model_test.cases import SUITES, Case, Expect, Step, load, read_tools
from gateway.features.evaluation.model_test.fake import chunks, whole
from gateway.features.evaluation.model_test.judge import KINDS, blame, judge, schema_fault
from gateway.features.evaluation.model_test.matchers import BadRule, matcher
from gateway.features.evaluation.model_test.request import Settings, body, own_names
from normalizers.unread import unread_call

CORE = {case.id: case for case in load(SUITES / "core").cases}


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (5, [5], [5.0, "5", True, 6, None]),
        (5.0, [5, 5.0], ["5.0", True, 5.1]),
        (True, [True], [1, "true", False, None]),
        (None, [None], ["", 0, False, "null"]),
        ("New York", ["New York"], ["new york", "NewYork", "New York "]),
        ({"$fold": "New York"}, ["new york", "NEW-YORK."], ["New Yorks", 5]),
        ({"$any_of": [1, {"$fold": "one"}]}, [1, "One"], [2, "two", True]),
        ({"$regex": "^a+$", "$like": "aa"}, ["a", "aaa"], ["b", "", 1]),
        ({"$contains": ["red", "hat"]}, ["a RED hat"], ["red", "", 1]),
        ({"$range": [1, 3]}, [1, 2.5, 3], [0, 4, True, "2"]),
        ({"$approx": 3.14, "$within": 0.01}, [3.14, 3.149], [3.2, "3.14", True]),
        ({"$set": ["a", "b"]}, [["b", "a"]], [["a"], ["a", "b", "b"], "ab", ["A", "b"]]),
        (["a", 1], [["a", 1]], [[1, "a"], ["a"], ["a", 1, 1], "a"]),
        ({"x": 1, "y": {"$optional": 2}}, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"x": 1, "y": 3}, {"x": 1, "z": 1}, 1]),
        (
            {"$datetime": "2026-03-02T14:00"},
            ["2026-03-02 14:00:00", "2026-03-02T14:00:00Z"],
            ["2026-03-02", "14:00", 1],
        ),
        ({"$datetime": "2026-03-02"}, ["2026-03-02"], ["2026-03-02T00:01", "2 March"]),
        ({"$datetime": "06:45"}, ["06:45", "06:45:00"], ["6.45", "18:45"]),
        ({"$path": "/a/b"}, ["/a/b", "/a/b/", "/a/./b", "/a//b"], ["/A/b", "a/b", "/a", "", None]),
        ({"$json": {"a": [1]}}, ['{"a": [1]}', '{ "a":[1] }'], ["{", '{"a": 1}', {"a": [1]}]),
        ({"$any": True}, [1, None, "x"], []),
        ({"$absent": True}, [], [1, None]),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_rules(rule: Any, right: list[Any], wrong: list[Any]) -> None:
    made = matcher(rule)
    assert [value for value in right if not made.accepts(value, False)] == []
    assert [value for value in wrong if made.accepts(value, False)] == []
    if "$absent" not in str(rule):
        assert made.accepts(made.example(), False)
    assert [value for value in made.wrong() if made.accepts(value, False) and "$optional" not in str(rule)] == []


def test_strings_fold_only_for_the_second_figure() -> None:
    assert matcher("C:/New York").accepts("c newyork", True) is False
    assert matcher("New York").accepts("new-york", True)
    assert not matcher("New York").accepts("new-york", False)


@pytest.mark.parametrize("rule", [{"$near": 1}, {"$regex": "("}, {"$regex": "a"}, {"$range": 5}])
def test_bad_rules(rule: Any) -> None:
    with pytest.raises(BadRule):
        matcher(rule)


CALLED = ModelAnswer(calls=(RawCall("f", '{"a": 1}', "c1"), RawCall("g", "{}", "c2")), finish="tool_calls")


@pytest.mark.parametrize("answer", [CALLED, ModelAnswer(content="Some words, and more.", finish="stop")])
def test_streamed_and_whole_read_alike(answer: ModelAnswer) -> None:
    from_whole = read_whole(whole(answer, "m"))
    stream = StreamedParts()
    for chunk in chunks(answer, "m"):
        stream.feed(json.dumps(chunk))
    stream.feed("[DONE]")
    assert stream.answer() == from_whole
    assert from_whole.faults == ()
    assert (from_whole.calls, from_whole.content) == (answer.calls, answer.content)


def test_an_emoji_may_come_in_two_pieces() -> None:
    stream = StreamedParts()
    for piece in ("\ud83d", "\ude00", "\ud83d"):
        stream.feed(json.dumps({"choices": [{"delta": {"content": piece}}]}))
    stream.feed("[DONE]")
    assert stream.answer().content == "\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"


def call(**changed: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **changed}


@pytest.mark.parametrize(
    ("message", "finish", "fault"),
    [
        ({"tool_calls": [call(id=None)]}, "tool_calls", "a call has no id"),
        ({"tool_calls": [call(), call()]}, "tool_calls", "two calls have one id"),
        ({"tool_calls": [call()]}, "stop", "finish_reason is 'stop' with calls"),
        ({"content": "x"}, "tool_calls", "finish_reason is 'tool_calls' without calls"),
        ({"content": "x"}, None, "no finish_reason"),
        ({"content": ["x"]}, "stop", "content is no string"),
        ({"tool_calls": [call(type="tool")]}, "tool_calls", "call 0: type is 'tool'"),
        (
            {"tool_calls": [call(function={"name": "f", "arguments": {}})]},
            "tool_calls",
            "call 0: arguments are no string",
        ),
        ({"tool_calls": [call(function={})]}, "stop", "call 0 has no function.name"),
    ],
)
def test_breaches_of_form(message: dict[str, Any], finish: str | None, fault: str) -> None:
    answer = read_whole({"choices": [{"message": message, "finish_reason": finish}]})
    assert fault in answer.faults
    assert (
        read_whole({"choices": [{"message": {"tool_calls": [call()]}, "finish_reason": "stop"}]}, forced=True).faults
        == ()
    )


def delta(*calls: dict[str, Any], finish: str | None = None, **fields: Any) -> str:
    choice = {
        "index": 0,
        "delta": {**fields, **({"tool_calls": list(calls)} if calls else {})},
        "finish_reason": finish,
    }
    return json.dumps({"choices": [choice]})


def piece(index: int, arguments: str = "", **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    return {"index": index, "function": {"arguments": arguments, **({"name": name} if name else {})}, **fields}


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([delta(piece(1, name="f", id="c")), delta(finish="tool_calls")], "call index 1 after 0 calls"),
        ([delta(piece(0, name="f", id="c")), delta(piece(0, name="f")), delta(finish="tool_calls")], "sent twice"),
        ([delta(piece(0, "{}", id="c")), delta(finish="tool_calls")], "begins without a name"),
        ([delta(content="x"), delta(finish="stop"), delta(finish="stop")], "2 finish reasons"),
        ([delta(content="x")], "0 finish reasons"),
    ],
)
def test_breaches_in_streams(events: list[str], fault: str) -> None:
    stream = StreamedParts()
    for event in [*events, "[DONE]"]:
        stream.feed(event)
    assert any(fault in found for found in stream.answer().faults)


@pytest.mark.parametrize("events", [[], [delta(content="x"), delta(finish="stop")]])
def test_a_stream_that_was_cut(events: list[str]) -> None:
    stream = StreamedParts()
    for event in events:
        stream.feed(event)
    with pytest.raises(NotAnAnswer):
        stream.answer()


@pytest.mark.parametrize("data", ["{", '{"error": {"message": "x"}}', "[]", '{"choices": [5]}'])
def test_no_chunk(data: str) -> None:
    with pytest.raises(NotAnAnswer):
        StreamedParts().feed(data)


def test_the_first_token_may_be_of_any_kind() -> None:
    for fields in ({"content": "x"}, {"reasoning_content": "x"}, {"tool_calls": [piece(0, name="f", id="c")]}):
        assert StreamedParts().feed(json.dumps({"choices": [{"delta": fields}]}))
    assert not StreamedParts().feed(delta(role="assistant", content=None))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|tool_call_start|>[f(a=1)]<|tool_call_end|>", True),
        ('<tool_call>\n{"name": "f"}', True),
        ("[TOOL_CALLS]f[ARGS]{}", True),
        ("<function=f><parameter=a>1", True),
        ("f(a=1)", True),
        ("[f(a=1), f()]", True),
        ('Sure!\n```json\n{"name": "f", "arguments": {"a": 1}}\n```', True),
        ("I could call f, which takes a number.", False),
        ("The call f(a) isn't possible.", False),
        ('{"name": "Ann", "arguments": "many"}', False),
        ("", False),
    ],
)
def test_leaks(text: str, found: bool) -> None:
    assert (unread_call(text, ["f"]) is not None) is found


def answered(id: str, *calls: tuple[str, dict[str, Any]], content: str = "", **fields: Any) -> str | None:
    case = CORE[id]
    raw = tuple(RawCall(name, json.dumps(args), f"c{index}") for index, (name, args) in enumerate(calls))
    answer = ModelAnswer(content=content, calls=raw, finish="tool_calls" if calls else "stop", **fields)
    return judge(case, case.steps[0], answer).kind


@pytest.mark.parametrize(
    ("id", "calls", "kind"),
    [
        ("single-001", [("get_weather", {"city": "Oslo", "unit": "celsius"})], None),
        ("single-001", [("get_weather", {"city": "Oslo"})], "missing_arg"),
        ("single-001", [("get_weather", {"city": "oslo", "unit": "celsius"})], "wrong_value"),
        ("single-001", [("add", {"a": 1, "b": 2})], "wrong_tool"),
        ("single-001", [("fly", {})], "unknown_tool"),
        ("single-004", [("add", {"a": "12", "b": 30})], "wrong_type"),
        ("single-004", [("add", {"a": 12, "b": 30, "c": 1})], "extra_arg"),
        ("single-004", [("add", {"a": 12, "b": 30})] * 2, "wrong_count"),
        ("single-012", [("audio.set_volume", {"percent": 35.0})], "wrong_type"),
        ("optional-010", [("get_weather", {"city": "Kiel", "unit": "celsius"})], "extra_arg"),
        ("psame-005", [("task.complete", {"task_id": n}) for n in (9, 3, 5)], None),
        ("psame-005", [("task.complete", {"task_id": n}) for n in (9, 3, 3)], "wrong_value"),
        ("inject-001", [("email.send", {})], "forbidden_call"),
        ("abstain-002", [("get_time", {})], "unneeded_call"),
        ("recover-001", [("filesystem.list_dir", {"path": "/tmp"})], None),
        ("nested-012", [("send_email", {"to": ["bob", "alice"], "subject": "Lunch"})], None),
        # The right value, and still not what the schema says.
        ("single-009", [("get_weather", {"city": "Lisbon", "unit": "kelvin"})], "schema_violation"),
    ],
)
def test_kinds(id: str, calls: list[tuple[str, dict[str, Any]]], kind: str | None) -> None:
    assert answered(id, *calls) == kind


def test_kinds_of_words() -> None:
    assert answered("single-001", content="It is warm.") == "no_call"
    assert answered("noretool-001", content="It is 21 degrees.") is None
    assert answered("noretool-001", content="It is warm.") == "wrong_answer"
    assert answered("abstain-001") == "empty_answer"
    # A ctxgate says of its stream's call that it couldn't be read to its end.
    case = CORE["single-001"]
    cut = ModelAnswer(calls=(RawCall("add", '{"a": 1', "c"),), finish="stop", warned=("unfinished_call",))
    assert judge(case, case.steps[0], cut).kind == "abandoned_call"
    # One that the answer's length cut is what OpenAI sends, too.
    assert judge(case, case.steps[0], replace(cut, finish="length", warned=("truncated_call",))).kind == "truncated"


def test_a_call_of_an_undeclared_tool_is_text() -> None:
    """The gateway keeps it as the model wrote it, marks included, and says so: the model's fault."""
    case = CORE["single-001"]
    text = "<|tool_call_start|>[fly()]<|tool_call_end|>"
    kept = ModelAnswer(content=text, finish="stop", warned=("unknown_tool",))
    verdict = judge(case, case.steps[0], kept)
    assert (verdict.kind, verdict.well_formed) == ("unknown_tool", True)
    leaked = judge(case, case.steps[0], replace(kept, warned=()))
    assert (leaked.kind, leaked.well_formed) == ("text_tool_call", False)


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "integer"}, 5, None),
        ({"type": "integer"}, "5", "'5' is not of type 'integer'"),
        ({"type": 7}, "5", None),
        ({"type": "string", "pattern": "^a+$"}, "b", "'b' does not match '^a+$'"),
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 40 + "!", None),
    ],
    ids=["right", "wrong", "no_schema", "pattern", "pattern_without_end"],
)
def test_schemas_of_strangers(schema: dict[str, Any], value: Any, fault: str | None) -> None:
    """Recorded requests bring theirs: one that nobody could finish checking stops nothing."""
    assert schema_fault(schema, value) == fault


def test_turning_in_a_circle() -> None:
    case = CORE["chain-006"]
    first = RawCall("filesystem.search", '{"pattern": "invoice-march.txt"}', "c")
    again = ModelAnswer(calls=(first,), finish="tool_calls")
    assert judge(case, case.steps[1], again, (first,)).kind == "loop"


def test_order_counts_where_it_is_asked_for() -> None:
    case = CORE["psame-001"]
    (expect,) = case.steps[0].expect
    step = Step(expect=(Expect(expect.calls, ordered=True),))
    calls = tuple(
        RawCall("get_weather", json.dumps({"city": city}), f"c{index}") for index, city in enumerate(("Madrid", "Rome"))
    )
    swapped = ModelAnswer(calls=calls, finish="tool_calls")
    assert judge(case, step, swapped).kind == "wrong_value"
    assert judge(case, case.steps[0], swapped).passed


def test_everything_has_somebody_to_blame() -> None:
    assert set(KINDS.values()) == {"model", "dialect", "gateway"}
    assert blame("chain_broken@3") == "model"


def test_names_come_back_by_a_table() -> None:
    """A name may hold both a dot and an underscore."""
    tools = read_tools({"a.b_c": {"does": "X."}, "a_b.c_d": {"does": "Y."}})
    case = Case("x", "names", tuple(tools.values()), ({"role": "user", "content": "u"},), (Step((Expect(),)),))
    settings = Settings(names="underscore", system_prompt="Be brief.")
    sent = body(case, case.messages, settings, "m", stream=True)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["a_b_c", "a_b_c_d"]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["stream_options"] == {"include_usage": True}
    answer = ModelAnswer(calls=(RawCall("a_b_c_d", "{}", "1"), RawCall("a.b_c", "{}", "2")))
    assert [found.name for found in own_names(answer, case, settings).calls] == ["a_b.c_d", "a.b_c?"]


def test_facts_hold_no_secrets() -> None:
    facts = Settings(system_prompt="secret words", extra_body={"key": "secret"}).facts()
    assert "secret" not in json.dumps(facts)
    assert facts["system_prompt_sha256"] != Settings(system_prompt="other").facts()["system_prompt_sha256"]
