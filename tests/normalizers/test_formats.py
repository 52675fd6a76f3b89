"""One table for each format: its regular forms, and the deviations that models produce."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from normalizers import ToolCall, coalesce, fold, get, names
from normalizers.write.render import render_calls
from tests.normalizers import families
from tests.normalizers.families import PARIS, PARIS_2, TWO, Case
from tests.normalizers.splits import parse, run, splits, tool

TOOLS = [
    tool("get_weather", city="string", days="integer", metric="boolean", tags="array", options="object"),
    tool("ping"),
    tool("note", text={"type": ["string", "null"]}),
]
HERMES: dict[str, Case] = {
    "one": ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", "", PARIS, ()),
    "two, text around": (
        'A <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>\n'
        '<tool_call>{"name": "ping", "arguments": {}}</tool_call> B',
        "A  B",
        "",
        TWO,
        (),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"name": "x"}, "name": "f"}</tool_call>',
        "",
        "",
        [("f", {"name": "x"})],
        (),
    ),
    "no arguments": ('<tool_call>{"name": "ping"}</tool_call>', "", "", [("ping", {})], ()),
    "arguments null": ('<tool_call>{"name": "ping", "arguments": null}</tool_call>', "", "", [("ping", {})], ()),
    "arguments as a string": (
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "parameters": (
        '<tool_call>{"name": "get_weather", "parameters": {"city": "Paris"}}</tool_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "function inside": (
        '<tool_call>{"type": "function", "function": '
        '{"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "array": (
        '<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping"}]</tool_call>',
        "",
        "",
        TWO,
        (),
    ),
    "end marker in a string": (
        '<tool_call>{"name": "note", "arguments": {"text": "a </tool_call> b"}}</tool_call>',
        "",
        "",
        [("note", {"text": "a </tool_call> b"})],
        (),
    ),
    "python for json": (
        "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Paris', "
        "'metric': True, 'tags': [None,],}}</tool_call>",
        "",
        "",
        [("get_weather", {"city": "Paris", "metric": True, "tags": [None]})],
        (),
    ),
    "raw line break": (
        '<tool_call>{"name": "note", "arguments": {"text": "a\nb"}}</tool_call>',
        "",
        "",
        [("note", {"text": "a\nb"})],
        (),
    ),
    "number as text": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris", "days": "2"}}</tool_call>',
        "",
        "",
        PARIS_2,
        (),
    ),
    "markdown fence": ('<tool_call>```json\n{"name": "ping"}\n```</tool_call>', "", "", [("ping", {})], ()),
    "not json": ("<tool_call>hm</tool_call>", "<tool_call>hm</tool_call>", "", [], ("syntax",)),
    "no name": (
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "",
        [],
        ("call_without_name",),
    ),
    "infinity": (
        '<tool_call>{"name": "get_weather", "arguments": {"days": 1e999}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"days": 1e999}}</tool_call>',
        "",
        [],
        ("expression",),
    ),
    "arguments no object": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        "",
        [],
        ("syntax",),
    ),
    "one bad, one good": (
        '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call><tool_call>{"name": "ping"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>',
        "",
        [("ping", {})],
        ("syntax",),
    ),
    "unfinished": (
        '<tool_call>{"name": "f", "arguments": {"a": "x',
        '<tool_call>{"name": "f", "arguments": {"a": "x',
        "",
        [],
        ("unfinished_call",),
    ),
    "no end marker": ('<tool_call>{"name": "ping"}', "", "", [("ping", {})], ()),
    "reasoning": ('<think>hm</think>\n\n<tool_call>{"name": "ping"}</tool_call>', "", "hm", [("ping", {})], ()),
    "call in reasoning": (
        '<think><tool_call>{"name": "ping"}</tool_call></think>A',
        "A",
        '<tool_call>{"name": "ping"}</tool_call>',
        [],
        (),
    ),
    "reasoning never closed": ("<think>hm", "", "hm", [], ()),
    "stray end": ("ab</tool_call>\nc", "ab\nc", "", [], ("stray_marker",)),
    "an end within a sentence": ("a</tool_call>b", "a</tool_call>b", "", [], ()),
}

LLAMA3: dict[str, Case] = {
    "bare": ('{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", PARIS, ()),
    "tagged": ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", PARIS, ()),
    "several": (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "ping", "parameters": {}}',
        "",
        "",
        TWO,
        (),
    ),
    "behind prose": (
        'Here: {"name": "ping", "parameters": {}}',
        'Here: {"name": "ping", "parameters": {}}',
        "",
        [],
        (),
    ),
    "within prose": (
        'Here: {"name": "ping", "parameters": {}} ok',
        'Here: {"name": "ping", "parameters": {}} ok',
        "",
        [],
        (),
    ),
    "before prose": ('{"name": "ping", "parameters": {}} ok', " ok", "", [("ping", {})], ()),
    "a json answer is content": ('{"answer": {"name": "ping"}}', '{"answer": {"name": "ping"}}', "", [], ()),
    "a record with a name is content": ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', "", [], ()),
    "undeclared": ('{"name": "rm", "parameters": {}}', '{"name": "rm", "parameters": {}}', "", [], ()),
    "end of message marker": (
        '{"name": "ping", "parameters": {}}<|eom_id|>',
        "",
        "",
        [("ping", {})],
        ("stray_marker",),
    ),
}

MISTRAL: dict[str, Case] = {
    "list": (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping", "arguments": {}}]',
        "",
        "",
        TWO,
        (),
    ),
    "named": ('A[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "A", "", PARIS, ()),
    "several": ('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]ping[ARGS]{}', "", "", TWO, ()),
    "with an id": ('[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "Paris"}', "", "", PARIS, ()),
    "without the separator": ('[TOOL_CALLS]get_weather{"city": "Paris"}', "", "", PARIS, ()),
    "name alone": ("[TOOL_CALLS]ping", "", "", [("ping", {})], ()),
    "marker twice": ('[TOOL_CALLS] [TOOL_CALLS] [{"name": "ping", "arguments": {}}]', "", "", [("ping", {})], ()),
    "text behind": ("[TOOL_CALLS]ping[ARGS]{} done", " done", "", [("ping", {})], ()),
    "reasoning": ("[THINK]hm[/THINK]Hello", "Hello", "hm", [], ()),
    "nonsense": ("[TOOL_CALLS] not json at all", "not json at all", "", [], ("arguments_not_an_object",)),
}

DEEPSEEK_V3: dict[str, Case] = {
    "two": (
        "A<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "A",
        "",
        TWO,
        (),
    ),
    "bad json": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{x}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>ok",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{x}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>ok",
        "",
        [],
        ("syntax",),
    ),
}

DEEPSEEK_V31: dict[str, Case] = {
    "two": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>B",
        "B",
        "",
        TWO,
        (),
    ),
    "without the region": ("<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", "", [("ping", {})], ()),
    "output markers are no content": (
        "<｜tool▁output▁begin｜>22<｜tool▁output▁end｜>",
        "22",
        "",
        [],
        ("stray_marker",) * 2,
    ),
}

KIMI: dict[str, Case] = {
    "two": (
        "A<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "A",
        "",
        TWO,
        (),
    ),
    "without the section": (
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}',
        "",
        "",
        PARIS,
        (),
    ),
    "a number is no name": (
        "<|tool_calls_section_begin|><|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [],
        ("call_without_name",),
    ),
}

FUNCTION_GEMMA: dict[str, Case] = {
    "types": (
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2,metric:true,tags:[<escape>a<escape>,1]}<end_function_call>",
        "",
        "",
        [("get_weather", {"city": "Paris", "days": 2, "metric": True, "tags": ["a", 1]})],
        (),
    ),
    "line break and brackets in a string": (
        '<start_function_call>call:note{text:<escape>a\n}]"<end_function_call><escape>}<end_function_call>!',
        "!",
        "",
        [("note", {"text": 'a\n}]"<end_function_call>'})],
        (),
    ),
    "empty": ("<start_function_call>call:ping{}<end_function_call>", "", "", [("ping", {})], ()),
}

GEMMA4: dict[str, Case] = {
    "nested": (
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,options:{a:{b:<|"|>c<|"|>}}}<tool_call|>',
        "",
        "",
        [("get_weather", {"city": "Paris", "options": {"a": {"b": "c"}}})],
        (),
    ),
    "hyphen": ("<|tool_call>call:get-it{}<tool_call|>", "", "", [("get-it", {})], ()),
    "bare word": ("<|tool_call>call:get_weather{city:Paris}<tool_call|>", "", "", PARIS, ()),
    "reasoning": ("<|channel>thought\nhm<channel|>Hello<turn|>", "Hello", "hm", [], ("stray_marker",)),
}

QWEN_CODER: dict[str, Case] = {
    "types": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "<parameter=metric>\ntrue\n</parameter>\n"
        "<parameter=tags>\n['a', None]\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        [("get_weather", {"city": "Paris", "days": 2, "metric": True, "tags": ["a", None]})],
        (),
    ),
    "text on both sides": (
        "A\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\nB",
        "A\n\nB",
        "",
        [("ping", {})],
        (),
    ),
    "without the region": ("<function=ping>\n</function>\n</tool_call>", "", "", [("ping", {})], ()),
    "closing tag in a value": (
        "<tool_call><function=note><parameter=text>a </parameter> b</parameter></function></tool_call>",
        "",
        "",
        [("note", {"text": "a </parameter> b"})],
        (),
    ),
    "one line break at each end is layout": (
        "<tool_call><function=note><parameter=text>\n\n a\n\n</parameter></function></tool_call>",
        "",
        "",
        [("note", {"text": "\n a\n"})],
        (),
    ),
    "missing closing tag": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        PARIS_2,
        (),
    ),
    "null where it is allowed": (
        "<tool_call><function=note><parameter=text>null</parameter></function></tool_call>",
        "",
        "",
        [("note", {"text": None})],
        (),
    ),
    "null is text elsewhere": (
        "<tool_call><function=get_weather><parameter=city>null</parameter></function></tool_call>",
        "",
        "",
        [("get_weather", {"city": "null"})],
        (),
    ),
    "what is no number stays text": (
        "<tool_call><function=get_weather><parameter=days>many</parameter></function></tool_call>",
        "",
        "",
        [("get_weather", {"days": "many"})],
        (),
    ),
    "undeclared parameters are text": (
        "<tool_call><function=f><parameter=n>1</parameter></function></tool_call>",
        "",
        "",
        [("f", {"n": "1"})],
        (),
    ),
    "no closing tag before the end of the call": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        "",
        "",
        PARIS,
        (),
    ),
    "the beginning of a closing tag in a value": (
        "<tool_call>\n<function=note>\n<parameter=text>\na\n</func b\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        [("note", {"text": "a\n</func b"})],
        (),
    ),
    "the end of the call within a line of a value": (
        "<tool_call><function=note><parameter=text>a </function> b</parameter></function></tool_call>",
        "",
        "",
        [("note", {"text": "a </function> b"})],
        (),
    ),
    "stopped in a value": ("<tool_call>\n<function=get_weather>\n<parameter=city>Paris", "", "", PARIS, ()),
    "stopped after a value": (
        "<tool_call><function=get_weather><parameter=city>Paris</parameter>",
        "",
        "",
        PARIS,
        (),
    ),
    "stopped in an object": (
        '<tool_call><function=get_weather>{"city": "Par',
        '<tool_call><function=get_weather>{"city": "Par',
        "",
        [],
        ("unfinished_call",),
    ),
    "stopped after an object": ('<tool_call><function=get_weather>{"city": "Paris"}', "", "", PARIS, ()),
    "json in its place": ('<tool_call>{"name": "ping"}</tool_call>', "", "", [("ping", {})], ()),
}

SEED: dict[str, Case] = {
    "one": (
        "<seed:think>hm</seed:think><seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        "",
        "hm",
        PARIS,
        (),
    ),
}

MINIMAX: dict[str, Case] = {
    "two": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
        "",
        "",
        TWO,
        (),
    ),
    "no closing tag before the end of the call": (
        '<minimax:tool_call><invoke name="get_weather"><parameter name="city">\nParis\n</invoke></minimax:tool_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "names without quotes": (
        "<minimax:tool_call><invoke name=get_weather>"
        "<parameter name=city>Paris</parameter></invoke></minimax:tool_call>",
        "",
        "",
        PARIS,
        (),
    ),
}

DSML: dict[str, Case] = {
    "text and json": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        "",
        "",
        PARIS_2,
        (),
    ),
    "version 4": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="ping"></｜DSML｜invoke></｜DSML｜tool_calls>',
        "",
        "",
        [("ping", {})],
        (),
    ),
    "a call that closes itself": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="ping"/></｜DSML｜function_calls>',
        "",
        "",
        [("ping", {})],
        (),
    ),
    "all arguments in one": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="arguments" string="false">'
        '{"city": "Paris"}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>',
        "",
        "",
        PARIS,
        (),
    ),
    "no closing tag before the end of the call": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="city" string="true">Paris'
        "</｜DSML｜invoke></｜DSML｜function_calls>",
        "",
        "",
        PARIS,
        (),
    ),
    "an object in the parameters' place": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather">'
        '{"city": "Paris"}</｜DSML｜invoke></｜DSML｜function_calls>',
        "",
        "",
        PARIS,
        (),
    ),
    "missing closing tag": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="city" string="true">Paris'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>',
        "",
        "",
        PARIS_2,
        (),
    ),
}

GLM: dict[str, Case] = {
    "lines": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
        "",
        "",
        PARIS_2,
        (),
    ),
    "one line": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        "",
        "",
        PARIS,
        (),
    ),
    "no arguments": ("<tool_call>ping</tool_call>", "", "", [("ping", {})], ()),
    "quoted": (
        '<tool_call>get_weather<arg_key>city</arg_key><arg_value>"Paris"</arg_value></tool_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "a quote alone": (
        '<tool_call>note<arg_key>text</arg_key><arg_value>"</arg_value></tool_call>',
        "",
        "",
        [("note", {"text": '"'})],
        (),
    ),
    "a quote at its beginning": (
        '<tool_call>note<arg_key>text</arg_key><arg_value>"a" and b</arg_value></tool_call>',
        "",
        "",
        [("note", {"text": '"a" and b'})],
        (),
    ),
    "a quote at its end": (
        '<tool_call>note<arg_key>text</arg_key><arg_value>a "b"</arg_value></tool_call>',
        "",
        "",
        [("note", {"text": 'a "b"'})],
        (),
    ),
    "quotes around nothing": (
        '<tool_call>note<arg_key>text</arg_key><arg_value>""</arg_value></tool_call>',
        "",
        "",
        [("note", {"text": ""})],
        (),
    ),
    "escapes within quotes": (
        '<tool_call>note<arg_key>text</arg_key><arg_value>"a\\nb"</arg_value></tool_call>',
        "",
        "",
        [("note", {"text": "a\nb"})],
        (),
    ),
    "closing tag in a value": (
        "<tool_call>note<arg_key>text</arg_key><arg_value>a</arg_value> b</arg_value></tool_call>",
        "",
        "",
        [("note", {"text": "a</arg_value> b"})],
        (),
    ),
    "indented value": (
        "<tool_call>note<arg_key>text</arg_key><arg_value>    x</arg_value></tool_call>",
        "",
        "",
        [("note", {"text": "    x"})],
        (),
    ),
}

GRANITE: dict[str, Case] = {
    "array": (
        '<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping", "arguments": {}}]',
        "",
        "",
        TWO,
        (),
    ),
    "text behind": ('A\n<tool_call>[{"name": "ping", "arguments": {}}]\nB', "A\n\nB", "", [("ping", {})], ()),
}

GRANITE_20B: dict[str, Case] = {
    "two, text around": (
        'A <function_call> {"name": "get_weather", "arguments": {"city": "Paris"}} '
        '<function_call> {"name": "ping", "arguments": {}} B',
        "A B",
        "",
        TWO,
        (),
    ),
    "marker in a string": (
        '<function_call> {"name": "note", "arguments": {"text": "a <function_call> {b}"}}',
        "",
        "",
        [("note", {"text": "a <function_call> {b}"})],
        (),
    ),
    "no name": ('<function_call> {"name": 123}', '<function_call> {"name": 123}', "", [], ("call_without_name",)),
    "unfinished": ('<function_call> {"name": "ping"', '<function_call> {"name": "ping"', "", [], ("unfinished_call",)),
    "an object without the mark": ('The {"name": "ping"} of it', 'The {"name": "ping"} of it', "", [], ()),
}

PHI: dict[str, Case] = {
    "list argument": (
        'functools[{"name": "get_weather", "arguments": {"tags": ["a", "b"]}}]',
        "",
        "",
        [("get_weather", {"tags": ["a", "b"]})],
        (),
    ),
    "text around": ('A functools[{"name": "ping", "arguments": {}}] B', "A  B", "", [("ping", {})], ()),
}

HARMONY: dict[str, Case] = {
    "all channels": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        "",
        "hm",
        PARIS,
        (),
    ),
    "final": ("<|channel|>final<|message|>Hello<|return|>", "Hello", "", [], ()),
    "preamble": ("<|channel|>commentary<|message|>Let me look.<|end|>", "Let me look.", "", [], ()),
    "recipient before the channel": (
        "<|start|>assistant to=functions.ping<|channel|>commentary<|message|>{}<|call|>",
        "",
        "",
        [("ping", {})],
        (),
    ),
    "two recipients: the last counts": (
        "<|start|>assistant to=functions.get_weather<|channel|>commentary to=functions.ping<|message|>{}<|call|>",
        "",
        "",
        [("ping", {})],
        (),
    ),
    "an engine has removed the tokens": ("Hello", "Hello", "", [], ()),
    "a tool of the model's own": (
        "<|channel|>commentary to=python<|message|>print(1)<|call|>",
        "",
        "",
        [],
        ("unknown_recipient",),
    ),
    "not json": (
        "<|channel|>commentary to=functions.ping<|message|>oops<|call|>",
        "<|channel|>commentary to=functions.ping<|message|>oops<|call|>",
        "",
        [],
        ("syntax",),
    ),
}

TOOL_LINES: dict[str, Case] = {
    "two": ('Tool: get_weather\nArguments: {"city": "Paris"}\ntool: ping', "", "", TWO, ()),
    "text before": ("Sure.\nTool: ping\n", "Sure.\n", "", [("ping", {})], ()),
    "undeclared": ("Tool: hammer", "Tool: hammer", "", [], ()),
    "within a line": ("The Tool: ping", "The Tool: ping", "", [], ()),
}

OLMO: dict[str, Case] = {
    "lines": ('<function_calls>get_weather(city="Paris")\nping()</function_calls>', "", "", TWO, ()),
    "line break in a string": (
        '<function_calls>note(text="a\nb")</function_calls>',
        "",
        "",
        [("note", {"text": "a\nb"})],
        (),
    ),
}

LLAMA4: dict[str, Case] = {
    "tagged": ("<|python_start|>[get_weather(city='Paris'), ping()]<|python_end|>", "", "", TWO, ()),
    "bare": ("[get_weather(city='Paris'), ping()]", "", "", TWO, ()),
}

AUTO: dict[str, Case] = {
    **{f"hermes, {name}": HERMES[name] for name in ("one", "two, text around", "reasoning")},
    **{f"qwen, {name}": QWEN_CODER[name] for name in ("types", "without the region")},
    **{f"mistral, {name}": MISTRAL[name] for name in ("list", "named")},
    **{f"deepseek 3, {name}": DEEPSEEK_V3[name] for name in ("two",)},
    **{f"deepseek 3.1, {name}": DEEPSEEK_V31[name] for name in ("two",)},
    **{f"kimi, {name}": KIMI[name] for name in ("two", "without the section")},
    **{f"glm, {name}": GLM[name] for name in ("lines", "one line")},
    **{f"gemma, {name}": GEMMA4[name] for name in ("nested",)},
    **{f"harmony, {name}": HARMONY[name] for name in ("all channels", "final")},
    **{f"dsml, {name}": DSML[name] for name in ("text and json",)},
    **{f"minimax, {name}": MINIMAX[name] for name in ("two",)},
    "lfm2": ("<|tool_call_start|>[get_weather(city='Paris'), ping()]<|tool_call_end|>", "", "", TWO, ()),
    "bare": ("[get_weather(city='Paris'), ping()]", "", "", TWO, ()),
    "bare json": ('{"name": "ping", "arguments": {}}', "", "", [("ping", {})], ()),
    "bare json that names no tool": (
        '": {"type": "number"}du.',
        '": {"type": "number"}du.',
        "",
        [],
        (),
    ),
    "bare json of arguments alone": ('{"arguments": {}} and more', '{"arguments": {}} and more', "", [], ()),
    "prose": ("Hello <b>you</b>", "Hello <b>you</b>", "", [], ()),
}

TABLES: dict[str, dict[str, Case]] = {
    **families.TABLES,
    "hermes": HERMES,
    "llama3_json": LLAMA3,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": DSML,
    "kimi_k2": KIMI,
    "functiongemma": FUNCTION_GEMMA,
    "gemma4": GEMMA4,
    "qwen3_coder": QWEN_CODER,
    "seed_oss": SEED,
    "minimax_m2": MINIMAX,
    "glm45": GLM,
    "granite": GRANITE,
    "granite_20b_fc": GRANITE_20B,
    "phi4": PHI,
    "harmony": HARMONY,
    "tool_lines": TOOL_LINES,
    "olmo3": OLMO,
    "llama4_pythonic": LLAMA4,
    "auto": AUTO,
}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, table in TABLES.items() for case in table])
def test_format(name: str, case: str) -> None:
    text, content, reasoning, calls, warnings = TABLES[name][case]
    message = parse(name, text, TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert (message.content, message.reasoning) == (content, reasoning)
    assert tuple(warning.code for warning in message.warnings) == warnings


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, table in families.TABLES.items() for case in table])
def test_a_cut_anywhere_changes_nothing(name: str, case: str) -> None:
    text = families.TABLES[name][case][0]
    whole = coalesce(run(name, [text], TOOLS))
    for at in range(1, len(text)):
        assert coalesce(run(name, [text[:at], text[at:]], TOOLS)) == whole


def test_every_format_has_a_table() -> None:
    elsewhere = {"pythonic", "native_json"}
    assert set(names()) - elsewhere == set(TABLES)


def test_kimi_keeps_the_models_ids() -> None:
    message = parse("kimi_k2", KIMI["two"][0], TOOLS)
    assert [call.id for call in message.tool_calls] == ["functions.get_weather:0", "functions.ping:1"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("phi4", '``````functools{""}]{"name":'), ("auto", '<｜tool▁call▁begin｜>```{"name":')],
)
def test_back_ticks_before_or_in_a_region_read_alike_in_every_split(name: str, text: str) -> None:
    whole = coalesce(run(name, [text], TOOLS))
    assert fold(whole).content == text
    for pieces in splits(text, random_splits=5):
        assert coalesce(run(name, pieces, TOOLS)) == whole


def test_white_space_after_reasoning_and_a_stray_marker_is_layout() -> None:
    text = "</think><｜end▁of▁sentence｜>\nHello"
    for pieces in splits(text, random_splits=5):
        message = fold(run("deepseek_v31", pieces, TOOLS, reasoning_open=True))
        assert (message.content, [warning.code for warning in message.warnings]) == ("Hello", ["stray_marker"])


@pytest.mark.parametrize("name", [name for name in names() if get(name).think])
def test_reasoning_that_the_prompt_opened(name: str) -> None:
    closing = get(name).think[0][1]
    message = parse(name, f"\nhm\n{closing}\n\nHello", TOOLS, reasoning_open=True)
    assert (message.content, message.reasoning) == ("Hello", "hm")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral", "harmony", "llama4_pythonic"])
def test_tool_choice_none_drops_calls_with_a_warning(name: str) -> None:
    case = {
        "hermes": "one",
        "qwen3_coder": "types",
        "mistral": "named",
        "harmony": "all channels",
        "llama4_pythonic": "tagged",
    }
    text, content, *_ = TABLES[name][case[name]]
    message = parse(name, text, TOOLS, allow_calls=False)
    assert message.tool_calls == []
    assert message.content == content
    assert {warning.code for warning in message.warnings} == {"calls_not_allowed"}


@pytest.mark.parametrize("name", ["hermes", "mistral", "kimi_k2", "glm45", "llama4_pythonic"])
def test_one_call_without_parallel_calls(name: str) -> None:
    case = {
        "hermes": "two, text around",
        "mistral": "several",
        "kimi_k2": "two",
        "glm45": "lines",
        "llama4_pythonic": "tagged",
    }
    text = TABLES[name][case[name]][0]
    message = parse(name, text + (text if name == "glm45" else ""), TOOLS, parallel=False)
    assert [call.name for call in message.tool_calls] == ["get_weather"]
    assert [warning.code for warning in message.warnings] == ["parallel_call_dropped"]


RENDERED = [name for name in names() if name != "auto" and (get(name).open or get(name).begins)]
MESSAGES = [name for name in RENDERED if get(name).dialect == "messages"]


@pytest.mark.parametrize("name", RENDERED)
def test_a_call_of_an_undeclared_tool_stays_text_or_is_forwarded(name: str) -> None:
    spec = get(name)
    calls = [ToolCall("functions.ping:0", "ping", "{}"), ToolCall("functions.rm:1", "rm", '{"path": "/x"}')]
    text = render_calls(spec, calls)
    declared = [tool("ping"), tool("rm", path="string")]
    assert [call.name for call in parse(spec, text, declared[:1]).tool_calls] == ["ping", "rm"]
    assert [call.name for call in parse(spec, text, declared, unknown_tools="refuse").tool_calls] == ["ping", "rm"]
    message = parse(spec, text, declared[:1], unknown_tools="refuse")
    assert [call.name for call in message.tool_calls] == ["ping"]
    assert [warning.code for warning in message.warnings] == ["unknown_tool"]
    assert "/x" in message.content
    assert text.endswith(message.content)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", RENDERED)
def test_a_quoted_call_stays_as_it_is(name: str, reason: str, guarded: bool) -> None:
    """An answer explains how a tool is called; the request declares no tools, or others."""
    spec = get(name)
    calls = [ToolCall("functions.rm:0", "rm", '{"path": "/x", "deep": [1, {"a": null}]}')]
    quoted = render_calls(spec, calls) if name in MESSAGES else f"\n It writes: {render_calls(spec, calls)} \n"
    for text in (quoted, render_calls(spec, calls * 2), render_calls(spec, calls) + " \n"):
        for declared in ([], [tool("ping")]):
            options: dict[str, Any] = {"unknown_tools": "refuse", "reason": reason, "guarded": guarded}
            message = parse(spec, text, declared, **options)
            assert not message.tool_calls
            for mark in spec.content_drop:
                text = text.replace(mark, "")
            if name not in MESSAGES or declared or text == quoted:
                assert message.content == text


@pytest.mark.parametrize("name", RENDERED)
def test_text_after_a_call_is_content_or_dropped_with_a_warning(name: str) -> None:
    spec = get(name)
    final = "<|start|>assistant<|channel|>final<|message|>" if name == "harmony" else ""
    text = f"{render_calls(spec, [ToolCall('functions.ping:0', 'ping', '{}')])}{final}\n\nDone, I think."
    assert parse(spec, text, TOOLS).content.strip() == "Done, I think."
    message = parse(replace(spec, after="drop"), text, TOOLS)
    assert ([call.name for call in message.tool_calls], message.content) == (["ping"], "")
    assert [(warning.code, warning.text) for warning in message.warnings] == [("text_after_call", "Done, I think.")]
    assert parse(replace(spec, after="drop"), "No call. Done.", TOOLS).content == "No call. Done."
