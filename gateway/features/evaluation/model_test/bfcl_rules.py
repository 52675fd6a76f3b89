"""The rules of BFCL's checker for Python's single-turn categories, reimplemented from its behaviour. Pure.

`fold` compares strings as BFCL does. Without it the same rules hold, but strings must be equal: the strict score.
Types are Python's, and checked one level deep: the elements of a list are, the values of a dict aren't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.features.evaluation.model_test.matchers import folded

TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}

OMITTED = ""
"""Among a parameter's options: the parameter is optional."""

Fault = tuple[str, str]
Options = Sequence[Any]


def parallel(
    calls: Sequence[tuple[str, Any]], truth: Sequence[Mapping[str, Any]], functions: Sequence[Any], fold: bool
) -> Fault | None:
    """Each answer takes the first free call that matches it: greedy, like BFCL's."""
    if len(calls) != len(truth):
        return "wrong_count", f"{len(calls)} calls instead of {len(truth)}"
    free = list(calls)
    for wanted in truth:
        faults: list[Fault] = []
        for index, call in enumerate(free):
            fault = one(call, wanted, functions, fold)
            if fault is None:
                del free[index]  # by its place: 5 and 5.0 are equal
                break
            faults.append(fault)
        else:
            return next((fault for fault in faults if fault[0] != "wrong_tool"), faults[0])
    return None


def one(call: tuple[str, Any], wanted: Mapping[str, Any], functions: Sequence[Any], fold: bool) -> Fault | None:
    """One call against one answer, `{name: {parameter: options}}`."""
    ((expected, options),) = wanted.items()
    function = next(function for function in functions if function["name"] == expected)
    name, given = call
    if name != expected:
        return "wrong_tool", f"{name} instead of {expected}"
    known = function["parameters"]["properties"]
    if missing := [parameter for parameter in function["parameters"]["required"] if parameter not in given]:
        return "missing_arg", f"{name}.{missing[0]}"
    for parameter, value in given.items():
        if parameter not in known or parameter not in options:
            return "extra_arg", f"{name}.{parameter} = {value!r}"
        if kind := _argument(value, options[parameter], known[parameter], fold):
            return kind, f"{name}.{parameter} = {value!r}, of {options[parameter]!r}"
    for parameter, accepted in options.items():
        if parameter not in given and OMITTED not in accepted:
            return "missing_arg", f"{name}.{parameter}"
    return None


def _argument(value: Any, options: Options, schema: Mapping[str, Any], fold: bool) -> str | None:
    declared = schema["type"]
    expected = TYPES[declared]
    inner = TYPES[schema["items"]["type"]] if declared in ("array", "tuple") else None
    if declared == "float" and type(value) is int:
        value = float(value)
    variable = _variable(value, options, expected, inner)
    if variable is None:
        return "wrong_type"
    if variable:
        fits = value in options
    elif expected is dict:
        fits = any(_dict(value, option, fold) for option in options if option != OMITTED)
    elif expected is list and inner is dict:
        fits = any(_dicts(value, option, fold) for option in options)
    elif expected is list:
        fits = _plain(value, fold) in [_plain(option, fold) for option in options]
    elif expected is str:
        fits = _plain(value, fold) in [_plain(option, fold) for option in options if isinstance(option, str)]
    else:
        fits = value in options
    return None if fits else "wrong_value"


def _variable(value: Any, options: Options, expected: type, inner: type | None) -> bool | None:
    """None: the wrong type. True: an answer that has not the declared type, say the name of a variable, was meant."""
    meant = next((type(option) for option in options if option != OMITTED), None)
    other = meant is not None and meant is not expected
    if type(value) is expected and (inner is None or _elements(value, options, inner)):
        return other
    return True if meant is not None and type(value) is meant else None


def _elements(values: Any, options: Options, inner: type) -> bool:
    """Whether the elements have their type, by one of the options at least. One that is no list asks for nothing."""
    return any(
        not isinstance(option, list) or all(_variable(value, option, inner, None) is not None for value in values)
        for option in options
    )


def _plain(value: Any, fold: bool) -> Any:
    """For comparison: text, and the texts of a list, folded."""
    if isinstance(value, str):
        return folded(value) if fold else value
    if isinstance(value, list):
        return [folded(item) if fold and isinstance(item, str) else item for item in value]
    return value


def _dict(value: Any, option: Any, fold: bool) -> bool:
    if not isinstance(value, dict) or not isinstance(option, dict):
        return False
    for key, inner in value.items():
        wanted = [folded(item) if fold and isinstance(item, str) else item for item in option.get(key, ())]
        if key not in option or (folded(inner) if fold and isinstance(inner, str) else inner) not in wanted:
            return False
    return all(key in value or OMITTED in accepted for key, accepted in option.items())


def _dicts(values: Sequence[Any], option: Any, fold: bool) -> bool:
    return (
        isinstance(option, list)
        and len(values) == len(option)
        and all(_dict(value, wanted, fold) for value, wanted in zip(values, option, strict=True))
    )
