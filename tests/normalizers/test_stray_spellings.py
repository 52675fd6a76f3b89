"""Names, ids, tags and brackets as models stray from their format's own spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.normalizers.splits import parse, tool

TOOLS = [
    tool("Bash", command="string"),
    tool("run_2"),
    tool("functions_x"),
    tool("f", city="string", days="integer", tags="array", options="object"),
]
Calls = list[tuple[str, dict[str, Any]]]


def calls(format: str, text: str, **options: Any) -> tuple[Calls, str]:
    """The calls and the content. Reads whole, character by character, and cut once at each place."""
    message = parse(format, text, TOOLS, cuts=True, unknown_tools="refuse", **options)
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls], message.content


KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>%s<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
IDS = {
    "functions.Bash:2": "Bash",
    "functions_Bash_2": "Bash",
    "functions.Bash_2": "Bash",
    "functions_Bash:2": "Bash",
    "functions.Bash.2": "Bash",
    "functions.Bash-2": "Bash",
    "functions:Bash:2": "Bash",
    "functions/Bash:2": "Bash",
    "functions.Bash": "Bash",
    "Bash_2": "Bash",
    "Bash:12": "Bash",
    "Bash": "Bash",
    "run_2": "run_2",
    "run_2_1": "run_2",
    "run_2:1": "run_2",
    "functions.run_2": "run_2",
    "functions_run_2:0": "run_2",
    "functions_x": "functions_x",
    "functions_x:1": "functions_x",
    "functions.functions_x:1": "functions_x",
}


@pytest.mark.parametrize("written", IDS)
def test_the_tool_in_an_id(written: str) -> None:
    assert calls("kimi_k2", KIMI % written) == ([(IDS[written], {})], "")
    (call,) = parse("kimi_k2", KIMI % written, TOOLS, unknown_tools="refuse").tool_calls
    assert call.id == written


@pytest.mark.parametrize("written", ["rm_2", "functions.rm:2", "functions_rm_2", "Bas_2", "Bash_x", "x_Bash_2"])
def test_an_id_without_a_declared_tool_is_text(written: str) -> None:
    assert calls("kimi_k2", KIMI % written) == ([], KIMI % written)


TAGS = [
    "<function=f>\n<parameter=city>\nRome\n</parameter>\n</function>",
    "<function=f>\n< parameter = city >\nRome\n</parameter>\n</function>",
    "<function=f>\n<parameter = city>\nRome\n</parameter>\n</function>",
    "<function=f>\n<parameter= city >\nRome\n</parameter>\n</function>",
    "<function=f>\n<parameter\t=\tcity>\nRome\n</parameter>\n</function>",
    "< function = f >\n<parameter=city>\nRome\n</parameter>\n</function>",
    "<function = f>\n<parameter=city>\nRome\n</parameter>\n</function>",
    "<function=f >\n<parameter=city>\nRome\n</ parameter >\n</ function >",
    "<function=f>\n<parameter=city>\nRome\n< /parameter>\n</function >",
    "<function=f>\n<parameter=city>Rome</parameter ></function>",
    "<function=f>\n<parameter=city>\nRome\n</ function >",
]


@pytest.mark.parametrize("written", TAGS)
@pytest.mark.parametrize(
    ("format", "opening", "closing"),
    [("qwen3_coder", "<tool_call>", "</tool_call>"), ("seed_oss", "<seed:tool_call>", "</seed:tool_call>")],
)
def test_blanks_in_tags(written: str, format: str, opening: str, closing: str) -> None:
    assert calls(format, f"{opening}\n{written}\n{closing}") == ([("f", {"city": "Rome"})], "")


@pytest.mark.parametrize(
    "written",
    [
        '<invoke name = "f">\n<parameter name = "city">Rome</parameter>\n</invoke>',
        '< invoke name="f" >\n< parameter name="city" >Rome</ parameter>\n</invoke >',
        "<invoke name = f>\n<parameter name= city>Rome</parameter>\n</invoke>",
    ],
)
def test_blanks_in_tags_with_attributes(written: str) -> None:
    assert calls("minimax_m2", f"<minimax:tool_call>\n{written}\n</minimax:tool_call>") == (
        [("f", {"city": "Rome"})],
        "",
    )


ROME = {"city": "Rome"}
GEMMA: dict[str, dict[str, Any]] = {
    'call:f(city:"Rome")': ROME,
    'call:f(city="Rome")': ROME,
    "call:f(city='Rome', days=3)": {**ROME, "days": 3},
    'call:f(city=<|"|>Rome<|"|>)': ROME,
    'call:f(city:<|"|>Rome<|"|>,days:3)': {**ROME, "days": 3},
    'call:f(city:"a)b}", options:{a:1})': {"city": "a)b}", "options": {"a": 1}},
    "call:f()": {},
    'call:f{city:<|"|>Rome<|"|>days:3}': {**ROME, "days": 3},
    'call:f{city:<|"|>Rome<|"|> days:3}': {**ROME, "days": 3},
    'call:f{days:3 city:<|"|>Rome<|"|>}': {"days": 3, **ROME},
    "call:f{tags:[1,2] days:3}": {"tags": [1, 2], "days": 3},
    'call:f{tags:[<|"|>a<|"|><|"|>b<|"|>]}': {"tags": ["a", "b"]},
    'call:f{options:{a:1 b:true}city:"Rome"}': {"options": {"a": 1, "b": True}, **ROME},
    'call:f(city:"Rome" days=3)': {**ROME, "days": 3},
}


@pytest.mark.parametrize("written", GEMMA)
@pytest.mark.parametrize(
    ("format", "opening", "closing"),
    [("gemma4", "<|tool_call>", "<tool_call|>"), ("functiongemma", "<start_function_call>", "<end_function_call>")],
)
def test_gemma_in_round_brackets_and_without_commas(written: str, format: str, opening: str, closing: str) -> None:
    body = written if format == "gemma4" else written.replace('<|"|>', "<escape>")
    assert calls(format, opening + body + closing) == ([("f", GEMMA[written])], "")


@pytest.mark.parametrize(
    "written",
    ["call:f{city:New York}", "call:f{city:at noon:go}", 'call:f("Rome")', 'call:f(city:"Rome"}', 'call:f{city "R"}'],
)
def test_what_gemma_leaves_open_is_text(written: str) -> None:
    found, content = calls("gemma4", f"<|tool_call>{written}<tool_call|>")
    assert not found
    assert written in content


@pytest.mark.parametrize("before", ["", "\n", "<|channel>thought\nhm<channel|>", "<|channel>thought\nhm<channel|>\n"])
@pytest.mark.parametrize("after", ["", "<tool_call|>", "<tool_call|><turn|>", "\n<tool_call|>"])
@pytest.mark.parametrize("written", ['call:f{city:<|"|>Rome<|"|>}', 'call:f(city="Rome")'])
def test_gemma_without_its_opener(written: str, before: str, after: str) -> None:
    assert calls("gemma4", before + written + after) == ([("f", ROME)], "")


@pytest.mark.parametrize("text", ["call:g{city:1}", "call:", "call:f is a tool", "Write call:f{days:1} here."])
def test_what_is_no_call_of_gemma_is_text(text: str) -> None:
    assert calls("gemma4", text) == ([], text)
    assert calls("gemma4", f"<|channel>thought\nhm<channel|>{text}") == ([], text)


LIST = '[{"name": "f", "arguments": {"city": "Rome"}}]'


@pytest.mark.parametrize(
    "text",
    [
        f"functools{LIST}",
        f"<|tool_call|>{LIST}<|/tool_call|>",
        f"<|tool_call|>\n{LIST}\n<|/tool_call|>",
        f"<|tool_call|>{LIST[1:-1]}<|/tool_call|>",
        f"functools{LIST}<|/tool_call|>",
        f"<|tool_call|>functools{LIST}<|/tool_call|>",
        f"<|tool_call|>{LIST}",
    ],
)
def test_the_marks_of_phi4_are_no_content(text: str) -> None:
    assert calls("phi4", text) == ([("f", ROME)], "")
