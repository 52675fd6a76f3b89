"""Judges an answer: right, or the first thing that is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.cases import Case, Expect, Json, Step, Wanted
from gateway.features.evaluation.model_test.matchers import Absent
from gateway.schema.checker import compiled
from gateway.schema.fault import InvalidSchema, Unchecked
from normalizers.unread import unread_call
from normalizers.values.coerce import json_type

UNDECLARED = "unknown_tool"
"""A ctxgate's warning: a call of a tool that the request doesn't declare is text, as the model wrote it."""

Blame = Literal["model", "dialect", "gateway", "infrastructure"]

KINDS: dict[str, Blame] = {
    "gateway_error": "gateway",
    "truncated": "model",
    "abandoned_call": "dialect",
    "invalid_json": "gateway",
    "not_object": "gateway",
    "unknown_tool": "model",
    "text_tool_call": "dialect",
    "no_call": "model",
    "forbidden_call": "model",
    "unneeded_call": "model",
    "wrong_tool": "model",
    "wrong_count": "model",
    "missing_arg": "model",
    "extra_arg": "model",
    "wrong_type": "model",
    "wrong_value": "model",
    "schema_violation": "model",
    "loop": "model",
    "chain_broken": "model",
    "stream_mismatch": "gateway",
    "empty_answer": "model",
    "wrong_answer": "model",
    "context_exceeded": "model",
}
"""The kinds of failure, in the order in which they are checked, and whose fault each is.

The gateway promises that arguments are a JSON object, so what breaks that is its own fault, unless it says of a
stream's call that it can't be read to its end. `context_exceeded` is the model as it is set up: its context window
doesn't hold the case.
"""


def blame(kind: str) -> Blame:
    return KINDS[kind.partition("@")[0]]


@dataclass(frozen=True)
class Arguments:
    """Counted over the calls that could be paired by name."""

    right: int = 0
    given: int = 0
    wanted: int = 0
    invented: int = 0
    """Not in the tool's schema."""


@dataclass(frozen=True)
class Verdict:
    kind: str | None
    """None: right."""
    detail: str = ""
    folded: bool = False
    """Right where strings are compared as BFCL does."""
    decided: bool | None = None
    """Whether the decision to call was right; None if either is right."""
    well_formed: bool = True
    names_right: bool = False
    count_right: bool = False
    schema_valid: bool | None = None
    arguments: Arguments = Arguments()

    @property
    def passed(self) -> bool:
        return self.kind is None


def judge(case: Case, step: Step, answer: ModelAnswer, before: Sequence[RawCall] = ()) -> Verdict:
    """One turn. `before`: the calls of earlier turns, for a model that turns in a circle."""
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.tools}
    strict = [_fault(expect, tools, case.forbid, answer, before, False) for expect in step.expect]
    loose = [_fault(expect, tools, case.forbid, answer, before, True) for expect in step.expect]
    fault = None if None in strict else strict[0]
    kind, detail = fault or (None, "")
    ways = {bool(expect.calls) for expect in step.expect}
    nearest = step.expect[0]
    wanted, given = Counter(call.name for call in nearest.calls), Counter(call.name for call in answer.calls)
    return Verdict(
        kind=kind,
        detail=detail,
        folded=None in loose,
        decided=bool(answer.calls) in ways if len(ways) == 1 else None,
        well_formed=well_formed(answer, tools),
        names_right=fault is None or wanted == given,
        count_right=fault is None or wanted.total() == given.total(),
        schema_valid=_schemas_hold(answer.calls, tools) if answer.calls else None,
        arguments=_arguments(nearest.calls, answer.calls, tools),
    )


def well_formed(answer: ModelAnswer, tools: Collection[str]) -> bool:
    """Whether a client can use it: OpenAI's format, arguments that are an object, no dialect in the text."""
    if answer.faults or (unread_call(answer.content, tools) and UNDECLARED not in answer.warned):
        return False
    try:
        return all(isinstance(call.parsed(), dict) for call in answer.calls)
    except ValueError:
        return False


def _fault(
    expect: Expect,
    tools: Mapping[str, Json],
    forbid: frozenset[str],
    answer: ModelAnswer,
    before: Sequence[RawCall],
    fold: bool,
) -> tuple[str, str] | None:
    if fault := formal_fault(answer, tools):
        return fault
    calls: list[tuple[str, Json]] = [(call.name, call.parsed()) for call in answer.calls]
    if expect.calls and not calls:
        return "no_call", f"wanted {', '.join(call.name for call in expect.calls)}"
    if forbidden := [name for name, _ in calls if name in forbid]:
        return "forbidden_call", ", ".join(forbidden)
    names, wanted = Counter(name for name, _ in calls), Counter(call.name for call in expect.calls)
    if calls and names != wanted and (found := _repeated(calls, before)):
        return "loop", found
    if calls and not expect.calls:
        return "unneeded_call", ", ".join(names)
    if strange := set(names) - set(wanted):
        return "wrong_tool", f"{', '.join(sorted(strange))} instead of {', '.join(sorted(wanted))}"
    if names != wanted:
        return "wrong_count", f"{_counts(names)} instead of {_counts(wanted)}"
    if fault := _pairing(expect, calls, tools, fold):
        return fault
    if not expect.calls:
        return _wordless(expect, answer, fold)
    return None


