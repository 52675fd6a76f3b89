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
        bare="tool_name",
        echo=True,
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
