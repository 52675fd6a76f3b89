"""Schemas whose patterns would run for ever are given up; the others are checked as ever."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from time import monotonic, sleep
from typing import Any

import pytest

from gateway.engines.pidfile import start_time
from gateway.errors import ProviderInvalidRequest
from gateway.schema.objects import ObjectSchema
from tests.patience import PATIENCE

EVIL = "(a+)+$"
LONG = "a" * 40 + "!"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"

SLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pattern": ({"properties": {"a": {"pattern": EVIL}}}, {"a": LONG}),
    "patternProperties": ({"patternProperties": {EVIL: True}, "additionalProperties": False}, {LONG: 1}),
    "unevaluatedProperties": (
        {"anyOf": [{"$ref": "#/x/y"}], "x": {"y": {"patternProperties": {EVIL: True}}}, "unevaluatedProperties": False},
        {LONG: 1},
    ),
    "a schema within, of another draft": ({"properties": {"a": {"$schema": DRAFT_7, "pattern": EVIL}}}, {"a": LONG}),
}

# fmt: off
FAST: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "it matches": ({"properties": {"a": {"pattern": "^b+$"}}}, {"a": "bbb"}, None),
    "it doesn't": ({"properties": {"a": {"pattern": "^b+$"}}}, {"a": "c"}, "/a: 'c' does not match '^b+$'"),
    "a name that matches": ({"patternProperties": {"^x-": {"type": "string"}}}, {"x-y": 1}, "/x-y: 1 is not of"),
    "the same in time": ({"properties": {"a": {"pattern": EVIL}}}, {"a": "aaaa"}, None),
    "something else is wrong": ({"properties": {"a": {"pattern": "b"}}, "required": ["c"]}, {}, "the value: 'c' is a"),
    "an escaped keyword": ({"properties": {"p\u0061ttern": {"type": "string"}}}, {"pattern": 1}, "/pattern: 1"),
    "a text that UTF-8 can't say": ({"properties": {"a": {"pattern": "b"}}}, {"a": "\ud800"}, "/a: "),
}
# fmt: on

UNREADABLE = {"none": "(", "too large": "a{99999999999}"}


def schema(**keywords: Any) -> ObjectSchema:
    return ObjectSchema({"type": "object", **keywords}, "schema")


@pytest.mark.parametrize("name", SLOW)
def test_a_pattern_that_would_run_for_ever(name: str) -> None:
    keywords, value = SLOW[name]
    with pytest.raises(ProviderInvalidRequest, match=r"can't be checked: it takes longer than 0\.5 s"):
        schema(**keywords).violation(value)
    # The next one is none the worse for it.
    assert schema(properties={"a": {"pattern": "b"}}).violation({"a": "b"}) is None


@pytest.mark.parametrize("name", FAST)
def test_patterns_are_held_to(name: str) -> None:
    keywords, value, fault = FAST[name]
    found = schema(**keywords).violation(value)
    assert found is None if fault is None else found is not None and found.startswith(fault)


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_pattern_that_can_t_be_read(name: str) -> None:
    """Where a schema is expected it is refused before; a reference may make one of anything."""
    pattern = {"pattern": UNREADABLE[name]}
    with pytest.raises(ProviderInvalidRequest, match="is not a valid JSON Schema"):
        schema(properties={"a": pattern})
    found = schema(properties={"a": {"$ref": "#/x/y"}}, x={"y": pattern})
    with pytest.raises(ProviderInvalidRequest, match="can't be checked: its pattern"):
        found.violation({"a": "a"})


async def test_checks_of_many_threads_take_turns() -> None:
    found = schema(properties={"a": {"pattern": "^[0-9]+$"}})
    values = [str(number) if number % 2 else f"x{number}" for number in range(40)]
    faults = await asyncio.gather(*(asyncio.to_thread(found.violation, {"a": value}) for value in values))
    assert [fault is None for fault in faults] == [value.isdigit() for value in values]


ALONE = f"""
import os, sys, threading
from gateway.schema.checker import pool
from gateway.schema.objects import ObjectSchema

found = ObjectSchema({{"type": "object", "properties": {{"a": {{"pattern": "{EVIL}"}}}}}}, "schema")
found.violation({{"a": "a"}})
print(pool._processes[0].popen.pid, flush=True)
sys.stdin.read()
"""


def gone(pid: int) -> bool:
    deadline = monotonic() + PATIENCE
    while start_time(pid) is not None:
        if monotonic() >= deadline:
            return False
        sleep(0.01)
    return True


def test_the_process_ends_with_its_owner_s_death() -> None:
    owner = subprocess.Popen([sys.executable, "-c", ALONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        os.kill(pid, 0)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=PATIENCE)
    assert gone(pid)
