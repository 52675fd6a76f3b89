"""Past calls and their results, and chat templates that treat the past in ways of their own."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

ONE: Json = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TWO: Json = {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}

RESULT_ONE: Json = {"role": "tool", "tool_call_id": "a", "content": "1"}
RESULT_TWO: Json = {"role": "tool", "tool_call_id": "b", "content": "2"}


def called(*calls: Json, content: Any = "", **more: Any) -> Json:
    return {"role": "assistant", "content": content, **more, "tool_calls": [*calls]}


SHY = """{%- for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}
{%- set f = m.tool_calls[0].function %}<call>{"name": "{{ f.name }}", "arguments": {{ f.arguments ARGUMENTS }}}</call>
{%- else %}{{ m.content }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


KEEPER = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content and (CONDITION or loop.index0 > ns.last) %}<think>{{ m.reasoning_content }}</think>
{%- endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
