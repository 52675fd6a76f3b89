"""What the families of 2026 write: their regular forms, and what such models get wrong."""

from __future__ import annotations

from typing import Any

Calls = list[tuple[str, dict[str, Any]]]
Case = tuple[str, str, str, Calls, tuple[str, ...]]
"""Text; then content, reasoning, calls and the codes of warnings."""

PARIS: Calls = [("get_weather", {"city": "Paris"})]
PARIS_2: Calls = [("get_weather", {"city": "Paris", "days": 2})]
TWO: Calls = [*PARIS, ("ping", {})]
PING: Calls = [("ping", {})]
TYPED: Calls = [
    ("get_weather", {"city": "0042", "days": 2, "metric": True, "tags": ["a", 1], "options": {"k": {"l": None}}})
]
CODE = "if a < b and \"x\":\n\tprint('</b>')\n"
NOTE: Calls = [("note", {"text": CODE})]

COHERE: dict[str, Case] = {
    "a turn of Command A": (
        "<|START_THINKING|>I need the weather.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n'
        '    {"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n'
        "]<|END_ACTION|>",
        "",
        "I need the weather.",
        TWO,
        (),
    ),
    "an answer of Command A": ("<|START_RESPONSE|>It rains.<|END_RESPONSE|>", "It rains.", "", [], ()),
    "an answer of North": (
        "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>It rains.<|END_TEXT|>",
        "It rains.",
        "hm",
        [],
        (),
    ),
    "text before the call": (
        "<|START_TEXT|>I'll look.<|END_TEXT|><|START_ACTION|>"
        '[{"tool_call_id": "0", "tool_name": "ping", "parameters": {}}]<|END_ACTION|>',
        "I'll look.",
        "",
        PING,
        (),
    ),
    "the names of others": (
        '<|START_ACTION|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|END_ACTION|>',
        "",
        "",
        PARIS,
        (),
    ),
    "one object, no array": (
        '<|START_ACTION|>{"tool_name": "get_weather", "parameters": {"city": "Paris"}}<|END_ACTION|>',
        "",
        "",
        PARIS,
        (),
    ),
    "parameters first": (
        '<|START_ACTION|>[{"parameters": {"city": "Paris"}, "tool_name": "get_weather"}]<|END_ACTION|>',
        "",
        "",
        PARIS,
        (),
    ),
    "no end": (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}]',
        "",
        "",
        PARIS,
        (),
    ),
    "the end in a string": (
        '<|START_ACTION|>[{"tool_name": "note", "parameters": {"text": "a <|END_ACTION|> b"}}]<|END_ACTION|>',
        "",
        "",
        [("note", {"text": "a <|END_ACTION|> b"})],
        (),
    ),
    "the opener twice": (
        '<|START_ACTION|><|START_ACTION|>[{"tool_name": "ping", "parameters": {}}]<|END_ACTION|>',
        "",
        "",
        PING,
        (),
    ),
    "no action at all": ("<|START_ACTION|>[]<|END_ACTION|>", "", "", [], ()),
}

TOOL_CALLS: dict[str, Case] = {
    "one array": (
        'A<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "ping", "arguments": {}}]</tool_calls>',
        "A",
        "",
        TWO,
        (),
    ),
    "laid out": (
        ' <tool_calls>[\n    {"name": "get_weather", "arguments": {"city": "Paris"}}\n]</tool_calls>',
        "",
        "",
        PARIS,
        (),
    ),
    "a call on each line": (
        '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "ping", "arguments": {}}\n</tool_calls>',
        "",
        "",
        TWO,
        (),
    ),
    "reasoning": (
        '<think>\nhm\n</think>\n<tool_calls>[{"name": "ping", "arguments": {}}]</tool_calls>',
        "",
        "hm",
        PING,
        (),
    ),
    "arguments as text": (
        '<tool_calls>[{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}]</tool_calls>',
        "",
        "",
        PARIS,
        (),
    ),
    "text after it": ('<tool_calls>[{"name": "ping"}]</tool_calls>\nDone.', "\nDone.", "", PING, ()),
    "no end": ('<tool_calls>[{"name": "ping", "arguments": {}}]', "", "", PING, ()),
    "in a fence": ('<tool_calls>\n```json\n[{"name": "ping"}]\n```\n</tool_calls>', "", "", PING, ()),
}

HUNYUAN: dict[str, Case] = {
    **TOOL_CALLS,
    "an answer": ("<think>\nhm\n</think>\n<answer>\nIt rains.\n</answer>", "It rains.\n", "hm", [], ()),
    "an answer as the prompt wants it": ("助手：It rains.", "It rains.", "", [], ()),
    "the same after reasoning": ("<think>hm</think>\n<answer>\n助手：It rains.</answer>", "It rains.", "hm", [], ()),
    "a word of the prompt in the answer": ("The word is 助手：so.", "The word is 助手：so.", "", [], ()),
}

JAMBA: dict[str, Case] = {
    **TOOL_CALLS,
    "an answer with a tag of another family": ("<answer>4</answer>", "<answer>4</answer>", "", [], ()),
}

APRIEL: dict[str, Case] = {
    "reasoning that the model begins": (
        "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\nIt rains.\n[END FINAL RESPONSE]\n<|end|>",
        "It rains.\n",
        "hm",
        [],
        (),
    ),
    "reasoning, then a call": (
        "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\n\n"
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abc"}]</tool_calls>\n<|end|>',
        "",
        "hm",
        PARIS,
        (),
    ),
    **{name: TOOL_CALLS[name] for name in ("one array", "arguments as text", "no end")},
}

