"""Grammars that force a format: from the tools' JSON Schemas to GBNF, the notation that llama.cpp samples by.

Such a grammar accepts complete calls of declared tools whose arguments fit their schemas. It enforces types,
enum, const, anyOf, oneOf, allOf, local $ref, required, additionalProperties, the lengths of strings and arrays,
and ranges of numbers. It doesn't enforce pattern, format, multipleOf, uniqueItems, not, if, or that only one branch
of a oneOf fits. Nor does it enforce UTF-8: llama.cpp accepts any byte after a lead byte, so a model at a high
temperature can write bytes that aren't text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from normalizers.spec import FormatSpec
from normalizers.write.grammar.formats import FORMS
from normalizers.write.grammar.gbnf import literal
from normalizers.write.grammar.rules import Rules
from normalizers.write.grammar.schemas import Schema

__all__ = ["MAX_CALLS", "grammar", "literal"]

MAX_CALLS = 8
"""In one answer. A weak model would list calls without end."""


def grammar(
    spec: FormatSpec,
    tools: Sequence[Schema],
    *,
    only: Collection[str] | None = None,
    calls: int = MAX_CALLS,
    answer: Schema | None = None,
) -> str | None:
    """GBNF for one to `calls` calls of the OpenAI `tools` in that format; `only` limits them to these names.

    With `answer`, a JSON Schema, the model may instead write a JSON text that conforms to it.
    None if no grammar is known for the format, or no tool is left.
    """
    functions = [tool.get("function", tool) for tool in tools]
    named = [f for f in functions if isinstance(f, Mapping) and isinstance(f.get("name"), str)]
    chosen = [f for f in named if only is None or f["name"] in only]
    write = FORMS.get(spec.dialect)
    if write is None or not chosen:
        return None
    rules = Rules(python=spec.dialect == "pythonic")
    root = write(rules, spec, chosen, calls)
    if root is None or answer is None:
        return None if root is None else rules.text(root)
    json_rules = Rules(python=False)
    json_root = json_rules.value(answer, answer, "answer")
    both = _renamed(rules.text(root), "calls-") + _renamed(json_rules.text(json_root), "answer-")
    return f"root ::= calls-root | answer-root\n{both}"


def _renamed(text: str, prefix: str) -> str:
    """The same rules with a prefix, so that two grammars don't share a name."""
    return re.sub(
        r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|([a-zA-Z][\w-]*)',
        lambda match: f"{prefix}{match[1]}" if match[1] else match[0],
        text,
    )
