"""`tool_choice` as a grammar, on real llama.cpp: the form is certain, whatever the model would have said."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.request.grammars import forced_tools, raw_text
from normalizers import registry
from normalizers.write.grammar import grammar
from tests.formats.asking import ASK, WEATHER, Json, ask, chat_request, tool
from tests.formats.conftest import Serve, config, external
from tests.formats.schemas import random_tool
from tests.gateway.double import Double, answers, completion

HELLO: Json = {"role": "user", "content": "Say hello."}
EVENT: Json = {
    "name": "calendar.create-event",
    "parameters": {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 14}},
        "required": ["title", "days"],
    },
}
TOOLS = [tool(WEATHER), tool(EVENT), tool({"name": "now"})]
NAMED: Json = {"type": "function", "function": {"name": "calendar.create-event"}}
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "calendar.create-event", "arguments": "{}"}}
FORMATS = [name for name in registry.names() if name != "auto" and grammar(registry.get(name), [WEATHER]) is not None]


@pytest.mark.some(4)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
async def test_a_named_tool_is_called_once(llama_cpp: str, format: str, stream: bool) -> None:
    async with Gateway(config(external(llama_cpp, format))) as gateway:
        said = await ask(gateway, HELLO, tools=TOOLS, tool_choice=NAMED, max_tokens=400, stream=stream, seed=3)
    assert said.finish_reason == "tool_calls"
    ((name, arguments),) = said.parsed
    assert name == "calendar.create-event"
    jsonschema.validate(arguments, EVENT["parameters"])
    assert said.content == ""


@pytest.mark.parametrize("format", ["pythonic", "llama4_pythonic"])
async def test_a_required_call_is_the_right_one_where_the_model_knows_it(llama_cpp: str, format: str) -> None:
    async with Gateway(config(external(llama_cpp, format))) as gateway:
        said = await ask(gateway, ASK, tools=TOOLS, tool_choice="required")
    assert said.parsed[0] == ("get_weather", {"city": "Paris", "unit": "celsius"})


@pytest.mark.parametrize("samples", [30, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("format", ["pythonic", "hermes", "qwen3_coder"])
async def test_samples_fit_their_schemas(
    serve: Serve, test_model: Path, format: str, samples: int, record_property: Any
) -> None:
    """Random tools at temperature 1.2. Counted and passed over: answers that max_tokens cut, and those where the
    model strung bytes together that are no UTF-8: llama.cpp's grammars take them for one character.
    """
    cut, called, bytes_only = 0, 0, 0
    async with Gateway(config(external(serve("xllamacpp", test_model), format))) as gateway:
        for seed in range(samples):
            random = Random(f"{format}{seed}")
            tools = [random_tool(random, name) for name in ("run-x", "a.b_c")[: random.randint(1, 2)]]
            said = await ask(
                gateway, HELLO, tools=tools, tool_choice="required", temperature=1.2, seed=seed, max_tokens=300
            )
            schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
            if "\ufffd" in repr(said):
                bytes_only += 1
                continue
            complete = said.calls
            if said.finish_reason == "length":
                cut += 1
                complete = said.calls[:-1]
            for name, arguments in complete:
                jsonschema.validate(json.loads(arguments), schemas[name])
            called += len(complete)
            if said.finish_reason != "length":
                assert said.finish_reason == "tool_calls", (seed, said)
    counts = {"cut": cut, "not UTF-8": bytes_only, "calls": called}
    print(format, counts)
    record_property("counts", counts)
    assert cut + bytes_only <= samples // 3


@pytest.mark.some(2)
@pytest.mark.parametrize("format", ["pythonic", "olmo3", "hermes", "mistral", "qwen3_coder", "kimi_k2"])
async def test_json_or_a_call_in_every_dialect(serve: Serve, test_model: Path, format: str) -> None:
    """Random schemas at temperature 1.2: what comes is one or the other, and fits."""
    calls, texts = 0, 0
    async with Gateway(config(external(serve("xllamacpp", test_model), format))) as gateway:
        for seed in range(8):
            random = Random(f"{format}{seed}")
            one, two = (random_tool(random, name) for name in ("run-x", "a.b_c"))
            schema = two["function"]["parameters"]
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            said = await ask(
                gateway, HELLO, tools=[one], response_format=wanted, temperature=1.2, seed=seed, max_tokens=300
            )
            if said.finish_reason == "length" or "\ufffd" in repr(said):
                continue
            for _, arguments in said.parsed:
                jsonschema.validate(arguments, one["function"]["parameters"])
                calls += 1
            if not said.calls:
                jsonschema.validate(json.loads(said.content), schema)
                texts += 1
    assert calls + texts >= 3


async def test_olmo_writes_its_calls_one_a_line(serve: Serve, test_model: Path) -> None:
    tools = [tool({"name": "now"}), tool({"name": "then"})]
    forced = raw_text(chat_request(tools=tools, tool_choice="required"), registry.get("olmo3"), write=grammar)
    assert forced is not None
    assert forced.grammar is not None
    assert '("\\x0a" x-call){0,7}' in forced.grammar
    two = r'root ::= "<function_calls>now()\x0athen()</function_calls>"'
    async with Gateway(config(external(serve("xllamacpp", test_model), "olmo3"))) as gateway:
        said = await ask(gateway, HELLO, tools=tools, grammar=two)
    assert said.parsed == [("now", {}), ("then", {})]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_strict_tool_is_called_by_its_schema_though_the_model_decides(llama_cpp: str, stream: bool) -> None:
    """The model would say Paris; it is not allowed to. Where it calls nothing, nothing holds it."""
    city = {"type": "string", "maxLength": 4}
    function = {**WEATHER, "parameters": {**WEATHER["parameters"], "properties": {"city": city}}, "strict": True}
    loose = {**function, "strict": False}
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        free = await ask(gateway, ASK, tools=[tool(loose)], stream=stream)
        said = await ask(gateway, ASK, tools=[tool(function)], stream=stream)
        words = await ask(gateway, HELLO, tools=[tool(function)], stream=stream)
    assert free.parsed[0][1]["city"] == "Paris"
    ((name, arguments),) = said.parsed
    assert name == "get_weather"
    assert len(arguments["city"]) <= 4
    assert words.content
    assert not words.calls


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ("auto", None),
        ("required", ()),
        (NAMED, ("calendar.create-event",)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool(WEATHER)]}}, None),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool(WEATHER)]}},
            (),
        ),
    ],
    ids=["auto", "required", "named", "allowed", "allowed and required"],
)
def test_what_is_forced(choice: Any, tools: tuple[str, ...] | None) -> None:
    assert forced_tools(chat_request(tools=TOOLS, tool_choice=choice)) == tools


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_grammar_knows_only_the_allowed_tools(format: str, mode: str) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "now"}}]}
    request = chat_request(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    asked = raw_text(request, registry.get(format), write=grammar)
    assert asked is not None
    written = asked.grammar or ""  # some formats have none while the model decides
    assert mode == "auto" or "now" in written
    assert "get_weather" not in written
    assert "create-event" not in written


def test_a_tool_that_is_not_declared_is_refused() -> None:
    choice = {"type": "function", "function": {"name": "nope"}}
    with pytest.raises(ProviderInvalidRequest, match="there is no tool 'nope'; declared: calendar") as caught:
        raw_text(chat_request(tools=TOOLS, tool_choice=choice), registry.get("pythonic"), write=grammar)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param({"type": "function"}, id="no name"),
        pytest.param({"type": "function", "function": {"name": ["f"]}}, id="a list"),
    ],
)
def test_a_choice_that_names_no_tool_is_refused(choice: Any) -> None:
    with pytest.raises(ProviderInvalidRequest, match="tool_choice: it names no tool; write") as caught:
        forced_tools(chat_request(tools=TOOLS, tool_choice=choice))
    assert caught.value.param == "tool_choice"


def test_tools_whose_names_are_none_are_not_declared() -> None:
    with pytest.raises(ProviderInvalidRequest, match="there is no tool 'f'"):
        forced_tools(
            chat_request(tools=[{"type": "custom", "name": ["f"]}], tool_choice={"type": "function", "name": "f"})
        )


def test_a_tool_of_another_kind_is_not_strict() -> None:
    assert (
        raw_text(chat_request(tools=[{"type": "custom", "function": None}]), registry.get("pythonic"), write=grammar)
        is not None
    )


def test_a_format_without_a_grammar_leaves_it_to_the_engine() -> None:
    assert raw_text(chat_request(tools=TOOLS, tool_choice="required"), registry.get("harmony"), write=grammar) is None
    assert raw_text(chat_request(tools=TOOLS), registry.get("harmony"), write=grammar) is not None


async def test_where_the_engine_reads_the_calls_it_is_told_of_the_named_tool_alone() -> None:
    """llama.cpp's parser takes a name for "auto"."""
    async with (
        Double(answers(completion("", reason="tool_calls", tool_calls=[CALL]))).serve() as double,
        Gateway(config(external(f"http://127.0.0.1:{double.address.port}", "native_json"))) as gateway,
    ):
        said = await ask(gateway, tools=TOOLS, tool_choice=NAMED)
        assert said.calls == [("calendar.create-event", "{}")]
        with pytest.raises(ProviderInvalidRequest, match="there is no tool 'nope'"):
            await ask(gateway, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}})
    exchange, *others = (exchange for exchange in double.requests if exchange.method == "POST")
    assert not others
    assert exchange.json["tool_choice"] == "required"
    assert exchange.json["tools"] == [tool(EVENT)]
