"""Requests that wait: who goes first, who is refused, who waits how long."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies

from gateway.backends import Backend
from gateway.config import Model
from gateway.errors import ProviderModelNotLoaded, ProviderRateLimit
from gateway.line import OVERTAKEN_SECONDS, SOON_SECONDS, Line, Waiter, in_order
from gateway.wire.chat import rank_of
from tests.patience import PATIENCE

BACKEND = Backend(Model(name="m", runtime="echo"), None)
FLEX = rank_of("flex")
SECONDS = strategies.floats(0, 3 * OVERTAKEN_SECONDS)


def add(
    queue: Line[Backend], key: str, rank: int = rank_of(None), *, begun: bool = False, waited: float = 0.0
) -> Waiter[Backend]:
    return queue.add(Waiter(key, rank, waited, begun=begun))


async def test_a_full_queue_refuses_but_for_answers_that_have_begun() -> None:
    queue = Line[Backend]()
    for key in "ab":
        queue.check_room("m", 2, 3.0)
        add(queue, key)
    with pytest.raises(ProviderRateLimit, match="'m': 2 requests are already waiting") as full:
        queue.check_room("m", 2, 3.0)
    assert (full.value.code, full.value.retry_after) == ("queue_full", 3.0)
    add(queue, "d", FLEX, begun=True)
    assert [waiter.key for waiter in queue] == ["d", "a", "b"]
    assert (len(queue), queue.begun) == (3, 1)


async def test_places_are_counted_from_1() -> None:
    queue = Line[Backend]()
    add(queue, "a")
    add(queue, "b")
    assert [queue.position(key) for key in ("a", "b", "c")] == [1, 2, None]


async def test_what_an_answer_waited_before_counts() -> None:
    queue = Line[Backend]()
    add(queue, "new")
    assert queue.waited("new") < PATIENCE
    add(queue, "put aside", FLEX, begun=True, waited=1000.0)
    assert 1000 <= queue.waited("put aside") < 1000 + PATIENCE
    assert queue.waited("nobody") == 0
    assert queue.since == min(waiter.since for waiter in queue)


async def test_who_is_most_urgent() -> None:
    queue = Line[Backend]()
    assert queue.urgency is None
    add(queue, "flex", FLEX)
    first = add(queue, "first", rank_of("priority"))
    add(queue, "second", rank_of("priority"))
    assert queue.urgency == (rank_of("priority"), first.since)
    assert queue.tiers == {"priority": 2, "default": 0, "flex": 1}


@pytest.mark.parametrize(
    ("places", "served"),
    [(0, "ad"), (2, "ad"), (3, "adb"), (9, "adbc")],
)
async def test_flex_requests_get_the_places_that_others_leave(places: int, served: str) -> None:
    queue = Line[Backend]()
    add(queue, "a")
    add(queue, "b", FLEX)
    add(queue, "c", FLEX)
    add(queue, "d", FLEX).aged = True
    found = queue.serve(BACKEND, places, all_but_flex=True)
    assert [waiter.key for waiter in found] == [*served]
    assert all(waiter.served and waiter.granted.result() is BACKEND for waiter in found)
    assert {str(waiter.key) for waiter in queue} == {*"abcd"} - {*served}
    assert not any(waiter.served for waiter in queue)


async def test_those_that_wait_are_turned_away_and_no_other_is() -> None:
    queue = Line[Backend]()
    left, waits = add(queue, "left"), add(queue, "waits")
    left.granted.cancel()
    queue.turn_away(ProviderModelNotLoaded("no weights"))
    assert (len(queue), left.served, waits.served) == (0, False, False)
    with pytest.raises(ProviderModelNotLoaded, match="no weights"):
        await queue.wait(waits, PATIENCE)


async def test_a_request_that_waited_too_long_leaves_the_queue() -> None:
    queue = Line[Backend]()
    waiter = add(queue, "a")
    add(queue, "b")
    with pytest.raises(TimeoutError):
        await queue.wait(waiter, 0)
    assert [waiter.key for waiter in queue] == ["b"]


async def test_one_that_is_served_goes_on() -> None:
    queue = Line[Backend]()
    waiter = add(queue, "a")
    waiting = asyncio.create_task(queue.wait(waiter, PATIENCE))
    queue.serve(BACKEND, 1)
    assert await waiting is BACKEND


@pytest.mark.parametrize(
    ("waiting", "now", "next"),
    [
        ([(0.0, 0.0), (0.0, 1.0)], 2.0, 0),
        ([(60.0, 0.0), (SOON_SECONDS, 1.0)], 2.0, 1),
        ([(60.0, 0.0), (SOON_SECONDS, 1.0)], OVERTAKEN_SECONDS, 0),
        ([(60.0, 1.0), (50.0, 0.0)], 2.0, 1),
        ([(60.0, 0.0), (0.1, 2.0), (0.1, 1.0)], 3.0, 2),
    ],
    ids=["in order", "short first", "overtaken for long enough", "the longer ones in order", "the short ones in order"],
)
async def test_who_is_next(waiting: list[tuple[float, float]], now: float, next: int) -> None:
    """waiting: seconds that the engine will read for each, and when it came."""
    waiters: list[Waiter[None]] = [Waiter(reads=reads) for reads, _ in waiting]
    for waiter, (_, came) in zip(waiters, waiting, strict=True):
        waiter.since = came
    assert in_order(waiters, now)[0] is waiters[next]


async def test_places_that_were_given_are_counted_until_those_who_got_them_go_on() -> None:
    line: Line[None] = Line()
    gone, stays = (line.add(Waiter(key)) for key in "ab")
    waiting = [asyncio.create_task(line.wait(each, PATIENCE)) for each in (gone, stays)]
    await asyncio.sleep(0)
    line.serve(None, 2)
    assert (len(line), line.going) == (0, 2)
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert (line.going, gone.served, waiting[0].cancelled()) == (0, True, True)


async def test_nobody_overtakes_for_long() -> None:
    """Whoever comes later never goes before one that has waited for OVERTAKEN_SECONDS, whatever both will read."""

    @given(strategies.lists(strategies.tuples(SECONDS, SECONDS), min_size=1))
    def check(waiting: list[tuple[float, float]]) -> None:
        waiters: list[Waiter[None]] = [Waiter(reads=reads) for reads, _ in waiting]
        for waiter, (_, came) in zip(waiters, waiting, strict=True):
            waiter.since = came
        now = max(came for _, came in waiting)
        order = in_order(waiters, now)
        assert sorted(map(id, order)) == sorted(map(id, waiters))
        for at, first in enumerate(order):
            for after in order[at + 1 :]:
                assert after.since >= first.since or now - after.since < OVERTAKEN_SECONDS

    check()