NEMOTRON: dict[str, Case] = {
    "two": (
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "ping", "arguments": {}}]</TOOLCALL>',
        "",
        "",
        TWO,
        (),
    ),
    "reasoning": (
        '<think>\nhm\n</think>\n\n<TOOLCALL>[{"name": "ping", "arguments": {}}]</TOOLCALL>\n',
        "",
        "hm",
        PING,
        (),
    ),
    "text in a turn of its own": (
        'I\'ll look.\n<SPECIAL_12>\n<SPECIAL_11>Assistant\n<TOOLCALL>[{"name": "ping", "arguments": {}}]</TOOLCALL>',
        "I'll look.\n",
        "",
        PING,
        (),
    ),
    "one object": ('<TOOLCALL>{"name": "ping", "arguments": {}}</TOOLCALL>', "", "", PING, ()),
    "no end": ('<TOOLCALL>[{"name": "ping", "arguments": {}}]', "", "", PING, ()),
    "Python for JSON": (
        "<TOOLCALL>[{'name': 'get_weather', 'arguments': {'city': 'Paris', 'metric': True}}]</TOOLCALL>",
        "",
        "",
        [("get_weather", {"city": "Paris", "metric": True})],
        (),
    ),
}

INTERNLM: dict[str, Case] = {
    "two": (
        '<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>'
        '<|action_start|><|plugin|>\n{"name": "ping", "parameters": {}}<|action_end|>',
        "",
        "",
        TWO,
        (),
    ),
    "text before": (
        'I\'ll look. <|action_start|><|plugin|>{"name": "ping", "parameters": {}}<|action_end|>',
        "I'll look. ",
        "",
        PING,
        (),
    ),
    "arguments": (
        '<|action_start|><|plugin|>{"name": "get_weather", "arguments": {"city": "Paris"}}<|action_end|>',
        "",
        "",
        PARIS,
        (),
    ),
    "white space between the marks": (
        '<|action_start|> <|plugin|>\n{"name": "ping", "parameters": {}}<|action_end|>',
        "",
        "",
        PING,
        ("stray_marker",),
    ),
    "the first mark left out": ('<|plugin|>{"name": "ping", "parameters": {}}<|action_end|>', "", "", PING, ()),
    "reasoning": (
        '<think>hm</think><|action_start|><|plugin|>{"name": "ping", "parameters": {}}<|action_end|>',
        "",
        "hm",
        PING,
        (),
    ),
}

GIGACHAT: dict[str, Case] = {
    "version 3": (
        'I\'ll look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", '
        '"arguments": {"city": "Paris"}}',
        "I'll look.",
        "",
        PARIS,
        (),
    ),
    "version 3.1": (
        'I\'ll look.<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}',
        "I'll look.",
        "",
        PARIS,
        (),
    ),
    "without the separator before it": (
        'function call<|role_sep|>\n{"name": "ping", "arguments": {}}',
        "",
        "",
        PING,
        (),
    ),
    "a separator at the end": (
        '<|function_call|>{"name": "ping", "arguments": {}}<|message_sep|>\n\n',
        "",
        "",
        PING,
        (),
    ),
    "two": (
        '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}'
        '<|function_call|>{"name": "ping", "arguments": {}}',
        "",
        "",
        TWO,
        (),
    ),
    "a function call in prose": ("A function call is made.", "A function call is made.", "", [], ()),
}

ERNIE: dict[str, Case] = {
    "an answer": ("<think>\nhm\n</think>\n\n<response>\nIt rains.\n</response>\n", "It rains.\n", "hm", [], ()),
    "reasoning, then calls": (
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\n',
        "",
        "hm",
        TWO,
        (),
    ),
    "a response, then a call": (
        '<response>\nI\'ll look.\n</response>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
        "I'll look.\n",
        "",
        PING,
        (),
    ),
}

APERTUS: dict[str, Case] = {
    "two": (
        'A<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"ping": {}}]<|tools_suffix|>',
        "A",
        "",
        TWO,
        (),
    ),
    "reasoning": (
        '<|inner_prefix|>hm<|inner_suffix|><|tools_prefix|>[{"ping": {}}]<|tools_suffix|>',
        "",
        "hm",
        PING,
        (),
    ),
    "types": (
        '<|tools_prefix|>[{"get_weather": {"city": "0042", "days": "2", "metric": "true", "tags": ["a", 1], '
        '"options": {"k": {"l": null}}}}]<|tools_suffix|>',
        "",
        "",
        TYPED,
        (),
    ),
    "no end": ('<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]', "", "", PARIS, ()),
    "one object": ('<|tools_prefix|>{"get_weather": {"city": "Paris"}}<|tools_suffix|>', "", "", PARIS, ()),
    "as others write it": (
        '<|tools_prefix|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|tools_suffix|>',
        "",
        "",
        PARIS,
        (),
    ),
    "a parameter with the name of a key": (
        '<|tools_prefix|>[{"note": {"text": "name", "name": "f"}}]<|tools_suffix|>',
        "",
        "",
        [("note", {"text": "name", "name": "f"})],
        (),
    ),
}

LLAMA4_JSON: dict[str, Case] = {
    "one": ('{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", PARIS, ()),
    "two": (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}{"name": "ping", "parameters": {}}',
        "",
        "",
        TWO,
        (),
    ),
    "text before a call": (
        '<|python_start|>I\'ll look.<|python_end|>{"name": "ping", "parameters": {}}',
        "I'll look.",
        "",
        PING,
        (),
    ),
    "nothing before it": (
        '<|python_start|><|python_end|>{"name": "ping", "parameters": {}}',
        "",
        "",
        PING,
        (),
    ),
}

