"""Grammars that force a format: from the tools' JSON Schemas to GBNF, the notation that llama.cpp samples by.

Such a grammar accepts complete calls of declared tools whose arguments fit their schemas. It enforces types,
enum, const, anyOf, oneOf, allOf, local $ref, required, additionalProperties, the lengths of strings and arrays,
and ranges of numbers. It doesn't enforce pattern, format, multipleOf, uniqueItems, not, if, or that only one branch
of a oneOf fits. Nor does it enforce UTF-8: llama.cpp accepts any byte after a lead byte, so a model at a high
temperature can write bytes that aren't text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from normalizers.spec import MAX_CALLS, FormatSpec, NamedSyntax
from normalizers.write.grammar.decided import called, words
from normalizers.write.grammar.formats import calls_of, values_of
from normalizers.write.grammar.gbnf import literal
from normalizers.write.grammar.guards import REASONING, START, guard, has_marks
from normalizers.write.grammar.rules import MAX_TEXT, Rules, TooLarge
from normalizers.write.grammar.schemas import Schema
from normalizers.write.grammar.values import FREE_ORDER, Values
from normalizers.write.layout import layout_of

__all__ = ["Grammar", "Notation", "TooLarge", "grammar", "guarded", "literal"]

MAX_GUARD = 64_000
"""Characters of a grammar for calls that the model decides on. An engine compiles it anew for each request."""

_GUARDS = ((FREE_ORDER, True), (2, True), (0, True), (0, False))
"""What to try until the grammar is small enough: how many keys may come in any order, and whether unmarked calls have a
guard."""

Notation = Literal["gbnf", "lark"]
"""`gbnf` is llama.cpp's; `lark` is llguidance's dialect of Lark."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """in_reasoning: the grammar of an answer that begins within the model's reasoning; None if the format has none.

    marked, unmarked: whether every call behind a mark of the format, and every call without marks that begins the
    answer, is sure to be readable. called, words: of a guard, the grammar of an answer that is nothing but such calls,
    and of one that begins no call; "" if there is none.
    """

    text: str
    in_reasoning: str | None = None
    marked: bool = True
    unmarked: bool = False
    called: str = ""
    words: str = ""


def grammar(
    spec: FormatSpec,
    tools: Sequence[Schema],
    *,
    only: Collection[str] | None = None,
    calls: int = MAX_CALLS,
    answer: Schema | None = None,
    free: bool = False,
    decide: bool = False,
    notation: Notation = "gbnf",
) -> Grammar | None:
    """One to `calls` calls of the OpenAI `tools` in that format; `only` limits them to these names.

    With `answer`, a JSON Schema, the model may instead write a JSON text that conforms to it; it must if there are no
    tools. With `free` the text is free, and the model decides whether to call, or with `decide` somebody else before it
    writes: see `guarded`. None if no grammar is known for the format. Raises TooLarge.
    """
    if free:
        return guarded(spec, tools, calls=calls, decide=decide, notation=notation)
    rules, functions = values_of(spec, _marks(spec)), _functions(tools, only)
    root = calls_of(rules, spec, functions, calls) if functions else None
    if root is None and (tools or answer is None):
        return None
    text = None
    if answer is not None:
        json_rules = Values(python=False)
        text = rules.take(json_rules, "answer-", json_rules.value(answer, answer, "answer"))
    in_reasoning = _after_reasoning(rules, spec, root, text) if spec.think else None
    layout = layout_of(spec)
    if root is not None and layout.lead:
        root = f"({literal(layout.lead)})? {root}"
    return _written(rules, " | ".join(part for part in (root, text) if part is not None), in_reasoning, notation)


def guarded(
    spec: FormatSpec,
    tools: Sequence[Schema],
    *,
    calls: int = MAX_CALLS,
    decide: bool = False,
    notation: Notation = "gbnf",
) -> Grammar | None:
    """Free text in which every call that a mark begins, or that begins the answer, is one that the format's reader
    reads, of a declared tool. decide: also write `called` and `words`.

    None if there is nothing to guard, or the grammar would be larger than MAX_GUARD and no tool is strict. Raises
    TooLarge.
    """
    functions = _functions(tools, None)
    if not functions or len(functions) != len(tools):
        return None
    exact = any(function.get("strict") is True for function in functions)
    limit = MAX_TEXT if exact else MAX_GUARD
    marks = _marks(spec) if has_marks(spec, any_mark=exact) else ()
    for free_order, unmarked in _GUARDS:
        rules = Values(python=spec.dialect == "pythonic", marks=marks, limit=limit, free_order=free_order)
        try:
            found = guard(rules, spec, functions, several=calls > 1, any_mark=exact, unmarked=unmarked)
            if not (found.marked or found.unmarked):
                return None
            written = _written(rules, START, REASONING if spec.think else None, notation)
            guarding = replace(written, marked=found.marked, unmarked=found.unmarked)
            several = calls > 1
            return _decided(guarding, spec, functions, marks, several, limit, notation) if decide else guarding
        except TooLarge:
            if exact and not unmarked:
                raise
    return None


def _decided(
    guarding: Grammar,
    spec: FormatSpec,
    functions: Sequence[Schema],
    marks: tuple[str, ...],
    several: bool,
    limit: int,
    notation: Notation,
) -> Grammar:
    """The same with the grammars of an answer of which somebody else has decided what it is."""
    rules = Values(python=spec.dialect == "pythonic", marks=marks, limit=limit)
    try:
        root = called(rules, spec, functions, several=several, unmarked=guarding.unmarked)
    except TooLarge:
        return guarding
    if not root:
        return guarding
    free = Values(python=False)
    only_words = _written(free, words(free, spec), None, notation).text
    return replace(guarding, called=_written(rules, root, None, notation).text, words=only_words)


def _functions(tools: Iterable[Schema], only: Collection[str] | None) -> list[Schema]:
    functions = [tool.get("function", tool) for tool in tools]
    named = [f for f in functions if isinstance(f, Mapping) and isinstance(f.get("name"), str)]
    return [f for f in named if only is None or f["name"] in only]


def _marks(spec: FormatSpec) -> tuple[str, ...]:
    """The literals that no string of a call may hold: with one the model means to end the call, or begins another."""
    tail = spec.syntax.tail if isinstance(spec.syntax, NamedSyntax) else ()
    return tuple(mark for mark in (*spec.open, *spec.begins, *spec.close, *spec.drop, *tail) if mark[0] in "<[")


def _after_reasoning(rules: Values, spec: FormatSpec, calls: str | None, text: str | None) -> str:
    layout, blanks = layout_of(spec), f"{rules.shared('ws')}?"
    gap = literal(layout.gap) if layout.gap else blanks
    answers = [f"{blank} {part}" for blank, part in ((gap, calls), (blanks, text)) if part is not None]
    return f"{rules.until('reasoning', spec.think[0][1], ())} ({' | '.join(answers)})"


def _written(rules: Rules, root: str, in_reasoning: str | None, notation: Notation) -> Grammar:
    write = rules.text if notation == "gbnf" else rules.lark
    return Grammar(write(root), None if in_reasoning is None else write(in_reasoning))
