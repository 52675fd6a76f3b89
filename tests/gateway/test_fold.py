"""Laws of `Fold`: a stream's chunks add up to the whole answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProviderInvalidResponse
from gateway.wire.fold import Fold

Json = dict[str, Any]


def delta(index: int = 0, reason: str | None = None, **fields: Any) -> Json:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": reason}]}


def fragment(arguments: str, index: int | None = None, id: str | None = None, name: str | None = None) -> Json:
    fields = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return {key: value for key, value in fields.items() if value is not None}


def calls(*fragments: Json) -> list[tuple[str | None, str | None, str]]:
    """Id, name and arguments of each call that these fragments, one in each chunk, add up to."""
    message = Fold(delta(tool_calls=[each]) for each in fragments).choices[0].message()
    return [(c.get("id"), c["function"].get("name"), c["function"]["arguments"]) for c in message["tool_calls"]]


CALLS: dict[str, tuple[list[Json], list[tuple[str | None, str | None, str]]]] = {
    "in pieces": ([fragment("", 0, "a", "f"), fragment('{"n"', 0), fragment(":1}", 0)], [("a", "f", '{"n":1}')]),
    "interleaved": (
        [fragment("", 0, "a", "f"), fragment("", 1, "b", "g"), fragment("{}", 0), fragment("[]", 1)],
        [("a", "f", "{}"), ("b", "g", "[]")],
    ),
    "without an index": (
        [fragment("{", None, "a", "f"), fragment("}"), fragment("", None, "b", "g"), fragment("[]")],
        [("a", "f", "{}"), ("b", "g", "[]")],
    ),
    "an index, then none": (
        [fragment("{}", 5, "a", "f"), fragment("", None, "b", "g"), fragment("[]")],
        [("a", "f", "{}"), ("b", "g", "[]")],
    ),
    "none, then an index": ([fragment("{", None, "a", "f"), fragment("}", 0)], [("a", "f", "{}")]),
    "two without an index, then one": (
        [fragment("{", None, "a", "f"), fragment("[", None, "b", "g"), fragment("]", 1), fragment("}", 0)],
        [("a", "f", "{}"), ("b", "g", "[]")],
    ),
    "neither index nor id": ([fragment("{", name="f"), fragment("}")], [(None, "f", "{}")]),
    "the name with every fragment": ([fragment("{", 0, "a", "f"), fragment("}", 0, "a", "f")], [("a", "f", "{}")]),
    "a distant index": ([fragment("{}", 1_000_000_000, "a", "f")], [("a", "f", "{}")]),
}


@pytest.mark.parametrize(("fragments", "whole"), CALLS.values(), ids=CALLS.keys())
def test_calls(fragments: list[Json], whole: list[tuple[str | None, str | None, str]]) -> None:
    assert calls(*fragments) == whole


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["content", "reasoning_content"]), st.text(max_size=4))))
def test_each_choice_has_its_own_text(said: list[tuple[int, str, str]]) -> None:
    body = Fold(delta(index, **{name: text}) for index, name, text in said).body()
    assert [choice["index"] for choice in body["choices"]] == sorted({index for index, _, _ in said})
    for choice in body["choices"]:
        for field in ("content", "reasoning_content"):
            expected = "".join(text for index, name, text in said if (index, name) == (choice["index"], field))
            assert (choice["message"].get(field) or "") == expected


def test_null_replaces_nothing() -> None:
    usage = {"total_tokens": 3}
    fold = Fold([{"id": "x", "system_fingerprint": None, "usage": usage}, {"id": None, "usage": None}])
    assert fold.body() == {
        "id": "x",
        "system_fingerprint": None,
        "usage": usage,
        "object": "chat.completion",
        "choices": [],
    }


def test_what_is_no_text_stays_as_it_came_last() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x"}]
    message = (
        Fold([delta(role="assistant", reasoning_details=[]), delta(reasoning_details=details)]).choices[0].message()
    )
    assert (message["role"], message["reasoning_details"]) == ("assistant", details)


def test_content_is_null_only_beside_calls() -> None:
    assert Fold([delta(role="assistant")]).choices[0].message()["content"] == ""
    assert Fold([delta(tool_calls=[fragment("{}", 0)])]).choices[0].message()["content"] is None


MALFORMED: dict[str, Any] = {
    "no object": [],
    "choices": {"choices": {}},
    "a choice": {"choices": [1]},
    "an index": {"choices": [{"index": "0"}]},
    "a delta": {"choices": [{"delta": "x"}]},
    "calls": delta(tool_calls={"index": 0}),
    "no calls": delta(tool_calls=7),
    "a call": delta(tool_calls=["x"]),
    "a function": delta(tool_calls=[{"function": "f"}]),
    "arguments": delta(tool_calls=[{"function": {"arguments": {"n": 1}}}]),
}


@pytest.mark.parametrize("chunk", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_chunks_are_refused(chunk: Any) -> None:
    with pytest.raises(ProviderInvalidResponse, match="malformed chunk"):
        Fold([chunk])


def test_a_choice_keeps_its_own_fields() -> None:
    """A choice without an index is the first; a stream's parts may name fields that only some servers know."""
    parts = [
        {"delta": {"content": "a"}, "stop_reason": 7, "safe": {"content": [1]}, "other": None},
        {"finish_reason": "stop", "index": 0},
    ]
    assert Fold({"choices": [part]} for part in parts).body()["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": 7,
            "safe": {"content": [1]},
            "message": {"role": "assistant", "content": "a"},
        }
    ]


def test_logprobs_add_up() -> None:
    one, other = {"token": "a", "logprob": -1}, {"token": "b", "logprob": -2}
    said: list[Any] = [
        {"content": [one], "refusal": None, "of": "l"},
        None,
        {"content": [other], "of": None},
        {"content": None, "refusal": [], "of": "m"},
    ]
    fold = Fold({"choices": [{"index": 0, "delta": {}, "logprobs": each}]} for each in said)
    assert fold.body()["choices"][0]["logprobs"] == {"content": [one, other], "refusal": [], "of": "m"}
    assert "logprobs" not in Fold([delta(content="a")]).body()["choices"][0]


def test_lists_add_up_and_the_chunks_stay_as_they_are() -> None:
    chunks: list[Any] = [delta(annotations=[1], content="a"), delta(annotations=None), delta(annotations=[2])]
    assert Fold(chunks).body()["choices"][0]["message"]["annotations"] == [1, 2]
    assert [each["choices"][0]["delta"]["annotations"] for each in chunks] == [[1], None, [2]]


def test_a_call_keeps_what_an_empty_field_would_replace() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}
    more = {"index": 0, "id": "", "type": None, "function": {"name": "", "arguments": "{}"}}
    assert calls(first, more) == [("a", "f", "{}")]
    assert calls({**first, "index": 3}) == [("a", "f", "")]
    (call,) = Fold([delta(tool_calls=[{**first, "extra": 1}, more])]).choices[0].message()["tool_calls"]
    assert call == {"id": "a", "type": "function", "extra": 1, "function": {"name": "f", "arguments": "{}"}}
