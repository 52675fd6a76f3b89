"""The single-turn Python categories of the Berkeley Function Calling Leaderboard, v4, read out of its pinned wheel.

The wheel is fetched into the cache with pip, checked by its hash, and read as a zip archive: never installed, nothing
of it is run, and none of its cases is part of this repository. Licence of the data: Apache-2.0.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.features.evaluation.model_test import bfcl_rules
from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.cases import (
    HERE,
    BadSuite,
    Case,
    Expect,
    Json,
    Step,
    Suite,
    Wanted,
    choose,
    digest,
)
from gateway.features.evaluation.model_test.judge import Verdict, formal_fault, schema_fault, well_formed

VERSION = "2026.3.23"
WHEEL = f"bfcl_eval-{VERSION}-py3-none-any.whl"
SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"

CATEGORIES = {
    "simple_python": 400,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "irrelevance": 240,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "live_irrelevance": 884,
    "live_relevance": 16,
}
"""Cases in the wheel; its own README has other numbers."""

MINI = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("irrelevance", "live_simple", "live_multiple", "live_irrelevance"),
)
MINI_EACH = 50
QUARANTINE = HERE / "bfcl_quarantine.json"

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_PYTHON_HINT = " Note that the provided function is in Python 3 syntax."
_FLOAT_HINT = " This is a float type value."


def fetch(cache: Path) -> Path:
    """The wheel in the cache, downloaded if need be. Raises BadSuite."""
    place = cache / WHEEL
    if fetched(cache):
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        options = ["download", "--no-deps", "--only-binary", ":all:", "--dest", folder, f"bfcl-eval=={VERSION}"]
        done = subprocess.run([*pip(), *options], capture_output=True, text=True, timeout=300, check=False)
        file = Path(folder) / WHEEL
        if done.returncode or not file.is_file():
            raise BadSuite(f"pip couldn't fetch bfcl-eval {VERSION}: {done.stderr.strip()[-500:]}")
        _check(file)
        shutil.move(file, place)
    return place


def fetched(cache: Path) -> bool:
    return (cache / WHEEL).is_file()


def pip() -> list[str]:
    """An environment that uv made has no pip of its own."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise BadSuite("there is neither pip nor uv: python -m ensurepip")


def _check(file: Path) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        raise BadSuite(f"{file.name} has the hash {found}, not {SHA256}")


def suite(name: str, cache: Path, *, compat: bool = False, quarantined: bool = False) -> Suite:
    """`bfcl` or `bfcl-mini`, without the cases that have no right answer. Raises BadSuite."""
    if not fetched(cache):
        raise BadSuite(f"{name} isn't here yet: ctxgate model-test fetch bfcl")
    file = cache / WHEEL
    _check(file)
    out = set() if quarantined else quarantine()
    cases: list[Case] = []
    with zipfile.ZipFile(file) as wheel:
        for category in MINI if name == "bfcl-mini" else CATEGORIES:
            found = [case for case in _category(wheel, category, compat) if case.id not in out]
            cases += choose(found, MINI_EACH) if name == "bfcl-mini" else found
    gated = MINI if name == "bfcl-mini" else tuple(name for name, count in CATEGORIES.items() if count >= 30)
    return Suite(name, 1, tuple(cases), gated)


def quarantine() -> set[str]:
    """No answer passes the official rule, or none that does is valid by the tool's own schema."""
    kinds: dict[str, list[str]] = json.loads(QUARANTINE.read_text("utf-8"))
    return {id for ids in kinds.values() for id in ids}


def _category(wheel: zipfile.ZipFile, category: str, compat: bool) -> Iterator[Case]:
    questions = _lines(wheel, f"bfcl_eval/data/BFCL_v4_{category}.json")
    if len(questions) != CATEGORIES[category]:
        raise BadSuite(f"{category} has {len(questions)} cases, not {CATEGORIES[category]}")
    truths: dict[str, Any] = {}
    if "relevance" not in category:
        answers = _lines(wheel, f"bfcl_eval/data/possible_answer/BFCL_v4_{category}.json")
        truths = {row["id"]: row["ground_truth"] for row in answers}
    for row in questions:
        yield _case(row, category, truths.get(row["id"]), compat)


