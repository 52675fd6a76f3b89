"""`tool_choice` of the type `allowed_tools`: a call of any other tool is text, whoever reads the calls."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.wire.allowed_tools import freed
from gateway.wire.chat import ChatRequest
from tests.api.allowed_tools import TOOLS, allowing, named, says, tool, wrote
from tests.api.asking import frames
from tests.gateway.accumulator import from_stream
from tests.gateway.client import Answer as Reply
from tests.gateway.client import chat
from tests.gateway.double import Json
from tests.gateway.running import running

PARIS = '{"city": "Paris"}'


def folded(answer: Reply, *, stream: bool) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls and finish_reason of an answer in chat's form."""
    if stream:
        said = from_stream(answer.events[:-1])[0]
        return said.content, [(call.name, call.arguments) for call in said.calls], said.reason
    choice = answer.json["choices"][0]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or ()]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


RM, LS, WEATHER = ("rm", "{}"), ("ls", "{}"), ("get_weather", PARIS)
AS_JSON = '{"name": "rm", "arguments": {}}'
FORMATS: dict[str, Any] = {
    "hermes": "hermes",
    "auto": "auto",
    "native_json": "native_json",
    "forwarding": {"like": "hermes", "unknown_tools": "forward"},
}
NAMES = [*product(FORMATS, (False, True))]
IDS = [f"{format}, {'streamed' if stream else 'whole'}" for format, stream in NAMES]


@pytest.mark.parametrize(("format", "stream"), NAMES, ids=IDS)
async def test_a_call_outside_the_list_is_text(format: str, stream: bool) -> None:
    written = wrote("native_json" if format == "native_json" else "", RM)
    async with running(says(written), tool_call_format=FORMATS[format]) as gateway:
        asked = chat(stream=stream, tools=TOOLS, tool_choice=allowing("get_weather"))
        content, calls, reason = folded(await gateway.ask(asked), stream=stream)
        sent = (await gateway.engine.asked()).json
    assert (content, calls, reason) == (AS_JSON if format == "native_json" else written[0], [], "stop")
    assert (sent["tools"], sent["tool_choice"]) == ([tool("get_weather")], "auto")


@pytest.mark.parametrize(("format", "stream"), NAMES, ids=IDS)
async def test_a_call_of_the_list_stays_one_beside_another(format: str, stream: bool) -> None:
    written = wrote("native_json" if format == "native_json" else "", RM, WEATHER, LS)
    async with running(says(written), tool_call_format=FORMATS[format]) as gateway:
        asked = chat(stream=stream, tools=TOOLS, tool_choice=allowing("get_weather", "ls"))
        content, calls, reason = folded(await gateway.ask(asked), stream=stream)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("get_weather", {"city": "Paris"}),
        ("ls", {}),
    ]
    assert reason == "tool_calls"
    assert '"rm"' in content
    assert '"ls"' not in content


@pytest.mark.parametrize(("format", "stream"), NAMES, ids=IDS)
async def test_one_call_of_the_list_where_only_one_is_allowed(format: str, stream: bool) -> None:
    written = wrote("native_json" if format == "native_json" else "", RM, LS, WEATHER)
    async with running(says(written), tool_call_format=FORMATS[format]) as gateway:
        asked = chat(stream=stream, tools=TOOLS, tool_choice=allowing("get_weather", "ls"), parallel_tool_calls=False)
        _, calls, _ = folded(await gateway.ask(asked), stream=stream)
    assert calls == [LS]


@pytest.mark.parametrize(("format", "stream"), NAMES, ids=IDS)
async def test_a_required_call_must_be_of_the_list(format: str, stream: bool) -> None:
    kind = "native_json" if format == "native_json" else ""
    async with running(says(wrote(kind, RM), wrote(kind, WEATHER)), tool_call_format=FORMATS[format]) as gateway:
        asked = chat(stream=stream, tools=TOOLS, tool_choice=allowing("get_weather", mode="required"))
        _, calls, reason = folded(await gateway.ask(asked), stream=stream)
        sent = [exchange.json for exchange in gateway.engine.requests]
    assert [name for name, _ in calls] == ["get_weather"]
    assert reason == "tool_calls"
    assert len(sent) == 2, "the first answer called none of the list"
    assert sent[0]["tool_choice"] == "required"
    assert "rm" not in json.dumps(sent[1]["response_format"]), "the format asks for a call of the list"