DEEPSEEK_JSON: dict[str, Case] = {
    "two": (
        '<｜tool▁calls▁begin｜>  <｜tool▁call▁begin｜> {"name": "get_weather", "parameters": {"city": "Paris"}} '
        '<｜tool▁call▁end｜>  <｜tool▁call▁begin｜> {"name": "ping", "parameters": {}} <｜tool▁call▁end｜>  '
        "<｜tool▁calls▁end｜>    ",
        "",
        "",
        TWO,
        (),
    ),
    "without the outer marks": (
        '<｜tool▁call▁begin｜>{"name": "ping", "parameters": {}}<｜tool▁call▁end｜>',
        "",
        "",
        PING,
        (),
    ),
    "without the inner marks": (
        '<｜tool▁calls▁begin｜>{"name": "ping", "parameters": {}}<｜tool▁calls▁end｜>',
        "",
        "",
        PING,
        (),
    ),
}

FUNCTIONARY_V31: dict[str, Case] = {
    "two": (
        'A<function=get_weather>{"city": "Paris"}</function><function=ping>{}</function>',
        "A",
        "",
        TWO,
        (),
    ),
    "no end": ('<function=get_weather>{"city": "Paris"}', "", "", PARIS, ()),
    "line breaks": ('<function=get_weather>\n{"city": "Paris"}\n</function>\n', "", "", PARIS, ()),
    "the end in a string": (
        '<function=note>{"text": "a </function> b"}</function>',
        "",
        "",
        [("note", {"text": "a </function> b"})],
        (),
    ),
    "nothing for an empty object": ("<function=ping></function>", "", "", PING, ()),
}

FUNCTIONARY_V32: dict[str, Case] = {
    "a call": ('get_weather\n{"city": "Paris"}', "", "", PARIS, ()),
    "two": ('get_weather\n{"city": "Paris"}>>>ping\n{}', "", "", TWO, ()),
    "an answer": ("all\nIt rains.", "It rains.", "", [], ()),
    "an answer, then a call": ('all\nI\'ll look.>>>get_weather\n{"city": "Paris"}', "I'll look.", "", PARIS, ()),
    "a call, then an answer": ("ping\n{}>>>all\nDone.", "Done.", "", PING, ()),
    "the opener again": ('>>>get_weather\n{"city": "Paris"}', "", "", PARIS, ()),
    "laid out": ('get_weather\n{\n  "city": "Paris"\n}\n', "", "", PARIS, ()),
    "no recipient": ("It rains.", "It rains.", "", [], ()),
    "a word before a brace": ("Sets {1} and {2}.", "Sets {1} and {2}.", "", [], ()),
}

SOLAR: dict[str, Case] = {
    "a turn": (
        "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>id1<|tool_call:name|>get_weather"
        '<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|tool_call:begin|>id2<|tool_call:name|>ping'
        "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        "",
        "hm",
        TWO,
        (),
    ),
    "an answer": ("<|think|>hm<|end|><|begin|>assistant<|content|>It rains.<|end|>", "It rains.", "hm", [], ()),
    "without the outer marks": (
        '<|tool_call:begin|>id1<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|>',
        "",
        "",
        PARIS,
        (),
    ),
    "no end": (
        '<|tool_calls|><|tool_call:begin|>id1<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}',
        "",
        "",
        PARIS,
        (),
    ),
}

_CITY = '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
KIMI_K3: dict[str, Case] = {
    "a turn": (
        "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>I'll look.<|close|>response<|sep|>"
        f'<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>{_CITY}<|close|>call<|sep|>'
        '<|open|>call tool="ping" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
        "I'll look.",
        "hm",
        TWO,
        (),
    ),
    "types": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>0042<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        '<|open|>argument key="metric" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="tags" type="array"<|sep|>["a", 1]<|close|>argument<|sep|>'
        '<|open|>argument key="options" type="object"<|sep|>{"k": {"l": null}}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        "",
        "",
        TYPED,
        (),
    ),
    "types of what nobody declared": (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>2<|close|>argument<|sep|>'
        '<|open|>argument key="b" type="string"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>',
        "",
        "",
        [("f", {"a": 2, "b": "2"})],
        (),
    ),
    "escapes in a key": (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a &amp;&quot;b&quot; &amp;amp;" type="string"<|sep|>&amp;<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        "",
        "",
        [("f", {'a &"b" &amp;': "&amp;"})],
        (),
    ),
    "no index, no type": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather"<|sep|><|open|>argument key="days"<|sep|>2'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "",
        "",
        [("get_weather", {"days": 2})],
        (),
    ),
    "no tools around it": (
        f'<|open|>call tool="get_weather" index="1"<|sep|>{_CITY}<|close|>call<|sep|>',
        "",
        "",
        PARIS,
        (),
    ),
    "an argument's end left out": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>call<|sep|><|close|>tools<|sep|>',
        "",
        "",
        PARIS,
        (),
    ),
    "code": (
        '<|open|>tools<|sep|><|open|>call tool="note" index="1"<|sep|>'
        f'<|open|>argument key="text" type="string"<|sep|>{CODE}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        "",
        "",
        NOTE,
        (),
    ),
    "an empty response": (
        "<|open|>response<|sep|><|close|>response<|sep|><|close|>message<|sep|>",
        "",
        "",
        [],
        (),
    ),
}