def _lines(wheel: zipfile.ZipFile, member: str) -> list[Json]:
    return [json.loads(line) for line in wheel.read(member).decode().split("\n") if line.strip()]


def _case(row: Json, category: str, truth: Any, compat: bool) -> Case:
    functions = row["function"]
    if truth is not None:
        wanted = tuple(Wanted(name, {}) for call in truth for name in call)
    elif category == "live_relevance":
        wanted = (Wanted(functions[0]["name"], {}),)
    else:
        wanted = ()
    tools = tuple(tool(function, compat) for function in functions)
    (turn,) = row["question"]
    facts = {"tools": tools, "messages": turn, "truth": truth, "category": category}
    return Case(
        id=row["id"],
        category=category,
        tools=tools,
        messages=tuple(turn),
        steps=(Step(expect=(Expect(wanted),)),),
        checker="bfcl",
        bfcl={"functions": functions, "truth": truth, "category": category},
        hash=digest(facts),
    )


def tool(function: Json, compat: bool) -> Json:
    """BFCL's description of a function as OpenAI's. `compat` adds the hints that the leaderboard's requests carry."""
    description = function["description"] + (_PYTHON_HINT if compat else "")
    made = {"name": function["name"], "description": description, "parameters": schema(function["parameters"], compat)}
    return {"type": "function", "function": made}


def schema(written: Json, compat: bool = False) -> Json:
    """BFCL's types to JSON Schema's; `optional`, a key that nobody defines, is left out."""
    made = copy.deepcopy(written)
    made.pop("optional", None)
    kind = made.get("type")
    if isinstance(kind, str):
        made["type"] = _TYPES.get(kind, kind)
        if kind == "float" and compat:
            made["format"] = "float"
            made["description"] = made.get("description", "") + _FLOAT_HINT
    if isinstance(made.get("properties"), dict):
        made["properties"] = {key: schema(value, compat) for key, value in made["properties"].items()}
    elif made.get("type") == "object":
        made["properties"] = {}
    if isinstance(made.get("items"), dict):
        made["items"] = schema(made["items"], compat)
    return made


def judge(case: Case, answer: ModelAnswer) -> Verdict:
    """`folded` is the official score; `kind` is by the strict one, which requires strings to be equal."""
    names = [function["name"] for function in case.bfcl["functions"]]
    fault = formal_fault(answer, names)
    calls: list[tuple[str, Json]] = []
    try:
        calls = [(call.name, call.parsed()) for call in answer.calls]
        readable = all(isinstance(arguments, dict) for _, arguments in calls)
    except ValueError:
        readable = False
    strict = fault or (_fault(case, calls, False) if readable else None)
    loose = None if readable and _fault(case, calls, True) is None else ("", "")
    wanted = sorted(name for call in case.bfcl["truth"] or () for name in call)
    given = sorted(name for name, _ in calls)
    valid = all(schema_fault(_parameters(case, name), arguments) is None for name, arguments in calls if name in names)
    kind, detail = strict or (None, "")
    return Verdict(
        kind=kind,
        detail=detail,
        folded=loose is None,
        decided=bool(answer.calls) == case.must_call,
        well_formed=well_formed(answer, names),
        names_right=strict is None or wanted == given,
        count_right=strict is None or len(wanted) == len(given),
        schema_valid=valid if calls else None,
    )


def _parameters(case: Case, name: str) -> Json:
    found = next(tool["function"] for tool in case.tools if tool["function"]["name"] == name)
    return dict(found["parameters"])


def _fault(case: Case, calls: list[tuple[str, Json]], fold: bool) -> tuple[str, str] | None:
    truth, category = case.bfcl["truth"], case.bfcl["category"]
    if category == "live_relevance":
        return None if calls else ("no_call", "any call would do")
    if truth is None:
        return ("unneeded_call", calls[0][0]) if calls else None
    if not calls:
        return "no_call", f"wanted {', '.join(name for call in truth for name in call)}"
    functions = case.bfcl["functions"]
    if "parallel" in category:
        return bfcl_rules.parallel(calls, truth, functions, fold)
    if len(calls) != 1:
        return "wrong_count", f"{len(calls)} calls instead of 1"
    return bfcl_rules.one(calls[0], truth[0], functions, fold)