@pytest.mark.parametrize(("format", "stream"), NAMES, ids=IDS)
async def test_responses_call_no_tool_outside_the_list_either(format: str, stream: bool) -> None:
    written = wrote("native_json" if format == "native_json" else "", RM, WEATHER)
    tools = [{"type": "function", **each["function"]} for each in TOOLS]
    listed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    async with running(says(written), tool_call_format=FORMATS[format]) as gateway:
        answer = await gateway.ask(
            {"model": "m", "input": "x", "tools": tools, "tool_choice": listed, "stream": stream, "store": False},
            "/v1/responses",
        )
        body = dict(frames(answer))["response.completed"]["response"] if stream else answer.json
    assert [item["name"] for item in body["output"] if item["type"] == "function_call"] == ["get_weather"]
    texts = [part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]]
    assert '"rm"' in "".join(texts)
    assert [each["name"] for each in body["tools"]] == ["get_weather", "rm", "ls"], "the response says what was asked"


# How the request is read


ALL = ["get_weather", "rm", "ls"]
LISTS: dict[str, tuple[Json, list[str], str]] = {
    "one": (allowing("rm"), ["rm"], "auto"),
    "two, in the order of the declaration": (allowing("ls", "get_weather"), ["get_weather", "ls"], "auto"),
    "all": (allowing(*ALL), ALL, "auto"),
    "one twice": (allowing("rm", "rm"), ["rm"], "auto"),
    "required": (allowing("rm", mode="required"), ["rm"], "required"),
    "no mode": ({"type": "allowed_tools", "allowed_tools": {"tools": named("rm")}}, ["rm"], "auto"),
    "the form of the Responses": (
        {"type": "allowed_tools", "mode": "required", "tools": named("ls")},
        ["ls"],
        "required",
    ),
    "its tools": ({"type": "allowed_tools", "tools": [{"type": "function", "name": "ls"}]}, ["ls"], "auto"),
    "no type": (allowing(tools=[{"name": "ls"}, {"function": {"name": "rm"}}]), ["rm", "ls"], "auto"),
    "whole declarations": (allowing(tools=[tool("ls")]), ["ls"], "auto"),
}


@pytest.mark.parametrize("name", LISTS)
def test_the_tools_that_are_left(name: str) -> None:
    choice, names, mode = LISTS[name]
    request = ChatRequest.parse(json.dumps(chat(tools=TOOLS, tool_choice=choice)).encode())
    assert [each["function"]["name"] for each in json.loads(request.tools or b"")] == names
    assert (request.tool_choice, request.limited, request.constrained) == (mode, True, mode == "required")
    assert json.loads(bytes(request.fields["tool_choice"])) == choice, "the log shows what the client said"
    assert json.loads(bytes(request.fields["tools"])) == TOOLS
    assert {name: json.loads(bytes(value)) for name, value in request.limit().items()} == {
        "tools": [tool(name) for name in names],
        "tool_choice": mode,
    }


def test_tools_of_one_name_stay_together_and_unchanged() -> None:
    written = b'{"type": "function", "function": {"name": "rm", "parameters": {"maximum": 1e400, "x": 1.0}}}'
    body = b'{"messages": [{"role": "user"}], "tools": [%b, %b, %b], "tool_choice": %b}'
    request = ChatRequest.parse(
        body % (written, json.dumps(tool("ls")).encode(), written, json.dumps(allowing("rm")).encode())
    )
    assert request.tools == b"[%b,%b]" % (written, written)


