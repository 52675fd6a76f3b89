"""The built-in formats, one row each."""

from __future__ import annotations

from normalizers.spec import ElementSyntax, FormatSpec, MessageSyntax, NamedSyntax, TagSyntax

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
    "<｜Assistant｜>",
)

_COHERE_TEXT = ("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
_SOLAR_TURN = ("<|begin|>assistant", "<|content|>", "<|end|>")
_KIMI_TURN = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")

_M3 = "]<]minimax[>["

_HY = (":opensource", "", ":6124c78e")
"""Behind the names of Hy's tags: each release has its own."""
_HY_TURN = tuple(f"<｜hy_eos{suffix}｜>" for suffix in _HY)

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
        aliases=("qwen2.5", "qwen3", "granite4"),
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
        keys=("name", "parameters"),
        drop=("<|eom_id|>", "<|eot_id|>"),
        inline=True,
    ),
    FormatSpec(
        name="llama4_json",
        aliases=("llama4",),
        dialect="json",
        keys=("name", "parameters"),
        # The template writes text before a call between these two.
        drop=("<|python_start|>", "<|python_end|>"),
        content_drop=("<|python_start|>", "<|python_end|>"),
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
    FormatSpec(
        name="phi4",
        aliases=("phi4_mini",),
        dialect="json",
        open=("functools", "<|tool_call|>"),
        listed=True,
        drop=("<|/tool_call|>",),
        call_drop=("<|/tool_call|>",),
    ),
    FormatSpec(
        name="cohere",
        aliases=("command_a", "command_r7b", "cohere2", "north_mini_code"),
        dialect="json",
        open=("<|START_ACTION|>",),
        close=("<|END_ACTION|>",),
        keys=("tool_name", "parameters"),
        listed=True,
        think=(("<|START_THINKING|>", "<|END_THINKING|>"),),
        drop=_COHERE_TEXT,
        content_drop=_COHERE_TEXT,
        result=("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
    ),
    FormatSpec(
        name="hunyuan_a13b",
        dialect="json",
        open=("<tool_calls>",),
        close=("</tool_calls>",),
        listed=True,
        think=THINK,
        # The prompt asks for answers that begin so.
        first=("助手：",),
        drop=("<answer>\n助手：", "<answer>", "</answer>"),
        content_drop=("<answer>\n助手：", "<answer>", "</answer>"),
        result=("<tool_response>", "</tool_response>"),
    ),
    FormatSpec(
        name="jamba",
        aliases=("minimax_m1",),
        dialect="json",
        open=("<tool_calls>",),
        close=("</tool_calls>",),
        listed=True,
        think=THINK,
    ),
    FormatSpec(
        name="apriel",
        aliases=("apriel_1.5", "apriel_1.6"),
        dialect="json",
        open=("<tool_calls>",),
        close=("</tool_calls>",),
        listed=True,
        think=(("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
        drop=("[END FINAL RESPONSE]", "<|end|>"),
        content_drop=("[END FINAL RESPONSE]", "<|end|>"),
    ),
    FormatSpec(
        name="nemotron_v2",
        aliases=("nemotron_nano", "nemotron_nano_v2"),
        dialect="json",
        open=("<TOOLCALL>",),
        close=("</TOOLCALL>",),
        listed=True,
        think=THINK,
        # The template writes text beside calls as a turn of its own.
        drop=("<SPECIAL_11>Assistant", "<SPECIAL_12>"),
        content_drop=("<SPECIAL_11>Assistant", "<SPECIAL_12>"),
        result=("<TOOL_RESPONSE>[", "]</TOOL_RESPONSE>"),
    ),
    FormatSpec(
        name="internlm2",
        aliases=("intern_s1", "internlm2.5"),
        dialect="json",
        open=("<|action_start|><|plugin|>", "<|plugin|>"),
        close=("<|action_end|>",),
        keys=("name", "parameters"),
        think=THINK,
        drop=("<|action_start|>",),
        call_drop=("<|action_start|>",),
    ),
    FormatSpec(
        name="gigachat3",
        aliases=("gigachat", "gigachat3.1"),
        dialect="json",
        open=(
            "<|function_call|>",
            "<|message_sep|>\n\nfunction call<|role_sep|>",
            "function call<|role_sep|>",
        ),
        drop=("<|message_sep|>",),
        content_drop=("<|message_sep|>",),
    ),
    FormatSpec(
        name="ernie45",
        aliases=("ernie", "ernie_x1"),
        dialect="json",
        open=("<tool_call>",),
        close=("</tool_call>",),
        think=THINK,
        drop=("<response>", "</response>"),
        content_drop=("<response>", "</response>"),
    ),
    FormatSpec(
        name="apertus",
        aliases=("apertus_8b",),
        dialect="json",
        open=("<|tools_prefix|>",),
        close=("<|tools_suffix|>",),
        keys=(),
        listed=True,
        think=(("<|inner_prefix|>", "<|inner_suffix|>"),),
    ),
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
        aliases=("deepseek_r1",),
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
        name="deepseek_json",
        dialect="json",
        open=("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>"),
        close=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        keys=("name", "parameters"),
        think=THINK,
        drop=_DEEPSEEK_TOKENS,
        content_drop=("<｜tool▁calls▁end｜>",),
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
        # Some models leave the opener out, behind their reasoning above all.
        first=(" call:{name} {", " call:{name} ("),
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
    FormatSpec(
        name="functionary_v31",
        aliases=("functionary", "functionary_v3.1"),
        dialect="named",
        syntax=NamedSyntax(
            written="<function={name}>{arguments}</function>",
            head=("<function={name}>",),
            tail=("</function>",),
        ),
        begins=("<function=",),
    ),
    FormatSpec(
        name="functionary_v32",
        aliases=("functionary_v3.2",),
        dialect="named",
        syntax=NamedSyntax(written=">>>{name}\n{arguments}", head=(">>>{name}\n", "{name}\n")),
        begins=(">>>",),
        # The prompt ends with the opener.
        first=("all\n", "{name} {"),
        drop=(">>>all\n",),
        content_drop=(">>>all\n",),
    ),
    FormatSpec(
        name="solar_open",
        aliases=("solar",),
        dialect="named",
        syntax=NamedSyntax(
            written=(
                "<|tool_call:begin|>id_{index}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"
            ),
            head=("<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>",),
            tail=("<|tool_call:end|>",),
        ),
        open=("<|tool_calls|>",),
        begins=("<|tool_call:begin|>",),
        close=("<|calls|>",),
        think=(("<|think|>", "<|end|>"),),
        drop=("<|tool_call:end|>", *_SOLAR_TURN),
        content_drop=_SOLAR_TURN,
    ),
    # -- parameters between tags
    FormatSpec(
        name="qwen3_coder",
        aliases=("qwen3.5", "nemotron_v3", "step3p5"),
        dialect="tags",
        syntax=TagSyntax(
            call=("<function={name}>", "<function={name}"),
            parameter=("<parameter={key}>",),
            parameter_end=("</parameter>",),
            call_end=("</function>",),
            lines=True,
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
            parameter_end=("</parameter>",),
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
            parameter_end=("</parameter>",),
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
            parameter_end=(f"{_DSML_END}parameter>",),
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
        aliases=("glm46", "glm47", "spark25"),
        dialect="tags",
        syntax=TagSyntax(
            call=("{name}",),
            # Some models write the line breaks of the layout as escapes: the second template.
            parameter=("<arg_key>{key}</arg_key> <arg_value>", r"\n<arg_key>{key}</arg_key>\n<arg_value>"),
            parameter_end=("</arg_value>",),
            unquote=True,
        ),
        open=("<tool_call>",),
        close=("</tool_call>",),
        think=THINK,
    ),
    FormatSpec(
        name="deepseek_v41",
        dialect="tags",
        syntax=TagSyntax(
            call=(f'{_DSML} invoke name="{{name}}">', f'{_DSML}invoke name="{{name}}">'),
            empty_call=(f'{_DSML} invoke name="{{name}}" />',),
            parameter=(
                f'{_DSML} parameter name="{{key}}" string="{{string}}">',
                f'{_DSML} parameter name="{{key}}">',
            ),
            parameter_end=(f"{_DSML_END} parameter>", f"{_DSML_END}parameter>"),
            call_end=(f"{_DSML_END} invoke>", f"{_DSML_END}invoke>"),
            special=True,
        ),
        open=tuple(f"{_DSML}{blank}{region}>" for blank in (" ", "") for region in ("calls", *_DSML_REGIONS)),
        begins=(f"{_DSML} invoke name=", f"{_DSML}invoke name="),
        close=tuple(f"{_DSML_END}{blank}{region}>" for blank in (" ", "") for region in ("calls", *_DSML_REGIONS)),
        drop=("<｜end▁of▁sentence｜>",),
        think=THINK,
    ),
    FormatSpec(
        name="kimi_k3",
        dialect="tags",
        syntax=TagSyntax(
            call=('<|open|>call tool="{name}" index="{index}"<|sep|>', '<|open|>call tool="{name}"<|sep|>'),
            parameter=('<|open|>argument key="{key}" type="{type}"<|sep|>', '<|open|>argument key="{key}"<|sep|>'),
            parameter_end=("<|close|>argument<|sep|>",),
            call_end=("<|close|>call<|sep|>",),
            special=True,
            entities=True,
            gap="",
        ),
        open=("<|open|>tools<|sep|>",),
        begins=("<|open|>call tool=",),
        close=("<|close|>tools<|sep|>",),
        think=(("<|open|>think<|sep|>", "<|close|>think<|sep|>"),),
        drop=_KIMI_TURN,
        content_drop=_KIMI_TURN,
    ),
    FormatSpec(
        name="hy_v3",
        aliases=("hy3", "hy4", "hunyuan"),
        dialect="tags",
        syntax=TagSyntax(
            call=tuple(f"<tool_call{suffix}>{{name}}{end}" for suffix in _HY for end in (f"<tool_sep{suffix}>", "")),
            parameter=tuple(f"<arg_key{suffix}>{{key}}</arg_key{suffix}> <arg_value{suffix}>" for suffix in _HY),
            parameter_end=tuple(f"</arg_value{suffix}>" for suffix in _HY),
            call_end=tuple(f"<{end}tool_call{suffix}>" for suffix in _HY for end in ("/", "end_of_")),
        ),
        open=tuple(f"<tool_calls{suffix}>" for suffix in _HY),
        begins=tuple(f"<tool_call{suffix}>" for suffix in _HY),
        close=tuple(f"</tool_calls{suffix}>" for suffix in _HY),
        think=tuple((f"<think{suffix}>", f"</think{suffix}>") for suffix in _HY),
        drop=_HY_TURN,
        content_drop=_HY_TURN,
        result=(
            "<tool_responses:opensource>\n<tool_response:opensource>\n",
            "\n</tool_response:opensource>\n</tool_responses:opensource>",
        ),
    ),
    FormatSpec(
        name="longcat",
        dialect="tags",
        syntax=TagSyntax(
            call=("{name}",),
            parameter=("<longcat_arg_key>{key}</longcat_arg_key> <longcat_arg_value>",),
            parameter_end=("</longcat_arg_value>",),
        ),
        open=("<longcat_tool_call>",),
        close=("</longcat_tool_call>",),
        think=(("<longcat_think>", "</longcat_think>"),),
    ),
    FormatSpec(
        name="k2_horizon",
        aliases=("k2_v3",),
        dialect="tags",
        syntax=TagSyntax(
            call=("<ifm|tool_call>{name}",),
            parameter=(
                "<ifm|arg_key>{key}</ifm|arg_key> <ifm|arg_value>",
                "<ifm|arg_key>{key}</ifm|arg_key> <ifm|arg_type>{type}</ifm|arg_type> <ifm|arg_value>",
            ),
            parameter_end=("</ifm|arg_value>",),
            call_end=("</ifm|tool_call>",),
            gap="",
        ),
        open=("<ifm|tool_calls>",),
        begins=("<ifm|tool_call>",),
        close=("</ifm|tool_calls>",),
        think=tuple((f"<ifm|{think}>", f"</ifm|{think}>") for think in ("think", "think_fast", "think_faster")),
    ),
    FormatSpec(
        name="solar_open2",
        aliases=("solar_pro4",),
        dialect="tags",
        syntax=TagSyntax(
            call=("{name}",),
            parameter=("<|tool_arg:start|>{key}<|tool_arg:value|>",),
            parameter_end=("<|tool_arg:end|>",),
            special=True,
        ),
        open=("<|tool_call:start|>",),
        close=("<|tool_call:end|>",),
        think=(("<|think:start|>", "<|think:end|>"),),
    ),
    FormatSpec(
        name="dots",
        dialect="tags",
        syntax=TagSyntax(
            call=('<invoke name="{name}">', "<invoke name={name}>"),
            parameter=('<parameter name="{key}">', "<parameter name={key}>"),
            parameter_end=("</parameter>",),
            call_end=("</invoke>",),
        ),
        open=("<dots_function_call>",),
        close=("</dots_function_call>",),
        think=THINK,
    ),
    FormatSpec(
        name="step3",
        dialect="tags",
        syntax=TagSyntax(
            call=(
                '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
                '<｜tool_call_begin｜> function <｜tool_sep｜> <steptml:invoke name="{name}">',
                '<steptml:invoke name="{name}">',
            ),
            parameter=('<steptml:parameter name="{key}">',),
            parameter_end=("</steptml:parameter>",),
            call_end=("</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"),
        ),
        open=("<｜tool_calls_begin｜>",),
        begins=("<｜tool_call_begin｜>", "<steptml:invoke name="),
        close=("<｜tool_calls_end｜>",),
        drop=("<｜tool_call_end｜>",),
        call_drop=("<｜tool_call_end｜>",),
        think=THINK,
    ),
    FormatSpec(
        name="minicpm5",
        dialect="tags",
        syntax=TagSyntax(
            # Some engines leave out the blank, or leave the tokenizer's sign for it.
            call=('<function name="{name}">', '<functionname="{name}">', '<functionĠname="{name}">'),
            parameter=('<param name="{key}">', '<paramĠname="{key}">'),
            parameter_end=("</param>",),
            call_end=("</function>",),
            cdata=True,
            gap="",
        ),
        begins=("<function name=", "<functionname=", "<functionĠname="),
        think=THINK,
        result=TOOL_RESPONSE,
    ),
    FormatSpec(
        name="minimax_m3",
        dialect="elements",
        syntax=ElementSyntax(mark=_M3, call=('<invoke name="{name}">', "<invoke name={name}>"), call_end="</invoke>"),
        open=(f"{_M3}<tool_call>",),
        begins=(f"{_M3}<invoke name=",),
        close=(f"{_M3}</tool_call>",),
        think=(("<mm:think>", "</mm:think>"),),
        # Ends the reasoning that the model left out.
        drop=("</mm:think>",),
        content_drop=("</mm:think>",),
        result=("<response>", "</response>"),
    ),
    # -- channels
    FormatSpec(
        name="muse_glimmer",
        aliases=("glimmer", "muse"),
        dialect="messages",
        syntax=MessageSyntax(
            written=" to={name}<|message|>{call}",
            again="<|eom|><|start|>assistant",
            bodies=("<|message|>",),
            ends=("<|eom|>", "<|eot|>"),
            reasoning=("self",),
            content=("user", "<|message|>"),
            calls="tags",
            call=TagSyntax(
                call=('<atem:invoke name="{name}">', "<atem:invoke name={name}>"),
                parameter=('<atem:parameter name="{key}">', "<atem:parameter name={key}>"),
                parameter_end=("</atem:parameter>",),
                call_end=("</atem:invoke>",),
            ),
        ),
        begins=("<|start|>", "<atem:function_calls>"),
        channels=("<|start|>",),
        close=("</atem:function_calls>",),
        first=(" to={name}<|message|>",),
        drop=("<|eom|>", "<|eot|>", "<|message|>"),
        content_drop=("<|eom|>", "<|eot|>"),
    ),
    FormatSpec(
        name="inkling",
        dialect="messages",
        syntax=MessageSyntax(
            written="{name}<|content_invoke_tool_json|>{call}<|end_message|>",
            again="<|message_model|>",
            bodies=("<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"),
            ends=("<|end_message|>", "<|content_model_end_sampling|>"),
            reasoning=("<|content_thinking|>",),
            content=("<|content_text|>",),
            calls="json",
        ),
        begins=("<|message_model|>", "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"),
        channels=("<|message_model|>", "<|content_text|>", "<|content_thinking|>"),
        close=("<|end_message|>",),
        keys=("name", "args"),
        first=("{name}<|content_invoke_tool_json|>",),
        drop=("<|content_model_end_sampling|>",),
        content_drop=("<|content_model_end_sampling|>",),
    ),
    FormatSpec(
        name="harmony",
        aliases=("gpt_oss",),
        dialect="messages",
        syntax=MessageSyntax(
            written="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
            again="<|start|>assistant",
            bodies=("<|message|>",),
            ends=("<|end|>", "<|call|>", "<|return|>"),
            reasoning=("analysis",),
            content=("<|message|>",),
            tools="functions.",
        ),
        begins=("<|start|>", "<|channel|>", "to=functions."),
        channels=("<|start|>", "<|channel|>"),
        drop=("<|end|>", "<|return|>", "<|call|>", "<|message|>"),
    ),
)


def _auto() -> FormatSpec:
    """The format that accepts every opener, bare calls of declared tools and every kind of reasoning.

    What only one model's text can mean, it leaves out: a word, or a tag such as `<answer>`.
    """
    marks = {mark: None for spec in _FORMATS for mark in (*spec.open, *spec.begins) if mark != "functools"}
    ambiguous = {
        mark for spec in _FORMATS for mark in spec.content_drop if mark[0] != "<" or mark[1:-1].strip("/").isalpha()
    }
    strays = {mark: None for spec in _FORMATS for mark in (*spec.close, *spec.drop) if mark not in marks}
    of_calls = {mark for spec in _FORMATS for mark in spec.call_marks}
    return FormatSpec(
        name="auto",
        dialect="auto",
        begins=tuple(marks),
        channels=tuple(mark for spec in _FORMATS for mark in spec.channels),
        drop=tuple(mark for mark in strays if mark not in ambiguous),
        call_drop=tuple(mark for mark in strays if mark in of_calls),
        content_drop=tuple(mark for spec in _FORMATS for mark in spec.content_drop if mark not in ambiguous),
        think=tuple(dict.fromkeys(pair for spec in _FORMATS for pair in spec.think if pair[0][0] in "<[")),
    )


FORMATS: tuple[FormatSpec, ...] = (*_FORMATS, _auto())
