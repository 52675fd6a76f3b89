"""A call at the end of reasoning that the engine keeps apart from the content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.answer.normalize import Answer
from gateway.wire.chat import ChatRequest
from normalizers import get, names
from normalizers.write.render import render_calls
from tests.normalizers.splits import tool

TOOLS = [tool("get_weather", ["city"], city="string")]
FORMATS = ("hermes", "qwen3_coder", "glm45", "kimi_k2", "mistral", "deepseek_v31", "minimax_m2", "auto")
Json = dict[str, Any]


def request(**fields: Any) -> ChatRequest:
    body: Json = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **fields}
    return ChatRequest.parse(json.dumps(body).encode())


def written(name: str) -> str:
    return render_calls(get(name), [{"name": "get_weather", "arguments": '{"city": "Paris"}'}])


def streamed(name: str, deltas: list[Json], reason: str = "stop", **fields: Any) -> Json:
    answer = Answer(request(stream=True, **fields), get(name))
    frames: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    frames.append({"index": 0, "delta": {}, "finish_reason": reason})
    out: list[bytes] = []
    answer.feed([json.dumps({"id": "1", "choices": [frame]}).encode() for frame in frames], out)
    out += answer.finish(done=True)
    message: Json = {"content": "", "reasoning": "", "calls": [], "reason": None}
    for payload in out:
        for choice in json.loads(payload)["choices"]:
            message["reason"] = choice["finish_reason"] or message["reason"]
            message["content"] += choice["delta"].get("content") or ""
            message["reasoning"] += choice["delta"].get("reasoning_content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                if call.get("id"):
                    message["calls"].append([call["function"]["name"], ""])
                message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message


def whole(name: str, message: Json, reason: str = "stop", **fields: Any) -> Json:
    answer = Answer(request(**fields), get(name))
    frame = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    [choice] = json.loads(answer.whole(json.dumps({"id": "1", "choices": [frame]}).encode()))["choices"]
    clean = choice["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in clean.get("tool_calls") or ()]
    return {
        "content": clean.get("content") or "",
        "reasoning": clean.get("reasoning_content") or "",
        "calls": calls,
        "reason": choice["finish_reason"],
    }


def both(name: str, reasoning: str, content: str = "", **fields: Any) -> Json:
    """The message, the same whole and streamed, in pieces of each size."""
    clean = whole(name, {"reasoning_content": reasoning, "content": content}, **fields)
    for size in (1, 3, 7, len(reasoning)):
        pieces = [reasoning[at : at + size] for at in range(0, len(reasoning), size)]
        deltas: list[Json] = [{"role": "assistant"}, *({"reasoning_content": piece} for piece in pieces)]
        assert streamed(name, deltas + ([{"content": content}] if content else []), **fields) == clean
    return clean


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_ends_the_answer_counts(name: str) -> None:
    assert both(name, f"I look it up.\n{written(name)}") == {
        "content": "",
        "reasoning": "I look it up.",
        "calls": [["get_weather", '{"city": "Paris"}']],
        "reason": "tool_calls",
    }


QUOTING = {
    "an open back-tick": ["The", " form", " is", " `"],
    "a closed one": ["I", " ran", " `", "ls", "`"],
    "a fence": ["Like", ":\n", "```"],
    "a closed fence": ["Like", ":\n", "```", "sh\nls", "\n", "```"],
    "a fence at the start": ["```"],
    "a closed fence at the start": ["```", "sh", "\nls", "\n", "```"],
    "a fence in a list": ["-", " ", "```", "sh", "\nls", "\n", "```"],
    "a fence in a sentence": ["Use", "```", " here", ": "],
    "one back-tick long before": ["It", "`", "s a long way from here", " to", " there" * 20, " `"],
}


@pytest.mark.parametrize("before", QUOTING)
@pytest.mark.parametrize("name", FORMATS)
def test_what_quotes_it_does_so_whole_and_streamed(name: str, before: str) -> None:
    pieces = QUOTING[before]
    clean = both(name, "".join(pieces) + written(name))
    for call in ([written(name)], [*written(name)]):
        deltas = [{"reasoning_content": piece} for piece in pieces + call]
        assert streamed(name, [{"role": "assistant"}, *deltas]) == clean
    opened = before in ("an open back-tick", "a fence", "a fence at the start")
    assert clean["reason"] == ("stop" if opened else "tool_calls")


def test_white_space_behind_it_is_content_whole_and_streamed() -> None:
    clean = both("hermes", f"I look it up.\n{written('hermes')}", " \n")
    assert (clean["content"], clean["calls"]) == (" \n", [["get_weather", '{"city": "Paris"}']])


@pytest.mark.parametrize("name", FORMATS)
def test_with_more_behind_it_all_stays_reasoning(name: str) -> None:
    for reasoning, content in (
        (f"I could {written(name)} or not.", ""),
        (f"I could {written(name)} or not.", "No."),
        (f"I could {written(name)}", "No."),
        (f"{written(name)}", "No."),
    ):
        assert both(name, reasoning, content) == {
            "content": content,
            "reasoning": reasoning,
            "calls": [],
            "reason": "stop",
        }


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_is_left_off_stays_reasoning(name: str) -> None:
    """Streamed, its arguments ended with what the model never wrote, and the content came in shreds."""
    call = written(name)
    for cut in range(1, len(call), 3):
        reasoning = f"I could {call[:cut]}"
        clean = {"content": "No, never.", "reasoning": reasoning, "calls": [], "reason": "stop"}
        assert both(name, reasoning, "No, never.") == clean


@pytest.mark.parametrize("name", [name for name in names() if get(name).think])
@pytest.mark.parametrize("content", ["", "So much for that."])
def test_marks_in_it_do_not_end_it(name: str, content: str) -> None:
    """Not its format's, and for `auto` nobody's: the engine has said what is reasoning."""
    spec = get(name)
    opener = spec.openers[0] if spec.openers else "<tool_call>"
    for mark in dict.fromkeys((*(mark for pair in spec.think for mark in pair), *spec.drop[:2])):
        for reasoning in (
            f'The "{mark}" mark, and the {opener} mark, are markup. ',
            f"The {opener} mark, and the {mark} mark, are markup.\n",
            f"{opener} {mark}",
        ):
            clean = {"content": content, "reasoning": reasoning, "calls": [], "reason": "stop"}
            assert both(name, reasoning, content) == clean


def test_a_call_before_a_mark_waits_for_the_end_too() -> None:
    """A mark that is dropped shows that the call before it counts, unless more follows the reasoning."""
    reasoning = f"I look it up. {written('deepseek_v31')}<｜end▁of▁sentence｜>"
    assert both("deepseek_v31", reasoning)["calls"] == [["get_weather", '{"city": "Paris"}']]
    assert both("deepseek_v31", reasoning, "No.")["calls"] == []


@pytest.mark.parametrize("name", FORMATS)
def test_without_tools_to_call_nothing_is_read(name: str) -> None:
    reasoning = f"I look it up.\n{written(name)}"
    clean = both(name, reasoning, tool_choice="none")
    assert (clean["reasoning"], clean["calls"]) == (reasoning, [])


def test_native_calls_leave_the_reasoning_as_it_is() -> None:
    reasoning = f"Like {written('hermes')}"
    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "x"}'},
    }
    clean = streamed("hermes", [{"reasoning_content": reasoning}, {"tool_calls": [call]}], "tool_calls")
    assert clean == {
        "content": "",
        "reasoning": reasoning,
        "calls": [["get_weather", '{"city": "x"}']],
        "reason": "tool_calls",
    }
