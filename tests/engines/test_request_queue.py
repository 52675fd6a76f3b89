"""The queue of requests before one engine: who goes first, who is refused, who waits how long."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends import Backend
from gateway.config import Model
from gateway.engines.request_queue import RequestQueue, Ticket
from gateway.errors import ProviderModelNotLoaded, ProviderRateLimit
from gateway.wire.chat import rank_of
from tests.patience import PATIENCE

BACKEND = Backend(Model(name="m", runtime="echo"), None)
FLEX = rank_of("flex")


def add(
    queue: RequestQueue, key: str, rank: int = rank_of(None), *, begun: bool = False, waited: float = 0.0
) -> Ticket:
    return queue.add(key, "m", 9, 2.0, rank, waited, begun=begun)


async def test_a_full_queue_refuses_but_for_answers_that_have_begun() -> None:
    queue = RequestQueue()
    for key in "ab":
        queue.add(key, "m", 2, 3.0)
    with pytest.raises(ProviderRateLimit, match="'m': 2 requests are already waiting") as full:
        queue.add("c", "m", 2, 3.0)
    assert (full.value.code, full.value.retry_after) == ("queue_full", 3.0)
    queue.add("d", "m", 2, 3.0, FLEX, begun=True)
    assert [ticket.key for ticket in queue] == ["d", "a", "b"]
    assert (len(queue), queue.begun) == (3, 1)


async def test_places_are_counted_from_1() -> None:
    queue = RequestQueue()
    add(queue, "a")
    add(queue, "b")
    assert [queue.place(key) for key in ("a", "b", "c")] == [1, 2, None]


async def test_what_an_answer_waited_before_counts() -> None:
    queue = RequestQueue()
    add(queue, "new")
    assert queue.waited("new") < PATIENCE
    add(queue, "put aside", FLEX, begun=True, waited=1000.0)
    assert 1000 <= queue.waited("put aside") < 1000 + PATIENCE
    assert queue.waited("nobody") == 0
    assert queue.since == min(ticket.since for ticket in queue)


async def test_who_is_most_urgent() -> None:
    queue = RequestQueue()
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
    queue = RequestQueue()
    add(queue, "a")
    add(queue, "b", FLEX)
    add(queue, "c", FLEX)
    add(queue, "d", FLEX).aged = True
    found = queue.serve(BACKEND, places)
    assert [ticket.key for ticket in found] == [*served]
    assert all(ticket.served and ticket.granted.result() is BACKEND for ticket in found)
    assert {str(ticket.key) for ticket in queue} == {*"abcd"} - {*served}
    assert not any(ticket.served for ticket in queue)


async def test_those_that_wait_are_turned_away_and_no_other_is() -> None:
    queue = RequestQueue()
    left, waits = add(queue, "left"), add(queue, "waits")
    left.granted.cancel()
    queue.turn_away(ProviderModelNotLoaded("no weights"))
    assert (len(queue), left.served, waits.served) == (0, False, False)
    with pytest.raises(ProviderModelNotLoaded, match="no weights"):
        await queue.wait(waits, PATIENCE)


async def test_a_request_that_waited_too_long_leaves_the_queue() -> None:
    queue = RequestQueue()
    ticket = add(queue, "a")
    add(queue, "b")
    with pytest.raises(TimeoutError):
        await queue.wait(ticket, 0)
    assert [ticket.key for ticket in queue] == ["b"]


async def test_one_that_is_served_goes_on() -> None:
    queue = RequestQueue()
    ticket = add(queue, "a")
    waiting = asyncio.create_task(queue.wait(ticket, PATIENCE))
    queue.serve(BACKEND, 1)
    assert await waiting is BACKEND