AT = "tool_choice.allowed_tools"
REFUSED: dict[str, tuple[Any, str, str]] = {
    "an empty list": (allowing(), f"{AT}.tools", "it allows no tool"),
    "no list": ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, f"{AT}.tools", "must be a list"),
    "a null list": (allowing(tools=None), f"{AT}.tools", "must be a list"),
    "a number": (allowing(tools=5), f"{AT}.tools", "must be a list"),
    "a name": (allowing(tools="rm"), f"{AT}.tools", "must be a list"),
    "an object": (allowing(tools={"rm": 1}), f"{AT}.tools", "must be a list"),
    "a list of names": (allowing(tools=["rm"]), f"{AT}.tools[0]", "must be an object"),
    "a null in it": (allowing(tools=[*named("rm"), None]), f"{AT}.tools[1]", "must be an object"),
    "a misspelt tool": (
        allowing("rm", "get_wether"), f"{AT}.tools[1].function.name",
        "there is no tool 'get_wether'; declared: get_weather, ls, rm",
    ),
    "another case": (allowing("RM"), f"{AT}.tools[0].function.name", "there is no tool 'RM'"),
    "a flat misspelt tool": (allowing(tools=[{"name": "r"}]), f"{AT}.tools[0].name", "there is no tool 'r'"),
    "no name": (allowing(tools=[{"type": "function"}]), f"{AT}.tools[0].name", "names no tool"),
    "no name in the function": (allowing(tools=[{"function": {}}]), f"{AT}.tools[0].function.name", "names no tool"),
    "a null function": (allowing(tools=[{"function": None}]), f"{AT}.tools[0].name", "names no tool"),
    "an empty name": (allowing(""), f"{AT}.tools[0].function.name", "names no tool"),
    "a list for a name": (allowing(tools=[{"name": ["rm"]}]), f"{AT}.tools[0].name", "names no tool"),
    "a tool of another kind": (
        allowing(tools=[{"type": "custom", "custom": {"name": "rm"}}]), f"{AT}.tools[0].type",
        "only functions can be allowed here, not 'custom'",
    ),
    "a kind that is none": (allowing(tools=[{"type": 5, "name": "rm"}]), f"{AT}.tools[0].type", "not 5"),
    "an unknown mode": (allowing("rm", mode="any"), f"{AT}.mode", "there is no 'any'; allowed: auto, required"),
    "a mode none": (allowing("rm", mode="none"), f"{AT}.mode", "there is no 'none'"),
    "a mode that is a list": (allowing("rm", mode=["auto"]), f"{AT}.mode", "allowed: auto, required"),
    "no object": ({"type": "allowed_tools", "allowed_tools": ["rm"]}, AT, "must be an object"),
    "a null": ({"type": "allowed_tools", "allowed_tools": None}, "tool_choice.tools", "must be a list"),
    "nothing": ({"type": "allowed_tools"}, "tool_choice.tools", "must be a list"),
    "an empty flat list": ({"type": "allowed_tools", "tools": []}, "tool_choice.tools", "it allows no tool"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    choice, param, words = REFUSED[name]
    with pytest.raises(ProviderInvalidRequest) as caught:
        ChatRequest.parse(json.dumps(chat(tools=TOOLS, tool_choice=choice)).encode())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(f"{param}: ")
    assert words in caught.value.message


async def test_refusals_reach_the_client_of_each_api(subtests: pytest.Subtests) -> None:
    flat = [{"type": "function", **each["function"]} for each in TOOLS]
    bodies: dict[str, tuple[str, Json, str]] = {
        "chat": ("chat/completions", chat(tools=TOOLS, tool_choice=allowing("x")), f"{AT}.tools[0].function.name"),
        "chat, no tools": ("chat/completions", chat(tool_choice=allowing("rm")), "tool_choice"),
        "chat, streamed": ("chat/completions", chat(stream=True, tools=TOOLS, tool_choice=allowing()), f"{AT}.tools"),
        **{
            f"responses, {name}": (
                "responses", {"model": "m", "input": "x", "tools": flat, "tool_choice": choice}, param,
            )
            for name, (choice, param) in {
                "misspelt": ({"type": "allowed_tools", "tools": [{"name": "x"}]}, "tool_choice.tools[0].name"),
                "empty": ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
                "no list": ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
                "no name": ({"type": "allowed_tools", "tools": [{"type": "function"}]}, "tool_choice.tools[0].name"),
                "a name": ({"type": "allowed_tools", "tools": ["rm"]}, "tool_choice.tools[0]"),
                "another kind": (
                    {"type": "allowed_tools", "tools": [{"type": "web_search"}]}, "tool_choice.tools[0].type",
                ),
                "an unknown server": (
                    {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "s"}]}, "tool_choice.tools[0]",
                ),
                "an unknown mode": ({"type": "allowed_tools", "mode": "x", "tools": [flat[0]]}, "tool_choice.mode"),
            }.items()
        },
        "responses, no tools": (
            "responses", {"model": "m", "input": "x", "tool_choice": {"type": "allowed_tools", "tools": [flat[0]]}},
            "tool_choice.tools[0].name",
        ),
        "responses, only tools that nobody runs": (
            "responses",
            {"model": "m", "input": "x", "tools": [*flat, {"type": "web_search"}],
             "tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}]}},
            "tool_choice.tools",
        ),
    }  # fmt: skip
    async with running(says(("Hi", []))) as gateway:
        for name, (path, body, param) in bodies.items():
            with subtests.test(name):
                answer = await gateway.ask(body, f"/v1/{path}")
                assert (answer.status, answer.error["param"]) == (400, param), answer.body
        assert not gateway.engine.requests


def test_the_choice_after_a_required_call() -> None:
    assert freed(allowing("rm", mode="required")) == allowing("rm")
    assert [freed(choice) for choice in ("required", named("rm")[0], "auto", "none", None)] == [
        *("auto", "auto", "auto", "none", None)
    ]
