"""A prefix that several requests share is read once: who reads it, who waits, and who starts from where."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gateway.backends import messages
from gateway.features.operations.live import in_flight
from gateway.prompts.blocks import Chain, chain
from gateway.prompts.index import DAY, PINNED_SECONDS, Match, best, excess, superseded
from gateway.prompts.live import LivePrompts
from gateway.prompts.prefixes import Costs, PrefixPlan, plan
from gateway.prompts.protocols import PromptReading, SlotServer
from gateway.prompts.saver import STOP_SECONDS
from gateway.prompts.slots import MANY, Slot
from gateway.prompts.speed import ReadingSpeed
from tests.prompts.chains import A, B, C, saved
from tests.prompts.conftest import LONG, Open, Said, Shop, talk

SLOW = Costs(read=1.0, copy=0.01)
PREFIX = chain(A)
KNOWN = saved("prefix", A)


def slot(text: str, *, busy: int = 0, owner: str | None = None) -> Slot:
    return Slot(0, chain(text, owner or ""), len(text) // 4, unsaved=1, busy=busy, owner=owner)


PLANS: list[tuple[str, list[Slot], Match | None, set[bytes], Costs, str]] = [
    # what, slots, the best file, what is going on, seconds for a block, the step
    ("nobody has it", [slot(""), slot(B)], None, set(), SLOW, "read"),
    ("another request reads it", [slot("")], None, {PREFIX[-1]}, SLOW, "wait"),
    ("another prefix is read", [slot("")], None, {chain(B)[-1]}, SLOW, "read"),
    ("a file has it", [slot("")], Match(KNOWN, len(PREFIX)), set(), SLOW, "ready"),
    ("a file has it, and it is saved again", [slot(A)], Match(KNOWN, len(PREFIX)), {PREFIX[-1]}, SLOW, "wait"),
    ("a file has a part of it", [slot("")], Match(KNOWN, len(PREFIX) - 1), set(), SLOW, "read"),
    ("an idle slot has it, and more", [slot(""), slot(A + C)], None, set(), SLOW, "save"),
    ("the slot that has it is busy", [slot(A, busy=1)], None, set(), SLOW, "read"),
    ("a slot has a part of it", [slot(A[:1000])], None, set(), SLOW, "read"),
    ("it is read quickly", [slot("")], None, set(), Costs(read=0.9 / len(PREFIX), copy=0.0), "none"),
    ("it is copied as slowly as it is read", [slot(A)], None, set(), Costs(read=1.0, copy=0.5), "none"),
    ("the engine says nothing of its slots", [], None, set(), SLOW, "none"),
]


@pytest.mark.parametrize(
    ("slots", "match", "going", "costs", "step"), [each[1:] for each in PLANS], ids=[each[0] for each in PLANS]
)
def test_the_plan(slots: list[Slot], match: Match | None, going: set[bytes], costs: Costs, step: str) -> None:
    holding = slots[-1] if step == "save" else None
    assert plan(PREFIX, slots, match, going, costs) == PrefixPlan(step, holding)  # type: ignore[arg-type]


def test_a_slot_of_another_owner_is_not_saved_for_this_one() -> None:
    slots = [slot(A, owner="a"), slot(A, owner=MANY)]
    assert plan(chain(A, "b"), slots, None, (), SLOW, "b") == PrefixPlan("read")
    assert plan(chain(A, "a"), slots, None, (), SLOW, "a") == PrefixPlan("save", slots[0])


def test_the_shortest_conversation_is_saved_for_its_prefix() -> None:
    slots = [slot(A + B + C), slot(A + C), slot(A + B)]
    assert plan(PREFIX, slots, None, (), SLOW).slot is slots[1]


def test_a_prefix_outlives_its_conversations() -> None:
    prefix = saved("prefix", A, prefix=True)
    assert superseded([prefix, saved("turn", A)], saved("later", A + B)) == [saved("turn", A)]
    now = 100 * DAY
    used = saved("used", A, prefix=True, used=now - PINNED_SECONDS / 2, size=50)
    left = saved("left", B, prefix=True, used=now - 2 * PINNED_SECONDS, size=50)
    turn = saved("turn", C, used=now, size=50)
    entries = {each.name: each for each in (used, left, turn)}
    assert [each.name for each in excess(entries, max_bytes=50, max_age_days=7, now=now)] == ["left", "turn"]
    assert [each.name for each in excess(entries, max_bytes=0, max_age_days=7, now=now)] == ["left", "turn", "used"]
    found = best([saved("conversation", A + B), used], "k", chain(A + C))
    assert found is not None
    assert found.saved is used


def test_one_slow_restore_proves_little() -> None:
    speed = ReadingSpeed()
    before = speed.copying
    speed.copied(100, 10.0)
    assert speed.copying == 2 * before
    speed.copied(1000, 0.01)
    assert speed.copying == pytest.approx(2e-5)


# On the real engine


@dataclass
class Watched:
    """What the gateway has an engine do of itself. hold: what the engine reads by itself waits for it."""

    read: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    hold: asyncio.Event = field(default_factory=asyncio.Event)


def watched(gateway: Shop, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Watches the engine of model a, which reads slowly, as far as its prompts know."""
    seen = Watched()
    prompts = gateway.engine().launcher.prompts
    assert prompts is not None
    monkeypatch.setattr(prompts.speed, "saw", lambda *_: None)
    monkeypatch.setattr(prompts.speed, "read", lambda _: None)
    prompts.speed.measured = 0.05
    server = server_of(gateway, prompts)
    reads, restores = server.read, server.restore

    async def read(slot: int, prompt: str, *, reuse: bool) -> PromptReading:
        seen.begun.set()
        await seen.hold.wait()
        found = await reads(slot, prompt, reuse=reuse)
        seen.read.append(found.read)
        return found

    async def restore(slot: int, file: str) -> int:
        seen.restored.append(slot)
        return await restores(slot, file)

    monkeypatch.setattr(server, "read", read)
    monkeypatch.setattr(server, "restore", restore)
    return seen