def formal_fault(answer: ModelAnswer, tools: Collection[str]) -> tuple[str, str] | None:
    """Faults of an answer that don't depend on the expected one."""
    if answer.warned and answer.finish != "length" and (begun := _unreadable(answer)):
        # A stream can't take back what it has said: its first half was a call.
        return "abandoned_call", f"{begun.name} was begun and couldn't be read to its end: {begun.arguments[:100]}"
    if answer.faults:
        return "gateway_error", "; ".join(answer.faults)
    if answer.finish == "length":
        return "truncated", "max_tokens was reached"
    for call in answer.calls:
        try:
            arguments = call.parsed()
        except ValueError as error:
            return "invalid_json", f"{call.name}: {error}"
        if not isinstance(arguments, dict):
            return "not_object", f"{call.name}: {call.arguments[:100]}"
    if unknown := [call.name for call in answer.calls if call.name not in tools]:
        return "unknown_tool", ", ".join(unknown)
    found = unread_call(answer.content, tools)
    if UNDECLARED in answer.warned:
        return "unknown_tool", f"in the text: {found or answer.content[:100]}"
    return ("text_tool_call", found) if found else None


def _unreadable(answer: ModelAnswer) -> RawCall | None:
    for call in answer.calls:
        try:
            call.parsed()
        except ValueError:
            return call
    return None


def _wordless(expect: Expect, answer: ModelAnswer, fold: bool) -> tuple[str, str] | None:
    if not answer.content.strip():
        return "empty_answer", "neither a call nor a word"
    if expect.says is not None and not expect.says.accepts(answer.content, fold):
        return "wrong_answer", f"it doesn't say {expect.says.example()!r}"
    return None


def _pairing(
    expect: Expect, calls: list[tuple[str, Json]], tools: Mapping[str, Json], fold: bool
) -> tuple[str, str] | None:
    """None if every wanted call can be paired with one given; else what is wrong with the first that can't."""
    if expect.ordered:
        faults = [
            ("wrong_count", f"{name} out of order")
            if name != wanted.name
            else _misfit(wanted, given, tools[name], fold)
            for wanted, (name, given) in zip(expect.calls, calls, strict=True)
        ]
        return next((fault for fault in faults if fault), None)
    fits = [
        [name == wanted.name and _misfit(wanted, given, tools[name], fold) is None for name, given in calls]
        for wanted in expect.calls
    ]
    if _matching(fits):
        return None
    free = list(calls)
    left: list[Wanted] = []
    for row, wanted in zip(fits, expect.calls, strict=True):
        found = next((call for fit, call in zip(row, calls, strict=True) if fit and call in free), None)
        if found is None:
            left.append(wanted)
        else:
            free.remove(found)
    for wanted in left:
        for name, given in free:
            if name == wanted.name and (fault := _misfit(wanted, given, tools[name], fold)):
                return fault
    return "wrong_value", "the calls can't all be paired"


def _matching(fits: Sequence[Sequence[bool]]) -> bool:
    """Whether each row finds a column of its own: augmenting paths."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(fits)))


def _misfit(wanted: Wanted, given: Json, schema: Json, fold: bool) -> tuple[str, str] | None:
    properties = schema.get("properties", {})
    for name, rule in wanted.args.items():
        if name not in given and not rule.optional:
            return "missing_arg", f"{wanted.name}.{name}"
    for name in given:
        if name not in wanted.args or isinstance(wanted.args[name], Absent):
            return "extra_arg", f"{wanted.name}.{name} = {_shown(given[name])}"
    for name in wanted.args:
        if name in given and not _type_fits(given[name], properties.get(name, {})):
            return "wrong_type", f"{wanted.name}.{name} = {_shown(given[name])}"
    for name, rule in wanted.args.items():
        if name in given and not rule.accepts(given[name], fold):
            return "wrong_value", f"{wanted.name}.{name} = {_shown(given[name])}, wanted e.g. {_shown(rule.example())}"
    if fault := schema_fault(schema, given):
        return "schema_violation", f"{wanted.name}: {fault}"
    return None


def _type_fits(value: Any, schema: Json) -> bool:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    kind = json_type(value)
    return not kinds or kind in kinds or (kind == "integer" and "number" in kinds)


def schema_fault(schema: Json, value: Any) -> str | None:
    """What is wrong with `value` by its JSON Schema; None if it conforms, and if nobody can tell in a bounded time."""
    try:
        found = compiled(json.dumps(schema)).fault(value)
    except (InvalidSchema, Unchecked):
        return None
    return None if found is None else found.message[:200]


def _schemas_hold(calls: Iterable[RawCall], tools: Mapping[str, Json]) -> bool:
    for call in calls:
        try:
            arguments = call.parsed()
        except ValueError:
            return False
        if call.name not in tools or schema_fault(tools[call.name], arguments) is not None:
            return False
    return True


def _repeated(calls: Iterable[tuple[str, Json]], before: Sequence[RawCall]) -> str | None:
    earlier = [(call.name, call.arguments) for call in before]
    for name, arguments in calls:
        for was, text in earlier:
            if was == name and json.loads(text) == arguments:
                return f"{name} once more with the same arguments"
    return None


def _arguments(wanted: Iterable[Wanted], calls: Iterable[RawCall], tools: Mapping[str, Json]) -> Arguments:
    right = given = asked = invented = 0
    left = list(wanted)
    for call in calls:
        partner = next((item for item in left if item.name == call.name), None)
        try:
            arguments = call.parsed()
        except ValueError:
            arguments = None
        if partner is None or not isinstance(arguments, dict):
            continue
        left.remove(partner)
        given += len(arguments)
        invented += len(arguments.keys() - tools.get(call.name, {}).get("properties", {}).keys())
        asked += sum(name in arguments or not rule.optional for name, rule in partner.args.items())
        right += sum(
            name in partner.args and partner.args[name].accepts(value, False) for name, value in arguments.items()
        )
    return Arguments(right, given, asked, invented)


def _counts(names: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."
