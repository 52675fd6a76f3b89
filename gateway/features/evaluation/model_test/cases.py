"""Cases as data: questions, right answers, and how to read them from YAML files.

A file of a suite holds one category. Tools are named from the suite's `tools.yaml`. Messages are written short:
`{user: …}`, `{system: …}`, `{assistant: …}`, `{calls: [{name: args}]}` with `{results: [text, …]}` after it.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from gateway.features.evaluation.model_test.matchers import BadRule, Matcher, matcher

HERE = Path(__file__).parent
SUITES = HERE / "suites"

Json = dict[str, Any]
Checker = Literal["core", "bfcl"]


class BadSuite(ValueError):
    """A suite that can't be read; names the file and the case."""


@dataclass(frozen=True)
class Wanted:
    """One expected call."""

    name: str
    args: Mapping[str, Matcher]


@dataclass(frozen=True)
class Expect:
    """One way to be right: exactly these calls, in any order unless `ordered`; no calls means an answer in words."""

    calls: tuple[Wanted, ...] = ()
    ordered: bool = False
    says: Matcher | None = None
    """Rule for the text if no call is expected; None: any text that isn't empty."""


@dataclass(frozen=True)
class Step:
    """A turn of the model. Any of `expect` is right."""

    expect: tuple[Expect, ...]
    user: str | None = None
    """The user's message before it, after the first step."""
    results: tuple[str, ...] = ()
    """The tools' results, in the order of the calls of the first alternative."""


@dataclass(frozen=True)
class Case:
    id: str
    category: str
    tools: tuple[Json, ...]
    messages: tuple[Json, ...]
    steps: tuple[Step, ...]
    forbid: frozenset[str] = frozenset()
    tool_choice: Any = None
    must_pass: bool = False
    tags: tuple[str, ...] = ()
    checker: Checker = "core"
    bfcl: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""

    @property
    def must_call(self) -> bool | None:
        """Whether the first turn must call; None where either is right."""
        ways = {bool(expect.calls) for expect in self.steps[0].expect}
        return ways.pop() if len(ways) == 1 else None

    @property
    def both_ways(self) -> bool:
        return self.category == "stream-parity"


@dataclass(frozen=True)
class Suite:
    id: str
    version: int
    cases: tuple[Case, ...]
    gated: tuple[str, ...] = ()
    """Categories that are compared one by one; each has at least 30 cases."""

    @property
    def sha256(self) -> str:
        return digest({case.id: case.hash for case in self.cases})


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def choose(cases: Sequence[Case], limit: int | None, seed: int = 0) -> list[Case]:
    """`limit` cases, picked by a hash of seed and id: a smaller choice is part of every larger one."""
    if limit is None or limit >= len(cases):
        return list(cases)
    ranked = sorted(cases, key=lambda case: hashlib.sha256(f"{seed}:{case.id}".encode()).digest())
    kept = {case.id for case in ranked[:limit]}
    return [case for case in cases if case.id in kept]


def load(folder: Path) -> Suite:
    """A folder with `suite.yaml`, `tools.yaml` and a file for each category. Raises BadSuite."""
    head = _yaml(folder / "suite.yaml")
    tools = read_tools(_yaml(folder / "tools.yaml"))
    cases: list[Case] = []
    for file in sorted(folder.glob("*.yaml")):
        if file.name in ("suite.yaml", "tools.yaml"):
            continue
        data = _yaml(file)
        for written in data.get("cases", ()):
            try:
                cases.append(_case(written, data, tools))
            except (BadRule, KeyError, TypeError, ValueError) as error:
                raise BadSuite(f"{file.name}: case {written.get('id', written)}: {error!r}") from error
    ids = [case.id for case in cases]
    if doubled := {id for id in ids if ids.count(id) > 1}:
        raise BadSuite(f"{folder.name}: ids used twice: {', '.join(sorted(doubled))}")
    if unknown := set(head.get("picks", ())) - set(ids):
        raise BadSuite(f"{folder.name}: smoke picks unknown cases: {', '.join(sorted(unknown))}")
    return Suite(head["id"], head["version"], tuple(cases), tuple(head.get("gated", ())))


def picks(folder: Path) -> tuple[str, ...]:
    """The ids of the smoke suite, which is a part of core."""
    return tuple(_yaml(folder / "suite.yaml")["picks"])


def read_tools(written: Mapping[str, Any]) -> dict[str, Json]:
    """OpenAI's tool by name. `takes` maps a parameter to a type or a JSON Schema; a name that ends in ? is optional."""
    found: dict[str, Json] = {}
    for name, tool in written.items():
        takes = tool.get("takes") or {}
        properties = {key.removesuffix("?"): _schema(value) for key, value in takes.items()}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": [key for key in takes if not key.endswith("?")],
        }
        function = {"name": name, "description": tool["does"], "parameters": parameters}
        found[name] = {"type": "function", "function": function}
    return found


def _schema(written: Any) -> Json:
    """`string`, `string: what it is`, `[a, b]` for an enum, or a schema as it is."""
    if isinstance(written, list):
        return {"type": "string", "enum": written}
    if isinstance(written, str):
        kind, _, description = written.partition(", ")
        inner = kind.removesuffix("[]")
        schema: Json = {"type": inner}
        if inner != kind:
            schema = {"type": "array", "items": schema}
        if description:
            schema["description"] = description
        return schema
    return dict(written)