DEEPSEEK_V41: dict[str, Case] = {
    "text and json": (
        '<think>hm</think>A<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n'
        '<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        "A",
        "hm",
        PARIS_2,
        (),
    ),
    "as version 4 wrote it": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="city" string="true">Paris'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
        "",
        "",
        PARIS,
        (),
    ),
    "a call that closes itself": (
        '<｜DSML｜ calls><｜DSML｜ invoke name="ping"/></｜DSML｜ calls>',
        "",
        "",
        PING,
        (),
    ),
    "no region": ('<｜DSML｜ invoke name="ping"></｜DSML｜ invoke>', "", "", PING, ()),
}


def _hy(suffix: str, separator: bool = True) -> str:
    sep = f"<tool_sep{suffix}>" if separator else ""
    return (
        f"<tool_calls{suffix}>\n<tool_call{suffix}>get_weather{sep}\n"
        f"<arg_key{suffix}>city</arg_key{suffix}>\n<arg_value{suffix}>Paris</arg_value{suffix}>\n"
        f"<arg_key{suffix}>days</arg_key{suffix}>\n<arg_value{suffix}>2</arg_value{suffix}>\n"
        f"</tool_call{suffix}>\n<tool_call{suffix}>ping{sep}\n</tool_call{suffix}>\n</tool_calls{suffix}>"
    )


HY: dict[str, Case] = {
    **{
        f"version 3 with the suffix {suffix!r}": (_hy(suffix), "", "", [*PARIS_2, *PING], ())
        for suffix in ("", ":opensource", ":6124c78e")
    },
    "version 4": (_hy(":6124c78e", separator=False), "", "", [*PARIS_2, *PING], ()),
    "reasoning": (
        "<think:opensource>hm</think:opensource>A<tool_calls:opensource><tool_call:opensource>ping"
        "<tool_sep:opensource></tool_call:opensource></tool_calls:opensource><｜hy_eos:opensource｜>",
        "A",
        "hm",
        PING,
        (),
    ),
    "arguments as an object": (
        '<tool_call:opensource>get_weather<tool_sep:opensource>{"city": "Paris"}<end_of_tool_call:opensource>',
        "",
        "",
        PARIS,
        (),
    ),
    "no region": (
        "<tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        "",
        "",
        PARIS,
        (),
    ),
    "a value with tags": (
        f"<tool_calls><tool_call>note<tool_sep><arg_key>text</arg_key><arg_value>{CODE}</arg_value></tool_call>"
        "</tool_calls>",
        "",
        "",
        NOTE,
        (),
    ),
}

LONGCAT: dict[str, Case] = {
    "lines": (
        "<longcat_think>\nhm\n</longcat_think>\n<longcat_tool_call>get_weather\n"
        "<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Paris</longcat_arg_value>\n"
        "<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>2</longcat_arg_value>\n</longcat_tool_call>",
        "",
        "hm",
        PARIS_2,
        (),
    ),
    "one line, two calls": (
        "<longcat_tool_call>get_weather<longcat_arg_key>city</longcat_arg_key><longcat_arg_value>Paris"
        "</longcat_arg_value></longcat_tool_call><longcat_tool_call>ping</longcat_tool_call>",
        "",
        "",
        TWO,
        (),
    ),
    "JSON": (
        '<longcat_tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</longcat_tool_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "stopped after a value": (
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Paris</longcat_arg_value>",
        "",
        "",
        PARIS,
        (),
    ),
}

K2_HORIZON: dict[str, Case] = {
    "two": (
        "<ifm|think>hm</ifm|think>A <ifm|tool_calls><ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key>"
        "<ifm|arg_value>Paris</ifm|arg_value></ifm|tool_call>\n<ifm|tool_call>ping</ifm|tool_call></ifm|tool_calls>",
        "A ",
        "hm",
        TWO,
        (),
    ),
    "with types": (
        "<ifm|tool_calls><ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>"
        "<ifm|arg_value>Paris</ifm|arg_value><ifm|arg_key>days</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type>"
        "<ifm|arg_value>2</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
        "",
        "",
        PARIS_2,
        (),
    ),
    "JSON in each call": (
        '<ifm|tool_calls><ifm|tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</ifm|tool_call>\n'
        '<ifm|tool_call>{"name": "ping", "arguments": {}}</ifm|tool_call></ifm|tool_calls>',
        "",
        "",
        TWO,
        ("stray_marker",),
    ),
    "no region": ("<ifm|tool_call>ping</ifm|tool_call>", "", "", PING, ()),
    "little thinking": ("<ifm|think_faster>hm</ifm|think_faster>It rains.", "It rains.", "hm", [], ()),
    "a call in reasoning": (
        "<ifm|think_fast>say <ifm|tool_call>ping</ifm|tool_call> or not</ifm|think_fast>It rains.",
        "It rains.",
        "say <ifm|tool_call>ping</ifm|tool_call> or not",
        [],
        (),
    ),
}

SOLAR_2: dict[str, Case] = {
    "two": (
        "<|think:start|>hm<|think:end|><|tool_call:start|>get_weather\n<|tool_arg:start|>city<|tool_arg:value|>Paris"
        "<|tool_arg:end|>\n<|tool_arg:start|>days<|tool_arg:value|>2<|tool_arg:end|>\n<|tool_call:end|>\n"
        "<|tool_call:start|>ping\n<|tool_call:end|>",
        "",
        "hm",
        [*PARIS_2, *PING],
        (),
    ),
    "code": (
        f"<|tool_call:start|>note\n<|tool_arg:start|>text<|tool_arg:value|>{CODE}<|tool_arg:end|>\n<|tool_call:end|>",
        "",
        "",
        NOTE,
        (),
    ),
    "no end": (
        "<|tool_call:start|>get_weather\n<|tool_arg:start|>city<|tool_arg:value|>Paris<|tool_arg:end|>\n",
        "",
        "",
        PARIS,
        (),
    ),
}

