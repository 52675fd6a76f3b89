"""Answers of which it is decided beforehand whether they call a tool: nothing but calls, or words alone."""

from __future__ import annotations

from collections.abc import Sequence

from normalizers.spec import BEGINS_JSON, MAX_CALLS, FormatSpec
from normalizers.write.grammar.gbnf import either, literal, none_of
from normalizers.write.grammar.guards import regions
from normalizers.write.grammar.schemas import Schema
from normalizers.write.grammar.unmarked import unmarked_calls
from normalizers.write.grammar.values import Values

NAMED = ('{"name"', '{"function"')
"""Beginnings of JSON objects that are hardly ever anything but calls."""

_BLANKS = " \t\r\n"


def called(rules: Values, spec: FormatSpec, functions: Sequence[Schema], *, several: bool, unmarked: bool) -> str:
    """The root of an answer that is nothing but calls, in any layout that the model itself writes; "" if there is none.

    several: more than one call may come. unmarked: calls without marks count.
    """
    rules.exact = False
    bodies = regions(rules, spec, functions, several)
    ws = rules.shared("ws")
    end = f" {ws}? {either([literal(mark) for mark in spec.close])}" if spec.close else ""
    forms = [f"{literal(mark)} {body}{end}" for mark, body in bodies.items()]
    if forms:
        region = rules.rule("region", either(forms))
        forms = [f"{ws}? {region}" + (f" ({ws}? {region}){{0,{MAX_CALLS - 1}}}" if several else "")]
    if unmarked and (bare := unmarked_calls(rules, functions, several=several)):
        forms.append(bare)
    return " | ".join(forms)


def words(rules: Values, spec: FormatSpec) -> str:
    """The root of an answer that holds no beginning of a call, marked or not."""
    begins = {mark[0] for mark in (*spec.openers, *BEGINS_JSON) if not mark[0].isalnum()}
    rules.free("f", {}, (*spec.openers, *NAMED))
    return f"{none_of((*begins, *_BLANKS))} f"
