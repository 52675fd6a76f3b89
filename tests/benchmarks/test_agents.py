"""The recorded requests of agents, and what the benchmark makes of them."""

from __future__ import annotations

import gzip
import re
from itertools import pairwise

import pytest

from benchmarks.agents import DATA, Figure, goals, recorded
from benchmarks.record_agents import CLIENTS, STEPS, disguised


@pytest.mark.parametrize("client", CLIENTS)
def test_a_recorded_session_goes_on(client: str) -> None:
    """Each request repeats the one before and adds to it; calls, results and the user's words are all there."""
    requests = recorded(client, 16_000)
    assert len(requests) == sum(len(commands) + 1 for _, commands in STEPS)
    for before, after in pairwise(requests):
        assert after[: len(before)] == before
        assert len(after) > len(before)
    said = "\n".join(message["content"] for message in requests[-1])
    for words, commands in STEPS:
        assert words in said
        # Neither JSON's quotes nor those of the shell matter here.
        assert all(command.partition("'")[0] in said for command in commands)
    assert 12_000 < len(requests[0][0]["content"]) < 17_000


def test_the_recording_holds_nothing_of_a_machine() -> None:
    text = gzip.decompress(DATA.read_bytes()).decode()
    assert not re.search(
        r"/root|/tmp/tmp|/Users/|anthropic\.com|openai\.com|20(2[0-57-9]|26-(?!01-01))-?\d\d-\d\d", text
    )


def test_other_words_of_the_same_length() -> None:
    text = "You are Codex, based on GPT-5."
    other = disguised(text)
    assert other != text
    assert [*map(len, other.split())] == [*map(len, text.split())]
    assert disguised(text) == other


def test_goals() -> None:
    found = {"a": Figure(1.0, 0.97), "b": Figure(1.0, 0.94), "c": Figure(1.2, 0.97), "d": Figure(1.4, 0.97)}
    assert [goal.met for goal in goals(found)] == [False, True, False]
    assert not [*goals({})]