DOTS: dict[str, Case] = {
    "two": (
        'A<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="ping">\n</invoke>\n</dots_function_call>',
        "A",
        "",
        TWO,
        (),
    ),
    "the opener twice": (
        '<dots_function_call><dots_function_call>\n<invoke name="ping"> </invoke>\n</dots_function_call>',
        "",
        "",
        PING,
        (),
    ),
    "JSON": (
        '<dots_function_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</dots_function_call>',
        "",
        "",
        PARIS,
        (),
    ),
    "an end too many": ("It rains.</dots_function_call>", "It rains.", "", [], ("stray_marker",)),
}

STEP3: dict[str, Case] = {
    "two": (
        "A<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter></steptml:invoke>'
        '<｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="ping"></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        "A",
        "",
        TWO,
        (),
    ),
    "a value with a sign": (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        f'<steptml:invoke name="note">\n<steptml:parameter name="text">{CODE}</steptml:parameter>\n</steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        "",
        "",
        NOTE,
        (),
    ),
    "bare": ('<steptml:invoke name="ping"></steptml:invoke>', "", "", PING, ()),
}

MINICPM5: dict[str, Case] = {
    "two": (
        'A\n<function name="get_weather"><param name="city">Paris</param><param name="days">2</param></function>\n'
        '<function name="ping"></function>',
        "A\n",
        "",
        [*PARIS_2, *PING],
        (),
    ),
    "reasoning": ('<think>\nhm\n</think>\n\n<function name="ping"></function>', "", "hm", PING, ()),
    "CDATA": (
        f'<function name="note"><param name="text"><![CDATA[{CODE}]]></param></function>',
        "",
        "",
        NOTE,
        (),
    ),
    "tags in CDATA": (
        '<function name="note"><param name="text"><![CDATA[</param></function> ]]> ]]></param></function>',
        "",
        "",
        [("note", {"text": "</param></function> ]]> "})],
        (),
    ),
    "white space around CDATA": (
        '<function name="note">\n<param name="text">\n<![CDATA[\na\n]]>\n</param>\n</function>',
        "",
        "",
        [("note", {"text": "\na\n"})],
        (),
    ),
    "a number in CDATA": (
        '<function name="get_weather"><param name="days"><![CDATA[2]]></param></function>',
        "",
        "",
        [("get_weather", {"days": 2})],
        (),
    ),
    "the beginning of CDATA in a value": (
        '<function name="note"><param name="text"><![CDAT</param></function>',
        "",
        "",
        [("note", {"text": "<![CDAT"})],
        (),
    ),
    "Python for JSON": (
        '<function name="get_weather"><param name="tags">[\'a\', None]</param>'
        "<param name=\"options\">{'k': True}</param></function>",
        "",
        "",
        [("get_weather", {"tags": ["a", None], "options": {"k": True}})],
        (),
    ),
    "an ampersand": (
        '<function name="get_weather"><param name="city">A & B</param></function>',
        "",
        "",
        [("get_weather", {"city": "A & B"})],
        (),
    ),
}

_M3 = "]<]minimax[>["


def _m3(text: str) -> str:
    """The text with the format's mark before each tag."""
    return text.replace("<", _M3 + "<")


MINIMAX_M3: dict[str, Case] = {
    "two": (
        "<mm:think>hm</mm:think>A"
        + _m3('<tool_call>\n<invoke name="get_weather"><city>Paris</city><days>2</days></invoke>\n')
        + _m3('<invoke name="ping"></invoke>\n</tool_call>'),
        "A",
        "hm",
        [*PARIS_2, *PING],
        (),
    ),
    "types": (
        _m3(
            '<tool_call><invoke name="get_weather"><city>0042</city><days>2</days><metric>true</metric>'
            "<tags><item>a</item><item>1</item></tags><options><k><l>null</l></k></options></invoke></tool_call>"
        ),
        "",
        "",
        TYPED,
        (),
    ),
    "no reasoning": ("</mm:think>It rains.", "It rains.", "", [], ()),
    "code": (
        _m3('<tool_call><invoke name="note">') + f"{_M3}<text>{CODE}{_m3('</text></invoke></tool_call>')}",
        "",
        "",
        [("note", {"text": CODE})],
        (),
    ),
    "lists of objects": (
        _m3(
            '<tool_call><invoke name="get_weather"><tags><item><id>1</id><name>x</name></item><item>y</item></tags>'
            "</invoke></tool_call>"
        ),
        "",
        "",
        [("get_weather", {"tags": [{"id": 1, "name": "x"}, "y"]})],
        (),
    ),
    "a tag again and again": (
        _m3('<tool_call><invoke name="get_weather"><options><t>x</t><t>y</t></options></invoke></tool_call>'),
        "",
        "",
        [("get_weather", {"options": {"t": ["x", "y"]}})],
        (),
    ),
    "text beside tags": (
        _m3('<tool_call><invoke name="get_weather"><options>hi <k>v</k> there</options></invoke></tool_call>'),
        "",
        "",
        [("get_weather", {"options": {"k": "v", "$text": "hi  there"}})],
        (),
    ),
    "nothing in a tag": (
        _m3('<tool_call><invoke name="get_weather"><tags></tags><options></options><city></city></invoke></tool_call>'),
        "",
        "",
        [("get_weather", {"tags": [], "options": {}, "city": ""})],
        (),
    ),
    "JSON in a tag": (
        _m3('<tool_call><invoke name="get_weather"><tags>["a", {"b": 1}]</tags></invoke></tool_call>'),
        "",
        "",
        [("get_weather", {"tags": ["a", {"b": 1}]})],
        (),
    ),
    "a parameter's end left out": (
        _m3('<tool_call><invoke name="get_weather"><city>Paris</invoke></tool_call>'),
        "",
        "",
        PARIS,
        (),
    ),
    "a call's end left out": (
        _m3('<tool_call><invoke name="get_weather"><city>Paris</city></tool_call>'),
        "",
        "",
        PARIS,
        (),
    ),
    "no region": (_m3('<invoke name="get_weather"><city>Paris</city></invoke>'), "", "", PARIS, ()),
    "tags without the mark in a value": (
        f'{_M3}<tool_call>{_M3}<invoke name="note">{_M3}<text></text></invoke>{_M3}</text>{_M3}</invoke>'
        f"{_M3}</tool_call>",
        "",
        "",
        [("note", {"text": "</text></invoke>"})],
        (),
    ),
    "stopped in a value": (_m3('<tool_call><invoke name="get_weather"><city>Paris'), "", "", PARIS, ()),
}

