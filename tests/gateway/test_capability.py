"""What a route learns of its engine: once, and no more than requests need."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import Backend
from gateway.backends.about import UNKNOWN, About, about
from gateway.config import Model
from gateway.core.capability import CapabilityFinder
from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import ChatRequest
from gateway.wire.control_tokens import MAX_AT_ONCE, ControlTokens

CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
PAST: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "noon"},
]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


class Counted(Backend):
    """Counts what it is asked."""

    def __init__(self, model: Model, *, takes_tools: bool = True, keeps_calls: bool = True) -> None:
        super().__init__(model, None)
        self.asked: Counter[str] = Counter()
        self._takes_tools = takes_tools
        self._keeps_calls = keeps_calls

    async def takes_tools(self) -> bool:
        self.asked["takes_tools"] += 1
        return self._takes_tools

    async def keeps_calls(self) -> bool:
        self.asked["keeps_calls"] += 1
        return self._keeps_calls

    async def about(self) -> About:
        self.asked["about"] += 1
        return UNKNOWN


def request(messages: list[dict[str, Any]] = PAST[:1], **fields: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": messages, **fields}).encode())


def model(**settings: Any) -> Model:
    return Model(name="m", runtime="llama.cpp", **{"tool_call_format": "hermes", **settings})


async def test_an_engine_is_asked_once_for_each_kind_of_request() -> None:
    finder, backend = CapabilityFinder(model()), Counted(model())
    for _ in range(3):
        await finder.find(request(tools=[TOOL]), backend)
    assert backend.asked == {"about": 1, "takes_tools": 1}
    for _ in range(3):
        found = finder.known.get((backend, True)) or await finder.find(request(PAST), backend)
        assert found.keeps_calls
    assert backend.asked == {"about": 2, "takes_tools": 2, "keeps_calls": 1}
    assert finder.known.get((backend, False)) is not None


async def test_another_engine_is_asked_anew() -> None:
    finder, first, second = CapabilityFinder(model()), Counted(model()), Counted(model(), takes_tools=False)
    asked = request(tools=[TOOL])
    assert (await finder.find(asked, first)).tools_in == "template"
    assert finder.known.get((second, False)) is None
    assert (await finder.find(asked, second)).tools_in == "system"
    assert finder.known.get((first, False)) is None


@pytest.mark.parametrize(
    ("tool_prompt", "takes_tools", "tools_in"),
    [
        ("auto", True, "template"),
        ("auto", False, "system"),
        ("system", True, "system"),
        ("template", False, "template"),
        ("both", True, "both"),
    ],
)
async def test_where_the_tools_go(tool_prompt: str, takes_tools: bool, tools_in: str) -> None:
    chosen = model(tool_prompt=tool_prompt)
    backend = Counted(chosen, takes_tools=takes_tools)
    found = await CapabilityFinder(chosen).find(request(tools=[TOOL]), backend)
    assert found.tools_in == tools_in
    assert found.takes_tools == (takes_tools or tool_prompt != "auto")
    assert backend.asked == {"about": 1, **({"takes_tools": 1} if tool_prompt == "auto" else {})}


OBJECTS_ALONE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(("runtime", "shown"), [("llama.cpp", True), ("llama-cpp-python", False), ("mlx", True)])
async def test_calls_that_a_template_would_garble_become_text(tmp_path: Path, runtime: str, shown: bool) -> None:
    (tmp_path / "chat_template.jinja").write_text(OBJECTS_ALONE)

    class Told(Counted):
        async def about(self) -> About:
            return about(tmp_path)

    served = Model(name="m", runtime=runtime, tool_call_format="hermes")
    found = await CapabilityFinder(served).find(request(PAST, tools=[TOOL]), Told(served))
    assert found.keeps_calls is shown
    assert found.history.arguments == "object"


async def test_plain_requests_ask_nothing_of_a_format_that_is_known() -> None:
    backend = Counted(model())
    finder = CapabilityFinder(model())
    assert finder.evidence == "config.yaml"
    assert (await finder.find(request(), backend)).reader.name == "hermes"
    assert not backend.asked


async def test_a_format_that_nothing_tells_is_looked_for_once() -> None:
    detected = model(tool_call_format="auto")
    finder, backend = CapabilityFinder(detected), Counted(detected)
    assert (finder.reader_only, finder.evidence) == (None, "")
    for _ in range(3):
        assert (await finder.find(request(), backend)).reader.name == "auto"
    assert backend.asked == {"about": 1}
    assert finder.evidence.startswith("not seen yet")


async def test_a_format_that_the_model_s_files_tell_is_asked_of_no_engine(tmp_path: Path) -> None:
    template = "{% for tool in tools %}<tool_call>{% endfor %}<tool_response>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    detected = model(tool_call_format="auto", path=tmp_path)
    finder, backend = CapabilityFinder(detected), Counted(detected)
    await finder.detect()
    assert finder.reader.name == "hermes"
    evidence = finder.evidence
    assert evidence.startswith("chat template ")
    assert evidence.endswith(f"({tmp_path.name})")
    assert (await finder.find(request(), backend)).reader.name == "hermes"
    (tmp_path / "tokenizer_config.json").unlink()
    await finder.detect()
    assert (finder.reader.name, finder.evidence) == ("hermes", evidence)
    assert not backend.asked


@pytest.mark.parametrize("format", ["hermes", "native_json"])
async def test_a_format_of_config_yaml_is_not_looked_for(format: str, tmp_path: Path) -> None:
    template = {"chat_template": "[TOOL_CALLS][AVAILABLE_TOOLS]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(template))
    finder = CapabilityFinder(model(tool_call_format=format, path=tmp_path))
    evidence = finder.evidence
    await finder.detect()
    assert (finder.reader.name, finder.evidence) == (format, evidence)
    assert evidence


class Guarding(Counted):
    """Its model has a control token that begins with a usual letter."""

    escapes = True

    async def control_tokens(self) -> ControlTokens:
        return ControlTokens({"<end>": [60, 101]})


@pytest.mark.parametrize(("end", "refused"), [("", False), ("<end>", True)], ids=["text alone", "a control token"])
async def test_a_long_search_for_control_tokens_lets_others_run(end: str, refused: bool) -> None:
    found, turns = asyncio.Event(), 0

    async def others() -> None:
        nonlocal turns
        while not found.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    asked = request([{"role": "user", "content": "<" * (10 * MAX_AT_ONCE) + " " + end}])
    finder, backend = CapabilityFinder(model()), Guarding(model())
    capabilities = await finder.find(asked, backend)
    if refused:
        with pytest.raises(ProviderInvalidRequest) as caught:
            await finder.escaping(asked, backend, capabilities)
        assert caught.value.code == "too_many_control_tokens"
    else:
        assert await finder.escaping(asked, backend, capabilities) is capabilities
    found.set()
    await other
    assert turns > 5
