"""Every check of a JSON Schema is bounded: a small one runs here, what may take long runs in the worker."""

from __future__ import annotations

import json
import os
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.errors import ProviderRateLimit
from gateway.schema import effort, pool
from gateway.schema.checker import Schema, compiled
from gateway.schema.checker import pool as own_pool
from gateway.schema.fault import Fault, InvalidSchema, Unchecked

from .strategies import json_values

Json = dict[str, Any]

# Each level refers to the next one twice: the work doubles with each.
DOUBLING: Json = {
    "$defs": {
        **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(28)},
        "d28": {"type": "string"},
    },
    "$ref": "#/$defs/d0",
}
LONG: dict[str, tuple[Json, Any]] = {
    "references that double": (DOUBLING, 1),
    "unique items": ({"uniqueItems": True}, [{"n": n} for n in range(20_000)]),
}


@pytest.mark.parametrize("name", LONG)
def test_a_check_that_would_take_long_is_given_up(name: str) -> None:
    schema, value = LONG[name]
    made = Schema(json.dumps(schema))
    begun = process_time()
    with pytest.raises(Unchecked, match=r"longer than 0\.5 s"):
        made.fault(value)
    assert process_time() - begun < 0.5  # of ours: the worker worked
    assert compiled('{"type": "string"}').fault(1) is not None


def test_a_schema_that_takes_long_to_compile_is_given_up() -> None:
    properties = {f"p{n}": {"type": "string", "enum": ["a", "b"], "description": "x"} for n in range(40_000)}
    with pytest.raises(Unchecked, match=r"longer than 2 s|no result within 10 s"):
        Schema(json.dumps({"properties": properties}))


def test_a_long_schema_is_checked_all_the_same() -> None:
    schema = Schema(json.dumps({"properties": {f"p{n}": {"type": "string"} for n in range(1000)}}))
    assert schema.fault({"p0": "a"}) is None
    assert schema.fault({"p999": 1}) == Fault(["p999"], "1 is not of type 'string'")
    with pytest.raises(InvalidSchema, match="not valid"):
        Schema(json.dumps({"type": "text", "description": "x" * 20_000}))


@pytest.mark.parametrize("target", ["required", "x", "properties/a/$ref"])
def test_a_reference_to_what_is_no_schema(target: str) -> None:
    schema = {"properties": {"a": {"$ref": f"#/{target}"}}, "required": ["a"], "x": 5}
    try:
        made = Schema(json.dumps(schema))
    except InvalidSchema:
        return
    with pytest.raises(Unchecked):
        made.fault({"a": 1})


def test_a_queue_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr("gateway.schema.checker.pool", pool.Pool(0))  # none is ever free
    with pytest.raises(ProviderRateLimit, match="too many"):
        Schema('{"uniqueItems": true}').fault([])


@pytest.mark.usefixtures("many_files")
def test_other_open_files_do_not_matter() -> None:
    """More of them than `select` knows."""
    one = pool.Pool(1)
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert one.compile('{"type": "string", "pattern": "a+"}').fault("b") is not None
    finally:
        for other in others:
            os.close(other)
        one.close()


@pytest.mark.parametrize(
    ("schema", "steps"),
    [
        pytest.param(True, 1, id="true"),
        pytest.param({"title": "x", "description": "y" * 1000}, 1, id="annotations"),
        pytest.param({"type": "object", "required": ["a", "b"]}, 5, id="entries"),
        pytest.param({"properties": {"a": {"type": "string"}, "b": {}}}, 5, id="properties"),
        pytest.param({"items": {"type": "string"}}, 4, id="items"),
        pytest.param({"oneOf": [{}, {}]}, 6, id="branches that are looked at twice"),
        pytest.param({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}, 4, id="a reference"),
        pytest.param({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, None, id="a circle"),
        pytest.param({"items": {"$ref": "#"}}, None, id="the root"),
        pytest.param({"pattern": "a"}, None, id="a pattern"),
        pytest.param({"uniqueItems": True}, None, id="unique items"),
        pytest.param({"madeUp": True}, None, id="an unknown keyword"),
    ],
)
def test_steps(schema: Any, steps: int | None) -> None:
    assert effort.steps(schema) == steps


def nodes(value: Any) -> int:
    """A long text counts as several."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(nodes, inner))


@given(json_values, st.integers(1, 50))
def test_size_stops_beyond_the_most(value: Any, maximum: int) -> None:
    assert effort.size(value, maximum) == (nodes(value) if nodes(value) <= maximum else maximum + 1)


@given(json_values)
def test_here_and_in_the_worker_the_verdict_is_the_same(value: Any) -> None:
    text = json.dumps({"anyOf": [{"type": "object", "required": ["a"]}, {"type": "array", "maxItems": 1}]})
    conforms = Draft202012Validator(json.loads(text)).is_valid(value)
    assert (compiled(text).fault(value) is None) is conforms
    assert (own_pool.fault(text, value) is None) is conforms
