"""Calls, results and tool lists as each format writes them, held to golden text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from normalizers import ToolCall, get, names
from normalizers.write.instructions import WORDINGS, Wording, render_instructions, render_tools
from normalizers.write.render import render_calls, render_result
from tests.normalizers import families
from tests.normalizers.splits import parse, tool

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": 'São "P"', "days": 2, "metric": True, "note": None}),
    ("files.write", {"my lines": ["x", 1.5, {"k": False}]}),
    ("ping", {}),
]
TOOLS = [
    tool("get_weather", city="string", days="integer", metric="boolean", note="null"),
    tool("files.write", **{"my lines": "array"}),
    tool("ping"),
]

GOLDEN: dict[str, str] = {
    **families.GOLDEN,
    "pythonic": (
        '<|tool_call_start|>[get_weather(city="São \\"P\\"", days=2, metric=True, note=None)'
        ', files.write(**{"my lines": ["x", 1.5, {"k": False}]}), ping()]<|tool_call_end|>'
    ),
    "llama4_pythonic": (
        '<|python_start|>[get_weather(city="São \\"P\\"", days=2, metric=True, note=None)'
        ', files.write(**{"my lines": ["x", 1.5, {"k": False}]}), ping()]<|python_end|>'
    ),
    "olmo3": (
        '<function_calls>get_weather(city="São \\"P\\"", days=2, metric=True, note=None)\n'
        'files.write(**{"my lines": ["x", 1.5, {"k": False}]})\n'
        "ping()</function_calls>"
    ),
    "hermes": (
        "<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": true, '
        '"note": null}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": false}]}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "ping", "arguments": {}}\n'
        "</tool_call>"
    ),
    "llama3_json": (
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "São \\"P\\"", "days": 2, '
        '"metric": true, "note": null}}'
        '; {"name": "files.write", "parameters": {"my lines": ["x", 1.5, {"k": false}]}}'
        '; {"name": "ping", "parameters": {}}'
    ),
    "granite": (
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, '
        '"metric": true, "note": null}}'
        ', {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": false}]}}'
        ', {"name": "ping", "arguments": {}}]'
    ),
    "granite_20b_fc": (
        '<function_call>{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, '
        '"metric": true, "note": null}}'
        '; {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": false}]}}'
        '; {"name": "ping", "arguments": {}}'
    ),
    "phi4": (
        'functools[{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": '
        'true, "note": null}}, {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": false}]}}'
        ', {"name": "ping", "arguments": {}}]'
    ),
    "mistral": (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "São \\"P\\"", "days": 2, "metric": true, "note": null}'
        '[TOOL_CALLS]files.write[ARGS]{"my lines": ["x", 1.5, {"k": false}]}[TOOL_CALLS]ping[ARGS]{}'
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        "```json\n"
        '{"city": "São \\"P\\"", "days": 2, "metric": true, "note": null}\n'
        "```<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>files.write\n"
        "```json\n"
        '{"my lines": ["x", 1.5, {"k": false}]}\n'
        "```<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n"
        "```json\n"
        "{}\n"
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "São \\"P\\"", "days": 2, "metric": true, '
        '"note": null}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>files.write<｜tool▁sep｜>{"my lines": ["x", 1.5, {"k": '
        "false}]}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "São \\"P\\"", '
        '"days": 2, "metric": true, "note": null}<|tool_call_end|>'
        '<|tool_call_begin|>functions.files.write:1<|tool_call_argument_begin|>{"my lines": ["x", '
        '1.5, {"k": false}]}<|tool_call_end|>'
        "<|tool_call_begin|>functions.ping:2<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "functiongemma": (
        "<start_function_call>call:get_weather{city:<escape>São "
        '"P"<escape>,days:2,metric:true,note:null}<end_function_call>'
        "<start_function_call>call:files.write{my "
        "lines:[<escape>x<escape>,1.5,{k:false}]}<end_function_call>"
        "<start_function_call>call:ping{}<end_function_call>"
    ),
    "gemma4": (
        '<|tool_call>call:get_weather{city:<|"|>São "P"<|"|>,days:2,metric:true,note:null}<tool_call|>'
        '<|tool_call>call:files.write{my lines:[<|"|>x<|"|>,1.5,{k:false}]}<tool_call|>'
        "<|tool_call>call:ping{}<tool_call|>"
    ),
    "tool_lines": (
        "Tool: get_weather\n"
        'Arguments: {"city": "São \\"P\\"", "days": 2, "metric": true, "note": null}\n'
        "Tool: files.write\n"
        'Arguments: {"my lines": ["x", 1.5, {"k": false}]}\n'
        "Tool: ping\n"
        "Arguments: {}"
    ),
    "qwen3_coder": (
        "<tool_call>\n"
        "<function=get_weather>\n"
        '<parameter=city>São "P"</parameter>\n'
        "<parameter=days>2</parameter>\n"
        "<parameter=metric>true</parameter>\n"
        "<parameter=note>null</parameter>\n"
        "</function>\n"
        "<function=files.write>\n"
        '<parameter=my lines>["x", 1.5, {"k": false}]</parameter>\n'
        "</function>\n"
        "<function=ping>\n"
        "</function>\n"
        "</tool_call>"
    ),
    "seed_oss": (
        "<seed:tool_call>\n"
        "<function=get_weather>\n"
        '<parameter=city>São "P"</parameter>\n'
        "<parameter=days>2</parameter>\n"
        "<parameter=metric>true</parameter>\n"
        "<parameter=note>null</parameter>\n"
        "</function>\n"
        "<function=files.write>\n"
        '<parameter=my lines>["x", 1.5, {"k": false}]</parameter>\n'
        "</function>\n"
        "<function=ping>\n"
        "</function>\n"
        "</seed:tool_call>"
    ),
    "minimax_m2": (
        "<minimax:tool_call>\n"
        '<invoke name="get_weather">\n'
        '<parameter name="city">São "P"</parameter>\n'
        '<parameter name="days">2</parameter>\n'
        '<parameter name="metric">true</parameter>\n'
        '<parameter name="note">null</parameter>\n'
        "</invoke>\n"
        '<invoke name="files.write">\n'
        '<parameter name="my lines">["x", 1.5, {"k": false}]</parameter>\n'
        "</invoke>\n"
        '<invoke name="ping">\n'
        "</invoke>\n"
        "</minimax:tool_call>"
    ),
    "deepseek_v32": (
        "<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">São "P"</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="metric" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="note" string="false">null</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="files.write">\n'
        '<｜DSML｜parameter name="my lines" string="false">["x", 1.5, {"k": false}]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="ping">\n'
        "</｜DSML｜invoke>\n"
        "</｜DSML｜function_calls>"
    ),
    "glm45": (
        "<tool_call>get_weather\n"
        "<arg_key>city</arg_key>\n"
        '<arg_value>São "P"</arg_value>\n'
        "<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n"
        "<arg_key>metric</arg_key>\n"
        "<arg_value>true</arg_value>\n"
        "<arg_key>note</arg_key>\n"
        "<arg_value>null</arg_value>\n"
        "</tool_call>\n"
        "<tool_call>files.write\n"
        "<arg_key>my lines</arg_key>\n"
        '<arg_value>["x", 1.5, {"k": false}]</arg_value>\n'
        "</tool_call>\n"
        "<tool_call>ping\n"
        "</tool_call>"
    ),
    "harmony": (
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "São '
        '\\"P\\"", "days": 2, "metric": true, "note": null}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.files.write "
        '<|constrain|>json<|message|>{"my lines": ["x", 1.5, {"k": false}]}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.ping "
        "<|constrain|>json<|message|>{}<|call|>"
    ),
    "auto": (
        "<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": true, '
        '"note": null}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": false}]}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "ping", "arguments": {}}\n'
        "</tool_call>"
    ),
}


def rendered(format: str, *calls: tuple[str, dict[str, Any]]) -> str:
    return render_calls(get(format), [ToolCall("", name, json.dumps(arguments)) for name, arguments in calls])


def test_every_format_that_reads_calls_has_golden_text() -> None:
    assert set(GOLDEN) == {name for name in names() if not get(name).untouched}


@pytest.mark.parametrize("format", GOLDEN)
def test_calls_are_written_as_the_format_writes_them(format: str) -> None:
    assert rendered(format, *CALLS) == GOLDEN[format]


@pytest.mark.parametrize("format", GOLDEN)
def test_golden_text_is_read_back(format: str) -> None:
    message = parse(format, GOLDEN[format], TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == CALLS
    assert message.content == ""


ARGUMENTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a key that is no Python name": ("pythonic", {"a b": [None]}, "[f(**{'a b': [None]})]".replace("'", '"')),
    "a key that is one": ("pythonic", {"user-id": {"on": True}}, '[f(user-id={"on": True})]'),
    "text that begins with a line break": ("qwen3_coder", {"x": "\na"}, "<parameter=x>\n\na\n</parameter>"),
    "text that ends with one": ("qwen3_coder", {"x": "a\n"}, "<parameter=x>a\n</parameter>"),
    "text that begins with a quote": ("glm45", {"x": '"a'}, '<arg_value>"\\"a"</arg_value>'),
    "text with a quote": ("glm45", {"x": 'a"'}, '<arg_value>a"</arg_value>'),
    "text or JSON": (
        "deepseek_v32",
        {"x": "1", "y": 1},
        '<｜DSML｜parameter name="x" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="y" string="false">1</｜DSML｜parameter>',
    ),
    "text with the closing quote": ("gemma4", {"x": 'a<|"|>b'}, '{x:"a<|\\"|>b"}'),
    "text that ends with its first character": ("gemma4", {"x": "a<"}, '{x:"a<"}'),
    "text that ends as the closing quote begins": ("gemma4", {"x": "a<|"}, '{x:"a<|"}'),
    "text within the format's own quotes": ("gemma4", {"x": ['a"']}, '{x:[<|"|>a"<|"|>]}'),
    "a key that needs quotes": ("functiongemma", {"a:b": 1, "-": 2, "c-d": 3}, '{"a:b":1,"-":2,c-d:3}'),
    "an index": ("kimi_k2", {}, "functions.f:0<|"),
    "an index in a tag": ("kimi_k3", {}, '<|open|>call tool="f" index="1"<|sep|>'),
    "a type": ("kimi_k3", {"x": 1}, '<|open|>argument key="x" type="number"<|sep|>1<'),
    "escapes in a key": ("kimi_k3", {'a&"b': "&"}, 'key="a&amp;&quot;b" type="string"<|sep|>&<|close|>'),
    "text that needs CDATA": ("minicpm5", {"x": "a\n<b>"}, '<param name="x"><![CDATA[a\n<b>]]></param>'),
    "text that needs none": ("minicpm5", {"x": "a > b"}, '<param name="x">a > b</param>'),
    "a name as the key": ("apertus", {"x": "1"}, '{"f": {"x": "1"}}'),
    "keys of its own": ("inkling", {"x": "1"}, '{"name": "f", "args": {"x": "1"}}'),
    "nested tags": (
        "minimax_m3",
        {"x": [{"a": "b"}, 2]},
        "<x>]<]minimax[>[<item>]<]minimax[>[<a>b]<]minimax[>[</a>]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[",
    ),
    "text in nested tags that looks like a number": ("minimax_m3", {"x": ["2"]}, '<x>["2"]]<]minimax[>[</x>'),
    "null in nested tags": ("minimax_m3", {"x": {"a": None}}, '<x>{"a": null}]<]minimax[>[</x>'),
    "nothing in nested tags": ("minimax_m3", {"x": []}, "<x>[]]<]minimax[>[</x>"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_are_written_as_the_format_needs_them(case: str) -> None:
    format, arguments, text = ARGUMENTS[case]
    whole = rendered(format, ("f", arguments))
    assert text in whole
    types = {str: "string", int: "integer", list: "array", dict: "object"}
    declared = tool("f", **{key: types[type(value)] for key, value in arguments.items()})
    assert [json.loads(call.arguments) for call in parse(format, whole, [declared]).tool_calls] == [arguments]


RESULTS = {
    "pythonic": "<|tool_response_start|>4\n2<|tool_response_end|>",
    "hermes": "<tool_response>\n4\n2\n</tool_response>",
    "qwen3_coder": "<tool_response>\n4\n2\n</tool_response>",
    "deepseek_v3": "<｜tool▁output▁begin｜>4\n2<｜tool▁output▁end｜>",
    "deepseek_v31": "<｜tool▁output▁begin｜>4\n2<｜tool▁output▁end｜>",
    "deepseek_json": "<｜tool▁output▁begin｜>4\n2<｜tool▁output▁end｜>",
    "cohere": "<|START_TOOL_RESULT|>4\n2<|END_TOOL_RESULT|>",
    "hunyuan_a13b": "<tool_response>4\n2</tool_response>",
    "nemotron_v2": "<TOOL_RESPONSE>[4\n2]</TOOL_RESPONSE>",
    "hy_v3": (
        "<tool_responses:opensource>\n<tool_response:opensource>\n4\n2\n"
        "</tool_response:opensource>\n</tool_responses:opensource>"
    ),
    "minicpm5": "<tool_response>\n4\n2\n</tool_response>",
    "minimax_m3": "<response>4\n2</response>",
}


@pytest.mark.parametrize("format", names())
def test_results(format: str) -> None:
    assert render_result(get(format), "files.read", "4\n2") == RESULTS.get(format, "Result of files.read:\n4\n2")


def test_the_prompt_that_lists_tools() -> None:
    assert render_tools(get("pythonic"), [{"type": "function", "function": {"name": "ping"}}, {"name": "é"}]) == (
        'List of tools: [{"name": "ping"}, {"name": "é"}]\n\n'
        "To call a tool, answer with nothing but the call, in exactly this form:\n"
        '<|tool_call_start|>[tool_name(parameter="value")]<|tool_call_end|>\n'
        "Use only the tools and parameters listed. If no tool is needed, answer in plain text."
    )


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", names())
def test_every_prompt_shows_the_tools_and_the_form(name: str, wording: Wording) -> None:
    spec = get(name)
    prompt = render_tools(spec, [tool("files.read", path="string")], wording)
    assert '"files.read"' in prompt
    assert "tool_name" in prompt
    assert prompt.endswith(render_instructions(spec, ["files.read"], wording))
    assert '"files.read"' not in render_instructions(spec, ["files.read"], wording)
    assert render_tools(spec, [], wording) == ""


@pytest.mark.parametrize("name", [name for name in names() if not get(name).untouched])
def test_examples_show_a_call_in_the_format_and_answers_without_one(name: str) -> None:
    spec = get(name)
    call = render_calls(spec, [ToolCall("", "set_heating", '{"room": "kitchen", "degrees": 20}')])
    text = render_instructions(spec, [], "examples")
    assert f"Assistant: {call}\nResult: " in text
    assert text.count("\nAssistant: ") == 6
    other = render_instructions(spec, ["set_heating", "set_heating_2"], "examples")
    assert "set_heating_2_2, which needs" in other, "the request's own tool could have other parameters"
    assert "set_heating," not in other


def test_calls_that_cannot_be_rendered_are_refused() -> None:
    assert render_calls(get("hermes"), []) == ""
    with pytest.raises(ValueError, match="the arguments of 'f' are not a JSON object"):
        render_calls(get("hermes"), [ToolCall("", "f", "[1]")])


ALIKE: dict[str, dict[str, Any]] = {
    "arguments as text": {"name": "f", "arguments": '{"a": "x"}'},
    "arguments as an object": {"name": "f", "arguments": {"a": "x"}},
}


@pytest.mark.parametrize("case", ALIKE)
@pytest.mark.parametrize("wrapped", [True, False])
def test_openai_calls_render_too(case: str, wrapped: bool) -> None:
    call = {"id": "1", "type": "function", "function": ALIKE[case]} if wrapped else ALIKE[case]
    assert render_calls(get("pythonic"), [call]) == '<|tool_call_start|>[f(a="x")]<|tool_call_end|>'


@pytest.mark.parametrize("empty", ["", None])
def test_a_call_without_arguments_renders(empty: str | None) -> None:
    call = {"function": {"name": "f", "arguments": empty}}
    assert render_calls(get("hermes"), [call]) == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
