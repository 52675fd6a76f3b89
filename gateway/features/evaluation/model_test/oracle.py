"""The right answer to a case, and answers that are wrong in one way, as input for the self-check. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.cases import Case, Expect, Json, Step, Wanted

WORDS = "I would rather say this in words."


def answer(case: Case, step: Step) -> ModelAnswer:
    """The answer by the first alternative of the step."""
    return _answer(step.expect[0], case.steps.index(step))


def _answer(expect: Expect, number: int) -> ModelAnswer:
    calls = tuple(_call(wanted, f"call_{number}_{index}") for index, wanted in enumerate(expect.calls))
    if calls:
        return ModelAnswer(calls=calls, finish="tool_calls")
    return ModelAnswer(content=str(expect.says.example()) if expect.says else WORDS, finish="stop")


def arguments(wanted: Wanted) -> Json:
    return {name: rule.example() for name, rule in wanted.args.items() if not rule.optional}


def _call(wanted: Wanted, id: str) -> RawCall:
    return RawCall(wanted.name, json.dumps(arguments(wanted), ensure_ascii=False), id)


def never() -> ModelAnswer:
    """A model that doesn't call, whatever is asked."""
    return ModelAnswer(content=WORDS, finish="stop")


def always(case: Case) -> ModelAnswer:
    """A model that calls the first tool, whatever is asked."""
    return ModelAnswer(calls=(RawCall(case.tools[0]["function"]["name"], "{}", "call_0"),), finish="tool_calls")


def leaky(right: ModelAnswer) -> ModelAnswer:
    """The calls as unparsed text of a dialect."""
    texts = [f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments}}}</tool_call>' for call in right.calls]
    return ModelAnswer(content="\n".join(texts) or right.content, finish="stop")


def broken_json(right: ModelAnswer) -> ModelAnswer:
    calls = tuple(replace(call, arguments=call.arguments[:-1]) for call in right.calls)
    return replace(right, calls=calls)


def mutants(case: Case, step: Step) -> Iterator[tuple[str, ModelAnswer]]:
    """Each is wrong by every way of the step, if the judge is right."""
    right = answer(case, step)
    names = [tool["function"]["name"] for tool in case.tools]
    if right.calls:
        words_are_right = any(not expect.calls for expect in step.expect)
        if not words_are_right:
            yield "in words", never()
            yield "nothing", ModelAnswer(finish="stop")
        for index, wanted in enumerate(step.expect[0].calls):
            yield from _spoilt(right, index, wanted, step)
        first = right.calls[0]
        yield "once more", replace(right, calls=(*right.calls, replace(first, id="again")))
        if len(right.calls) > 1:
            yield "one missing", replace(right, calls=right.calls[1:])
        yield "unknown tool", replace(right, calls=(replace(first, name="no.such-tool"), *right.calls[1:]))
        if others := [name for name in names if name not in {call.name for call in right.calls}]:
            yield "other tool", replace(right, calls=(replace(first, name=others[0]), *right.calls[1:]))
            yield "tool too many", replace(right, calls=(*right.calls, RawCall(others[0], "{}", "extra")))
        yield "broken arguments", broken_json(right)
        yield "arguments in a list", replace(right, calls=(replace(first, arguments="[]"), *right.calls[1:]))
        yield "leaked", leaky(right)
        yield "leaked beside", replace(right, content=leaky(right).content)
    else:
        yield "nothing", ModelAnswer(finish="stop")
        yield "needless call", always(case)
        yield "leaked", ModelAnswer(content=f"{names[0]}()", finish="stop")
        if step.expect[0].says is not None:
            yield "other words", ModelAnswer(content="zzzz", finish="stop")
    yield "cut", replace(right, finish="length")
    yield "bad form", replace(right, faults=("a call has no id",))


def _spoilt(right: ModelAnswer, index: int, wanted: Wanted, step: Step) -> Iterator[tuple[str, ModelAnswer]]:
    """One argument of one call is wrong."""
    call = right.calls[index]
    given: Json = json.loads(call.arguments)

    def spoilt(changed: Json) -> ModelAnswer:
        other = replace(call, arguments=json.dumps(changed, ensure_ascii=False))
        return replace(right, calls=(*right.calls[:index], other, *right.calls[index + 1 :]))

    yield f"{wanted.name}: surplus", spoilt({**given, "surplus_argument": 1})
    for name, rule in wanted.args.items():
        if name in given:
            yield f"{wanted.name}.{name}: missing", spoilt({key: given[key] for key in given if key != name})
            yield f"{wanted.name}.{name}: wrapped", spoilt({**given, name: {"value": given[name]}})
            if isinstance(given[name], int | float) and not isinstance(given[name], bool):
                yield f"{wanted.name}.{name}: as text", spoilt({**given, name: str(given[name])})
        for value in rule.wrong():
            if not _right_elsewhere(right, index, wanted, {**given, name: value}, step):
                yield f"{wanted.name}.{name} = {value!r}", spoilt({**given, name: value})


def _right_elsewhere(right: ModelAnswer, index: int, wanted: Wanted, changed: dict[str, Any], step: Step) -> bool:
    """Whether the spoilt arguments happen to be those of another way's call."""
    for expect in step.expect[1:]:
        for other in expect.calls:
            if other.name == wanted.name and all(
                rule.accepts(changed.get(name), True) for name, rule in other.args.items() if name in changed
            ):
                return True
    return False
