"""Tools that the gateway lists in the system message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.request.tools_in_prompt import add_to_system, calls_as_text, tools_prompt
from normalizers import registry
from normalizers.write.render import render_result

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def prompted(tools: list[dict[str, Any]], past: Sequence[dict[str, Any]] = ()) -> str:
    spec = registry.get("pythonic")
    text = tools_prompt(json.dumps(tools).encode(), spec)
    messages = calls_as_text([{"role": "user", "content": "hi"}, *past], spec, results=True)
    system: str = add_to_system(messages, text)[0]["content"]
    return system


@pytest.mark.parametrize(
    "tool", [pytest.param(TOOL, id="in a function"), pytest.param({"type": "function", "name": "f"}, id="flat")]
)
def test_a_function_is_listed(tool: dict[str, Any]) -> None:
    assert '"name": "f"' in prompted([tool])


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param({"type": "custom", "custom": {"name": "f"}}, id="custom"),
        pytest.param({"type": "function"}, id="no function"),
        pytest.param({"type": "function", "function": {"name": 7}}, id="a name that is none"),
    ],
)
def test_a_tool_that_no_call_could_name_is_refused(tool: dict[str, Any]) -> None:
    with pytest.raises(ProviderInvalidRequest, match=r"tools\[1\]: declare a function with a name") as caught:
        prompted([TOOL, tool])
    assert caught.value.param == "tools[1]"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param({"tool_calls": {"a": 1}}, "messages[1].tool_calls: expected a list of calls", id="no list"),
        pytest.param({"tool_calls": [5]}, "messages[1].tool_calls[0]: a call needs a function", id="no object"),
        pytest.param(
            {"tool_calls": [{"id": "a", "function": "f"}]},
            "messages[1].tool_calls[0]: a call needs a function",
            id="no function",
        ),
        pytest.param(
            {"tool_calls": [{"id": "a", "function": {"name": ["f"]}}]},
            "messages[1].tool_calls[0]: a call needs a function",
            id="no name",
        ),
        pytest.param(
            {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": f'{{"a": {"[" * 600}{"]" * 600}}}'}}]},
            "messages[1].tool_calls: the arguments are nested too deeply",
            id="nested too deeply",
        ),
        pytest.param(
            {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": f'{{"a": {"1" * 5000}}}'}}]},
            "messages[1].tool_calls: ",
            id="an integer too long to read",
        ),
        pytest.param(
            {"content": 5, "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            "messages[1].content: expected a text or a list of parts",
            id="content that is none",
        ),
    ],
)
def test_a_past_call_that_can_t_be_written_is_refused(message: dict[str, Any], said: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        prompted([TOOL], [{"role": "assistant", **message}])
    assert str(caught.value).startswith(said)
    assert caught.value.param == said.partition(": ")[0]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


@pytest.mark.parametrize(
    ("content", "text", "others"),
    [
        ("22 °C", "22 °C", []),
        ([{"type": "text", "text": "22 "}, {"type": "text", "text": "°C"}], "22 °C", []),
        ([{"type": "text", "text": "a shot"}, IMAGE, SOUND], "a shot", [IMAGE, SOUND]),
        ([IMAGE], "", [IMAGE]),
        ([], "", []),
        (None, "", []),
        ({"at": "é"}, '{"at": "é"}', []),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "pythonic", "llama3_json"])
def test_a_result_in_parts_is_its_text_and_its_pictures(name: str, content: Any, text: str, others: list[Any]) -> None:
    spec = registry.get(name)
    past: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    ]
    written = render_result(spec, "f", text)
    expected = [{"type": "text", "text": written}, *others] if others else written
    assert calls_as_text(past, spec, results=True)[1] == {"role": "user", "content": expected}
