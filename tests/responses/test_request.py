"""Requests of the Responses API as chat requests."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import pytest
from openai.types.responses import ResponseInputItem

from gateway.errors import ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.features.responses.wire.answer import response_object
from gateway.features.responses.wire.request import (
    SEALED,
    AllowedServer,
    CreateResponse,
    ToolTable,
    chat_fields,
    left_out,
    seal,
)
from gateway.wire.allowed_tools import choice_of

Json = dict[str, Any]

HI: Json = {"role": "user", "content": "Hi"}
PICTURE = "data:image/png;base64,AAAA"
PARAMETERS: Json = {"type": "object", "properties": {"n": {"type": "integer"}}}


def asked(**fields: Any) -> Json:
    request = CreateResponse.parse(json.dumps({"input": "Hi", **fields}).encode())
    return chat_fields(request, request.items, ToolTable(request.tools))


def call(arguments: str, name: str = "now") -> Json:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


CALLED: Json = {"type": "function_call", "call_id": "c", "name": "now"}
MESSAGES: dict[str, tuple[Json, list[Json]]] = {
    "a text": ({"input": "Hi"}, [HI]),
    "instructions": ({"instructions": "Be brief."}, [system("Be brief."), HI]),
    "a message without a type": ({"input": [{"role": "user", "content": "Hi"}]}, [HI]),
    "parts": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        [{"role": "user", "content": "a\n\nb"}],
    ),
    "a picture": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE, "detail": "low"}]}]},
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}]}],
    ),
    "an answer and a refusal": (
        {"input": [HI, {"role": "assistant", "content": [{"type": "output_text", "text": "Yes. "},
                                                         {"type": "refusal", "refusal": "No."}]}]},
        [HI, {"role": "assistant", "content": "Yes. No."}],
    ),
    "texts beside pictures": (
        {"input": [{"role": role, "content": [{"type": "input_image", "image_url": PICTURE},
                                              {"type": "input_text", "text": "a"}]}
                   for role in ("system", "assistant")]},
        [system("a"), {"role": "assistant", "content": "a"}],
    ),
    "a developer's words": ({"input": [{"role": "developer", "content": "Be brief."}, HI]}, [system("Be brief."), HI]),
    "a past call": ({"input": [HI, {**CALLED, "arguments": '{"n": 1}'}]}, [HI, call('{"n": 1}')]),
    "a past call without arguments": ({"input": [HI, {**CALLED, "arguments": ""}]}, [HI, call("{}")]),
    "a past call in a namespace": (
        {"input": [HI, {**CALLED, "namespace": "clock", "arguments": "{}"}]},
        [HI, call("{}", "clock__now")],
    ),
    "a past call of a custom tool": (
        {"input": [HI, {"type": "custom_tool_call", "call_id": "c", "name": "now", "input": "x"}]},
        [HI, call('{"input":"x"}')],
    ),
    "its result": (
        {"input": [HI, {"type": "function_call_output", "call_id": "c", "output": "noon"}]},
        [HI, {"role": "tool", "tool_call_id": "c", "content": "noon"}],
    ),
    "a result in parts, with a picture": (
        {"input": [HI, {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PICTURE},
            {"type": "input_text", "text": "b"}]}]},
        [HI, {"role": "tool", "tool_call_id": "c", "content": "a\nb"},
         {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}],
    ),
    "a result that is an object": (
        {"input": [HI, {"type": "function_call_output", "call_id": "c", "output": {"n": 1}}]},
        [HI, {"role": "tool", "tool_call_id": "c", "content": '{"n":1}'}],
    ),
    "reasoning in the open": (
        {"input": [HI, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
                   {"role": "assistant", "content": "Yes."}]},
        [HI, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}],
    ),
    "reasoning that we sealed": (
        {"input": [HI, {"type": "reasoning", "summary": [], "encrypted_content": seal("Hm. ü")},
                   {"role": "assistant", "content": "Yes."}]},
        [HI, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm. ü"}],
    ),
    "reasoning that another server sealed": (
        {"input": [HI, {"type": "reasoning", "encrypted_content": "gAAAA"}, {"role": "assistant", "content": "Yes."}]},
        [HI, {"role": "assistant", "content": "Yes."}],
    ),
    "reasoning whose seal is broken": (
        {"input": [HI, *({"type": "reasoning", "encrypted_content": broken} for broken in
                         (f"{SEALED}no base64!", f"{SEALED}SG!0u",
                          SEALED + base64.b64encode(b"\xff").decode(), SEALED, None)),
                   {"role": "assistant", "content": "Yes."}]},
        [HI, {"role": "assistant", "content": "Yes."}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    fields, expected = MESSAGES[name]
    assert asked(**fields)["messages"] == expected


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, **more}}


ANY: Json = {"type": "object", "properties": {}}
TOOLS: dict[str, tuple[list[Json], list[Json]]] = {
    "whole": (
        [{"type": "function", "name": "f", "description": "F.", "parameters": PARAMETERS, "strict": True}],
        [function("f", description="F.", parameters=PARAMETERS, strict=True)],
    ),
    "bare": ([{"type": "function", "name": "f"}], [function("f", parameters=ANY)]),
    "of a namespace": (
        [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}]}],
        [function("n__f", parameters=PARAMETERS)],
    ),
    "that the server would run": ([{"type": "web_search"}, {"type": "function", "name": "f"}],
                                  [function("f", parameters=ANY)]),
}  # fmt: skip


@pytest.mark.parametrize("name", TOOLS)
def test_tools(name: str) -> None:
    tools, expected = TOOLS[name]
    assert asked(tools=tools)["tools"] == expected


def test_a_custom_tool_takes_a_text_and_tells_its_grammar() -> None:
    format = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    (tool,) = asked(tools=[{"type": "custom", "name": "c", "description": "C.", "format": format}])["tools"]
    assert tool["function"]["parameters"]["required"] == ["input"]
    assert tool["function"]["description"].startswith("C.\n")
    assert "lark grammar:\nstart: WORD" in tool["function"]["description"]


F, G = {"type": "function", "name": "f"}, {"type": "function", "name": "g"}
FIELDS: dict[str, tuple[Json, Json]] = {
    "nothing": ({}, {"stream": False}),
    "a stream with its usage": ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    "sampling": (
        {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_output_tokens": 9, "user": "u"},
        {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 9, "user": "u"},
    ),
    "zeros": ({"temperature": 0, "seed": 0}, {"temperature": 0, "seed": 0}),
    "effort": ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    "logprobs": ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    "logprobs, included": ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": 0}),
    "no other include": ({"include": ["reasoning.encrypted_content"]}, {"stream": False}),
    "text": ({"text": {"format": {"type": "text"}}}, {"stream": False}),
    "an object": ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    "a schema": (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS, "strict": True}}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "n", "schema": PARAMETERS, "strict": True}}},
    ),
    "one call at a time": ({"tools": [F], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    "one call at a time, without tools": ({"parallel_tool_calls": False}, {"stream": False}),
    "any tool": ({"tools": [F], "tool_choice": "required"}, {"tool_choice": "required"}),
    "this tool": ({"tools": [F], "tool_choice": F}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    "no tool to choose": ({"tools": [{"type": "web_search"}], "tool_choice": "auto"}, {"stream": False}),
    "these tools": (
        {"tools": [F, G], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [G]}},
        {"tool_choice": choice_of(["g"], "required")},
    ),
}  # fmt: skip
ALWAYS = {"messages", "stream", "tools"}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    fields, expected = FIELDS[name]
    found = asked(**fields)
    assert found.items() >= expected.items()
    assert found.keys() <= ALWAYS | expected.keys()
    assert fields.get("stream", False) == found["stream"]


ECHOED: Json = {
    "instructions": "Be brief.",
    "max_output_tokens": 9,
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "previous_response_id": "resp_1",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "temperature": 0.0,
    "tool_choice": "none",
    "top_logprobs": 2,
    "top_p": 0.5,
    "frequency_penalty": 0.25,
    "presence_penalty": -0.5,
    "truncation": "auto",
    "user": "u",
    "metadata": {"a": "b"},
}
ASKED_NOTHING: Json = {
    **dict.fromkeys(ECHOED),
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "truncation": "disabled",
    "conversation": None,
    "metadata": {},
}
SCHEMA: Json = {"type": "json_schema", "name": "n", "schema": PARAMETERS, "strict": True, "description": "D."}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(ECHOED, ECHOED, id="what was asked for"),
        pytest.param({}, ASKED_NOTHING, id="its defaults"),
        pytest.param({"parallel_tool_calls": True}, {"parallel_tool_calls": True}, id="calls side by side"),
        pytest.param({}, {"background": False, "status": "in_progress"}, id="in the foreground"),
        pytest.param({"background": True}, {"background": True, "status": "queued"}, id="in the background"),
        pytest.param({}, {"reasoning": {"effort": None, "summary": None}}, id="no reasoning"),
        pytest.param(
            {"reasoning": {"effort": "low", "summary": "auto"}},
            {"reasoning": {"effort": "low", "summary": "auto"}},
            id="reasoning",
        ),
        pytest.param(
            {"text": {"format": SCHEMA, "verbosity": "low"}},
            {"text": {"format": SCHEMA, "verbosity": "low"}},
            id="a schema",
        ),
        pytest.param(
            {"text": {"format": {"type": "json_schema", "schema": PARAMETERS}}},
            {"text": {"format": {"type": "json_schema", "schema": PARAMETERS, "description": None, "strict": False}}},
            id="a schema alone",
        ),
        pytest.param(
            {"text": {"format": {"type": "json_object"}}}, {"text": {"format": {"type": "json_object"}}}, id="an object"
        ),
        pytest.param({"text": {"format": {"type": "text"}}}, {"text": {"format": {"type": "text"}}}, id="text"),
        pytest.param({"conversation": "c"}, {"conversation": {"id": "c"}}, id="a conversation"),
        pytest.param(
            {"tools": [F, {"type": "web_search"}, {"type": "custom", "name": "c"}]},
            {
                "tools": [
                    {**F, "description": None, "strict": None, "parameters": None},
                    {"type": "custom", "name": "c"},
                ]
            },
            id="tools that can be called",
        ),
    ],
)
def test_a_response_repeats_what_it_answers(fields: Json, expected: Json) -> None:
    request = CreateResponse.parse(json.dumps({"input": "Hi", **fields}).encode())
    found = response_object(request, "m", ToolTable(request.tools), id="resp_2", created_at=5, store=True)
    assert {name: found[name] for name in expected} == expected
    same = {"id": "resp_2", "object": "response", "created_at": 5, "model": "m", "store": True, "output": []}
    assert found.items() >= {**same, "usage": None, "error": None, "completed_at": None}.items()


REFUSED: dict[str, tuple[Json, str]] = {
    "no input": ({"input": []}, "input"),
    "instructions alone": ({"input": [], "instructions": "Be brief."}, "input"),
    "an empty text": ({"input": "", "instructions": "Be brief."}, "input"),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "an unknown truncation": ({"truncation": "middle"}, "truncation"),
    "nothing to read": ({"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
    "two conversations": ({"conversation": "c", "previous_response_id": "r"}, "conversation"),
    "a prompt of OpenAI's": ({"prompt": {"id": "p"}}, "prompt"),
    "an unknown item": ({"input": [HI, {"type": "hologram_call"}]}, "input[1]"),
    "an unknown role": ({"input": [{"role": "robot", "content": "Hi"}]}, "input[0].role"),
    "no content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "an unknown part": ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
    "a picture elsewhere": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0]",
    ),
    "an unknown part with a picture": (
        {"input": [{"role": "user", "content": [{"type": "computer", "image_url": PICTURE}]}]},
        "input[0].content[0]",
    ),
    "a part without its text": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    "a call without a name": ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "a tool with an empty name": ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    "a tool whose name is no text": ({"tools": [{"type": "function", "name": 1}]}, "tools[0].name"),
    "a namespace that is no list": ({"tools": [{"type": "namespace", "tools": "x"}]}, "tools[0].tools"),
    "a namespace of names": ({"tools": [F, {"type": "namespace", "tools": ["x"]}]}, "tools[1].tools"),
    "a format without its schema": ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    "an unknown format": ({"text": {"format": {"type": "grammar"}}}, "text.format"),
    "an unknown choice": ({"tools": [F], "tool_choice": "some"}, "tool_choice"),
    "a choice of nothing": ({"tool_choice": "required"}, "tool_choice"),
    "a choice of another's tool": ({"tools": [F], "tool_choice": {"type": "web_search"}}, "tool_choice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_field(name: str) -> None:
    fields, param = REFUSED[name]
    with pytest.raises((ProviderInvalidRequest, ProviderUnsupportedContentBlock)) as caught:
        asked(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [{"previous_response_id": "r"}, {"conversation": "c"}], ids=["response", "named"])
def test_no_input_continues_a_conversation(fields: Json) -> None:
    assert CreateResponse.parse(json.dumps(fields).encode()).items == []


@pytest.mark.parametrize("given", ["c", {"id": "c"}])
def test_a_conversation_by_its_id_or_as_an_object(given: Any) -> None:
    assert CreateResponse.parse(json.dumps({"conversation": given}).encode()).conversation_id == "c"
    assert CreateResponse.parse(b'{"input": "Hi"}').conversation_id is None


@pytest.mark.parametrize(("fields", "limit"), [({"max_output_tokens": 1}, 1), ({"truncation": "disabled"}, None)])
def test_the_least_that_is_accepted(fields: Json, limit: int | None) -> None:
    assert asked(**fields).get("max_tokens") == limit


def test_tools_by_the_names_of_their_functions() -> None:
    """A namespace holds any kind of tool, and what a chat calls is split again for the client."""
    inner: list[Json] = [{"type": "custom", "name": "c"}, {"type": "web_search"}]
    table = ToolTable([F, {"type": "custom", "name": "c"}, {"type": "namespace", "name": "n", "tools": inner}])
    assert [tool["function"]["name"] for tool in table.declared] == ["f", "c", "n__c"]
    assert [table.is_custom(name) for name in ("f", "c", "n__c")] == [False, True, True]
    assert [table.split(name) for name in ("f", "c", "n__c")] == [(None, "f"), (None, "c"), ("n", "c")]
    assert (table.dropped, table.servers) == (["web_search"], [])
    assert ToolTable([{"type": "namespace", "name": "n"}]).declared == []


def server(**fields: Any) -> Json:
    return {"type": "mcp", "server_label": "s", **fields}


SERVERS: dict[str, tuple[Json, AllowedServer]] = {
    "all": ({}, AllowedServer("s", None, False, "tools[1]")),
    "some": ({"allowed_tools": ["a", "b"]}, AllowedServer("s", frozenset(("a", "b")), False, "tools[1]")),
    "none": ({"allowed_tools": []}, AllowedServer("s", frozenset(), False, "tools[1]")),
    "named": ({"allowed_tools": {"tool_names": ["a"]}}, AllowedServer("s", frozenset(("a",)), False, "tools[1]")),
    "that only read": ({"allowed_tools": {"read_only": True}}, AllowedServer("s", None, True, "tools[1]")),
    "that also write": ({"allowed_tools": {"read_only": False}}, AllowedServer("s", None, False, "tools[1]")),
    "without approval": ({"require_approval": "never"}, AllowedServer("s", None, False, "tools[1]")),
    "of which none needs approval": (
        {"require_approval": {"never": {"tool_names": ["a"]}, "always": None}},
        AllowedServer("s", None, False, "tools[1]"),
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_tools_of_an_mcp_server(name: str) -> None:
    fields, expected = SERVERS[name]
    table = ToolTable([F, server(**fields)])
    assert table.servers == [expected]
    assert ([tool["function"]["name"] for tool in table.declared], table.dropped) == (["f"], [])


NO_SERVERS: dict[str, tuple[Json, str]] = {
    **{
        f"a {field}": ({field: "x"}, field)
        for field in ("server_url", "connector_id", "tunnel_id", "headers", "authorization")
    },
    "an approval": ({"require_approval": "always"}, "require_approval"),
    "an approval of some": ({"require_approval": {"always": {"tool_names": ["a"]}}}, "require_approval"),
    "an unknown approval": ({"require_approval": 1}, "require_approval"),
    "a tool alone": ({"allowed_tools": "a"}, "allowed_tools"),
    "tools that are no names": ({"allowed_tools": [1]}, "allowed_tools"),
    "names that are no list": ({"allowed_tools": {"tool_names": "a"}}, "allowed_tools"),
    "no label": ({"server_label": None}, "server_label"),
}


@pytest.mark.parametrize("name", NO_SERVERS)
def test_refusals_of_an_mcp_server_name_the_field(name: str) -> None:
    fields, param = NO_SERVERS[name]
    with pytest.raises(ProviderInvalidRequest) as caught:
        ToolTable([F, server(**fields)])
    assert caught.value.param == f"tools[1].{param}"


def test_an_mcp_server_is_named_once() -> None:
    """Also in a namespace; else each entry would declare all of its tools again."""
    again: list[tuple[Json, str]] = [
        (server(), "tools[2].server_label"),
        ({"type": "namespace", "name": "n", "tools": [server()]}, "tools[2].tools[0].server_label"),
    ]
    for tool, param in again:
        with pytest.raises(ProviderInvalidRequest) as caught:
            ToolTable([server(), server(server_label="t"), tool])
        assert caught.value.param == param


def test_equal_names_cost_the_same_however_many_there_are() -> None:
    table = ToolTable([{"type": "function", "name": f"s_a_{number}"} for number in range(2, 30_000)])
    for _ in range(30_000):
        table.add_remote("s", "a", "", {})
    names = {tool["function"]["name"] for tool in table.declared}
    assert (len(names), table.remote("s_a"), table.remote("s_a_2")) == (59_998, ("s", "a"), None)


def test_no_number_makes_a_name_longer_than_engines_allow() -> None:
    table = ToolTable([])
    for number in range(1500):
        table.add_remote("s", f"{'x' * 70}{number}", "", {})
    names = {tool["function"]["name"] for tool in table.declared}
    assert (len(names), max(map(len, names))) == (1500, 64)


def test_functions_that_stand_for_tools_of_mcp_servers() -> None:
    table = ToolTable([{"type": "function", "name": "s_a"}, server()])
    for name in ("a", "a", "a", "b c", "x" * 70, "x" * 71):
        table.add_remote("s", name, "D.", PARAMETERS)
    long = f"s_{'x' * 62}"
    names = [tool["function"]["name"] for tool in table.declared]
    assert names == ["s_a", "s_a_2", "s_a_3", "s_a_4", "s_b_c", long, f"{long[:56]}_2"]
    assert [table.remote(name) for name in names] == [
        None, ("s", "a"), ("s", "a"), ("s", "a"), ("s", "b c"), ("s", "x" * 70), ("s", "x" * 71),
    ]  # fmt: skip
    assert table.declared[4] == function("s_b_c", description="D.", parameters=PARAMETERS)
    assert table.split("s_b_c") == (None, "s_b_c")


OF_SERVERS: dict[str, tuple[Json, list[str]]] = {
    "one": ({"server_label": "s", "name": "a"}, ["s_a"]),
    "any of a server": ({"server_label": "s"}, ["s_a", "s_b"]),
    "of another server": ({"server_label": "t", "name": "a"}, ["t_a"]),
}


def chosen(choice: Json) -> Json:
    fields = {"input": "Hi", "tools": [F, server()], "tool_choice": {"type": "mcp", **choice}}
    request = CreateResponse.parse(json.dumps(fields).encode())
    table = ToolTable(request.tools)
    for label, name in ("sa", "sb", "ta"):
        table.add_remote(label, name, "", PARAMETERS)
    return chat_fields(request, request.items, table)


@pytest.mark.parametrize("name", OF_SERVERS)
def test_a_choice_of_an_mcp_server_s_tools(name: str) -> None:
    choice, names = OF_SERVERS[name]
    fields = chosen(choice)
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["f", "s_a", "s_b", "t_a"]
    assert fields["tool_choice"] == choice_of(names, "required")


LISTED: dict[str, tuple[list[Json], list[str]]] = {
    "a function and a server": (
        [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s"}],
        ["f", "s_a", "s_b"],
    ),
    "a tool of a server": ([{"type": "mcp", "server_label": "t", "name": "a"}], ["t_a"]),
    "one that nobody runs, too": ([{"type": "web_search"}, {"type": "function", "name": "f"}], ["f"]),
    "a custom tool": ([{"type": "custom", "name": "g"}], ["g"]),
    "a tool in a namespace": ([{"type": "function", "namespace": "n", "name": "q"}], ["n__q"]),
}


@pytest.mark.parametrize("name", LISTED)
def test_the_tools_that_a_list_allows(name: str) -> None:
    listed, names = LISTED[name]
    inner = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "q"}]}
    tools = [F, server(), {"type": "web_search"}, {"type": "custom", "name": "g"}, inner]
    fields = {"input": "Hi", "tools": tools, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": listed}}
    request = CreateResponse.parse(json.dumps(fields).encode())
    table = ToolTable(request.tools)
    for label, tool in ("sa", "sb", "ta"):
        table.add_remote(label, tool, "", PARAMETERS)
    assert chat_fields(request, request.items, table)["tool_choice"] == choice_of(names, "auto")


@pytest.mark.parametrize("choice", [{"server_label": "u"}, {"server_label": "s", "name": "c"}, {}])
def test_a_choice_of_no_tool_of_an_mcp_server(choice: Json) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        chosen(choice)
    assert caught.value.param == "tool_choice"


REMOTE: Json = {"type": "mcp_call", "id": "c", "server_label": "a b", "name": "now", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"output": "noon"}, "noon"),
        ({"output": "", "error": "late"}, ""),
        ({"output": None, "error": "late"}, "late"),
        ({"output": None, "error": {"code": 1}}, '{"code":1}'),
        ({"output": None, "error": None}, '"the call was cut off"'),
        ({}, '"the call was cut off"'),
    ],
)
def test_a_past_call_of_an_mcp_server_s_tool(fields: Json, content: str) -> None:
    expected = [HI, call("{}", "a_b_now"), {"role": "tool", "tool_call_id": "c", "content": content}]
    assert asked(input=[HI, {**REMOTE, **fields}])["messages"] == expected
    assert asked(input=[HI, {**REMOTE, **fields, "arguments": None}])["messages"] == expected


def test_a_summary_of_a_conversation_is_the_user_s() -> None:
    items = [{"type": "compaction", "encrypted_content": sealed} for sealed in (seal("So far."), "gAAAA")]
    assert asked(input=[*items, HI])["messages"] == [{"role": "user", "content": "So far.\n\nHi"}]


LEFT_OUT = (
    *("mcp_list_tools", "web_search_call", "file_search_call", "code_interpreter_call"),
    *("local_shell_call", "local_shell_call_output", "image_generation_call", "tool_search_call", "tool_search_output"),
    *("shell_call", "shell_call_output", "computer_call", "computer_call_output", "mcp_approval_request"),
    *("apply_patch_call", "apply_patch_call_output", "mcp_approval_response"),
    *("program", "program_output", "additional_tools"),
)
ASKING = ("configuration_update", "compaction_trigger")
"""Items that ask for what the gateway doesn't do, so it says so."""


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_items_of_other_servers_tools_are_left_out(kind: str) -> None:
    items = [HI, {"type": kind, "id": "x", "call_id": "c", "output": "o", "action": {}}]
    assert asked(input=items)["messages"] == [HI]
    assert left_out(items) == [kind]


