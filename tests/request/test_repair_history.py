"""Broken conversations, and what becomes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.request.repair_history import ID_LENGTH, repair_history

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Hi"}


def call(id: str | None, name: str = "f", arguments: Any = "{}") -> Json:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {"id": id, **made}


def said(*calls: Json) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(id: str | None, content: Any = "1", **more: Any) -> Json:
    found = {"role": "tool", "content": content, **more}
    return found if id is None else {"tool_call_id": id, **found}


@pytest.mark.parametrize(
    ("arguments", "repaired"),
    [
        ('{"a": "é"}', None),
        ({"a": 1}, None),
        ("", "{}"),
        (None, "{}"),
        (" null ", "{}"),
        ('"{\\"a\\": 1}"', '{"a":1}'),
        ("{'a': 'é'}", '{"a":"é"}'),
        ("[1]", '{"malformed":"[1]"}'),
        ("é", '{"malformed":"é"}'),
        (7, '{"malformed":7}'),
    ],
)
def test_arguments_become_an_object(arguments: Any, repaired: str | None) -> None:
    (found,), counts = repair_history([said(call("a", arguments=arguments))])
    came = found["tool_calls"][0]["function"]["arguments"]
    if repaired is None:
        assert (came, counts) == (arguments, {})
    else:
        assert (came.replace(": ", ":"), counts) == (repaired, {"arguments": 1})
        assert isinstance(json.loads(came), dict)


def test_calls_of_functions_become_calls_of_tools() -> None:
    """Of the deprecated `functions`, whose calls and results no template knows."""
    old = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "function", "name": "g", "content": "2"},
    ]
    (user, asked, answered, orphan), counts = repair_history(old)
    id = asked["tool_calls"][0]["id"]
    assert (user, asked) == (USER, said(call(id)))
    assert answered == result(id, name="f")
    assert orphan == {"role": "user", "content": "Result of g:\n2"}
    assert counts == {"ids": 2, "orphan_results": 1}


def test_a_sound_conversation_stays_as_it_is() -> None:
    sound = [USER, said(call("a"), call("b")), result("b"), result("a"), said(call("c")), result("c")]
    assert repair_history(sound) == (sound, {})


def test_ids_are_made_unique_and_results_follow_their_calls() -> None:
    given = [said(call(None), call("a")), result(None, "1"), result("a", "2"), said(call("a")), result("a", "3")]
    found, counts = repair_history(given)
    first, second, third = (one["id"] for message in found for one in message.get("tool_calls", ()))
    assert len({first, second, third}) == 3
    assert second == "a"
    assert len(first) == len(third) == ID_LENGTH
    assert [message["tool_call_id"] for message in found if message["role"] == "tool"] == [first, second, third]
    assert counts == {"ids": 3}
    assert repair_history(given) == (found, counts), "the same ids for the same conversation"


@pytest.mark.parametrize(
    ("calls", "results", "order"),
    [
        pytest.param([("a", "f"), ("b", "g")], [result(None, name="g"), result(None, name="f")], ["b", "a"], id="name"),
        pytest.param([("a", "f"), ("b", "g")], [result(None), result(None)], ["a", "b"], id="order"),
        pytest.param([("a", "f")], [result("x")], ["a"], id="only one waits"),
    ],
)
def test_a_result_is_matched(calls: list[tuple[str, str]], results: list[Json], order: list[str]) -> None:
    found, counts = repair_history([said(*(call(id, name) for id, name in calls)), *results])
    assert [message.get("tool_call_id") for message in found[1:]] == order
    assert counts == {"ids": len(results)}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("é", "é"),
        ({"a": "é"}, '{"a": "é"}'),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "x"], "ab"),
        (None, ""),
    ],
)
@pytest.mark.parametrize(("more", "name"), [({}, "a tool"), ({"name": "f"}, "f")])
def test_a_result_without_a_call_becomes_a_user_s_message(content: Any, text: str, more: Json, name: str) -> None:
    found, counts = repair_history([USER, result("x", content, **more)])
    assert found == [USER, {"role": "user", "content": f"Result of {name}:\n{text}"}]
    assert counts == {"orphan_results": 1}


def test_a_result_without_a_call_keeps_its_pictures() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    found, _ = repair_history([USER, result("x", [{"type": "text", "text": "a"}, picture])])
    assert found[1]["content"] == [{"type": "text", "text": "Result of a tool:\na"}, picture]


def test_an_unknown_id_is_not_guessed_where_two_calls_wait() -> None:
    found, counts = repair_history([said(call("a"), call("b", "g")), result("x")])
    assert (found[1]["role"], counts) == ("user", {"orphan_results": 1})


def test_a_call_of_a_custom_tool_is_refused() -> None:
    """Its result couldn't follow it: no engine's chat has such calls."""
    custom = {"id": "c", "type": "custom", "custom": {"name": "g", "input": "1"}}
    with pytest.raises(ProviderInvalidRequest, match="no calls of custom tools") as caught:
        repair_history([USER, said(call("a"), custom), result("a"), result("c")])
    assert caught.value.param == "messages.tool_calls.type"


def test_what_the_engine_must_explain_stays() -> None:
    broken: list[Json] = [
        {"role": "assistant", "tool_calls": ["x", {"id": "a"}]},
        {"role": "assistant", "tool_calls": []},
    ]
    assert repair_history(broken) == (broken, {})


def test_a_long_conversation() -> None:
    ids = [f"c{at}" for at in range(3_000)]
    turns = [message for id in ids for message in (said(call(id)), result(id))]
    assert repair_history(turns) == (turns, {})
    many = [said(*map(call, ids)), *map(result, reversed(ids))]
    assert repair_history(many) == (many, {})
    unnamed = [said(*(call(id, f"f{id}") for id in ids)), *(result(None, name=f"f{id}") for id in reversed(ids))]
    found, counts = repair_history(unnamed)
    assert [message["tool_call_id"] for message in found[1:]] == [*reversed(ids)]
    assert counts == {"ids": len(ids)}