def oracle(case: Case) -> ModelAnswer:
    """A right answer: for each parameter, the first option that passes."""
    truth = case.bfcl["truth"]
    if truth is None:
        if case.must_call:
            name = case.bfcl["functions"][0]["name"]
            return ModelAnswer(calls=(RawCall(name, "{}", "call_0"),), finish="tool_calls")
        return ModelAnswer(content="None of the tools fits.", finish="stop")
    calls = []
    for index, wanted in enumerate(truth):
        ((name, options),) = wanted.items()
        calls.append(RawCall(name, json.dumps(_arguments(case, name, options)), f"call_{index}"))
    return ModelAnswer(calls=tuple(calls), finish="tool_calls")


def _arguments(case: Case, name: str, options: Json) -> Json:
    function = next(function for function in case.bfcl["functions"] if function["name"] == name)
    required = function["parameters"]["required"]
    made: Json = {}
    for parameter, accepted in options.items():
        if bfcl_rules.OMITTED in accepted and parameter not in required:
            continue
        tried = [literal(option) for option in accepted]
        check = functools.partial(value_passes, function, name, parameter, accepted)
        made[parameter] = next((value for value in tried if check(value)), tried[0])
    return made


def value_passes(function: Json, name: str, parameter: str, accepted: list[Any], value: Any) -> bool:
    properties = {parameter: function["parameters"]["properties"][parameter]}
    alone = {"name": name, "parameters": {"properties": properties, "required": []}}
    return bfcl_rules.one((name, {parameter: value}), {name: {parameter: accepted}}, [alone], False) is None


def literal(option: Any) -> Any:
    """An option as a value: in a dict, and in a list's dicts, each member is a list of options again."""
    if isinstance(option, dict):
        return {
            key: next(value for value in values if value != bfcl_rules.OMITTED)
            for key, values in option.items()
            if any(value != bfcl_rules.OMITTED for value in values) and bfcl_rules.OMITTED not in values
        }
    if isinstance(option, list):
        return [literal(item) if isinstance(item, dict) else item for item in option]
    return option


def mutants(case: Case) -> list[tuple[str, ModelAnswer]]:
    """Answers that the official rule must refuse, each wrong in one way."""
    right = oracle(case)
    if not right.calls:
        names = [function["name"] for function in case.bfcl["functions"]]
        called = ModelAnswer(calls=(RawCall(names[0], "{}", "call_0"),), finish="tool_calls") if names else None
        return [("needless call", called)] if called else []
    if case.bfcl["truth"] is None:
        return [("in words", ModelAnswer(content="No.", finish="stop"))]
    first = right.calls[0]
    arguments: Json = first.parsed()
    found = [
        ("in words", ModelAnswer(content="No.", finish="stop")),
        ("once more", replace(right, calls=(*right.calls, replace(first, id="again")))),
        ("other name", replace(right, calls=(replace(first, name=first.name + "_x"), *right.calls[1:]))),
    ]

    def spoilt(changed: Json) -> ModelAnswer:
        return replace(right, calls=(replace(first, arguments=json.dumps(changed)), *right.calls[1:]))

    found.append(("surplus", spoilt({**arguments, "surplus_argument": 1})))
    for name, value in arguments.items():
        found.append((f"{name} missing", spoilt({key: arguments[key] for key in arguments if key != name})))
        found.append((f"{name} other", spoilt({**arguments, name: _other(value)})))
        if isinstance(value, int | float):
            found.append((f"{name} as text", spoilt({**arguments, name: f"{value} qqq"})))
        if _whole_only(case, first.name, name):
            found.append((f"{name} with a point", spoilt({**arguments, name: float(value)})))
    return found


def _whole_only(case: Case, function: str, parameter: str) -> bool:
    found = next(item for item in case.bfcl["functions"] if item["name"] == function)
    return bool(found["parameters"]["properties"][parameter]["type"] == "integer")


def _other(value: Any) -> Any:
    match value:
        case bool():
            return "qqq"
        case int() | float():
            return value + 98765
        case str():
            return value + "qqq"
        case list():
            return [*value, "qqq"]
        case dict():
            return {**value, "qqq": 1}
    return "qqq"
