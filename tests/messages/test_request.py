"""What the engine is asked for a request to /v1/messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.messages.wire.request import CreateMessage, chat_fields, dropped, tools_of
from tests.api.asking import WEATHER
from tests.api.published import kinds
from tests.gateway.double import Exchange, Json, answers, chunk, streams
from tests.gateway.running import running

HI: Json = {"role": "user", "content": "Hi"}
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
IMAGE_PART: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
USE: Json = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}
CALL: Json = {
    "id": "t1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
}
TOOL: Json = {"name": "get_weather", "description": "Weather.", "input_schema": WEATHER}
LATER: Json = {"name": "later", "input_schema": WEATHER, "defer_loading": True}


async def engine(exchange: Exchange) -> None:
    stream = streams(chunk("Hi", role="assistant"), chunk(reason="stop"))
    await (stream if exchange.json.get("stream") else answers())(exchange)


def user(*content: Json | str) -> Json:
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return {"role": "user", "content": parts}


def asked(**fields: Any) -> Json:
    body = {"max_tokens": 5, "messages": [HI], **fields}
    return chat_fields(CreateMessage.parse(json.dumps(body).encode()))


MESSAGES: dict[str, tuple[Json, list[Json]]] = {
    "a text": ({}, [HI]),
    "a system text": ({"system": "Be brief."}, [{"role": "system", "content": "Be brief."}, HI]),
    "system blocks, billing left out": (
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cc=1;"}, {"type": "text", "text": "A"},
                    {"type": "text", "text": "B", "cache_control": {"type": "ephemeral"}}]},
        [{"role": "system", "content": "A\n\nB"}, HI],
    ),
    "billing left out, the rest of its block kept": (
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cc=1;\nA\nB"},
                    {"type": "text", "text": "C"}]},
        [{"role": "system", "content": "A\nB\n\nC"}, HI],
    ),
    "billing left out of a text": (
        {"system": "x-anthropic-billing-header: cc=1;\nA"}, [{"role": "system", "content": "A"}, HI]
    ),
    "nothing but billing": ({"system": "x-anthropic-billing-header: cc=1;"}, [HI]),
    "billing that is a topic": (
        {"system": "The x-anthropic-billing-header: cc=1;"},
        [{"role": "system", "content": "The x-anthropic-billing-header: cc=1;"}, HI],
    ),
    "a system message before the first answer": (
        {"system": "A", "messages": [HI, {"role": "system", "content": "B"}]},
        [{"role": "system", "content": "A\n\nB"}, HI],
    ),
    "a system message after it": (
        {"messages": [HI, {"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "B"}]},
        [HI, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "B"}],
    ),
    "two texts": ({"messages": [user("a", "b")]}, [{"role": "user", "content": "a\n\nb"}]),
    "two users": ({"messages": [HI, HI]}, [{"role": "user", "content": "Hi\n\nHi"}]),
    "a picture": (
        {"messages": [user("See:", IMAGE)]},
        [{"role": "user", "content": [{"type": "text", "text": "See:"}, IMAGE_PART]}],
    ),
    "a document": (
        {"messages": [user({"type": "document", "title": "T", "source": {"type": "text", "data": "D"}})]},
        [{"role": "user", "content": "T\n\nD"}],
    ),
    "what a document is about": (
        {"messages": [user(
            {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}},
            {"type": "document", "context": "C", "title": None, "source": {"type": "content", "content": "D"}},
            {"type": "document", "context": "", "source": {"type": "content", "content": [
                {"type": "text", "text": "E"}]}})]},
        [{"role": "user", "content": "T\n\nC\n\nD\n\nC\n\nD\n\nE"}],
    ),
    "a result with a document": (
        {"messages": [HI, {"role": "assistant", "content": [USE]},
                      user({"type": "tool_result", "tool_use_id": "t1", "content": [
                          {"type": "document", "context": "C", "source": {"type": "text", "data": "D"}}]})]},
        [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "t1", "content": "C\nD"}],
    ),
    "a search result": (
        {"messages": [user({"type": "search_result", "title": "T", "source": "http://s",
                            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})]},
        [{"role": "user", "content": "T\nhttp://s\na\nb"}],
    ),
    "a tool that was found": (
        {"messages": [user({"type": "tool_reference", "tool_name": "now"})]},
        [{"role": "user", "content": "The tool now can be called now."}],
    ),
    "a call and its result, a text behind it": (
        {"messages": [
            HI, {"role": "assistant", "content": [{"type": "text", "text": "So:"}, USE]},
            user("And?", {"type": "tool_result", "tool_use_id": "t1", "content": "21"}),
        ]},
        [HI, {"role": "assistant", "content": "So:", "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "t1", "content": "21"}, {"role": "user", "content": "And?"}],
    ),
    "a result that is an error": (
        {"messages": [HI, {"role": "assistant", "content": [USE]},
                      user({"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no net"})]},
        [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "t1", "content": "Error: no net"}],
    ),
    "a result with a picture": (
        {"messages": [HI, {"role": "assistant", "content": [USE]},
                      user({"type": "tool_result", "tool_use_id": "t1",
                            "content": [{"type": "text", "text": "seen"}, IMAGE]})]},
        [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "t1", "content": "seen"}, {"role": "user", "content": [IMAGE_PART]}],
    ),
    "thinking of an earlier turn": (
        {"messages": [HI, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "Yes."}]}]},
        [HI, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}],
    ),
    "tools that Anthropic ran": (
        {"messages": [HI, {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s1", "name": "bash_code_execution", "input": {}},
            *({"type": f"{kind}_tool_result", "tool_use_id": "s1", "content": []} for kind in (
                "web_search", "web_fetch", "tool_search", "code_execution", "bash_code_execution",
                "text_editor_code_execution")),
            {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": []},
            {"type": "text", "text": "Yes."}]}]},
        [HI, {"role": "assistant", "content": "Yes."}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    fields, expected = MESSAGES[name]
    assert asked(**fields)["messages"] == expected


MALFORMED: dict[str, tuple[Any, str]] = {
    "a result of words": ({"type": "tool_result", "tool_use_id": "t1", "content": ["x"]}, ".content[0]"),
    "a result of nothing": ({"type": "tool_result", "tool_use_id": "t1", "content": [None]}, ".content[0]"),
    "a document of words": (
        {"type": "document", "source": {"type": "content", "content": ["x"]}}, ".source.content[0]",
    ),
    "a search result of a number": ({"type": "search_result", "content": 5}, ".content"),
    "a search result of words": ({"type": "search_result", "content": ["x"]}, ".content[0].text"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_blocks(name: str) -> None:
    block, place = MALFORMED[name]
    with pytest.raises(ProviderInvalidRequest) as caught:
        asked(messages=[{"role": "user", "content": [block]}])
    assert caught.value.param == f"messages[0].content[0]{place}"
    assert str(caught.value).startswith(f"{caught.value.param}: ")


FIELDS: dict[str, tuple[Json, Json]] = {
    "sampling": (
        {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "stop_sequences": ["#"]},
        {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "stop": ["#"], "max_tokens": 5, "stream": False},
    ),
    "a stream tells its usage": ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    "any tool": ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    "one tool, once": (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "parallel_tool_calls": False},
    ),
    "the least": ({"max_tokens": 1}, {"max_tokens": 1}),
    "no stop sequences": ({"stop_sequences": []}, {}),
    "zeros": ({"temperature": 0, "top_k": 0, "top_p": 0}, {"temperature": 0, "top_k": 0, "top_p": 0}),
    "any tier": ({"service_tier": "auto"}, {"service_tier": "auto"}),
    "no other tier": ({"service_tier": "standard_only"}, {"service_tier": "default"}),
    "tools to choose from": ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
    "no tool": ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    "several calls": (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
        {"tool_choice": "auto"},
    ),
    "any of the tools that are dropped": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}}, {},
    ),
    "any tool, and none is there": ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    "thinking": ({"thinking": {"type": "adaptive"}}, {"chat_template_kwargs": {"enable_thinking": True}}),
    "no thinking": ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
    "the older schema": (
        {"output_format": {"type": "json_schema", "schema": WEATHER}},
        {"response_format": {
            "type": "json_schema", "json_schema": {"name": "output", "schema": WEATHER, "strict": True}}},
    ),
    "effort": ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
    "a schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": WEATHER}}},
        {"response_format": {
            "type": "json_schema", "json_schema": {"name": "output", "schema": WEATHER, "strict": True}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    fields, expected = FIELDS[name]
    found = asked(**fields)
    assert found.items() >= {"stream": False, "max_tokens": 5, **expected}.items()
    assert found.keys() <= {"messages", "stream", "max_tokens", "tools", "chat_template_kwargs"} | expected.keys()


THINKING: dict[str, tuple[Json, bool]] = {
    "nothing said": ({}, False),
    "null": ({"thinking": None}, False),
    "disabled": ({"thinking": {"type": "disabled"}}, False),
    "enabled": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
    "adaptive": ({"thinking": {"type": "adaptive"}}, True),
    "not shown": ({"thinking": {"type": "enabled", "display": "omitted"}}, True),
    "streamed": ({"stream": True}, False),
    "with tools": ({"tools": [TOOL]}, False),
    "with an effort": ({"output_config": {"effort": "low"}}, False),
}


@pytest.mark.parametrize("name", THINKING)
def test_a_model_thinks_only_if_asked(name: str) -> None:
    fields, thinks = THINKING[name]
    assert asked(**fields)["chat_template_kwargs"] == {"enable_thinking": thinks}


LEFT = "<total_tokens>14999436 tokens left</total_tokens>"
USED = "<system-reminder>\nToken usage: 45000/200000; 155000 remaining\n</system-reminder>"
WARNED = f"<system_warning>{LEFT}</system_warning>"
QUOTED = f"What is {LEFT}?"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (LEFT, ""),
        (f"{LEFT}\n", ""),
        (USED, ""),
        (WARNED, ""),
        (f"Go on.\n{USED}", "Go on."),
        (f"Go on.\n\n{USED}\n", "Go on."),
        (f"Go on.\n{LEFT}", f"Go on.\n{LEFT}"),
        (f"{USED}\nWhat is that?", f"{USED}\nWhat is that?"),
        (QUOTED, QUOTED),
        ("Token usage: 5/6; 1 remaining", "Token usage: 5/6; 1 remaining"),
        ("", ""),
    ],
)
def test_the_countdown_of_tokens_is_no_part_of_the_prompt(text: str, left: str) -> None:
    """A user may ask about one."""
    first = {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": text}]}
    alone = text == "" or not left
    expected = {"role": "user", "content": "Hi\n\n" if text == "" else "Hi" if alone else f"Hi\n\n{left}"}
    assert asked(messages=[first])["messages"] == [expected]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}
    assert asked(messages=[HI, result])["messages"][1]["content"] == left


@pytest.mark.parametrize("marker", [LEFT, USED, WARNED])
def test_the_countdown_leaves_system_texts(marker: str) -> None:
    """Wherever it has a line of its own: turns that differ in it alone make one prompt."""
    system = [{"type": "text", "text": f"You help.\n{marker}\nBe brief."}, {"type": "text", "text": marker}]
    assert asked(system=system)["messages"][0]["content"] == "You help.\nBe brief."
    assert asked(system=f"You help.\n{marker}")["messages"][0]["content"] == "You help."
    assert asked(system=QUOTED)["messages"][0]["content"] == QUOTED
    answer = {"role": "assistant", "content": "Hi"}
    late = {"role": "system", "content": marker}
    assert asked(messages=[HI, answer, HI, late])["messages"] == asked(messages=[HI, answer, HI])["messages"]


REFUSED: dict[str, tuple[Json, str]] = {
    "no messages": ({"messages": []}, "messages"),
    "nothing to read": ({"messages": [{"role": "user", "content": []}]}, "messages"),
    "no limit": ({"max_tokens": None}, "max_tokens"),
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "a tier of another API": ({"service_tier": "flex"}, "service_tier"),
    "an unknown choice": ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice"),
    "a choice without a name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
    "a choice with an empty name": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": ""}}, "tool_choice"),
    "an unknown format": ({"output_format": {"type": "text", "schema": WEATHER}}, "output_config.format"),
    "a tool without a name": ({"tools": [TOOL, {"input_schema": WEATHER}]}, "tools[1].name"),
    "a custom one": ({"tools": [{"type": "custom", "name": None, "input_schema": WEATHER}]}, "tools[0].name"),
    "a tool with an empty name": ({"tools": [{"name": "", "input_schema": WEATHER}]}, "tools[0].name"),
    "a format without its schema": ({"output_format": {"type": "json_schema"}}, "output_config.format"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_field(name: str) -> None:
    fields, param = REFUSED[name]
    with pytest.raises(ProviderInvalidRequest) as caught:
        asked(**fields)
    assert caught.value.param == param


def test_a_count_of_tokens_needs_no_limit() -> None:
    body = json.dumps({"messages": [HI]}).encode()
    assert "max_tokens" not in chat_fields(CreateMessage.parse(body, counting=True))
    with pytest.raises(ProviderInvalidRequest):
        CreateMessage.parse(json.dumps({"messages": [HI], "max_tokens": 0}).encode(), counting=True)


def test_a_tool_as_a_function() -> None:
    bare = {"name": "bare", "input_schema": WEATHER}
    assert asked(tools=[TOOL, bare])["tools"] == [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER}},
        {"type": "function", "function": {"name": "bare", "parameters": WEATHER}},
    ]


def test_tools_that_only_anthropic_runs_are_dropped() -> None:
    tools = [TOOL, {**TOOL, "type": "custom", "name": "mine"}, {"type": "web_search_20250305", "name": "web_search"}]
    request = CreateMessage.parse(json.dumps({"max_tokens": 5, "messages": [HI], "tools": tools}).encode())
    assert [tool.name for tool in tools_of(request)] == ["get_weather", "mine"]
    assert dropped(request) == ["web_search_20250305"]
    assert dropped(CreateMessage.parse(b'{"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}')) == []


TOOLSETS = [
    {"type": "mcp_toolset", "mcp_server_name": "x"},
    {"type": "computer_toolset_20260801"},
    {"type": "browser_toolset_20260801", "configs": {}},
]
SERVERS = [{"type": "url", "name": "x", "url": "https://a.example"}]


def test_every_tool_of_anthropic_s_servers_is_dropped() -> None:
    for kind in kinds("anthropic.types.beta:BetaToolUnionParam") - {"custom"}:
        body = {"max_tokens": 5, "messages": [HI], "tools": [TOOL, {"type": kind}, {"type": kind, "name": "x"}]}
        request = CreateMessage.parse(json.dumps(body).encode())
        assert [tool.name for tool in tools_of(request)] == ["get_weather"]
        assert dropped(request) == [kind, kind]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_names_what_is_dropped(stream: bool) -> None:
    async with running(engine) as gateway:
        for fields, named in (
            ({"tools": TOOLSETS}, "browser_toolset_20260801, computer_toolset_20260801, mcp_toolset"),
            ({"tools": [TOOL, TOOLSETS[0]], "mcp_servers": SERVERS}, "mcp_servers, mcp_toolset"),
            ({"mcp_servers": SERVERS}, "mcp_servers"),
            ({"mcp_servers": [], "tools": [TOOL]}, None),
            ({"mcp_servers": None}, None),
        ):
            body = {"model": "m", "max_tokens": 5, "messages": [HI], "stream": stream, **fields}
            answer = await gateway.ask(body, "/v1/messages")
            assert answer.status == 200, answer.body
            assert answer.headers.get("x-ctxgate-dropped-tools") == named


def names(**fields: Any) -> list[str]:
    return [tool["function"]["name"] for tool in asked(**fields).get("tools", ())]


def test_deferred_tools_are_shown_once_named() -> None:
    tools = [TOOL, LATER, {"type": "web_search_20250305", "name": "web_search"}]
    assert names(tools=tools) == ["get_weather"]
    reference = {"type": "tool_reference", "tool_name": "later"}
    found = user({"type": "tool_result", "tool_use_id": "t1", "content": [reference]})
    assert names(tools=tools, messages=[HI, {"role": "assistant", "content": [USE]}, found]) == ["get_weather", "later"]


def change(kind: str, **tool: Any) -> Json:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


YES: Json = {"role": "assistant", "content": "Yes?"}
MINE: Json = {"name": "mine", "input_schema": WEATHER}
CHANGED: dict[str, tuple[list[Json], list[str]]] = {
    "added": ([change("tool_addition", type="tool_reference", name="later")], ["get_weather", "later"]),
    "withdrawn": ([change("tool_removal", type="tool_reference", name="get_weather")], []),
    "withdrawn and added": (
        [change(kind, type="tool_reference", name="get_weather") for kind in ("tool_removal", "tool_addition")],
        ["get_weather"],
    ),
    "added and withdrawn": (
        [change(kind, type="tool_reference", name="later") for kind in ("tool_addition", "tool_removal")],
        ["get_weather"],
    ),
    "defined": ([change("tool_addition", type="tool_definition", definition=MINE)], ["get_weather", "mine"]),
    "defined, then withdrawn": (
        [change("tool_addition", type="tool_definition", definition=MINE),
         change("tool_removal", type="tool_reference", name="mine")],
        ["get_weather"],
    ),
    "defined anew": (
        [change("tool_addition", type="tool_definition", definition={**LATER, "description": "x"})],
        ["get_weather", "later"],
    ),
    "an MCP server's of the same name": (
        [change("tool_removal", type="mcp_tool_reference", server_name="s", name="get_weather")], ["get_weather"]
    ),
    "an MCP server's": ([change("tool_removal", type="mcp_toolset_reference", server_name="s")], ["get_weather"]),
    "an unknown one": ([change("tool_removal", type="tool_reference", name="nobody")], ["get_weather"]),
    "nothing": ([{"role": "system", "content": [{"type": "tool_addition"}]}], ["get_weather"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_conversation_changes_the_tools(name: str) -> None:
    changes, expected = CHANGED[name]
    fields = {"tools": [TOOL, LATER], "messages": [HI, YES, HI, *changes]}
    assert names(**fields) == expected
    assert asked(**fields)["messages"] == [HI, YES, HI], "the model reads nothing of it"


def test_tools_that_a_conversation_defines() -> None:
    """As those of the request: Anthropic's own are named, broken ones refused."""
    listed = change("tool_addition", type="tool_definition", definition=TOOLSETS[0])
    body = {"max_tokens": 5, "messages": [HI, YES, HI, listed]}
    assert dropped(CreateMessage.parse(json.dumps(body).encode())) == ["mcp_toolset"]
    for broken in ({}, {"name": 5}, {"input_schema": WEATHER}, "x"):
        bad = change("tool_addition", type="tool_definition", definition=broken)
        with pytest.raises(ProviderInvalidRequest, match=r"^messages\[1\]\.content\.tool\.definition"):
            asked(messages=[HI, bad])


