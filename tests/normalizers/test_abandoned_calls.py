"""A call that the model begins in its reasoning, and leaves off."""

from __future__ import annotations

import pytest

from normalizers import get, names
from normalizers.write.render import render_calls
from tests.normalizers.splits import parse, tool

TOOLS = [tool("run", ["line"], line="string")]
THINKING = [name for name in names() if get(name).think and get(name).openers]


@pytest.mark.parametrize("name", THINKING)
def test_a_call_left_off_in_reasoning_is_reasoning(name: str) -> None:
    """Wherever it is left off. It was completed with the answer as its argument, and ran."""
    spec = get(name)
    call = render_calls(spec, [{"name": "run", "arguments": '{"line": "rm -rf /"}'}])
    opening, closing = spec.think[0]
    for cut in range(1, len(call) + 1):
        thought = f"I could {call[:cut]}"
        text = f"{opening}{thought}\n{closing}\n\nNo, that would be dangerous."
        message = parse(spec, text, TOOLS, random_splits=0, unknown_tools="refuse")
        assert (message.tool_calls, message.content) == ([], "No, that would be dangerous."), text
        assert message.reasoning == thought.rstrip()


@pytest.mark.parametrize("name", THINKING)
def test_a_call_that_ends_the_answer_may_lack_its_end(name: str) -> None:
    """As long as its reasoning wasn't closed."""
    spec = get(name)
    call = render_calls(spec, [{"name": "run", "arguments": '{"line": "ls"}'}])
    closing = next((mark for mark in spec.close if call.endswith(mark)), "")
    message = parse(spec, spec.think[0][0] + call.removesuffix(closing), TOOLS, unknown_tools="refuse")
    assert [(called.name, called.arguments) for called in message.tool_calls] == [("run", '{"line": "ls"}')]
