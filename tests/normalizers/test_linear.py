"""Reading takes time in proportion to the text, however degenerate it is, and keeps a bounded part of a call.

The time of 16 KB is compared with that of 4 KB, in 4-character pieces; no time is asserted by itself.
"""

from __future__ import annotations

import time

import pytest

from normalizers import TextDelta, ToolCall, ToolStart, fold, get, names, normalizer
from normalizers.read import region
from normalizers.read.framing import MAX_REREAD
from normalizers.write.render import render_calls
from tests.normalizers.degenerate import CALL, END, TRIES, degenerate
from tests.normalizers.splits import parse, tool
from tests.support.thorough import examples

TOOLS = [tool("search", ["query"], query="string", limit="integer"), tool("ping")]
FORMATS = [name for name in names() if not get(name).untouched]
SIZE = 4096
TIMES_FOUR = 8
"""Four times the text may cost this often as much: sixteen times would be quadratic, and load makes it seldom eight."""


def cost(name: str, text: str, size: int = 4) -> float:
    parser = normalizer(name, TOOLS)
    began = time.thread_time()
    for at in range(0, len(text), size):
        parser.feed(text[at : at + size])
    parser.finish("stop")
    return time.thread_time() - began


@pytest.mark.parametrize("name", FORMATS)
def test_degenerate_text_costs_in_proportion(name: str) -> None:
    """Looks at the slowest of the texts closely: the least of some tries, since other load only adds to it."""

    def text(head: str, unit: str, size: int) -> str:
        return head + unit * (size // len(unit)) + END

    found = sorted(degenerate(get(name)), key=lambda each: -cost(name, text(each[0], each[1], SIZE // 8)))
    for head, unit in found[: examples(6)]:
        short, long = (text(head, unit, size) for size in (SIZE, 4 * SIZE))
        tries = [(cost(name, short), cost(name, long))]
        if tries[0][1] > TIMES_FOUR * tries[0][0]:
            tries += [(cost(name, short), cost(name, long)) for _ in range(7)]
        assert min(b for _, b in tries) <= TIMES_FOUR * min(a for a, _ in tries), (head, unit, tries)


HEADS = ("<|start|>", "<|start|>assistant", "<|channel|>", "<|start|>assistant<|channel|>analysis<|message|>x<|end|>")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["harmony", "muse_glimmer", "auto"])
def test_a_whole_answer_of_heads_costs_in_proportion(name: str, head: str) -> None:
    def least(count: int) -> float:
        return min(cost(name, head * count, len(head) * count) for _ in range(3))

    assert least(6000) <= TIMES_FOUR * least(1500)


@pytest.mark.parametrize("name", [name for name in FORMATS if get(name).open])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_that_grows_beyond_the_bound_becomes_text(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text in every split, and nothing more is held than the bound."""
    monkeypatch.setattr(region, "MAX_HELD", 200)
    spec = get(name)
    text = render_calls(spec, [ToolCall("functions.search:0", "search", '{"query": "' + "x" * 900 + '"}')])
    events = []
    for pieces in ([text], [text[at : at + size] for at in range(0, len(text), size)]):
        parser = normalizer(name, TOOLS)
        seen = [event for piece in pieces for event in parser.feed(piece)] + parser.finish("stop")
        assert not [event for event in seen if isinstance(event, ToolStart)]
        assert fold(seen).content.count("x") >= 900
        events.append("".join(event.text for event in seen if isinstance(event, TextDelta)))
    assert events[0] == events[1]


@pytest.mark.some(4)
@pytest.mark.parametrize("end", ["", END, f"\n\n```json\n{CALL}\n```"], ids=["alone", "words", "a call"])
@pytest.mark.parametrize("unit", TRIES)
@pytest.mark.parametrize("name", ["auto", "hermes"])
def test_text_that_is_read_often_enough_is_the_same_in_every_split(name: str, unit: str, end: str) -> None:
    """`parse` compares the splits. Longer than what is read again, so that the last tries aren't made."""
    text = TRIES[unit] * (3 * MAX_REREAD // len(TRIES[unit]))
    parse(name, text + end, TOOLS, random_splits=1, unknown_tools="refuse")


def test_a_call_behind_many_that_are_none_is_read() -> None:
    """What was read for calls once doesn't count against a call behind it."""
    text = "Like this:\n" + '```json\n{"name": "other", "arguments": {}}\n```\nOr:\n' * (4 * MAX_REREAD // 50)
    assert [call.name for call in parse("auto", f"{text}```json\n{CALL}\n```", TOOLS).tool_calls] == ["ping"]
