"""Past calls as a chat template wants them, and what templates want."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.request.past_calls import as_wanted
from normalizers.derive.history import History, history
from normalizers.derive.probes import SHOWN
from normalizers.derive.turns import Turns
from tests.support.chat_templates import OWN, SHARED, needs_templates, renderer
from tests.support.past_turns import ONE, RESULT_ONE, RESULT_TWO, SHY, TWO, Json, called

ASKED: Json = {"role": "user", "content": "Do."}


SINGLE, APART = History(single_calls=True), History(apart=True)
CASES: dict[str, tuple[History, list[Json], list[Json], dict[str, int]]] = {
    "nothing wanted": (History("object"), [called(ONE, TWO, content="So.")], [called(ONE, TWO, content="So.")], {}),
    "one call": (SINGLE, [ASKED, called(ONE), RESULT_ONE], [ASKED, called(ONE), RESULT_ONE], {}),
    "two calls": (
        SINGLE,
        [ASKED, called(ONE, TWO, content="So.", reasoning_content="Hm."), RESULT_TWO, RESULT_ONE, ASKED],
        [ASKED, called(ONE, content="So.", reasoning_content="Hm."), RESULT_ONE, called(TWO), RESULT_TWO, ASKED],
        {"split_messages": 1},
    ),
    "a result of no call, and a call without result": (
        SINGLE,
        [called(ONE, TWO), {**RESULT_ONE, "tool_call_id": "x"}, RESULT_TWO],
        [called(ONE), called(TWO), RESULT_TWO, {**RESULT_ONE, "tool_call_id": "x"}],
        {"split_messages": 1},
    ),
    "calls that are none": (SINGLE, [called(ONE, "x")], [called(ONE, "x")], {}),  # type: ignore[arg-type]
    "text beside a call": (
        APART,
        [ASKED, called(ONE, content="So.", reasoning_content="Hm."), RESULT_ONE],
        [ASKED, {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}, called(ONE), RESULT_ONE],
        {"texts_apart": 1},
    ),
    "no text beside a call": (APART, [called(ONE, content=None)], [called(ONE, content=None)], {}),
    "both": (
        History(single_calls=True, apart=True),
        [called(ONE, TWO, content="So."), RESULT_ONE, RESULT_TWO],
        [{"role": "assistant", "content": "So."}, called(ONE), RESULT_ONE, called(TWO), RESULT_TWO],
        {"split_messages": 1, "texts_apart": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_wanted(name: str) -> None:
    wanted, messages, expected, counts = CASES[name]
    assert as_wanted(messages, wanted) == (expected, counts)


def wants(source: str) -> History:
    """Without what it does with reasoning: see `tests.request.test_past_reasoning`."""
    return replace(history(Turns(renderer(source), SHOWN)), reasoning="", keeps=None)


@pytest.mark.parametrize(("written", "form"), [("| tojson", "object"), ("", "text")])
def test_what_a_template_wants(written: str, form: str) -> None:
    found = wants(SHY.replace("ARGUMENTS", written))
    assert (found.arguments, found.single_calls, found.apart) == (form, True, True)
    assert len(found.words()) == 3


def test_most_templates_want_objects_alone() -> None:
    assert wants((OWN / "hermes.jinja").read_text("utf-8")) == History("object")


@needs_templates
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("lcpp-meta-llama-Llama-3.2-3B-Instruct", History("object", single_calls=True, apart=True)),
        ("trl-deepseekv3", History("text")),
        ("lcpp-Cohere2MoE", History("object", apart=True)),
        ("lcpp-Qwen-Qwen2.5-7B-Instruct", History("object")),
    ],
)
def test_what_the_templates_of_others_want(name: str, wanted: History) -> None:
    assert wants((SHARED / f"{name}.jinja").read_text("utf-8")) == wanted
