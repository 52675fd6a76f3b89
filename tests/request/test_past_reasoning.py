"""What the model sees of the reasoning of earlier turns, and what chat templates can show of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from gateway.request.past_reasoning import KeepReasoning, keep_as_told
from gateway.wire.chat import decode, encode
from normalizers.derive.history import History, history
from normalizers.derive.probes import SHOWN
from normalizers.derive.turns import Turns
from tests.support.chat_templates import SHARED, needs_templates, renderer
from tests.support.past_turns import KEEPER

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Do."}
PAST: Json = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
CHAT = [USER, PAST, USER]
LATEST = {"role": "assistant", "content": "", "reasoning": "Now.", "tool_calls": []}
ASKS = History(reasoning="asked", keeps=("preserve_thinking", True))
ASKED = {"chat_template_kwargs": {"preserve_thinking": True}}
CASES: dict[str, tuple[KeepReasoning, History, bool, Json, Json]] = {
    "an agent's": ("auto", ASKS, True, {}, ASKED),
    "a chat's": ("auto", ASKS, False, {}, {}),
    "a chat's, always": ("always", ASKS, False, {}, ASKED),
    "none, always": ("always", ASKS, True, {"messages": [USER]}, {}),
    "a template that keeps it anyway": ("always", History(reasoning="kept"), True, {}, {}),
    "a template that can't": ("always", History(reasoning="dropped"), True, {}, {}),
    "other variables": (
        "auto",
        ASKS,
        True,
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"preserve_thinking": True, "enable_thinking": True}},
    ),
    "the client's own word": (
        "always",
        ASKS,
        True,
        {"chat_template_kwargs": {"preserve_thinking": False}},
        {"chat_template_kwargs": {"preserve_thinking": False}},
    ),
    "never": ("never", ASKS, True, {}, {"messages": [USER, {"role": "assistant", "content": "Yes."}, USER]}),
    "never, but within the turn": (
        "never",
        History(),
        True,
        {"messages": [USER, PAST, USER, LATEST]},
        {"messages": [USER, {"role": "assistant", "content": "Yes."}, USER, LATEST]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_reasoning(name: str) -> None:
    keep, wanted, past, given, expected = CASES[name]
    sent = {"messages": CHAT, **given}
    fields = {key: Raw(encode(value)) for key, value in sent.items()}
    keep_as_told(fields, keep, wanted, past=past)
    assert {key: decode(value) for key, value in fields.items()} == {**sent, **expected}


KEEPERS: dict[str, tuple[str, History]] = {
    "kept": ("true", History("object", reasoning="kept")),
    "dropped": ("false", History("object", reasoning="dropped")),
    "if it is asked": ("preserve_thinking", History("object", reasoning="asked", keeps=("preserve_thinking", True))),
    "unless it is told": (
        "clear_thinking is defined and not clear_thinking",
        History("object", reasoning="asked", keeps=("clear_thinking", False)),
    ),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_what_a_template_shows_of_reasoning(name: str) -> None:
    condition, expected = KEEPERS[name]
    found = history(Turns(renderer(KEEPER.replace("CONDITION", condition)), SHOWN))
    assert found == expected
    assert any("reasoning" in words for words in found.words()) == (name != "kept")


@needs_templates
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("trl-qwen3_6", ("asked", ("preserve_thinking", True))),
        ("xinf-glm-5.1", ("asked", ("clear_thinking", False))),
        ("lcpp-Kimi-K3", ("kept", None)),
        ("lcpp-Qwen3.5-4B", ("dropped", None)),
        ("hfc-mistral-7b-instruct-v0.3", ("", None)),
    ],
)
def test_what_the_templates_of_others_show(name: str, shown: tuple[str, tuple[str, bool] | None]) -> None:
    found = history(Turns(renderer((SHARED / f"{name}.jinja").read_text("utf-8")), SHOWN))
    assert (found.reasoning, found.keeps) == shown
