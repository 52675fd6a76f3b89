"""Formats by name, by import string and as plain values; detection; loading."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest

from normalizers import FormatSpec, UnknownFormat, detect, get, names, normalizer, warm
from normalizers.events import ToolArgs, ToolCall, ToolEnd, ToolStart
from normalizers.write.render import render_calls
from tests.normalizers.splits import parse, tool
from tests.patience import PATIENCE

MINE = FormatSpec(name="mine", dialect="json", open=("<<",), close=(">>",))
NOT_A_SPEC = 1


def test_aliases() -> None:
    assert get("lfm2") is get("bracket") is get(" Pythonic ") is get("pythonic")
    assert get("gpt_oss") is get("harmony")
    assert get("native_json").untouched


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    with pytest.raises(UnknownFormat, match=r"'pythnic'\. Did you mean 'pythonic'\? Known: native_json, .*harmony"):
        get("pythnic")


def test_import_string() -> None:
    assert get("tests.normalizers.test_registry:MINE") is MINE
    for target in ("tests.normalizers.test_registry:NOT_A_SPEC", "no.such.module:SPEC", "tests.normalizers:NONE"):
        with pytest.raises(UnknownFormat, match=target):
            get(target)


WRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({"dialect": "json", "open": "<<", "close": [">>"]}, '<<{"name": "f", "arguments": {"a": 1}}>>'),
    "named": (
        {"dialect": "named", "open": "@@", "syntax": {"written": "{name}::{arguments}", "head": ["{name}::"]}},
        '@@f::{"a": 1}',
    ),
    "tags": (
        {
            "name": "house",
            "dialect": "tags",
            "open": "<run>",
            "close": "</run>",
            "think": [["<why>", "</why>"]],
            "syntax": {
                "call": "<use {name}>",
                "parameter": "<set {key}>",
                "parameter_end": "</set>",
                "call_end": "</use>",
            },
        },
        "<why>hm</why><run><use f><set a>1</set></use></run>",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_formats_as_plain_values(name: str) -> None:
    fields, text = WRITTEN[name]
    message = parse(get(fields), text, [tool("f", a="integer")])
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"a": 1}')]


def test_a_format_like_another() -> None:
    fields = {"like": "qwen3", "unknown_tools": "forward", "after": "drop"}
    assert asdict(get(fields)) == asdict(replace(get("hermes"), unknown_tools="forward", after="drop"))
    text = '<tool_call>{"name": "g", "arguments": {}}</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>B'
    message = parse(get(fields), text, [tool("f")], unknown_tools="refuse")
    assert [call.name for call in message.tool_calls] == ["f"]
    assert message.content == '<tool_call>{"name": "g", "arguments": {}}</tool_call>'


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"dialect": "json", "opn": "x"}, r"tool_call_format\.opn: no such field\. Did you mean 'open'"),
    "unknown dialect": ({"dialect": "jsn"}, r"tool_call_format\.dialect: 'jsn' is neither one of auto"),
    "no syntax": ({"dialect": "tags"}, r"tool_call_format\.syntax: the dialect 'tags' needs"),
    "missing in syntax": ({"dialect": "named", "syntax": {"written": "x"}}, r"tool_call_format\.syntax\.head: missing"),
    "syntax of none": ({"dialect": "json", "syntax": {}}, r"tool_call_format\.syntax: the dialect 'json' takes none"),
    "wrong type": ({"dialect": "json", "open": 3}, r"tool_call_format\.open: must be a string or a list"),
    "wrong pair": ({"dialect": "json", "think": ["<a>"]}, r"tool_call_format\.think: must be a list of pairs"),
    "wrong policy": (
        {"like": "hermes", "after": "hide"},
        r"tool_call_format\.after: must be one of content, drop, not 'hide'",
    ),
    "like nothing": ({"like": "hermse"}, r"unknown tool-call format 'hermse'\. Did you mean 'hermes'"),
    "like one, else": (
        {"like": "hermes", "dialect": "json"},
        r"tool_call_format\.dialect: can't be changed, it comes from `like`",
    ),
    "wrong flag": ({"dialect": "json", "echo": "yes"}, r"tool_call_format\.echo: must be true or false"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_in_a_format_names_its_field(name: str) -> None:
    fields, message = WRONG[name]
    with pytest.raises(UnknownFormat, match=message):
        get(fields)


DETECTED: dict[str, tuple[dict[str, Any], str | None]] = {
    "lfm2 by its tokens": ({"special_tokens": ["<|tool_call_start|>", "<|im_end|>"]}, "pythonic"),
    "lfm2.5 by its template": ({"chat_template": "{{ 'List of tools: [' }}"}, "pythonic"),
    "lfm2 by its architecture": ({"architecture": "lfm2moe"}, "pythonic"),
    "hermes": ({"chat_template": "<tools></tools> <tool_call>"}, "hermes"),
    "qwen coder": ({"chat_template": "<tool_call><function=x><parameter=y>"}, "qwen3_coder"),
    "glm": ({"chat_template": "<tool_call>{{ name }}<arg_key>"}, "glm45"),
    "mistral": ({"special_tokens": ["[TOOL_CALLS]", "[ARGS]"]}, "mistral"),
    "deepseek 3": ({"chat_template": "<｜tool▁calls▁begin｜>```json"}, "deepseek_v3"),
    "deepseek 3 with its tokens": (
        {"special_tokens": ["<｜tool▁calls▁begin｜>"], "chat_template": "<｜tool▁calls▁begin｜>```json"},
        "deepseek_v3",
    ),
    "deepseek 3.1": ({"special_tokens": ["<｜tool▁calls▁begin｜>"]}, "deepseek_v31"),
    "dsml": ({"chat_template": "<｜DSML｜invoke"}, "deepseek_v32"),
    "kimi": ({"special_tokens": ["<|tool_calls_section_begin|>"]}, "kimi_k2"),
    "minimax": ({"chat_template": "<minimax:tool_call>"}, "minimax_m2"),
    "gpt-oss": ({"architecture": "gpt-oss"}, "harmony"),
    "gemma 4": ({"chat_template": "<|tool_call>call:<tool_call|>"}, "gemma4"),
    "llama 3": ({"special_tokens": ["<|python_tag|>"]}, "llama3_json"),
    "a hermes finetune of llama 3": (
        {"special_tokens": ["<|python_tag|>"], "chat_template": "<tool_call>"},
        "hermes",
    ),
    "llama 4 that calls in JSON": (
        {
            "special_tokens": ["<|python_start|>"],
            "chat_template": '<|header_start|> Respond in the format {"name": function name, "parameters": x}.',
        },
        "llama4_json",
    ),
    "llama 4 by its tokens alone": ({"special_tokens": ["<|python_start|>"]}, "llama4_pythonic"),
    "a llama taught to call in Python": (
        {"special_tokens": ["<|python_tag|>"], "chat_template": "[func_name1(params_name1=params_value1, x)]"},
        "llama4_pythonic",
    ),
    "command a": ({"special_tokens": ["<|START_ACTION|>"]}, "cohere"),
    "command a by its template": ({"chat_template": "<|START_ACTION|>[ <tool_call>"}, "cohere"),
    "kimi 3": ({"chat_template": "<|open|>tools<|sep|><|close|>"}, "kimi_k3"),
    "minimax 3, whose tags look like others": (
        {"chat_template": "]<]minimax[>[<tool_call> <response></response>"},
        "minimax_m3",
    ),
    "minimax 3 by its architecture": ({"architecture": "minimax-m3"}, "minimax_m3"),
    "deepseek 4.1": (
        {"special_tokens": ["｜DSML｜"], "chat_template": "'<' ~ '｜DSML｜' ~ ' calls>'"},
        "deepseek_v41",
    ),
    "deepseek with json": ({"chat_template": '<｜tool▁calls▁begin｜>{"parameters": x}'}, "deepseek_json"),
    "hy 3": ({"chat_template": "<tool_sep:opensource><arg_key:opensource>"}, "hy_v3"),
    "hy 4": ({"chat_template": "<｜hy_Assistant:x｜><arg_key:x>"}, "hy_v3"),
    "hy by its tokens": ({"special_tokens": ["<tool_sep>", "<arg_key>", "<arg_value>"]}, "hy_v3"),
    "solar open": ({"special_tokens": ["<|tool_call:begin|>"]}, "solar_open"),
    "solar open 2": ({"special_tokens": ["<|tool_call:start|>"]}, "solar_open2"),
    "gigachat 3": ({"chat_template": "'function call' + '<|role_sep|>'"}, "gigachat3"),
    "gigachat 3.1": ({"chat_template": "<|function_call|><|role_sep|>"}, "gigachat3"),
    "apriel": ({"chat_template": "<tool_calls>[BEGIN FINAL RESPONSE]"}, "apriel"),
    "hunyuan": ({"chat_template": "<tool_calls><|extra_0|>"}, "hunyuan_a13b"),
    "jamba": ({"chat_template": "<tool_calls>[</tool_calls>"}, "jamba"),
    "nemotron nano 2": ({"chat_template": "<TOOLCALL>["}, "nemotron_v2"),
    "internlm": ({"chat_template": "<|action_start|><|plugin|>"}, "internlm2"),
    "apertus": ({"special_tokens": ["<|tools_prefix|>"]}, "apertus"),
    "ernie": ({"chat_template": "<tool_call> <response></response>"}, "ernie45"),
    "functionary 3.1, a llama by its tokens": (
        {"special_tokens": ["<|python_tag|>"], "chat_template": "Environment: ipython <function=f>{}</function>"},
        "functionary_v31",
    ),
    "functionary 3.2": ({"chat_template": "{{ '>>>all' }}"}, "functionary_v32"),
    "glimmer": ({"chat_template": "<atem:function_calls>"}, "muse_glimmer"),
    "inkling": ({"chat_template": "<|content_invoke_tool_json|>"}, "inkling"),
    "longcat": ({"chat_template": "<longcat_tool_call>"}, "longcat"),
    "k2 horizon": ({"chat_template": "<ifm|tool_calls><ifm|tool_call>"}, "k2_horizon"),
    "dots": ({"chat_template": "<dots_function_call><invoke name="}, "dots"),
    "step 3": ({"chat_template": "<steptml:invoke name="}, "step3"),
    "minicpm 5": ({"chat_template": '<function name="f"><param name="a">'}, "minicpm5"),
    "tokens that several families have": ({"special_tokens": ["<|sep|>", "<|open|>", "<think>"]}, None),
    "a prompt in prose": ({"chat_template": "Write >>> before each line of Python."}, None),
    "nothing": ({"chat_template": "{{ messages }}", "architecture": "llama"}, None),
}


@pytest.mark.parametrize("name", DETECTED)
def test_detection(name: str) -> None:
    known, expected = DETECTED[name]
    found = detect(**known)
    assert (found.format if found else None) == expected
    if found:
        get(found.format)
        assert found.evidence
        assert found.source in str(found)


def test_a_reader_is_loaded_by_a_call_or_by_warming_and_needs_the_standard_library_alone() -> None:
    script = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import normalizers as n\n"
        "p = n.normalizer('pythonic'); p.feed('Hello'); p.finish('stop')\n"
        "n.normalizer('hermes').feed('<tool_call>{}</tool_call>')\n"
        "assert 'normalizers.read.pythonic' not in sys.modules\n"
        "for format in n.names(): n.warm(format)\n"
        "assert 'normalizers.read.pythonic' in sys.modules\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= {'normalizers', *sys.stdlib_module_names}, new\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("name", names())
def test_every_format_warms(name: str) -> None:
    warm(name)


TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
MARKED = [name for name in names() if get(name).open and get(name).close]


@pytest.mark.parametrize("format", MARKED)
def test_a_format_that_is_looked_for_does_not_wait_for_the_end_of_the_answer(format: str) -> None:
    text = render_calls(get(format), [ToolCall("", "f", '{"a": "x"}')])
    reader = normalizer("auto", [TOOL])
    events = [event for at in range(0, len(text), 3) for event in reader.feed(text[at : at + 3])]
    assert [type(event) for event in events] == [ToolStart, ToolArgs, ToolEnd]
