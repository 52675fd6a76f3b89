"""Saved prompts in a place that two machines share: found there, whole or not at all, and never waited for too long."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.config import Prompts
from gateway.features.share.share import Share
from gateway.prompts import folder
from gateway.prompts import key as keys
from gateway.prompts.index import DAY, Saved
from gateway.prompts.live import LivePrompts
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.turn import Turn
from tests.patience import PATIENCE
from tests.support.prompt_double import PROMPTS, TOKENS, Double, rendering

KEY = "0123456789abcdef" * 2


def saved(name: str = "", size: int = 6, **how: object) -> Saved:
    now = time.time()
    fields = {
        "name": name or folder.name(), "key": KEY, "model": "m", "size": size, "sha256": "0" * 64, "tokens": 9,
        "chain": (b"block",), "sure": True, "saved": now, "used": now, **how,
    }  # fmt: skip
    return msgspec.convert(fields, Saved)


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "share") if request.param == "folder" else f"memory://{token_hex(8)}"


def file(tmp_path: Path, data: bytes = b"tokens") -> Path:
    made = tmp_path / token_hex(4)
    made.write_bytes(data)
    return made


def test_what_one_puts_another_finds(url: str, tmp_path: Path) -> None:
    share, other = Share(url), Share(url)
    assert share.list(KEY) == {}
    one = saved()
    share.put(one, file(tmp_path))
    assert other.list(KEY) == {one.name: one}
    assert other.list("f" * 32) == {}
    other.get(one, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"tokens"
    share.remove(KEY, [one.name, "20260101-000000-00000000"])
    assert other.list(KEY) == {}


def test_what_is_not_whole_or_not_ours_is_left_out(tmp_path: Path) -> None:
    share, root = Share(str(tmp_path / "share")), tmp_path / "share" / KEY
    found = [saved() for _ in range(5)]
    for each in found:
        share.put(each, file(tmp_path))
    whole, half, cut, other, lost = found
    (root / f"{half.name}.prompt").write_bytes(b"tok")
    (root / f"{cut.name}.json").write_bytes(msgspec.json.encode(cut)[:-9])
    (root / f"{other.name}.json").write_bytes(msgspec.json.encode(replace(other, name="../../etc/passwd")))
    (root / f"{lost.name}.prompt").unlink()
    (root / "notes.json").write_text("{}")
    assert set(Share(str(tmp_path / "share")).list(KEY)) == {whole.name}
    # A description that was half there is read again once it is whole.
    late = Share(str(tmp_path / "share"))
    assert cut.name not in late.list(KEY)
    (root / f"{cut.name}.json").write_bytes(msgspec.json.encode(cut))
    assert cut.name in late.list(KEY)
    assert (tmp_path / "share" / KEY).stat().st_mode & 0o077 == 0


def test_keys_are_listed_at_once(tmp_path: Path) -> None:
    url, each = f"memory://{token_hex(8)}", 40
    found = [f"{number:032x}" for number in range(40)]
    for key in found:
        for _ in range(each):
            Share(url).put(saved(key=key), file(tmp_path))
    share, before = Share(url), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert [*map(len, threads.map(share.list, found * 5))] == [each] * len(found) * 5
    finally:
        sys.setswitchinterval(before)


def test_it_keeps_to_its_bounds_and_leaves_foreign_files_alone(tmp_path: Path) -> None:
    share, root = Share(str(tmp_path / "share")), tmp_path / "share" / KEY
    found = [saved() for _ in range(4)]
    now = time.time()
    for number, each in enumerate(found):
        share.put(each, file(tmp_path))
        os.utime(root / f"{each.name}.prompt", (now, now - 100 + number))
    old, _, _, new = found
    (root / "mine.prompt").write_bytes(b"x" * 1000)
    (root / "20260101-000000-00000000.prompt").write_bytes(b"an upload that never ended")
    os.utime(root / "20260101-000000-00000000.prompt", (now, now - 2 * DAY))
    share.tidy(18, 1.0)
    assert set(share.list(KEY)) == {each.name for each in found[1:]}
    assert not (root / f"{old.name}.prompt").exists()
    assert not (root / "20260101-000000-00000000.prompt").exists()
    os.utime(root / f"{new.name}.prompt", (now, now + 1))
    share.tidy(18, 0.0)
    assert set(share.list(KEY)) <= {new.name}
    assert (root / "mine.prompt").exists()


@asynccontextmanager
async def machine(place: Path, name: str, **settings: object) -> AsyncIterator[tuple[LivePrompts, Double]]:
    """One engine with two slots on a machine of its own; another path to the same weights."""
    options: dict[str, Any] = {"min_tokens": 64, "save": "each_turn", "share": str(place / "share"), **settings}
    found = SavedPrompts(Prompts(**options), place / name / "prompts")
    live = LivePrompts(found, "m", lambda: [name], [name], lambda: ["weights"])
    double = Double(found.path, 2)
    await live.know(double)
    await live.settled()
    yield live, double
    await live.settled()


async def said(live: LivePrompts, server: Double, prompt: str) -> Turn:
    turn = await live.place(server, [prompt.encode()], rendering(prompt), private=False)
    assert isinstance(turn, Turn)
    turn.leave()
    usage = {"prompt_tokens": TOKENS, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens": 0}
    turn.answered(
        usage | {"prompt_tokens_details": {"cached_tokens": TOKENS * 6 // 10 * bool(turn.restored)}},
        0.0,
        turn.since + 60,
    )
    await live.settled()
    return turn


async def test_a_conversation_goes_on_at_another_machine(tmp_path: Path) -> None:
    async with machine(tmp_path, "one") as (one, first), machine(tmp_path, "two") as (two, second):
        await said(one, first, PROMPTS[0])
        turn = await said(two, second, PROMPTS[0] + " And on it goes, for a while." * 20)
        assert turn.restored is not None
        assert second.restored
        # The longer one replaces the earlier turn, there too.
        share = Share(str(tmp_path / "share"))
        (key,) = {path.parent.name for path in (tmp_path / "share").glob("*/*.json")}
        assert [len(each.chain) for each in share.list(key).values()] == [len(turn.chain)]
        # And back: it is saved again once it has grown.
        assert (await said(one, first, PROMPTS[0] + " And on it goes, for a while." * 22)).restored is not None


def corrupt(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize(
    "damage", [corrupt, lambda data: data[:-1], lambda data: data + b"x"], ids=["bit", "cut", "long"]
)
async def test_a_damaged_file_reaches_no_engine(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    async with machine(tmp_path, "one") as (one, first), machine(tmp_path, "two") as (two, second):
        await said(one, first, PROMPTS[0])
        (prompt,) = (tmp_path / "share").glob("*/*.prompt")
        prompt.write_bytes(damage(prompt.read_bytes()))
        assert (await said(two, second, PROMPTS[0])).restored is None
        assert not second.restored
        assert not list(second.folder.glob("new-*"))


async def test_other_weights_find_nothing(tmp_path: Path) -> None:
    async with machine(tmp_path, "one") as (one, first), machine(tmp_path, "two") as (two, second):
        await said(one, first, PROMPTS[0])
        two.saved.share.maps(str(two.key), keys.key("other weights"))
        assert (await said(two, second, PROMPTS[0])).restored is None


async def test_a_share_that_hangs_costs_no_more_than_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()
    async with machine(tmp_path, "one") as (one, first), machine(tmp_path, "two") as (two, second):
        await said(one, first, PROMPTS[0])
        get = Share.get
        loop = asyncio.get_running_loop()

        def slow(self: Share, saved: Saved, to: Path) -> None:
            asyncio.run_coroutine_threadsafe(over.wait(), loop).result(PATIENCE)
            get(self, saved, to)

        monkeypatch.setattr(Share, "get", slow)
        turn = await two.place(second, [PROMPTS[0].encode()], rendering(PROMPTS[0]), private=False)
        assert isinstance(turn, Turn)
        assert turn.restored is None, "the engine reads it"
        turn.__exit__(ValueError)
        over.set()
        await two.saved.share.done()
        assert (await said(two, second, PROMPTS[0])).restored is not None, "it came for the next request"


async def test_a_share_that_is_away_costs_nothing_but_the_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "share").write_text("not a folder")
    async with machine(tmp_path, "one") as (one, first):
        for prompt in PROMPTS:
            assert (await said(one, first, prompt)).slot is not None
        assert len(one.saved) == len(PROMPTS)
        assert one.saved.troubles.count
    assert len([each for each in caplog.messages if "prompts.share" in each]) <= 2


def test_hashes_are_the_same_wherever_a_file_is(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"weights")
    other.write_bytes(b"weights")
    os.utime(other, (1, 1))
    remembered = tmp_path / "hashes.json"
    found = keys.contents([one], remembered)
    assert keys.contents([other], remembered) == found
    assert keys.contents([one], remembered) == found, "remembered"
    remembered.write_text("damaged")
    assert keys.contents([one], remembered) == found
    one.write_bytes(b"Weights")
    assert keys.contents([one], remembered) != found