def of_openai() -> set[str]:
    """The types of all items that OpenAI's library can send."""
    (union, *_) = get_args(ResponseInputItem)
    literals = [get_args(kind.model_fields["type"].annotation) for kind in get_args(union)]
    return {name for found in literals for name in (found if isinstance(found[0], str) else get_args(found[0]))}


def test_no_item_of_openai_s_is_unheard_of() -> None:
    refused = set()
    for kind in of_openai():
        try:
            asked(input=[HI, {"type": kind, "id": "x"}])
        except ProviderUnsupportedContentBlock:
            refused.add(kind)
        except ProviderInvalidRequest:
            assert kind not in LEFT_OUT
    assert refused == {*ASKING}
    assert of_openai() >= {*LEFT_OUT, *ASKING}


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": "Fine."},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ],
)
@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (
            {"filename": "a.pdf", "file_data": "data:application/pdf;base64,"},
            "[file a.pdf left out: texts and images alone]",
        ),
        ({"file_id": "f"}, "[file left out: texts and images alone]"),
    ],
)
def test_files_of_earlier_turns_are_left_out(answer: Json, file: Json, shown: str) -> None:
    """One of this turn is refused by name."""
    part = {"type": "input_file", **file}
    asking = {"role": "user", "content": [{"type": "input_text", "text": "Read."}, part]}
    messages = asked(input=[asking, answer, HI])["messages"]
    assert messages[0] == {"role": "user", "content": f"Read.\n\n{shown}"}
    assert left_out([asking, answer]) == ["input_file"]
    with pytest.raises(ProviderUnsupportedContentBlock) as caught:
        asked(input=[HI, answer, asking])
    assert caught.value.param == "input[2].content[1]"
