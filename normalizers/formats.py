"""The formats that ship: one row each."""

from __future__ import annotations

from normalizers.spec import FormatSpec

THINK = (("<think>", "</think>"),)

FORMATS: tuple[FormatSpec, ...] = (
    FormatSpec(name="native_json", aliases=("native", "openai", "none")),
    FormatSpec(
        name="pythonic",
        aliases=("lfm2", "lfm2.5", "bracket"),
        dialect="pythonic",
        open=("<|tool_call_start|>",),
        close=("<|tool_call_end|>",),
        think=THINK,
        drop=("<|tool_list_start|>", "<|tool_list_end|>"),
        result=("<|tool_response_start|>", "<|tool_response_end|>"),
        bare=("call", "list", "object"),
        echo=True,
    ),
    FormatSpec(
        name="llama4_pythonic",
        aliases=("llama3.2_pythonic", "toolace"),
        dialect="pythonic",
        open=("<|python_start|>",),
        close=("<|python_end|>",),
        bare=("call", "list"),
    ),
    FormatSpec(
        name="olmo3",
        dialect="pythonic",
        open=("<function_calls>",),
        close=("</function_calls>",),
        think=THINK,
        bare=("list",),
    ),
    FormatSpec(
        name="llama3_json",
        aliases=("llama3", "llama3.1", "llama3.2"),
        dialect="json",
        open=("<|python_tag|>",),
        drop=("<|eom_id|>", "<|eot_id|>"),
        bare=("object",),
    ),
    FormatSpec(
        name="hermes",
        aliases=("qwen2.5", "qwen3"),
        dialect="json",
        open=("<tool_call>",),
        close=("</tool_call>",),
        think=THINK,
        result=("<tool_response>\n", "\n</tool_response>"),
    ),
)
