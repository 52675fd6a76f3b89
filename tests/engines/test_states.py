"""Laws of the state machine: of its table, and of real engines under random orders of events."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from gateway.config import Engines, Model, Residence
from gateway.engines import Engine, Residency, memory
from gateway.engines.machine import this_machine
from gateway.engines.recipe import Machine
from gateway.engines.states import RESIDENT, TABLE, Event, ImpossibleTransition, State, after
from gateway.errors import GatewayError
from tests.conftest import ROOT
from tests.engines.conftest import WINDOW, gone
from tests.patience import PATIENCE

STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[Event, ...] = get_args(Event)


# The table


@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_what_holds_memory_gives_it_back_before_it_starts_again(events: list[Event]) -> None:
    """Between two starts, the first one's process ends, whatever happens."""
    state: State = "stopped"
    holds = False
    for event in events:
        try:
            following = after(state, event)
        except ImpossibleTransition:
            continue
        if event == "admit":
            assert not holds
            holds = True
        if event in ("gone", "broke"):
            holds = False
        assert holds == (following in RESIDENT)
        state = following


def test_every_state_is_reached_and_left() -> None:
    assert {state for state, _ in TABLE} == set(STATES) == set(TABLE.values())
    assert {event for _, event in TABLE} == set(EVENTS)


def test_from_every_state_a_way_leads_to_ready_and_one_to_stopped() -> None:
    reached: dict[State, set[State]] = {state: {state} for state in STATES}
    for _ in STATES:
        for (before, _), behind in TABLE.items():
            reached[before] |= reached[behind]
    assert all({"ready", "stopped"} <= reached[state] for state in STATES)


# Real engines

BUDGET = 130 * memory.MB
NAMES = ("a", "b", "c")
"""Two of them fit."""


def machine() -> Machine:
    return replace(this_machine(), which=lambda name: None)


class Engines_(RuleBasedStateMachine):
    """Three engines of which two fit: requests, starts, ends, crashes and departures in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.residency = Residency(Engines(memory_budget=BUDGET, drain_timeout_seconds=PATIENCE))
        self.engines = {name: self.engine(name) for name in NAMES}
        self.waiting: dict[str, list[asyncio.Task[Any]]] = {name: [] for name in NAMES}
        self.joined = dict.fromkeys(NAMES, 0)
        self.pids: set[int] = set()

    def engine(self, name: str) -> Engine:
        model = Model(
            name=name,
            runtime="llama.cpp",
            path=ROOT / "_models/test/ctxgate-test-tools.gguf",
            context_window=WINDOW,
            residence=Residence(memory=60 * memory.MB),
        )
        engine = Engine(model, residency=self.residency, machine=machine)
        engine.on_change(self.changed)
        return engine

    def changed(self, engine: Engine) -> None:
        held = sum(each.held.ram for each in self.engines.values())
        assert held <= BUDGET
        assert (engine.state in RESIDENT) == (engine in self.residency.residents)

    def run(self, action: Callable[[], Awaitable[Any]]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE):
                return await action()

        return self.runner.run(bounded())

    @rule(name=st.sampled_from(NAMES))
    def request(self, name: str) -> None:
        async def ask() -> None:
            self.waiting[name].append(asyncio.create_task(self.engines[name].requests.join()))
            await asyncio.sleep(0)

        self.run(ask)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.3]))
    def time_passes(self, seconds: float) -> None:
        self.run(lambda: asyncio.sleep(seconds))

    @rule(name=st.sampled_from(NAMES))
    def request_is_answered_to_its_end(self, name: str) -> None:
        """Only on a ready engine: on another, it would wait for memory that this test holds."""

        async def end() -> None:
            if self.engines[name].state == "ready" and self.joined[name]:
                self.engines[name].requests.leave()
                self.joined[name] -= 1
                await asyncio.sleep(0)

        self.run(end)

    @rule(name=st.sampled_from(NAMES))
    def request_gives_up(self, name: str) -> None:
        async def give_up() -> None:
            if self.waiting[name]:
                task = self.waiting[name].pop()
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled() and task.exception() is None:
                    self.joined[name] += 1

        self.run(give_up)

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        pid = self.engines[name].pid
        if pid is not None:
            with suppress(ProcessLookupError):  # it had crashed already, and nobody has looked since
                os.kill(pid, signal.SIGKILL)

    @rule(name=st.sampled_from(NAMES))
    def stop(self, name: str) -> None:
        async def stop() -> None:
            await self.engines[name].stop()
            assert self.engines[name].state in ("stopped", "starting")

        self.run(stop)

    @rule(name=st.sampled_from(NAMES))
    def drain(self, name: str) -> None:
        async def drain() -> None:
            self.engines[name].drain()
            await asyncio.sleep(0)

        self.run(drain)

    @invariant()
    def laws_hold(self) -> None:
        async def settle() -> None:
            await asyncio.sleep(0)

        self.run(settle)
        for name, engine in self.engines.items():
            done = [task for task in self.waiting[name] if task.done()]
            self.waiting[name] = [task for task in self.waiting[name] if not task.done()]
            for task in done:
                error = task.exception()
                assert error is None or isinstance(error, GatewayError)
                self.joined[name] += error is None
            assert engine.in_flight == self.joined[name]
            assert (engine.requests.backend is not None) <= (engine.state == "ready")
            if engine.pid is not None:
                self.pids.add(engine.pid)
                assert engine.state in RESIDENT or engine.state == "failed"
            assert (engine.state == "failed") == (engine.failure is not None) or engine.state == "starting"

    def teardown(self) -> None:
        """All requests end, and nothing is left."""

        async def end() -> None:
            while any(self.waiting.values()) or any(self.joined.values()):
                for name, engine in self.engines.items():
                    for task in [task for task in self.waiting[name] if task.done()]:
                        self.waiting[name].remove(task)
                        self.joined[name] += task.exception() is None
                    for _ in range(self.joined[name]):
                        engine.requests.leave()
                    self.joined[name] = 0
                await asyncio.sleep(0.01)
            await asyncio.gather(*(engine.stop() for engine in self.engines.values()))
            assert {engine.state for engine in self.engines.values()} == {"stopped"}
            assert not any(engine.in_flight or engine.requests.queue for engine in self.engines.values())
            assert not self.residency.residents
            assert not self.residency.claims
            self.residency.close()

        try:
            self.run(end)
            assert all(gone(pid) for pid in self.pids)
        finally:
            self.runner.close()


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("examples", "steps"), [(6, 15), pytest.param(150, 40, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_orders(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Engines_,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=(Phase.generate,),  # time is part of the order: a smaller one would be another one
            suppress_health_check=list(HealthCheck),
        ),
    )
