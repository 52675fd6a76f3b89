"""The forms of a conversation for stricter and stricter chat templates."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.template import template_refusal
from gateway.request.repair_history import repair_history
from gateway.request.template_rules import BEGINNING, NO_RESULT, READ, conforming

Json = dict[str, Any]

IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


def says(role: str, content: Any, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


def calls(*ids: str, **more: Any) -> Json:
    made = [{"id": id, "type": "function", "function": {"name": f"f_{id}", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def result(id: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": f"of {id}"}


SYSTEM, DEVELOPER, USER, MODEL = says("system", "S"), says("developer", "D"), says("user", "U"), says("assistant", "M")

FORMS: dict[str, tuple[list[Json], list[tuple[list[Json], Json]]]] = {
    "well": ([SYSTEM, USER, MODEL, USER], []),
    "two systems": ([SYSTEM, SYSTEM, USER], [([says("system", "S\n\nS"), USER], {"system_messages": 1})]),
    "system beside developer": (
        [DEVELOPER, SYSTEM, USER],
        [([says("system", "D\n\nS"), USER], {"system_messages": 2})],
    ),
    "developer alone": ([DEVELOPER, USER], [([says("system", "D"), USER], {"system_messages": 1})]),
    "system behind the user": ([USER, SYSTEM], [([SYSTEM, USER], {"system_messages": 1})]),
    "late system": (
        [SYSTEM, USER, MODEL, SYSTEM, USER],
        [
            ([SYSTEM, USER, MODEL, says("user", "S"), USER], {"system_messages": 1}),
            ([SYSTEM, USER, MODEL, says("user", "S\n\nU")], {"system_messages": 1, "joined_messages": 1}),
        ],
    ),
    "two users": ([USER, USER], [([says("user", "U\n\nU")], {"joined_messages": 1})]),
    "two users, one with a picture": (
        [says("user", [IMAGE]), USER],
        [([says("user", [IMAGE, {"type": "text", "text": "U"}])], {"joined_messages": 1})],
    ),
    "two answers": (
        [USER, {**MODEL, "reasoning_content": "R"}, MODEL],
        [([USER, says("assistant", "M\n\nM", reasoning_content="R")], {"joined_messages": 1})],
    ),
    "two answers at the end": ([USER, MODEL, MODEL], [([USER, says("assistant", "M\n\nM")], {"joined_messages": 1})]),
    "assistant first": ([MODEL, USER], [([says("user", BEGINNING), MODEL, USER], {"added_messages": 1})]),
    "system alone": ([SYSTEM], [([SYSTEM, says("user", BEGINNING)], {"added_messages": 1})]),
    "denied call": (
        [USER, calls("abcdefgh1"), USER],
        [
            (
                [
                    USER,
                    calls("abcdefgh1"),
                    {**result("abcdefgh1"), "content": NO_RESULT},
                    says("assistant", READ),
                    USER,
                ],
                {"added_messages": 2},
            )
        ],
    ),
    "open call": (
        [USER, calls("abcdefgh1")],
        [([USER, calls("abcdefgh1"), {**result("abcdefgh1"), "content": NO_RESULT}], {"added_messages": 1})],
    ),
    "user after a result": (
        [USER, calls("abcdefgh1"), result("abcdefgh1"), USER],
        [([USER, calls("abcdefgh1"), result("abcdefgh1"), says("assistant", READ), USER], {"added_messages": 1})],
    ),
    "late result": (
        [USER, calls("abcdefgh1"), USER, result("abcdefgh1")],
        [
            (
                [USER, calls("abcdefgh1"), result("abcdefgh1"), says("assistant", READ), USER],
                {"moved_results": 1, "added_messages": 1},
            )
        ],
    ),
    "results in another order": (
        [USER, calls("abcdefgh1", "abcdefgh2"), result("abcdefgh2"), result("abcdefgh1")],
        [([USER, calls("abcdefgh1", "abcdefgh2"), result("abcdefgh1"), result("abcdefgh2")], {})],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    messages, forms = FORMS[name]
    given = json.loads(json.dumps(messages))
    found = list(conforming(messages))
    assert found[: len(forms)] == forms
    assert messages == given, "the argument stays as it is"


def test_later_forms_change_calls() -> None:
    """Short ids and names, one call a message, no calls, no system."""
    system, thinks = says("system", "S"), {"reasoning_content": "R"}
    messages = [system, USER, calls("call_1", "call_2", **thinks), result("call_1"), result("call_2")]
    ids, single, words, last = list(conforming(messages))
    (first, second), results = [call["id"] for call in ids[0][2]["tool_calls"]], ids[0][3:]
    assert all(len(id) == 9 and id.isalnum() for id in (first, second))
    assert [(each["tool_call_id"], each["name"]) for each in results] == [(first, "f_call_1"), (second, "f_call_2")]
    assert ids[1] == {"ids": 2}
    assert [each["role"] for each in single[0]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [each.get("reasoning_content") for each in single[0] if each["role"] == "assistant"] == ["R", None]
    assert [each["content"] for each in words[0]] == [
        *("S", "U", "Call of f_call_1: {}", "Result of f_call_1:\nof call_1"),
        *("Call of f_call_2: {}", "Result of f_call_2:\nof call_2"),
    ]
    assert last[0][0] == says("user", "S\n\nU")
    assert last[1] == {"ids": 2, "split_messages": 1, "calls_in_words": 4, "system_messages": 1}


roles = st.sampled_from(["system", "developer", "user", "assistant"])
texts = st.integers(0, 10**6).map(lambda number: f"<{number}>")
turns = st.one_of(
    st.builds(says, roles, texts | texts.map(lambda text: [{"type": "text", "text": text}])),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda ids: calls(*ids)),
    st.sampled_from("abcd").map(result),
)


@given(st.lists(turns, min_size=1, max_size=9))
def test_nothing_is_lost(messages: list[Json]) -> None:
    """Each form has every text; the last is one of the strictest order, and so conforms already."""
    messages, _ = repair_history(messages)
    texts = [text for text in _texts(messages) if text]
    forms = [messages, *(form for form, _ in conforming(messages))]
    for form in forms:
        everything = json.dumps(form)
        assert all(json.dumps(text)[1:-1] in everything for text in texts)
    roles = [message["role"] for message in forms[-1]]
    assert not any(role in ("system", "developer", "tool") for role in roles)
    assert all(one != other for one, other in pairwise(roles)), roles
    assert roles[0] == "user"
    assert not list(conforming(forms[-1]))


def _texts(messages: list[Json]) -> list[str]:
    found = []
    for message in messages:
        content = message["content"]
        found += [part["text"] for part in content] if isinstance(content, list) else [content]
    return found


REFUSALS = {
    "llama.cpp": (
        "\n------------\nWhile executing CallExpression at line 85, column 32 in source:\n...first %}↵"
        "            {{- raise_exception('System message must be at the beginnin...\n    ^\n"
        "Error: Jinja Exception: System message must be at the beginning.",
        "System message must be at the beginning",
    ),
    "llama.cpp's parser": (
        "Unable to generate parser for this template. Automatic parser generation failed: \n------------\n"
        "While executing CallExpression at line 1, column 74 in source:\n...\n ^\n"
        "Error: Jinja Exception: System role not supported",
        "System role not supported",
    ),
    "llama.cpp, a template that fails": (
        "\n------------\nWhile executing FilterExpression at line 3, column 4 in source:\n...\n ^\n"
        "Error: Unknown (built-in) filter 'split' for type None",
        "Unknown (built-in) filter 'split' for type None",
    ),
    "llama.cpp, answers at the end": (
        "Cannot have 2 or more assistant messages at the end of the list.",
        "Cannot have 2 or more assistant messages at the end of the list",
    ),
    "vLLM": (
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "Conversation roles must alternate user/assistant/user/assistant/",
    ),
    "mistral-common": ("Unexpected role 'user' after role 'tool'", "Unexpected role 'user' after role 'tool'"),
    "mlx_lm": ("System role not supported", "System role not supported"),
    "OpenAI": (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'",
    ),
    "a huge one": ("Unknown role: " + "x" * 5000, "Unknown role: " + "x" * 286),
}


@pytest.mark.parametrize("server", REFUSALS)
def test_refusals_are_told_in_our_words(server: str) -> None:
    message, reason = REFUSALS[server]
    error = template_refusal(message)
    assert error is not None
    assert error.message == f"messages: the model's chat template doesn't take this conversation: {reason}"
    assert (error.status, error.code, error.param) == (400, "template_refused", "messages")


@pytest.mark.parametrize(
    "message",
    [
        "temperature must be a number",
        "the model is overloaded",
        "JSON schema error at #: no",
        "Field 'n': too many",
        "",
    ],
)
def test_other_errors_are_no_refusals(message: str) -> None:
    assert template_refusal(message) is None