_INVOKE = (
    '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
GLIMMER: dict[str, Case] = {
    "a call": (f" to=get_weather<|message|>{_INVOKE}<|eot|>", "", "", PARIS, ()),
    "two": (
        f" to=get_weather<|message|>{_INVOKE}<|eom|><|start|>assistant to=ping<|message|><atem:function_calls>\n"
        '<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls><|eot|>',
        "",
        "",
        TWO,
        (),
    ),
    "reasoning, text, a call": (
        " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>I'll look.<|eom|>"
        f"<|start|>assistant to=get_weather<|message|>{_INVOKE}",
        "I'll look.",
        "hm",
        PARIS,
        (),
    ),
    "a call that the answer shows": (
        f" to=user<|message|>So: {_INVOKE}<|eot|>",
        f"So: {_INVOKE}",
        "",
        [],
        (),
    ),
    "a call in reasoning": (
        f" to=self<|message|>Or {_INVOKE}<|eom|><|start|>assistant to=user<|message|>It rains.<|eot|>",
        "It rains.",
        f"Or {_INVOKE}",
        [],
        (),
    ),
    "no header": ("It rains.", "It rains.", "", [], ()),
    "a call without a header": (_INVOKE, "", "", PARIS, ()),
    "a header like it within a text": ("Send it to=me please.", "Send it to=me please.", "", [], ()),
}

INKLING: dict[str, Case] = {
    "a turn": (
        "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>I'll look.<|end_message|>"
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name":"get_weather","args":{"city":"Paris"}}'
        "<|end_message|><|content_model_end_sampling|>",
        "I'll look.",
        "hm",
        PARIS,
        (),
    ),
    "two": (
        'get_weather<|content_invoke_tool_json|>{"args":{"city":"Paris"},"name":"get_weather"}<|end_message|>'
        '<|message_model|>ping<|content_invoke_tool_json|>{"name":"ping","args":{}}<|end_message|>',
        "",
        "",
        TWO,
        (),
    ),
    "no name in the header": (
        '<|content_invoke_tool_json|>{"name":"get_weather","args":{"city":"Paris"}}<|end_message|>',
        "",
        "",
        PARIS,
        (),
    ),
    "no end": (
        '<|message_model|>ping<|content_invoke_tool_json|>{"name":"ping","args":{}}',
        "",
        "",
        PING,
        (),
    ),
    "no header": ("It rains.", "It rains.", "", [], ()),
}

TABLES: dict[str, dict[str, Case]] = {
    "cohere": COHERE,
    "hunyuan_a13b": HUNYUAN,
    "jamba": JAMBA,
    "apriel": APRIEL,
    "nemotron_v2": NEMOTRON,
    "internlm2": INTERNLM,
    "gigachat3": GIGACHAT,
    "ernie45": ERNIE,
    "apertus": APERTUS,
    "llama4_json": LLAMA4_JSON,
    "deepseek_json": DEEPSEEK_JSON,
    "functionary_v31": FUNCTIONARY_V31,
    "functionary_v32": FUNCTIONARY_V32,
    "solar_open": SOLAR,
    "kimi_k3": KIMI_K3,
    "deepseek_v41": DEEPSEEK_V41,
    "hy_v3": HY,
    "longcat": LONGCAT,
    "k2_horizon": K2_HORIZON,
    "solar_open2": SOLAR_2,
    "dots": DOTS,
    "step3": STEP3,
    "minicpm5": MINICPM5,
    "minimax_m3": MINIMAX_M3,
    "muse_glimmer": GLIMMER,
    "inkling": INKLING,
}

GOLDEN: dict[str, str] = {
    "llama4_json": (
        '{"name": "get_weather", "parameters": {"city": "São \\"P\\"", "days": 2, "metric": true, "note": '
        'null}}; {"name": "files.write", "parameters": {"my lines": ["x", 1.5, {"k": false}]}}; '
        '{"name": "ping", "parameters": {}}'
    ),
    "cohere": (
        '<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "São \\"P\\"", "days": 2, '
        '"metric": true, "note": null}}, {"tool_name": "files.write", "parameters": {"my lines": ["x", '
        '1.5, {"k": false}]}}, {"tool_name": "ping", "parameters": {}}]<|END_ACTION|>'
    ),
    "hunyuan_a13b": (
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": '
        'true, "note": null}}, {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": '
        'false}]}}, {"name": "ping", "arguments": {}}]</tool_calls>'
    ),
    "jamba": (
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": '
        'true, "note": null}}, {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": '
        'false}]}}, {"name": "ping", "arguments": {}}]</tool_calls>'
    ),
    "apriel": (
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": '
        'true, "note": null}}, {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": '
        'false}]}}, {"name": "ping", "arguments": {}}]</tool_calls>'
    ),
    "nemotron_v2": (
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": '
        'true, "note": null}}, {"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": '
        'false}]}}, {"name": "ping", "arguments": {}}]</TOOLCALL>'
    ),
    "internlm2": (
        "<|action_start|><|plugin|>\n"
        '{"name": "get_weather", "parameters": {"city": "São \\"P\\"", "days": 2, "metric": true, "note": '
        "null}}\n"
        "<|action_end|>\n"
        "<|action_start|><|plugin|>\n"
        '{"name": "files.write", "parameters": {"my lines": ["x", 1.5, {"k": false}]}}\n'
        "<|action_end|>\n"
        "<|action_start|><|plugin|>\n"
        '{"name": "ping", "parameters": {}}\n'
        "<|action_end|>"
    ),
    "gigachat3": (
        '<|function_call|>{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, '
        '"metric": true, "note": null}}; {"name": "files.write", "arguments": {"my lines": ["x", 1.5, '
        '{"k": false}]}}; {"name": "ping", "arguments": {}}'
    ),
    "ernie45": (
        "<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "São \\"P\\"", "days": 2, "metric": true, "note": '
        "null}}\n"
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "files.write", "arguments": {"my lines": ["x", 1.5, {"k": false}]}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "ping", "arguments": {}}\n'
        "</tool_call>"
    ),
    "apertus": (
        '<|tools_prefix|>[{"get_weather": {"city": "São \\"P\\"", "days": 2, "metric": true, "note": '
        'null}}, {"files.write": {"my lines": ["x", 1.5, {"k": false}]}}, {"ping": {}}]<|tools_suffix|>'
    ),
    "deepseek_json": (
        "<｜tool▁call▁begin｜>\n"
        '{"name": "get_weather", "parameters": {"city": "São \\"P\\"", "days": 2, "metric": true, "note": '
        "null}}\n"
        "<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>\n"
        '{"name": "files.write", "parameters": {"my lines": ["x", 1.5, {"k": false}]}}\n'
        "<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>\n"
        '{"name": "ping", "parameters": {}}\n'
        "<｜tool▁call▁end｜>"
    ),
    "functionary_v31": (
        '<function=get_weather>{"city": "São \\"P\\"", "days": 2, "metric": true, "note": null}</function>'
        '<function=files.write>{"my lines": ["x", 1.5, {"k": false}]}</function><function=ping>'
        "{}</function>"
    ),
    "functionary_v32": (
        ">>>get_weather\n"
        '{"city": "São \\"P\\"", "days": 2, "metric": true, "note": null}\n'
        ">>>files.write\n"
        '{"my lines": ["x", 1.5, {"k": false}]}\n'
        ">>>ping\n"
        "{}"
    ),
    "solar_open": (
        '<|tool_calls|><|tool_call:begin|>id_0<|tool_call:name|>get_weather<|tool_call:args|>{"city": '
        '"São \\"P\\"", "days": 2, "metric": true, "note": null}<|tool_call:end|><|tool_call:begin|>'
        'id_1<|tool_call:name|>files.write<|tool_call:args|>{"my lines": ["x", 1.5, {"k": '
        "false}]}<|tool_call:end|><|tool_call:begin|>id_2<|tool_call:name|>ping<|tool_call:args|>"
        "{}<|tool_call:end|><|calls|>"
    ),
    "deepseek_v41": (
        "<｜DSML｜ calls>\n"
        '<｜DSML｜ invoke name="get_weather">\n'
        '<｜DSML｜ parameter name="city" string="true">São "P"</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="metric" string="false">true</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="note" string="false">null</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n"
        '<｜DSML｜ invoke name="files.write">\n'
        '<｜DSML｜ parameter name="my lines" string="false">["x", 1.5, {"k": false}]</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n"
        '<｜DSML｜ invoke name="ping">\n'
        "</｜DSML｜ invoke>\n"
        "</｜DSML｜ calls>"
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument '
        'key="city" type="string"<|sep|>São "P"<|close|>argument<|sep|><|open|>argument key="days" '
        'type="number"<|sep|>2<|close|>argument<|sep|><|open|>argument key="metric" '
        'type="boolean"<|sep|>true<|close|>argument<|sep|><|open|>argument key="note" type="null"<|sep|>'
        'null<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="files.write" '
        'index="2"<|sep|><|open|>argument key="my lines" type="array"<|sep|>["x", 1.5, {"k": '
        'false}]<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="ping" index="3"<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "hy_v3": (
        "<tool_calls:opensource>\n"
        "<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        '<arg_value:opensource>São "P"</arg_value:opensource>\n'
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>2</arg_value:opensource>\n"
        "<arg_key:opensource>metric</arg_key:opensource>\n"
        "<arg_value:opensource>true</arg_value:opensource>\n"
        "<arg_key:opensource>note</arg_key:opensource>\n"
        "<arg_value:opensource>null</arg_value:opensource>\n"
        "</tool_call:opensource>\n"
        "<tool_call:opensource>files.write<tool_sep:opensource>\n"
        "<arg_key:opensource>my lines</arg_key:opensource>\n"
        '<arg_value:opensource>["x", 1.5, {"k": false}]</arg_value:opensource>\n'
        "</tool_call:opensource>\n"
        "<tool_call:opensource>ping<tool_sep:opensource>\n"
        "</tool_call:opensource>\n"
        "</tool_calls:opensource>"
    ),
    "longcat": (
        "<longcat_tool_call>get_weather\n"
        "<longcat_arg_key>city</longcat_arg_key>\n"
        '<longcat_arg_value>São "P"</longcat_arg_value>\n'
        "<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>2</longcat_arg_value>\n"
        "<longcat_arg_key>metric</longcat_arg_key>\n"
        "<longcat_arg_value>true</longcat_arg_value>\n"
        "<longcat_arg_key>note</longcat_arg_key>\n"
        "<longcat_arg_value>null</longcat_arg_value>\n"
        "</longcat_tool_call>\n"
        "<longcat_tool_call>files.write\n"
        "<longcat_arg_key>my lines</longcat_arg_key>\n"
        '<longcat_arg_value>["x", 1.5, {"k": false}]</longcat_arg_value>\n'
        "</longcat_tool_call>\n"
        "<longcat_tool_call>ping\n"
        "</longcat_tool_call>"
    ),
    "k2_horizon": (
        "<ifm|tool_calls><ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>São "
        '"P"</ifm|arg_value><ifm|arg_key>days</ifm|arg_key><ifm|arg_value>2</ifm|arg_value><ifm|arg_key>'
        "metric</ifm|arg_key><ifm|arg_value>true</ifm|arg_value><ifm|arg_key>note</ifm|arg_key>"
        "<ifm|arg_value>null</ifm|arg_value></ifm|tool_call><ifm|tool_call>files.write<ifm|arg_key>my "
        'lines</ifm|arg_key><ifm|arg_value>["x", 1.5, {"k": false}]</ifm|arg_value></ifm|tool_call>'
        "<ifm|tool_call>ping</ifm|tool_call></ifm|tool_calls>"
    ),
    "solar_open2": (
        "<|tool_call:start|>get_weather\n"
        '<|tool_arg:start|>city<|tool_arg:value|>São "P"<|tool_arg:end|>\n'
        "<|tool_arg:start|>days<|tool_arg:value|>2<|tool_arg:end|>\n"
        "<|tool_arg:start|>metric<|tool_arg:value|>true<|tool_arg:end|>\n"
        "<|tool_arg:start|>note<|tool_arg:value|>null<|tool_arg:end|>\n"
        "<|tool_call:end|>\n"
        "<|tool_call:start|>files.write\n"
        '<|tool_arg:start|>my lines<|tool_arg:value|>["x", 1.5, {"k": false}]<|tool_arg:end|>\n'
        "<|tool_call:end|>\n"
        "<|tool_call:start|>ping\n"
        "<|tool_call:end|>"
    ),
    "dots": (
        "<dots_function_call>\n"
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
        "</dots_function_call>"
    ),
    "step3": (
        "<｜tool_calls_begin｜>\n"
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">\n'
        '<steptml:parameter name="city">São "P"</steptml:parameter>\n'
        '<steptml:parameter name="days">2</steptml:parameter>\n'
        '<steptml:parameter name="metric">true</steptml:parameter>\n'
        '<steptml:parameter name="note">null</steptml:parameter>\n'
        "</steptml:invoke><｜tool_call_end｜>\n"
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="files.write">\n'
        '<steptml:parameter name="my lines">["x", 1.5, {"k": false}]</steptml:parameter>\n'
        "</steptml:invoke><｜tool_call_end｜>\n"
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="ping">\n'
        "</steptml:invoke><｜tool_call_end｜>\n"
        "<｜tool_calls_end｜>"
    ),
    "minicpm5": (
        '<function name="get_weather"><param name="city">São "P"</param><param name="days">2</param>'
        '<param name="metric">true</param><param name="note">null</param></function><function '
        'name="files.write"><param name="my lines">["x", 1.5, {"k": false}]</param></function><function '
        'name="ping"></function>'
    ),
    "minimax_m3": (
        "]<]minimax[>[<tool_call>\n"
        ']<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>São "P"]<]minimax[>[</city>'
        "]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[<metric>true]<]minimax[>[</metric>"
        "]<]minimax[>[<note>null]<]minimax[>[</note>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="files.write">]<]minimax[>[<my lines>]<]minimax[>[<item>x]<]minimax[>'
        "[</item>]<]minimax[>[<item>1.5]<]minimax[>[</item>]<]minimax[>[<item>]<]minimax[>[<k>"
        "false]<]minimax[>[</k>]<]minimax[>[</item>]<]minimax[>[</my lines>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="ping">]<]minimax[>[</invoke>\n'
        "]<]minimax[>[</tool_call>"
    ),
    "muse_glimmer": (
        " to=get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">São "P"</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n'
        '<atem:parameter name="metric">true</atem:parameter>\n'
        '<atem:parameter name="note">null</atem:parameter>\n'
        "</atem:invoke>\n"
        "</atem:function_calls><|eom|><|start|>assistant to=files.write<|message|><atem:function_calls>\n"
        '<atem:invoke name="files.write">\n'
        '<atem:parameter name="my lines">["x", 1.5, {"k": false}]</atem:parameter>\n'
        "</atem:invoke>\n"
        "</atem:function_calls><|eom|><|start|>assistant to=ping<|message|><atem:function_calls>\n"
        '<atem:invoke name="ping">\n'
        "</atem:invoke>\n"
        "</atem:function_calls>"
    ),
    "inkling": (
        'get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "São \\"P\\"", '
        '"days": 2, "metric": true, "note": null}}<|end_message|><|message_model|>'
        'files.write<|content_invoke_tool_json|>{"name": "files.write", "args": {"my lines": ["x", 1.5, '
        '{"k": false}]}}<|end_message|><|message_model|>ping<|content_invoke_tool_json|>{"name": "ping",'
        ' "args": {}}<|end_message|>'
    ),
}
"""Calls as the format writes them: the `CALLS` of `test_render.py`."""
