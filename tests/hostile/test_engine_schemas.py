"""Schemas of which the engine itself makes a grammar: none keeps it from its other requests, or ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway, Upstream, configuration, started, warm
from tests.hostile.schemas import deep, doubling, generated, wide

Json = dict[str, Any]

GENERATED = int(os.environ.get("CTXGATE_HOSTILE_SCHEMAS", "25"))


def required(schema: Json) -> Json:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def matching(pattern: str) -> Json:
    return required({"type": "string", "pattern": pattern})


def branching(levels: int) -> Json:
    """As `doubling`, with branches of which no two are alike."""
    found: Json = {
        f"{name}{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/b{n + 1}"}]}
        for n in range(levels)
        for name in "ab"
    }
    found |= {f"{name}{levels}": {"const": name} for name in "ab"}
    return {"$defs": found, **required({"$ref": "#/$defs/a0"})}


BEGINS = "could begin in more than 5000 ways"
OPTIONAL = "more than 1000 properties that aren't required"
PATTERN = "more than 100000 ways through 8 characters"
ENGINE = "the engine"
"""The engine itself refuses it, and goes on."""

SCHEMAS: dict[str, tuple[Json, str | None]] = {
    "references that double in allOf": (doubling(40), BEGINS),
    "references that double in anyOf": (doubling(40, "anyOf"), BEGINS),
    "references that double in oneOf": (doubling(40, "oneOf"), BEGINS),
    "branches that double": (branching(40), BEGINS),
    "a few branches that double": (branching(10), None),
    "5,000 properties": (wide(5_000), OPTIONAL),
    "300 properties": (wide(300), None),
    "100 levels": (deep(100), None),
    "400 levels": (deep(400), None),
    "an enum of 40,000": (required({"enum": [f"value {n}" for n in range(40_000)]}), BEGINS),
    "an enum of 1,000": (required({"enum": [f"value {n}" for n in range(1_000)]}), None),
    "a minLength of 10^6": (required({"type": "string", "minLength": 10**6}), ENGINE),
    "minItems of 10^6": (required({"type": "array", "minItems": 10**6, "items": deep(3)}), ENGINE),
    "a pattern of optional parts": (matching("^" + "(a|b|c|d|e)?" * 500 + "$"), PATTERN),
    "a pattern of optional branches": (matching("^(a?|b?|c?){30}$"), PATTERN),
    "a pattern that repeats what repeats": (matching("^(a{0,900}b{0,900}){0,900}$"), PATTERN),
    "a pattern of parentheses": (matching("^" + "(" * 20_000 + "a" + ")" * 20_000 + "$"), "nested too deeply"),
    "a pattern that backtracks elsewhere": (matching("^(a+)+$"), None),
    "a pattern for an address": (matching(r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$"), None),
    "a circle": (required({"$ref": "#/properties/a"}), ENGINE),
    "no schema": (required({"type": 5}), "not a valid JSON Schema"),
}


@pytest.fixture(scope="module")
def tiny(gateway: Gateway) -> Gateway:
    if "tiny" not in [model["id"] for model in gateway.ask("GET", "/v1/models").json["data"]]:
        pytest.skip("xllamacpp is not installed")
    assert gateway.chat(model="tiny").status == 200  # its engine runs
    return gateway


def by_schema(schema: Json) -> Json:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def pid(gateway: Gateway) -> int:
    models: list[Json] = gateway.ask("GET", "/-/status").json["models"]
    return next(int(model["engine"]["pid"]) for model in models if model["name"] == "tiny")


def test_schemas_for_the_engine(tiny: Gateway, unharmed: Unharmed, subtests: pytest.Subtests) -> None:
    engine = pid(tiny)
    with unharmed():
        for name, (schema, reason) in SCHEMAS.items():
            with subtests.test(name):
                answer = tiny.chat(model="tiny", max_tokens=8, **by_schema(schema))
                assert answer.status == (200 if reason is None else 400), answer
                if reason is not None:
                    assert reason in answer.json["error"]["message"]
                assert tiny.chat(model="tiny", max_tokens=1).status == 200, "somebody else's"
    assert pid(tiny) == engine


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_for_the_engine(choice: str, tiny: Gateway, unharmed: Unharmed) -> None:
    """llama.cpp makes a grammar of tools, too, even if it only renders a prompt."""
    engine = pid(tiny)
    with unharmed():
        for name, (schema, reason) in SCHEMAS.items():
            if reason in (BEGINS, OPTIONAL, PATTERN):
                tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
                answer = tiny.chat(model="tiny", tools=[tool], tool_choice=choice)
                assert answer.status == 400, name
                assert reason in answer.json["error"]["message"], name
        assert tiny.chat(model="tiny", max_tokens=1).status == 200, "somebody else's"
    assert pid(tiny) == engine


def test_generated_schemas_for_the_engine(tiny: Gateway, unharmed: Unharmed) -> None:
    engine = pid(tiny)
    found: dict[int, int] = {}
    with unharmed():
        for seed in range(GENERATED):
            answer = tiny.chat(model="tiny", max_tokens=8, **by_schema(generated(seed)))
            # 422: llama.cpp made a grammar of a part of it, and the answer breaks the rest.
            assert answer.status in (200, 400, 422), (seed, answer)
            found[answer.status] = found.get(answer.status, 0) + 1
        assert tiny.chat(model="tiny", max_tokens=1).status == 200, "somebody else's"
    assert {200, 400} <= found.keys(), found
    assert pid(tiny) == engine
    assert "Traceback" not in tiny.log()


def test_grammars_that_the_configuration_drops(
    scripted: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    """llama.cpp's own fields are for callers who are trusted."""
    pytest.importorskip("xllamacpp")
    rules = [f"{name}{n} ::= a{n + 1} | b{n + 1}" for n in range(40) for name in "ab"]
    hostile = {
        "grammar": "\n".join(["root ::= a0", *rules, 'a40 ::= "a"', 'b40 ::= "b"']),
        "json_schema": branching(40),
    }
    config = configuration(scripted, tmp_path, test_model)
    config["models"]["tiny"]["strip_params"] = [*hostile]
    with started(tmp_path, config) as gateway:
        warm(gateway)
        assert gateway.chat(model="tiny").status == 200
        with unharmed(gateway):
            for name, value in hostile.items():
                fields: Json = {"model": "tiny", "max_tokens": 4, name: value}
                assert gateway.chat(**fields).status == 200
                assert gateway.ask("POST", "/v1/completions", {"prompt": "Hi", **fields}).status == 200
