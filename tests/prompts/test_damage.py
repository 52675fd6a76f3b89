"""Whatever happens to the files: no wrong answer, no failed request, no lost engine."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.prompts.folder import PROMPT, Damaged, Folder
from gateway.prompts.index import Saved
from tests.prompts.conftest import LEAST_CACHED, Open, Shop, names, talk

TRIES = int(os.environ.get("CTXGATE_TEST_PROMPT_TRIES", "6"))
"""Each restarts an engine; 1,000 take about 15 minutes."""


def cut(files: list[Path], rolls: random.Random) -> None:
    path = rolls.choice(files)
    os.truncate(path, rolls.choice([0, 1, 24, path.stat().st_size - 1, rolls.randrange(path.stat().st_size)]))


def flip(files: list[Path], rolls: random.Random) -> None:
    path = rolls.choice(files)
    data = bytearray(path.read_bytes())
    for _ in range(rolls.choice([1, 8, 4096])):
        data[rolls.randrange(len(data))] ^= 1 << rolls.randrange(8)
    path.write_bytes(data)


def swap(files: list[Path], rolls: random.Random) -> None:
    one, other = rolls.sample(files, 2)
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)


def lose(files: list[Path], rolls: random.Random) -> None:
    rolls.choice(files).unlink()


def fill(files: list[Path], rolls: random.Random) -> None:
    path = rolls.choice(files)
    path.write_bytes(rolls.randbytes(path.stat().st_size))


def grow(files: list[Path], rolls: random.Random) -> None:
    path = rolls.choice(files)
    path.write_bytes(path.read_bytes() + rolls.randbytes(rolls.randrange(1, 5000)))


DAMAGES: tuple[Callable[[list[Path], random.Random], None], ...] = (cut, flip, swap, lose, fill, grow)
TALKS = (talk("What is item 3?"), talk("What is item 4?", system="Another shop. " + "Open all day. " * 60))


async def test_damaged_files(shop: Open, files: Path, tmp_path: Path) -> None:
    rolls = random.Random(17)
    async with shop() as gateway:
        warm = [await said(gateway, messages) for messages in TALKS]
    shutil.copytree(files, tmp_path / "good")
    cold = 0
    for number in range(TRIES):
        shutil.rmtree(files)
        shutil.copytree(tmp_path / "good", files)
        damage = DAMAGES[number % len(DAMAGES)]
        damage([files / name for name in names(files)], rolls)
        async with shop() as gateway:
            for messages, words in zip(TALKS, warm, strict=True):
                again = await gateway.ask(messages=messages)
                assert again.words in words, (number, damage.__name__)
                cold += again.share < LEAST_CACHED
            assert gateway.engine().crashes == 0, (number, damage.__name__)
    assert cold >= TRIES / 2, "the damage was not noticed"


async def said(gateway: Shop, messages: list[dict[str, str]]) -> set[str]:
    """What the model says cold and warm; at temperature 0 both are right."""
    return {(await gateway.ask(messages=messages)).words for _ in range(2)}


async def test_kills_while_it_saves(shop: Open, files: Path) -> None:
    """The engine dies at some moment of a save: what was saved before stays good."""
    rolls = random.Random(23)
    async with shop(save="each_turn") as gateway:
        words = await said(gateway, TALKS[0])
        for number in range(TRIES):
            await gateway.settled()
            pid = gateway.engine().pid
            assert pid is not None
            more = talk("What is item 3?", "It costs 8.", f"And item {number}? " + "Please. " * rolls.randrange(90))
            await gateway.ask(messages=more)
            # Saving takes 1 to 5 ms here.
            await asyncio.sleep(rolls.uniform(0, 0.006))
            os.kill(pid, signal.SIGKILL)
            while gateway.engine().pid == pid:
                await gateway.engine().lifecycle.changed()
            assert (await gateway.ask(messages=TALKS[0])).words in words, number
    assert not names(files, "new-*")


def test_leftovers_of_a_killed_gateway_are_removed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "prompts")
    folder.make()
    for name in (f"new-{2**22 + 1}-00ff{PROMPT}", f"no-description{PROMPT}", "no-prompt.json", "half.json.new"):
        (folder.path / name).write_bytes(b"{}")
    alive = f"new-{os.getppid()}-00ff{PROMPT}"
    (folder.path / alive).write_bytes(b"")
    assert folder.open() == {}
    assert names(folder.path) == [alive]


def described(size: int) -> Saved:
    return Saved(
        name="one", key="k", model="m", size=size, sha256="", tokens=9, chain=(b"a",), sure=True, saved=1.0, used=1.0
    )


def test_a_file_of_another_size_is_not_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "prompts")
    folder.make()
    (folder.path / folder.fresh()).write_bytes(b"x" * 10)
    fresh = names(folder.path)[0]
    with pytest.raises(Damaged, match="wrote 10 of 11 bytes"):
        folder.keep(fresh, described(11))
    assert names(folder.path) == []


def test_a_kept_file_is_checked_before_it_is_used(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "prompts")
    folder.make()
    fresh = folder.fresh()
    (folder.path / fresh).write_bytes(b"x" * 10)
    saved = folder.keep(fresh, described(10))
    assert folder.file(saved) == "one.prompt"
    assert folder.open() == {"one": saved} | {"one": folder.open()["one"]}
    (folder.path / "one.prompt").write_bytes(b"y" * 10)
    with pytest.raises(Damaged, match="contents have changed"):
        folder.file(saved)


def test_descriptions_that_can_t_be_read_hide_no_other_from_mlx(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from gateway.engines.mlx_prompts import SavedPromptCache

    def prompts() -> Any:
        return SavedPromptCache(
            4, folder=tmp_path, key="k", model="m", each_turn=True, min_tokens=64, max_bytes=2**30, max_age_days=1
        )

    for name, text in {"cut": "{", "list": "[1]", "bytes": "\xff", "deep": "[" * 100_000, "gone": "{}"}.items():
        (tmp_path / f"{name}.json").write_bytes(text.encode("latin-1"))
        if name != "gone":
            (tmp_path / f"{name}{PROMPT}").write_bytes(b"")
    layer, read = KVCache(), [*range(64)]
    layer.update_and_fetch(mx.zeros((1, 1, 64, 8)), mx.zeros((1, 1, 64, 8)))
    prompts().insert_cache("m", read, [layer])
    again = prompts()
    cache, rest = again.fetch_nearest_cache("m", [*read, 99])
    assert cache is not None
    assert rest == [99]
    assert dict(again.restored) == {(*read, 99): 64}


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits can be set on Linux alone")
async def test_the_disk_is_full_while_the_engine_writes(shop: Open, files: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "ctxgate"):
        async with shop() as gateway:
            await gateway.ask()
            pid = gateway.engine().pid
            assert pid is not None
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (65536, 65536))
            await gateway.ask("b", talk("Hi", system="Short."))
            assert (await gateway.ask()).cached == 0
    assert len([record for record in caplog.records if "can't save prompts" in record.message]) == 1


async def test_a_full_disk_is_told_once_and_service_goes_on(
    shop: Open, files: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(Folder, "free", lambda self: 0)
    with caplog.at_level(logging.WARNING, "ctxgate"):
        async with shop(save="each_turn") as gateway:
            for number in range(3):
                await gateway.ask(messages=talk(f"What is item {number}?"))
                await gateway.settled()
    assert names(files) == []
    assert len([record for record in caplog.records if "can't save prompts" in record.message]) == 1


async def test_a_folder_that_can_t_be_made(shop: Open, files: Path) -> None:
    make_a_file(files)
    async with shop() as gateway:
        await gateway.ask()
        await gateway.ask("b", talk("Hi", system="Short."))
        assert (await gateway.ask()).cached == 0


def make_a_file(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to save doesn't put off the next try."""
    monkeypatch.setattr("gateway.prompts.troubles.PAUSE_SECONDS", 0.0)
