"""Detects the format that a model writes, from its tokens, its chat template or its architecture."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Source = Literal["special tokens", "chat template", "architecture"]


@dataclass(frozen=True, slots=True)
class Detection:
    format: str
    source: Source
    evidence: tuple[str, ...]
    """The literals found, or the architecture."""

    def __str__(self) -> str:
        return f"{self.format}: {self.source} {', '.join(map(repr, self.evidence))}"


Signs = tuple[tuple[str, tuple[str, ...]], ...]

_DEEPSEEK = "<｜tool▁calls▁begin｜>"

# A row holds a format and the literals that must all be present. The first match wins: specific rows come first.
_TOKENS: Signs = (
    ("inkling", ("<|content_invoke_tool_json|>",)),
    ("minimax_m3", ("]<]minimax[>[",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>")),
    ("k2_horizon", ("<ifm|tool_call>",)),
    ("solar_open", ("<|tool_call:begin|>",)),
    ("solar_open2", ("<|tool_call:start|>",)),
    ("hy_v3", ("<tool_sep>",)),
    ("hy_v3", ("<tool_sep:opensource>",)),
    ("hy_v3", ("<tool_sep:6124c78e>",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("step3", ("<｜tool_calls_begin｜>",)),
    ("internlm2", ("<|plugin|>",)),
    ("gigachat3", ("<|role_sep|>", "<|message_sep|>")),
    ("longcat", ("<longcat_tool_call>",)),
    ("dots", ("<dots_function_call>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("functiongemma", ("<start_function_call>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("glm45", ("<arg_key>", "<arg_value>")),
    ("deepseek_v32", ("｜DSML｜",)),
    ("harmony", ("<|channel|>", "<|constrain|>")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("granite", ("<|tool_call|>",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
)
_TEMPLATE: Signs = (
    ("inkling", ("<|content_invoke_tool_json|>",)),
    ("muse_glimmer", ("<atem:function_calls>",)),
    ("functionary_v32", (">>>all",)),
    ("functionary_v32", (">>>", "recipient")),
    ("minimax_m3", ("]<]minimax[>[",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>")),
    ("k2_horizon", ("<ifm|tool_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("dots", ("<dots_function_call>",)),
    ("step3", ("<steptml:invoke",)),
    ("minicpm5", ("<function name=", "<param name=")),
    ("solar_open", ("<|tool_call:begin|>",)),
    ("solar_open2", ("<|tool_call:start|>",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("nemotron_v2", ("<TOOLCALL>",)),
    ("internlm2", ("<|plugin|>",)),
    ("gigachat3", ("<|role_sep|>", "function call")),
    ("gigachat3", ("<|role_sep|>", "<|function_call|>")),
    ("hy_v3", ("<tool_sep",)),
    ("hy_v3", ("<｜hy_Assistant", "<arg_key")),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("functiongemma", ("<start_function_call>",)),
    ("glm45", ("<arg_key>",)),
    ("deepseek_v41", ("｜DSML｜", " calls>")),
    ("deepseek_v32", ("｜DSML｜",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("functionary_v31", ("<function=",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", (_DEEPSEEK, "```json")),
    ("deepseek_v31", (_DEEPSEEK, "<｜tool▁sep｜>")),
    ("deepseek_json", (_DEEPSEEK, '"parameters"')),
    ("deepseek_v31", (_DEEPSEEK,)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("pythonic", ("<|tool_list_start|>",)),
    ("pythonic", ("List of tools: [",)),
    ("harmony", ("<|channel|>", "<|message|>")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("granite", ("<|tool_call|>",)),
    ("olmo3", ("<function_calls>",)),
    ("apriel", ("<tool_calls>", "[BEGIN FINAL RESPONSE]")),
    ("hunyuan_a13b", ("<tool_calls>", "<|extra_0|>")),
    ("jamba", ("<tool_calls>",)),
    ("llama4_pythonic", ("[func_name1(params_name1=params_value1",)),
    ("llama4_json", ("<|header_start|>", '{"name": function name, "parameters":')),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("granite_20b_fc", ("<function_call>",)),
    ("ernie45", ("<tool_call>", "<response>", "</response>")),
    ("hermes", ("<tool_call>",)),
    ("phi4", ("functools",)),
    ("phi4", ("<|tool|>", "<|/tool|>")),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ("Environment: ipython",)),
)
_OFTEN_UNUSED = ("llama3_json", "llama4_pythonic")
"""Formats whose tokens every model of the family has, whatever its template makes of them."""

_ARCHITECTURES = {
    "lfm2": "pythonic",
    "lfm2moe": "pythonic",
    "gpt-oss": "harmony",
    "gpt_oss": "harmony",
    "glm4moe": "glm45",
    "glm4_moe": "glm45",
    "kimi-k2": "kimi_k2",
    "kimi_k2": "kimi_k2",
    "minimax-m2": "minimax_m2",
    "minimax_m2": "minimax_m2",
    "seed_oss": "seed_oss",
    "olmo3": "olmo3",
    "llama4": "llama4_pythonic",
    "gemma4": "gemma4",
    "deepseek_v32": "deepseek_v32",
    "cohere2": "cohere",
    "jamba": "jamba",
    "apertus": "apertus",
    "minimax_m3": "minimax_m3",
    "minimax-m3": "minimax_m3",
    "hy_v3": "hy_v3",
    "mistral3": "mistral",
}


def detect(
    *, special_tokens: Collection[str] = (), chat_template: str = "", architecture: str = ""
) -> Detection | None:
    """The format, or None if nothing identifies it.

    Special tokens count most, then the chat template, then the architecture. The template decides
    between formats that share their tokens.
    """
    by_template = _match(_TEMPLATE, chat_template)
    tokens = frozenset(special_tokens)
    by_token = _match(_TOKENS, tokens)
    if _DEEPSEEK in tokens and (by_template is None or not by_template[0].startswith("deepseek")):
        by_token = "deepseek_v31", (_DEEPSEEK,)
    elif by_token and by_token[0] == "deepseek_v32" and by_template and by_template[0] == "deepseek_v41":
        by_token = None
    if by_token and by_token[0] not in _OFTEN_UNUSED:
        return Detection(by_token[0], "special tokens", by_token[1])
    if by_template:
        return Detection(by_template[0], "chat template", by_template[1])
    if by_token:
        return Detection(by_token[0], "special tokens", by_token[1])
    if known := _ARCHITECTURES.get(architecture.strip().lower()):
        return Detection(known, "architecture", (architecture,))
    return None


def _match(signs: Signs, evidence: str | frozenset[str]) -> tuple[str, tuple[str, ...]] | None:
    for name, literals in signs:
        if all(literal in evidence for literal in literals):
            return name, literals
    return None
