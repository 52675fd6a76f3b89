"""The built-in formats, one row each."""

from __future__ import annotations

from normalizers.spec import FormatSpec, NamedSyntax, TagSyntax

THINK = (("<think>", "</think>"),)
TOOL_RESPONSE = ("<tool_response>\n", "\n</tool_response>")

_DSML = "<｜DSML｜"
_DSML_END = "</｜DSML｜"
_DSML_REGIONS = ("function_calls", "tool_calls", "toolcalls", "tool")
_DEEPSEEK_TOKENS = (
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜end▁of▁sentence｜>",
)

_FORMATS: tuple[FormatSpec, ...] = (
    FormatSpec(name="native_json", aliases=("native", "openai", "none")),
    # -- Python calls
    FormatSpec(
        name="pythonic",
        aliases=("lfm2", "lfm2.5", "bracket"),
        dialect="pythonic",
        open=("<|tool_call_start|>",),
        close=("<|tool_call_end|>",),
        think=THINK,
        drop=("<|tool_list_start|>", "<|tool_list_end|>"),
        result=("<|tool_response_start|>", "<|tool_response_end|>"),
        bare=("call", "list"),
        echo=True,
    ),
    FormatSpec(
        name="llama4_pythonic",
        aliases=("llama3.2_pythonic", "toolace"),
        dialect="pythonic",
        open=("<|python_start|>",),
        close=("<|python_end|>",),
        bare=("call", "list"),
        inline=True,
    ),
    FormatSpec(
        name="olmo3",
        dialect="pythonic",
        open=("<function_calls>",),
        close=("</function_calls>",),
        think=THINK,
        bare=("list",),
        lines=True,
    ),
    # -- JSON calls
    FormatSpec(
        name="hermes",
        aliases=("qwen2.5", "qwen3", "granite4", "nemotron_nano"),
        dialect="json",
        open=("<tool_call>",),
        close=("</tool_call>",),
        think=THINK,
        result=TOOL_RESPONSE,
    ),
    FormatSpec(
        name="llama3_json",
        aliases=("llama3", "llama3.1", "llama3.2"),
        dialect="json",
        open=("<|python_tag|>",),
        drop=("<|eom_id|>", "<|eot_id|>"),
        inline=True,
    ),
    FormatSpec(
        name="granite",
        aliases=("granite3",),
        dialect="json",
        open=("<|tool_call|>", "<tool_call>"),
        listed=True,
        think=THINK,
        drop=("</tool_call>",),
        call_drop=("</tool_call>",),
    ),
    FormatSpec(
        name="granite_20b_fc",
        dialect="json",
        open=("<function_call>",),
        drop=("</function_call>",),
        call_drop=("</function_call>",),
    ),
    FormatSpec(name="phi4", aliases=("phi4_mini",), dialect="json", open=("functools",), listed=True),
    # -- a name, then an object
    FormatSpec(
        name="mistral",
        aliases=("mistral_pre_v11", "mistral_v11", "ministral", "devstral"),
        dialect="named",
        syntax=NamedSyntax(
            written="{name}[ARGS]{arguments}",
            head=("{name}[CALL_ID]{id}[ARGS]", "{name}[ARGS]", "{name}"),
        ),
        open=("[TOOL_CALLS]",),
        think=(("[THINK]", "[/THINK]"),),
        drop=("[ARGS]", "[CALL_ID]"),
    ),
    FormatSpec(
        name="deepseek_v3",
        dialect="named",
        syntax=NamedSyntax(
            written="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            head=(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}```json",
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}",
                "function<｜tool▁sep｜>{name}```json",
            ),
            tail=("```", "<｜tool▁call▁end｜>"),
        ),
        open=("<｜tool▁calls▁begin｜>",),
        begins=("<｜tool▁call▁begin｜>",),
        close=("<｜tool▁calls▁end｜>",),
        drop=("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", *_DEEPSEEK_TOKENS),
        call_drop=("<｜tool▁sep｜>",),
        think=THINK,
        result=("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    FormatSpec(
        name="deepseek_v31",
        dialect="named",
        syntax=NamedSyntax(
            written="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
            head=("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "{name}<｜tool▁sep｜>"),
            tail=("<｜tool▁call▁end｜>",),
        ),
        open=("<｜tool▁calls▁begin｜>",),
        begins=("<｜tool▁call▁begin｜>",),
        close=("<｜tool▁calls▁end｜>",),
        drop=("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", *_DEEPSEEK_TOKENS),
        think=THINK,
        result=("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    FormatSpec(
        name="kimi_k2",
        dialect="named",
        syntax=NamedSyntax(
            written="<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            head=("<|tool_call_begin|>{id}<|tool_call_argument_begin|>",),
            tail=("<|tool_call_end|>",),
        ),
        open=("<|tool_calls_section_begin|>",),
        begins=("<|tool_call_begin|>",),
        close=("<|tool_calls_section_end|>",),
        drop=("<|tool_call_end|>", "<|tool_call_argument_begin|>"),
        think=THINK,
    ),
    FormatSpec(
        name="functiongemma",
        dialect="named",
        syntax=NamedSyntax(
            written="call:{name}{arguments}", head=("call:{name}",), quotes=(("<escape>", "<escape>"),), bare_keys=True
        ),
        open=("<start_function_call>",),
        close=("<end_function_call>",),
    ),
    FormatSpec(
        name="gemma4",
        dialect="named",
        syntax=NamedSyntax(
            written="call:{name}{arguments}",
            head=("call:{name}", ":{name}"),
            quotes=(('<|"|>', '<|"|>'),),
            bare_keys=True,
        ),
        open=("<|tool_call>",),
        close=("<tool_call|>",),
        drop=("<turn|>",),
        think=(("<|channel>thought", "<channel|>"),),
    ),
    FormatSpec(
        name="tool_lines",
        aliases=("localcowork",),
        dialect="named",
        syntax=NamedSyntax(
            written="Tool: {name}\nArguments: {arguments}",
            head=(
                "Tool: {name} Arguments:",
                "Tool: {name} arguments:",
                "tool: {name} Arguments:",
                "tool: {name} arguments:",
                "Tool: {name}",
                "tool: {name}",
            ),
        ),
        bare=("tool_line",),
    ),
    # -- parameters between tags
    FormatSpec(
        name="qwen3_coder",
        aliases=("qwen3.5", "nemotron_v3", "step3p5"),
        dialect="tags",
        syntax=TagSyntax(
            call=("<function={name}>", "<function={name}"),
            parameter=("<parameter={key}>",),
            parameter_end="</parameter>",
            call_end=("</function>",),
        ),
        open=("<tool_call>",),
        begins=("<function=",),
        close=("</tool_call>",),
        think=THINK,
        result=TOOL_RESPONSE,
    ),
    FormatSpec(
        name="seed_oss",
        dialect="tags",
        syntax=TagSyntax(
            call=("<function={name}>",),
            parameter=("<parameter={key}>",),
            parameter_end="</parameter>",
            call_end=("</function>",),
        ),
        open=("<seed:tool_call>",),
        close=("</seed:tool_call>",),
        think=(("<seed:think>", "</seed:think>"),),
    ),
    FormatSpec(
        name="minimax_m2",
        dialect="tags",
        syntax=TagSyntax(
            call=('<invoke name="{name}">', "<invoke name={name}>"),
            parameter=('<parameter name="{key}">', "<parameter name={key}>"),
            parameter_end="</parameter>",
            call_end=("</invoke>",),
        ),
        open=("<minimax:tool_call>",),
        begins=("<invoke name=",),
        close=("</minimax:tool_call>",),
        think=THINK,
    ),
    FormatSpec(
        name="deepseek_v32",
        aliases=("deepseek_v4", "dsml"),
        dialect="tags",
        syntax=TagSyntax(
            call=(f'{_DSML}invoke name="{{name}}">',),
            empty_call=(f'{_DSML}invoke name="{{name}}" />',),
            parameter=(
                f'{_DSML}parameter name="{{key}}" string="{{string}}">',
                f'{_DSML}parameter name="{{key}}">',
            ),
            parameter_end=f"{_DSML_END}parameter>",
            call_end=(f"{_DSML_END}invoke>",),
            special=True,
        ),
        open=tuple(f"{_DSML}{region}>" for region in _DSML_REGIONS),
        begins=(f"{_DSML}invoke name=",),
        close=tuple(f"{_DSML_END}{region}>" for region in _DSML_REGIONS),
        drop=("<｜end▁of▁sentence｜>",),
        think=THINK,
    ),
    FormatSpec(
        name="glm45",
        aliases=("glm46", "glm47"),
        dialect="tags",
        syntax=TagSyntax(
            call=("{name}",),
            # Some models write the line breaks of the layout as escapes: the second template.
            parameter=("<arg_key>{key}</arg_key> <arg_value>", r"\n<arg_key>{key}</arg_key>\n<arg_value>"),
            parameter_end="</arg_value>",
            unquote=True,
        ),
        open=("<tool_call>",),
        close=("</tool_call>",),
        think=THINK,
    ),
    # -- channels
    FormatSpec(
        name="harmony",
        aliases=("gpt_oss",),
        dialect="harmony",
        begins=("<|start|>", "<|channel|>", "to=functions."),
        channels=("<|start|>", "<|channel|>"),
        drop=("<|end|>", "<|return|>", "<|call|>", "<|message|>"),
    ),
)


def _auto() -> FormatSpec:
    """The format that accepts every opener, bare calls of declared tools and every kind of reasoning."""
    marks = {mark: None for spec in _FORMATS for mark in (*spec.open, *spec.begins) if mark != "functools"}
    strays = {mark: None for spec in _FORMATS for mark in (*spec.close, *spec.drop) if mark not in marks}
    of_calls = {mark for spec in _FORMATS for mark in spec.call_marks}
    return FormatSpec(
        name="auto",
        dialect="auto",
        begins=tuple(marks),
        channels=tuple(mark for spec in _FORMATS for mark in spec.channels),
        drop=tuple(strays),
        call_drop=tuple(mark for mark in strays if mark in of_calls),
        think=tuple(dict.fromkeys(pair for spec in _FORMATS for pair in spec.think)),
    )


FORMATS: tuple[FormatSpec, ...] = (*_FORMATS, _auto())