def _case(written: Json, file: Json, tools: Mapping[str, Json]) -> Case:
    names: list[str] | str = written.get("tools") or file["tools"]
    chosen = list(tools) if isinstance(names, str) else names
    messages = expand(written.get("messages", ()))
    if system := written.get("system", file.get("system")):
        messages.insert(0, {"role": "system", "content": system})
    if "user" in written:
        messages.append({"role": "user", "content": written["user"]})
    if pad := written.get("pad"):
        for message in messages:
            if isinstance(message["content"], str):
                message["content"] = message["content"].replace("{pad}", padding(pad, written["id"]))
    steps = tuple(_step(step) for step in written["steps"]) if "steps" in written else (_step(written),)
    if "steps" in written:
        messages.append({"role": "user", "content": steps[0].user})
    case = Case(
        id=written["id"],
        category=file["category"],
        tools=tuple(tools[name] for name in chosen),
        messages=tuple(messages),
        steps=steps,
        forbid=frozenset(written.get("forbid", ())),
        tool_choice=written.get("tool_choice", file.get("tool_choice")),
        must_pass=written.get("must_pass", False),
        tags=tuple(written.get("tags", ())),
    )
    if strange := set(written) - _KEYS:
        raise BadRule(f"unknown keys: {', '.join(sorted(strange))}")
    _check_names(case, tools)
    for step in case.steps[:-1]:
        if any(len(expect.calls) != len(step.results) for expect in step.expect):
            raise BadRule("each call of a step before the last needs a result")
    facts = {
        "tools": case.tools,
        "messages": case.messages,
        "tool_choice": case.tool_choice,
        "judged_by": {key: written[key] for key in ("calls", "expect", "says", "steps", "forbid") if key in written},
    }
    return Case(**{**vars(case), "hash": digest(facts)})


_KEYS = {
    *("id", "tools", "messages", "system", "user", "pad", "steps", "forbid", "tool_choice", "must_pass", "tags"),
    *("calls", "expect", "says", "ordered"),
}


def _check_names(case: Case, tools: Mapping[str, Json]) -> None:
    offered = {tool["function"]["name"] for tool in case.tools}
    for step in case.steps:
        for expect in step.expect:
            for call in expect.calls:
                if call.name not in offered:
                    raise BadRule(f"{call.name} is wanted and not among the tools")
                known = tools[call.name]["function"]["parameters"]["properties"]
                if strange := set(call.args) - set(known):
                    raise BadRule(f"{call.name} has no parameter {', '.join(sorted(strange))}")
    if missing := case.forbid - offered:
        raise BadRule(f"forbidden tools that aren't offered: {', '.join(sorted(missing))}")


def _step(written: Json) -> Step:
    ways = written.get("expect", [written])
    return Step(
        expect=tuple(_expect(way) for way in ways),
        user=written.get("user"),
        results=tuple(written.get("results", ())),
    )


def _expect(written: Json) -> Expect:
    calls = tuple(
        Wanted(name, {key: matcher(value) for key, value in (args or {}).items()})
        for call in written["calls"]
        for name, args in call.items()
    )
    says = written.get("says")
    return Expect(calls, written.get("ordered", False), matcher(says) if says is not None else None)


def expand(written: Iterable[Json]) -> list[Json]:
    """Short messages to OpenAI's."""
    messages: list[Json] = []
    pending: list[str] = []
    for message in written:
        ((key, value),) = message.items()
        if key == "calls":
            calls: list[Json] = []
            for call in value:
                ((name, args),) = call.items()
                id = f"call_{len(messages):02d}{len(calls)}"
                arguments = json.dumps(args or {}, ensure_ascii=False)
                calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            pending = [call["id"] for call in calls]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        elif key == "results":
            for id, text in zip(pending, value, strict=True):
                messages.append({"role": "tool", "tool_call_id": id, "content": text})
        elif key in ("user", "system", "assistant"):
            messages.append({"role": key, "content": value})
        else:
            raise BadRule(f"a message is user, system, assistant, calls or results, not {key}")
    return messages


_WORDS = (
    *("ledger", "harbour", "orchard", "window", "copper", "meadow", "signal", "timber", "parcel", "bridge"),
    *("lantern", "gravel", "station", "violet", "engine", "river", "marble", "ticket", "garden", "winter"),
)


def padding(characters: int, seed: str) -> str:
    """Meaningless notes that fill a long context, the same for each seed."""
    chance = random.Random(seed)
    lines: list[str] = []
    length = 0
    while length < characters:
        words = " ".join(chance.choice(_WORDS) for _ in range(9))
        line = f"{len(lines) + 1}. {words.capitalize()}, {chance.randrange(10, 990)} pieces."
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML whose dates and `on`, `no` are text: arguments are JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in rules if tag.rpartition(":")[2] not in ("timestamp", "bool")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))


def _yaml(file: Path) -> Json:
    try:
        data = yaml.load(file.read_text("utf-8"), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadSuite(f"{file}: {error}") from error
    if not isinstance(data, dict):
        raise BadSuite(f"{file}: not a mapping")
    return data
