"""Any order of verbs: no illegal transition, every guard holds, and the events are numbered without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.errors import InternalError, ProviderInvalidRequest
from gateway.features.agents.settings import Rooms as RoomSettings
from gateway.features.rooms.schemas import DonePolicy, History, Release, Rent, Room, Say, Update
from gateway.features.rooms.service import Rooms
from gateway.features.rooms.states import EVENTS, REFUSED, STATES, TRANSITIONS, Trigger, after, check
from gateway.services import Services
from tests.gateway.double import Double, Exchange, answers, silence
from tests.patience import PATIENCE
from tests.rooms.running import speaks

LEGAL = {
    "rented": {"active", "releasing"},
    "active": {"idle", "releasing", "failed"},
    "idle": {"active", "sleeping", "releasing"},
    "sleeping": {"active", "releasing"},
    "failed": {"active", "releasing"},
    "releasing": {"released"},
    "released": set(),
}
"""Written down once more, so that a change of the table is seen."""

KINDS = ("ok", "slow", "fail")
"""What the engine makes of a message: answers, never answers, refuses."""

CODES = {code for refused in REFUSED.values() for code in refused.values()} | {"no_turn_running", "message_queued"}


def test_the_table() -> None:
    found: dict[str, set[str]] = {state: set() for state in STATES}
    for (state, trigger), target in TRANSITIONS.items():
        found[state].add(target)
        assert trigger in EVENTS
    assert found == LEGAL
    triggers: set[Trigger] = {trigger for _, trigger in TRANSITIONS}
    for state in STATES:
        for trigger in triggers:
            if (state, trigger) not in TRANSITIONS:
                with pytest.raises(InternalError):
                    after(state, trigger)


@pytest.mark.parametrize("verb", ["message", "wake", "update", "release", "interrupt"])
def test_a_released_room_takes_no_verb(verb: Any) -> None:
    with pytest.raises(ProviderInvalidRequest) as refused:
        check(verb, "released")
    assert (refused.value.status, refused.value.code) == (409, "room_released")


async def engine(exchange: Exchange) -> None:
    kind = exchange.json["messages"][-1]["content"]
    scripts = {"ok": speaks("Fine."), "slow": silence, "fail": answers({"error": {"message": "no"}}, 500)}
    await scripts[kind](exchange)


@dataclass
class Place:
    """Rooms without HTTP on a loop of their own, which runs while something is asked of them."""

    runner: asyncio.Runner
    rooms: Rooms


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("rooms")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def begin() -> Rooms:
            double = await stack.enter_async_context(Double(engine).serve())
            address = f"http://127.0.0.1:{double.address.port}"
            model = Model(name="m", runtime="openai", base_url=address)
            settings = RoomSettings(turn_retries=0)  # a scripted failure is meant
            gateway = Gateway(
                Config(
                    source=Path("x"),
                    active_model="m",
                    models={"m": model},
                    state_dir=folder,
                    sections={"rooms": settings},
                )
            )
            await stack.enter_async_context(gateway)
            services = Services(gateway)
            stack.push_async_callback(services.aclose)
            rooms = services.shared(Rooms)
            stack.push_async_callback(rooms.aclose)
            return rooms

        yield Place(runner, runner.run(begin()))
        runner.run(stack.aclose())


def checked(history: History) -> None:
    """What holds for every history."""
    assert [event.seq for event in history.events] == list(range(1, len(history.events) + 1))
    assert [message.seq for message in history.messages] == list(range(1, len(history.messages) + 1))
    status = "rented"
    running: str | None = None
    for event in history.events:
        if event.event_type in EVENTS.values():
            target = event.event_type.removeprefix("room:")
            assert target in LEGAL[status], f"{status} → {target}"
            status = target
        elif event.event_type in ("agent:turn_start", "agent:turn_resumed"):
            assert running is None, "two turns at once"
            running = event.message_id
        elif event.event_type == "agent:turn_end":
            assert running == event.message_id
            running = None
    assert status == history.room.status
    starts = [event.message_id for event in history.events if event.event_type == "agent:turn_start"]
    assert len(set(starts)) == len(starts), "a message had two turns"


@dataclass
class Expected:
    """A room as the design says it behaves, when nothing but slow turns is under way."""

    status: str = "rented"
    running: bool = False
    queued: str | None = None
    sleeps: bool = False
    messages: list[str] = field(default_factory=list)

    def refusal(self, verb: str) -> str | None:
        if verb == "interrupt":
            return None if self.running else "room_released" if self.status == "released" else "no_turn_running"
        if self.status == "released":
            return "room_released"
        if self.status == "releasing" and verb not in ("graceful", "immediate"):
            return "room_releasing"
        if verb in KINDS:
            if self.status == "failed":
                return "room_failed"
            if self.queued is not None:
                return "message_queued"
        return None

    def does(self, verb: str) -> None:
        match verb:
            case "ok" | "slow" | "fail":
                self.queued = verb
                if not self.running:
                    self._next()
            case "wake" | "give up":
                if self.status == "failed" and verb == "wake":
                    pass  # the failed message fails again
                elif self.status in ("rented", "sleeping", "failed"):
                    self.status = "active"
                    self._next(woken=True)
            case "interrupt":
                self.running = False
                self._next()
            case "graceful" | "immediate":
                self.status = "releasing"
                if not self.running:
                    self._next()
            case "sleep":
                self.sleeps = True
            case "stay":
                self.sleeps = False

    def _next(self, *, woken: bool = False) -> None:
        if self.status == "releasing":
            self.status, self.queued = "released", None
            return
        kind, self.queued = self.queued, None
        if kind is None:
            self.status = "sleeping" if self.sleeps and not woken else "idle"
        elif kind == "slow":
            self.status, self.running = "active", True
        elif kind == "fail":
            self.status = "failed"
        else:
            self._next()


async def do(rooms: Rooms, room: str, verb: str) -> None:
    match verb:
        case "ok" | "slow" | "fail":
            await rooms.say("t", "u", room, Say(content=verb))
        case "wake":
            await rooms.wake("t", room)
        case "give up":
            await rooms.wake("t", room, retry=False)
        case "interrupt":
            await rooms.interrupt("t", room, None)
        case "graceful" | "immediate":
            await rooms.release("t", room, Release(mode=verb))
        case _:
            policy = DonePolicy(after_turn="sleep" if verb == "sleep" else "idle")
            await rooms.update("t", room, Update(done_policy=policy))


async def stands(rooms: Rooms, room: str, expected: Expected) -> None:
    """Returns once the room is as expected."""

    def as_expected(shown: Room) -> bool:
        now = (shown.status, shown.running_message_id is not None, shown.queued_message_id is not None)
        return now == (expected.status, expected.running, expected.queued is not None)

    feed = rooms.live(room).feed
    async with asyncio.timeout(PATIENCE):
        while True:
            news = feed.news
            if as_expected(await rooms.get("t", room)):
                return
            await news.wait()


async def one_after_another(rooms: Rooms, verbs: list[str]) -> None:
    room = (await rooms.rent("t", "u", Rent())).id
    expected = Expected()
    for verb in [*verbs, "graceful", "interrupt"]:
        refusal = expected.refusal(verb)
        if refusal is None:
            await do(rooms, room, verb)
            expected.does(verb)
        else:
            with pytest.raises(ProviderInvalidRequest) as refused:
                await do(rooms, room, verb)
            assert (refused.value.status, refused.value.code) == (409, refusal), verb
        held = rooms.live(room)  # what is in memory stays as long as somebody looks
        await stands(rooms, room, expected)
        del held
    checked(await rooms.history("t", room, 0, 0, 10_000))
    assert expected.status == "released"


async def all_at_once(rooms: Rooms, verbs: list[str]) -> None:
    room = (await rooms.rent("t", "u", Rent())).id
    held = rooms.live(room)
    results = await asyncio.gather(*(do(rooms, room, verb) for verb in verbs), return_exceptions=True)
    for result in results:
        if result is not None:
            assert isinstance(result, ProviderInvalidRequest), result
            assert result.code in CODES
    last = await asyncio.gather(*(do(rooms, room, verb) for verb in ("graceful", "interrupt")), return_exceptions=True)
    assert all(result is None or getattr(result, "code", None) in CODES for result in last)
    async with asyncio.timeout(PATIENCE):
        while (await rooms.get("t", room)).status != "released":
            news = held.feed.news
            if (await rooms.get("t", room)).status != "released":
                await news.wait()
    history = await rooms.history("t", room, 0, 0, 10_000)
    checked(history)
    assert {message.status for message in history.messages} <= {"done", "failed", "interrupted", "cancelled"}


VERBS = st.lists(
    st.sampled_from([*KINDS, "wake", "give up", "interrupt", "graceful", "immediate", "sleep", "stay"]), max_size=12
)
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@FEW
@given(verbs=VERBS)
def test_verbs_one_after_another(place: Place, verbs: list[str]) -> None:
    place.runner.run(one_after_another(place.rooms, verbs))


@FEW
@given(verbs=VERBS)
def test_verbs_all_at_once(place: Place, verbs: list[str]) -> None:
    place.runner.run(all_at_once(place.rooms, verbs))


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(FEW, max_examples=500)
@given(verbs=VERBS, at_once=st.booleans())
def test_many_orders_of_verbs(place: Place, verbs: list[str], at_once: bool) -> None:
    place.runner.run((all_at_once if at_once else one_after_another)(place.rooms, verbs))
