"""The benchmark of whole and streamed answers counts what differs, and says of a real engine that nothing does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import same_text
from benchmarks.same_text import Said, Written, count
from gateway.wire.chat import ChatRequest
from normalizers import registry
from tests.formats.asking import WEATHER, tool
from tests.gateway.client import chat

REQUEST = ChatRequest.parse(json.dumps(chat(tools=[tool(WEATHER)])).encode())
SAID: Said = ("Hello", "", [], "stop")
BROKEN = ("<|tool_call_start|>[get_wea", "ther(city=", "'Pa", "ris'", " + 1)]", "<|tool_call_end|>")


def written(*pieces: str, got: Said = SAID, guarded: bool = False) -> Written:
    return Written(got, REQUEST, registry.get("pythonic"), False, guarded, pieces, "stop")


def test_what_is_counted() -> None:
    counts: Counter[str] = Counter()
    count("same", [written("Hello")], [written("Hel", "lo")], counts)
    count("broken and held", [written(*BROKEN)], [written(*BROKEN)], counts)
    assert counts == {"texts": 4}
    count("another text", [written("Hello")], [written("Hi", got=("Hi", "", [], "stop"))], counts)
    count("the same text", [written("Hello")], [written("Hello", got=("Hi", "", [], "stop"))], counts)
    assert counts == {"texts": 8, "client": 2, "raw": 1}


def test_a_text_that_reads_differently_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Here a call that no grammar guards leaves piece by piece."""
    counts: Counter[str] = Counter()
    count("broken", [written(*BROKEN)], [written(*BROKEN, guarded=True)], counts)
    assert counts["same text"] == 1
    assert "broken: character by character, streamed: " in capsys.readouterr().err


@pytest.mark.timeout(300)
async def test_smoke(test_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    assert await same_text.measure("ctxgate-test-tools", ["smoke"], {"cache_prompt": False}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| ctxgate-test-tools | smoke | 20 | 44 | 0 | 0 | 0 |"