SAMPLES: dict[str, tuple[str, Json]] = {
    "text": ("assistant", {"text": "a"}),
    "thinking": ("assistant", {"thinking": "a", "signature": "s"}),
    "tool_use": ("assistant", USE),
    "image": ("user", IMAGE),
    "document": ("user", {"source": {"type": "text", "data": "D"}}),
    "search_result": ("user", {"content": []}),
    "tool_result": ("user", {"tool_use_id": "t1"}),
    "tool_addition": ("system", {"tool": {"type": "tool_reference", "name": "later"}}),
    "tool_removal": ("system", {"tool": {"type": "tool_reference", "name": "later"}}),
}
"""Whose messages have a block of the type, and what it has; all others are in answers and have nothing."""


def test_every_block_of_anthropic_s_api_is_taken() -> None:
    """None makes a conversation unusable that began elsewhere."""
    unions = ("beta:BetaContentBlock", "beta:BetaContentBlockParam", ":ContentBlock", ":ContentBlockParam")
    found = set().union(*(kinds(f"anthropic.types.{union}".replace(".:", ":")) for union in unions))
    assert found >= SAMPLES.keys()
    for kind in found:
        role, more = SAMPLES.get(kind, ("assistant", {}))
        messages = asked(messages=[HI, YES, HI, {"role": role, "content": [{"type": kind, **more}]}, HI])["messages"]
        assert messages[0] == HI, kind
    uploaded = user("Read it.", {"type": "container_upload", "file_id": "f"})
    assert asked(messages=[uploaded])["messages"] == [{"role": "user", "content": "Read it."}]


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_tool_is_as_strict_as_the_client_says(strict: bool | None) -> None:
    (found,) = asked(tools=[{**TOOL, "strict": strict}])["tools"]
    assert found["function"].get("strict", None) is strict
    assert ("strict" in found["function"]) is (strict is not None)
