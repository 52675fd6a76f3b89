"""Engines that restore in vain, hang or refuse, as a double, since real ones don't on demand."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from hashlib import file_digest
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Prompts
from gateway.errors import ProviderUnavailable
from gateway.prompts import folder
from gateway.prompts.folder import Folder
from gateway.prompts.identity import CONTROL_TOKENS
from gateway.prompts.live import LivePrompts, unsaved
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.turn import Turn
from gateway.prompts.unsupported import UNSUPPORTED
from tests.patience import PATIENCE
from tests.prompts.conftest import names
from tests.support.prompt_double import PROMPTS, TOKENS, Double, rendering


def live(saved: SavedPrompts) -> LivePrompts:
    return LivePrompts(saved, "m", lambda: ["weights"], ["weights"])


async def turn(prompts: LivePrompts, server: Double, prompt: str, *, cached: int = 0) -> Turn:
    placed = await prompts.place(server, [prompt.encode()], rendering(prompt), private=False)
    assert placed is not None
    placed.leave()
    usage = {"prompt_tokens": TOKENS, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": cached}}
    placed.answered(usage, 0.0, 0.0)
    await prompts.settled()
    return placed


@pytest.fixture
async def saved(tmp_path: Path) -> SavedPrompts:
    return SavedPrompts(Prompts(min_tokens=64), tmp_path / "prompts")


async def test_an_engine_that_restores_in_vain_is_told_once_and_not_tried_again(
    saved: SavedPrompts, caplog: Any
) -> None:
    server = Double(saved.path)
    prompts = live(saved)
    for prompt in PROMPTS:
        await turn(prompts, server, prompt)
    await prompts.save_all(server)
    await saved.kept()
    assert (len(saved), saved.saves) == (3, 3)
    with caplog.at_level(logging.WARNING, "ctxgate"):
        prompts = live(saved)
        for prompt in PROMPTS:
            await turn(prompts, server, prompt) if len(server.restored) < 2 else None
    assert len(server.restored) == 2
    assert [record.message for record in caplog.records if "without effect" in record.message]
    assert (len(saved), names(saved.path, "*.prompt")) == (0, [])
    # Neither this gateway nor the next one tries again.
    saves = len(server.saved)
    again = SavedPrompts(saved.settings, saved.path)
    for store in (saved, again):
        prompts = live(store)
        assert await prompts.place(server, [b"x" * 4000], rendering(PROMPTS[0]), private=False) is None
        await prompts.save_all(server)
    assert len(server.saved) == saves
    assert (saved.path / UNSUPPORTED).exists()


async def test_a_file_that_an_engine_refuses_is_removed(saved: SavedPrompts) -> None:
    server, prompts = Double(saved.path), live(saved)
    await turn(prompts, server, PROMPTS[0])
    await prompts.save_all(server)
    await saved.kept()
    server.trouble = ProviderUnavailable("died")
    prompts = live(saved)
    assert await prompts.place(server, [b"x" * 4000], rendering(PROMPTS[0]), private=False) is None
    assert len(saved) == 0
    # The slot is free for the next one.
    server.trouble = None
    assert (await turn(prompts, server, PROMPTS[0])).slot == 0


async def test_requests_wait_for_a_slot_in_order(saved: SavedPrompts) -> None:
    server, prompts = Double(saved.path), live(saved)
    await turn(prompts, server, PROMPTS[0])
    first = await prompts.place(server, [b"x" * 4000], rendering(PROMPTS[0]), private=False)
    waiting = [
        asyncio.create_task(prompts.place(server, [b"x" * 4000], rendering(prompt), private=False))
        for prompt in PROMPTS[1:]
    ]
    gone = asyncio.create_task(prompts.place(server, [b"x" * 10], rendering(None), private=False))
    await asyncio.sleep(0)
    assert first is not None
    gone.cancel()
    first.leave()
    second = await waiting[0]
    assert second is not None
    assert second.slot == 0
    assert not waiting[1].done()
    second.leave()
    third = await waiting[1]
    assert third is not None
    assert third.slot == 0


async def test_control_tokens_are_read_once_for_all_engines_with_a_key(saved: SavedPrompts) -> None:
    server, reads = Double(saved.path), 0
    told = {"<|im_end|>": [44, 108], "</s>": [1, 2]}

    async def read() -> dict[str, list[int]]:
        nonlocal reads
        reads += 1
        return told

    async def again(weights: str = "some") -> int:
        """How often another gateway reads them."""
        before = reads
        prompts = LivePrompts(SavedPrompts(saved.settings, saved.path), "m", lambda: [weights], [weights])
        assert await prompts.control_tokens(server, read) == told
        return reads - before

    assert [await again(), await again(), await again("others"), await again(), await again("others")] == [
        1,
        0,
        1,
        0,
        0,
    ]
    file = saved.path.with_name(CONTROL_TOKENS)
    good = file.read_bytes()
    for at in (0, 32, good.index(b"44"), len(good) - 1):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert [await again(), await again()] == [1, 0]
        file.write_bytes(good[:at])
        assert [await again(), await again()] == [1, 0]
    # Nothing is no answer, and a file that can't be written costs no request.
    file.unlink()
    told = {}
    assert [await again(), await again()] == [1, 1]
    told = {"<s>": [1]}
    file.mkdir()
    assert [await again(), await again()] == [1, 1]


@pytest.mark.parametrize("damaged", ["never", "before the check", "after the check"])
async def test_the_prompt_that_was_used_last_is_checked_while_an_engine_loads(
    saved: SavedPrompts, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    server = Double(saved.path)
    prompts = live(saved)
    for prompt in PROMPTS:
        await turn(prompts, server, prompt)
    await prompts.save_all(server)
    await saved.kept()
    other, last = list(folder.Folder(saved.path).list().values())[:2]
    path = saved.path / (last.name + folder.PROMPT)
    os.utime(path, (last.used + 100, last.used + 100))
    if damaged == "before the check":
        path.write_bytes(b"tokem?"[: last.size])
        os.utime(path, (last.used + 100, last.used + 100))
    hashed: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def noted(file: Any, name: str) -> Any:
        hashed.append(Path(file.name).name)
        loop.call_soon_threadsafe(done.set)
        return file_digest(file, name)

    monkeypatch.setattr("gateway.prompts.folder.file_digest", noted)
    store = SavedPrompts(saved.settings, saved.path)
    await store.check_ahead("another model")
    await store.check_ahead("m")
    await done.wait()
    if damaged == "after the check":
        checks = {task for task in asyncio.all_tasks() if task.get_name() == f"check {last.name}"}
        await asyncio.gather(*checks)
        path.write_bytes(b"tokem?"[: last.size])
    assert await store.file(last) == (path.name if damaged == "never" else None)
    assert path.exists() == (damaged == "never")
    assert hashed == ([path.name] if damaged == "never" else [path.name, path.name])
    assert await store.file(other) == other.name + folder.PROMPT == hashed[-1]


async def place(prompts: LivePrompts, server: Double, prompt: str) -> Turn:
    placed = await prompts.place(server, [prompt.encode()], rendering(prompt), private=False)
    assert placed is not None
    return placed


async def test_the_engine_chooses_the_slot_where_nothing_can_be_lost(saved: SavedPrompts) -> None:
    server, prompts = Double(saved.path, slots=2), live(saved)
    short = await place(prompts, server, "Hello.")
    assert short.slot is None
    server.works = {1}
    # The next one keeps out of the slot that the engine has chosen.
    long = await place(prompts, server, PROMPTS[0])
    assert long.slot == 0
    server.works = set()
    short.leave()
    long.leave()
    usage = {"prompt_tokens": TOKENS, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    long.answered(usage, 0.0, 0.0)
    # Now there is something to lose.
    assert (await place(prompts, server, "Hello.")).slot == 1


async def test_a_slot_is_not_chosen_before_the_engine_has_chosen_one_for_the_request_before(
    saved: SavedPrompts,
) -> None:
    server, prompts = Double(saved.path, slots=2), live(saved)
    assert (await place(prompts, server, "Hello.")).slot is None
    waiting = asyncio.create_task(place(prompts, server, PROMPTS[1]))
    for _ in range(3):
        await server.looks.get()
    assert not waiting.done()
    server.works = {0}
    assert (await waiting).slot == 1


async def test_the_engine_does_not_choose_before_it_works_in_the_slot_of_the_request_before(
    saved: SavedPrompts,
) -> None:
    server, prompts = Double(saved.path, slots=2), live(saved)
    long = await place(prompts, server, PROMPTS[0])
    waiting = asyncio.create_task(place(prompts, server, "Hello."))
    for _ in range(3):
        await server.looks.get()
    assert not waiting.done()
    # The head of its answer says as much as the engine's list of slots.
    with long:
        pass
    assert (await waiting).slot is None


async def test_a_request_that_gives_up_its_wait_leaves_the_slot_to_the_next(saved: SavedPrompts) -> None:
    server, prompts = Double(saved.path, slots=2), live(saved)
    first, second = await place(prompts, server, PROMPTS[0]), await place(prompts, server, PROMPTS[1])
    waiting = [asyncio.create_task(place(prompts, server, prompt)) for prompt in ("Hello.", PROMPTS[2])]
    await asyncio.sleep(0)
    first.leave()
    await server.looks.get()
    waiting[0].cancel()
    server.works = {1}
    assert (await waiting[1]).slot == 0
    second.leave()


async def test_a_request_that_gives_up_before_it_took_the_slot_leaves_it_to_the_next(
    saved: SavedPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, prompts = Double(saved.path), live(saved)
    first = await place(prompts, server, PROMPTS[0])
    asked, written = asyncio.Event(), asyncio.Event()

    async def kept(key: str | None = None) -> None:
        asked.set()
        await written.wait()

    monkeypatch.setattr(saved, "kept", kept)
    monkeypatch.setattr("gateway.prompts.table.LINE_SECONDS", 1e6)
    waiting = [asyncio.create_task(place(prompts, server, prompt)) for prompt in PROMPTS[1:]]
    await asyncio.sleep(0)
    first.leave()
    await asked.wait()
    waiting[0].cancel()
    written.set()
    async with asyncio.timeout(PATIENCE):
        assert (await waiting[1]).slot == 0


async def test_a_slot_that_is_busy_again_holds_up_no_other_save(tmp_path: Path) -> None:
    saved = SavedPrompts(Prompts(min_tokens=64, save="each_turn"), tmp_path / "prompts")
    server, prompts = Double(saved.path, slots=2), live(saved)
    turns = [await place(prompts, server, prompt) for prompt in PROMPTS[:2]]
    async with prompts.saver.lock:  # another save is under way
        for each in turns:
            each.leave()
            usage = {"prompt_tokens": TOKENS, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
            each.answered(usage, 0.0, 0.0)
        await asyncio.sleep(0)
        again = await place(prompts, server, PROMPTS[0])
    await prompts.settled()
    assert (again.slot, server.saved) == (turns[0].slot, [turns[1].slot])


async def test_what_an_engine_wrote_late_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.prompts.folder.ABANDONED_SECONDS", -1.0)
    saved = SavedPrompts(Prompts(min_tokens=64), tmp_path / "prompts")
    server, prompts = Double(saved.path), live(saved)
    Folder(saved.path).make()
    (saved.path / saved.folder.fresh()).write_bytes(b"late")
    await turn(prompts, server, PROMPTS[0])
    await prompts.save_all(server)
    await saved.kept()
    assert len(saved) == 1
    assert names(saved.path, "new-*") == []


async def test_the_bounds_hold(tmp_path: Path) -> None:
    saved = SavedPrompts(Prompts(min_tokens=64, max_bytes=13), tmp_path / "prompts")
    server, prompts = Double(saved.path), live(saved)
    for prompt in PROMPTS:
        await turn(prompts, server, prompt)
    await prompts.save_all(server)
    await saved.kept()
    assert (len(saved), saved.size) == (2, 12)
    assert len(names(saved.path, "*.prompt")) == 2


async def test_a_server_of_somebody_else_may_be_busy_with_other_programs(tmp_path: Path) -> None:
    server, prompts = Double(tmp_path, slots=2), unsaved("m")
    told: list[tuple[int | None, bool]] = []
    for works in (set(), {0}, {0, 1}, set()):
        server.works = works
        turn = await prompts.place(server, [b"x" * 4000], rendering(PROMPTS[0]), private=False, owner="a")
        assert turn is not None
        told.append((turn.slot, turn.fresh))
        turn.leave()
        turn.answered({"prompt_tokens": TOKENS, "completion_tokens": 0}, 0.0, 1.0)
    # What the other programs leave in the slots isn't the user's.
    assert told == [(0, True), (1, True), (None, True), (0, True)]


async def test_a_folder_that_fails_leaves_each_owner_a_slot(tmp_path: Path) -> None:
    """Nothing is saved there, but what the engine holds is reused."""
    (tmp_path / "file").write_bytes(b"")
    saved = SavedPrompts(Prompts(min_tokens=64), tmp_path / "file" / "prompts")
    server, prompts = Double(tmp_path, slots=2), live(saved)
    told: list[tuple[int | None, bool]] = []
    for owner in ("b", "a", "a", "b"):
        turn = await prompts.place(server, [PROMPTS[0].encode()], rendering(PROMPTS[0]), private=False, owner=owner)
        if turn is None:
            continue  # as long as one owner is alone, the engine chooses the slot
        told.append((turn.slot, turn.fresh))
        turn.leave()
        turn.answered({"prompt_tokens": TOKENS, "completion_tokens": 0}, 0.0, 1.0)
    assert told == [(0, True), (0, False), (1, True)]


async def test_an_engine_that_failed_to_say_what_it_is_is_asked_again(saved: SavedPrompts) -> None:
    server, prompts = Double(saved.path), live(saved)
    server.silent = True
    assert not await prompts.know(server)
    server.silent = False
    assert await prompts.know(server)


async def test_prompts_that_are_too_large_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = SavedPrompts(Prompts(min_tokens=64, max_bytes=7), tmp_path / "prompts")
    server, prompts = Double(saved.path), live(saved)
    await turn(prompts, server, PROMPTS[0])
    await prompts.save_all(server)
    await saved.kept()
    key = prompts.key
    assert key is not None
    with caplog.at_level(logging.WARNING, "ctxgate"):
        assert [saved.refuses(key, tokens) for tokens in (2000, 3000, 4000)] == [True] * 3
    assert len(caplog.records) == 1


async def test_a_damaged_list_of_engines_is_read_as_far_as_it_goes(saved: SavedPrompts) -> None:
    saved.path.mkdir(parents=True)
    (saved.path / UNSUPPORTED).write_bytes(b"one\n\xff\xfe\ntwo\n")
    await saved.check_ahead("m")
    await saved.unsupported("three", "m")
    assert (saved.path / UNSUPPORTED).read_bytes() == b"one\nthree\ntwo\n"


async def test_a_request_that_is_cancelled_while_the_engine_is_identified_costs_the_next_nothing(
    saved: SavedPrompts,
) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def prints() -> list[str]:
        began.set()
        assert may_go_on.wait(PATIENCE)
        return ["weights"]

    server, prompts = Double(saved.path), LivePrompts(saved, "m", prints, ["weights"])
    first = asyncio.create_task(prompts.know(server))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    first.cancel()
    await asyncio.wait({first})
    may_go_on.set()
    assert await prompts.know(server)
    await turn(prompts, server, PROMPTS[0])
    await prompts.save_all(server)
    await saved.kept()
    assert len(saved) == 1
