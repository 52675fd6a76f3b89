"""How fit the gateway is, by a clock of the test's own."""

from __future__ import annotations

import threading

from gateway.observe.shares import Workers
from gateway.observe.vitals import LATE_SECONDS, WINDOW_SECONDS, Lag, Vitals
from tests.patience import PATIENCE


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lag_is_the_longest_delay_of_late() -> None:
    clock = Clock()
    lag = Lag(0.1, clock)
    assert lag.longest() == 0
    for step in (0.1, 0.1, 2.1, 0.1):
        lag.tick()
        clock.now += step
    lag.tick()
    assert round(lag.longest(), 6) == 2
    clock.now += 3.1
    assert round(lag.longest(), 6) == 3, "the delay that lasts, too"
    clock.now -= 3
    for _ in range(int(2 * WINDOW_SECONDS / 0.1) + 10):
        lag.tick()
        clock.now += 0.1
    assert lag.longest() < 0.001, "and that of long ago is forgotten"


def test_work_that_waits_for_a_thread_is_seen() -> None:
    clock = Clock()
    hold, begun = threading.Event(), threading.Event()
    vitals = Vitals()
    with Workers(1, now=clock) as workers:
        vitals.workers = workers

        def hang() -> None:
            begun.set()
            hold.wait(PATIENCE)

        try:
            workers.submit(hang)
            assert begun.wait(PATIENCE)
            clock.now += 60
            assert workers.waiting() == 0, "it runs; nobody waits"
            waits = workers.submit(int)
            clock.now += LATE_SECONDS / 2
            assert vitals.problems() == []
            clock.now += LATE_SECONDS
            assert workers.waiting() == 1.5 * LATE_SECONDS
            assert ["worker threads" in problem for problem in vitals.problems()] == [True]
        finally:
            hold.set()
        assert waits.result(PATIENCE) == 0
        assert workers.waiting() == 0
