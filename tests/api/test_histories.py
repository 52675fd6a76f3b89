"""What agents replay, and what they are told, with the real engine behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE

Json = dict[str, Any]

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "5"}
HI = {"role": "user", "content": "Hi"}
ITEMS: dict[str, tuple[list[Json], str | None]] = {
    "well": ([HI, CALL, OUTPUT], None),
    "a dangling call": ([HI, CALL, HI], None),
    "a dangling call at the end": ([HI, CALL], None),
    "a late result": ([HI, CALL, HI, OUTPUT], None),
    "a result without its call": ([HI, OUTPUT], None),
    "a result before its call": ([HI, OUTPUT, CALL], None),
    "a result twice": ([HI, CALL, OUTPUT, OUTPUT], None),
    "a call twice": ([HI, CALL, CALL, OUTPUT, OUTPUT], None),
    "a shell's": (
        [HI, {"type": "local_shell_call"}, {"type": "local_shell_call_output"}, HI],
        "local_shell_call, local_shell_call_output",
    ),
    "a picture's": ([HI, {"type": "image_generation_call", "result": "x"}, HI], "image_generation_call"),
    "a search for tools": (
        [HI, {"type": "tool_search_call"}, {"type": "tool_search_output"}, HI],
        "tool_search_call, tool_search_output",
    ),
    "an old file": (
        [{**HI, "content": [{"type": "input_file", "filename": "a.pdf"}]}, {"role": "assistant", "content": "Hm"}, HI],
        "input_file",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ITEMS)
def test_a_history_of_responses(real: str, name: str, stream: bool) -> None:
    items, told = ITEMS[name]
    wanted = {"model": "tiny", "input": items, "max_output_tokens": 4, "store": False, "stream": stream}
    answer = httpx.post(f"{real}/v1/responses", json=wanted, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert 'error":null' in answer.text
    assert answer.headers.get("x-ctxgate-dropped-items") == told


def test_a_stream_of_messages_begins_with_the_tokens_of_its_prompt(real: str) -> None:
    """If llama.cpp tells them, as it does for long prompts."""
    messages = [{"role": "user", "content": "What is the weather? " * 90}]
    wanted = {"model": "tiny", "max_tokens": 4, "stream": True, "messages": messages}
    for _ in range(2):  # from the cache, the second time
        text = httpx.post(f"{real}/v1/messages", json=wanted, timeout=PATIENCE).text
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        first, last = events[0]["message"]["usage"], events[-2]["usage"]
        names = ("input_tokens", "cache_read_input_tokens")
        assert [first[name] for name in names] == [last[name] for name in names]
        assert sum(first[name] for name in names) > 400


def test_lists_say_the_context_as_llama_server_does(real: str) -> None:
    (tiny,) = [model for model in httpx.get(f"{real}/v1/models").json()["data"] if model["id"] == "tiny"]
    assert tiny["meta"] == {"n_ctx": tiny["context_window"]}
    assert httpx.get(f"{real}/v1/models/tiny").json()["meta"] == tiny["meta"]