def server_of(gateway: Shop, prompts: LivePrompts) -> SlotServer:
    backend = gateway.engine().current_backend
    assert backend is not None
    kept = backend.kept_prompts()
    assert kept is not None
    assert kept[0] is prompts
    return kept[1]


QUESTIONS = [f"What does item {number} cost?" for number in range(8)]


async def one_by_one(shop: Open) -> list[Said]:
    async with shop(save="off", parallel=4) as gateway:
        return [await gateway.ask(messages=talk(question)) for question in QUESTIONS]


@pytest.fixture
async def warm_up(shop: Open) -> AsyncIterator[Shop]:
    async with shop(parallel=4) as gateway:
        await gateway.ask(messages=talk("Hello", system="Short."))
        yield gateway


@pytest.mark.parametrize("count", [4, 8])
async def test_agents_that_start_together_wait_for_one_reading(
    shop: Open, warm_up: Shop, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    seen = watched(warm_up, monkeypatch)
    asked = [asyncio.create_task(warm_up.ask(messages=talk(question))) for question in QUESTIONS[:count]]
    await seen.begun.wait()
    seen.hold.set()
    said = await asyncio.gather(*asked)
    assert len(seen.read) == 1
    assert all(each.cached >= seen.read[0] - 1 for each in said)
    assert [each.words for each in said] == [each.words for each in (await one_by_one(shop))[:count]]
    # The next ones find the file.
    again = await asyncio.gather(*(warm_up.ask(messages=talk(question)) for question in QUESTIONS))
    assert len(seen.read) == 1
    assert all(each.cached >= seen.read[0] - 1 for each in again)


async def test_agents_start_from_the_slot_of_a_conversation(
    shop: Open, warm_up: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read before anybody knew that the engine is slow."""
    before = await warm_up.ask(messages=talk(QUESTIONS[0]))
    seen = watched(warm_up, monkeypatch)
    said = await asyncio.gather(*(warm_up.ask(messages=talk(question)) for question in QUESTIONS[1:5]))
    assert seen.read == []
    assert seen.restored
    shared = min(each.cached for each in said)
    assert before.prompt - shared < 40
    assert [each.words for each in said] == [each.words for each in (await one_by_one(shop))[1:5]]


async def test_who_waits_goes_on_when_the_reader_has_gone(warm_up: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(warm_up, monkeypatch)
    asked = [asyncio.create_task(warm_up.ask(messages=talk(question))) for question in QUESTIONS[:2]]
    await seen.begun.wait()
    told = [each["progress"] for each in in_flight(warm_up.gateway) if each["state"] == "waits"]
    assert re.fullmatch(r"queued for=prefix reads=\d{3} left=\d+", told[0])
    asked[0].cancel()
    seen.hold.set()
    said = await asked[1]
    assert len(seen.read) == 1
    assert said.cached >= seen.read[0] - 1


async def test_a_prefix_that_nobody_waits_for_is_given_up(warm_up: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(warm_up, monkeypatch)
    asked = asyncio.create_task(warm_up.ask(messages=talk(QUESTIONS[0])))
    await seen.begun.wait()
    asked.cancel()
    await asyncio.wait({asked})
    await warm_up.settled()
    assert seen.read == []
    seen.hold.set()
    assert (await warm_up.ask(messages=talk(QUESTIONS[1]))).cached > 0
    assert len(seen.read) == 1


async def test_an_engine_that_ends_does_not_wait_for_a_prefix(warm_up: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(warm_up, monkeypatch)
    asked = asyncio.create_task(warm_up.ask(messages=talk(QUESTIONS[0])))
    await seen.begun.wait()
    async with asyncio.timeout(STOP_SECONDS / 2):
        await warm_up.engine().stop()
    asked.cancel()
    await asyncio.wait({asked})
    assert seen.read == []


async def test_an_engine_that_reads_fast_reads_it_with_the_rest(warm_up: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(warm_up, monkeypatch)
    prompts = warm_up.engine().launcher.prompts
    assert prompts is not None
    prompts.speed.measured = 0.0001
    await warm_up.ask(messages=talk(QUESTIONS[0], system=LONG))
    assert seen.read == []


@pytest.mark.parametrize(
    ("asked", "start"),
    [
        ([("system", "S"), ("developer", "D"), ("user", "U")], [("system", "S"), ("developer", "D"), ("user", ".")]),
        ([("user", "U"), ("system", "S")], [("user", ".")]),
        ([], [("user", ".")]),
    ],
)
def test_what_two_conversations_share(asked: list[tuple[str, str]], start: list[tuple[str, str]]) -> None:
    raw, expected = ([{"role": role, "content": content} for role, content in each] for each in (asked, start))
    found = messages.start(json.dumps(raw).encode())
    assert found is not None
    assert json.loads(bytes(found)) == expected
    assert messages.start(b"{}") is None


def test_chains_are_as_the_table_needs_them() -> None:
    whole: Chain = chain(A + C)
    assert whole[: len(PREFIX)] == PREFIX
