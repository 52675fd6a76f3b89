"""What mlx_lm's cache saves and finds again: `SavedPromptCache` in this process, with real caches of MLX."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx_lm")

from gateway.engines import mlx_prompts
from gateway.engines.mlx_prompts import BLOCK_TOKENS, DAY, MAX_KNOWN, SavedPromptCache, chain

LEAST = 64
LONG = [*range(100, 100 + 3 * BLOCK_TOKENS)]
Prompts = Callable[..., Any]


def layers(size: int) -> list[Any]:
    """The cache of a model with one layer that has read `size` tokens."""
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    layer = KVCache()
    layer.update_and_fetch(mx.ones((1, 1, size, 8)), mx.ones((1, 1, size, 8)))
    return [layer]


@pytest.fixture
def prompts(tmp_path: Path) -> Prompts:
    """A new engine's cache over the same files."""

    def made(**more: Any) -> Any:
        given: dict[str, Any] = {
            "key": "k", "model": "m", "each_turn": True, "min_tokens": LEAST, "max_bytes": 2**30, "max_age_days": 1,
        }  # fmt: skip
        return SavedPromptCache(4, folder=tmp_path, **(given | more))

    return made


def saved(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.prompt"))


def descriptions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def restored(cache: Any, tokens: list[int]) -> int:
    """How many of the tokens a file gave."""
    found, rest = cache.fetch_nearest_cache("m", tokens)
    given: int = cache.restored.pop(tuple(tokens), 0)
    assert given in (0, len(tokens) - len(rest))
    assert (found is None) == (len(rest) == len(tokens))
    return given


def test_what_is_written(prompts: Prompts, tmp_path: Path) -> None:
    before = time.time()
    prompts().insert_cache("m", LONG, layers(len(LONG)))
    (file,) = saved(tmp_path)
    (description,) = descriptions(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {file.name, f"{file.stem}.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert before <= description.pop("saved") == description.pop("used") <= time.time()
    assert len(description.pop("sha256")) == 64
    size = file.stat().st_size
    assert description == {
        "name": file.stem, "key": "k", "model": "m", "size": size, "tokens": len(LONG), "chain": chain(LONG),
        "sure": True,
    }  # fmt: skip


@pytest.mark.parametrize(("size", "files"), [(LEAST - 1, 0), (LEAST, 1)])
def test_short_prompts_are_not_saved(prompts: Prompts, tmp_path: Path, size: int, files: int) -> None:
    prompts().insert_cache("m", LONG[:size], layers(size))
    assert len(saved(tmp_path)) == files


def test_only_whole_conversations_are_saved(prompts: Prompts, tmp_path: Path) -> None:
    cache = prompts()
    for kind in ("system", "user"):
        cache.insert_cache("m", LONG, layers(len(LONG)), cache_type=kind)
    assert saved(tmp_path) == []


def test_a_new_engine_goes_on_where_the_old_one_ended(prompts: Prompts, tmp_path: Path) -> None:
    prompts().insert_cache("m", LONG, layers(len(LONG)))
    (file,) = saved(tmp_path)
    os.utime(file, (1, time.time() - 1000))
    before = file.stat().st_mtime
    again = prompts()
    assert restored(again, [*LONG, 7]) == len(LONG)
    assert file.stat().st_mtime > before + 900  # it counts as used now
    assert restored(again, [*LONG, 7]) == 0  # it is in memory
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".json", ".prompt"]


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        pytest.param({"key": "another"}, [*LONG, 7], id="another engine's"),
        pytest.param({}, [*LONG[: LEAST - BLOCK_TOKENS], *range(80)], id="too little in common"),
        pytest.param({"min_tokens": len(LONG) + 1}, [*LONG, 7], id="it would save too little"),
    ],
)
def test_what_is_not_restored(prompts: Prompts, more: dict[str, Any], tokens: list[int]) -> None:
    prompts().insert_cache("m", LONG, layers(len(LONG)))
    assert restored(prompts(**more), tokens) == 0


def test_the_one_with_most_in_common_is_restored(prompts: Prompts, tmp_path: Path) -> None:
    other = [*LONG[:LEAST], *range(BLOCK_TOKENS)]
    cache = prompts()
    for tokens in (other, LONG, [*range(1000, 1000 + LEAST)]):
        cache.insert_cache("m", tokens, layers(len(tokens)))
    assert len(saved(tmp_path)) == 3
    assert restored(prompts(), [*LONG, 7]) == len(LONG)
    assert restored(prompts(), [*other, 7]) == len(other)


def test_what_is_in_memory_counts(prompts: Prompts) -> None:
    """A file is read only if it has `min_tokens` more than the memory."""
    prompts().insert_cache("m", LONG, layers(len(LONG)))
    for known, given in ((len(LONG) - LEAST, len(LONG)), (len(LONG) - LEAST + 1, 0)):
        again = prompts(each_turn=False)
        again.insert_cache("m", LONG[:known], layers(known), cache_type="user")
        assert restored(again, [*LONG, 7]) == given


def test_a_longer_conversation_replaces_its_beginning(prompts: Prompts, tmp_path: Path) -> None:
    cache = prompts()
    cache.insert_cache("m", LONG[:LEAST], layers(LEAST))
    (first,) = saved(tmp_path)
    cache.insert_cache("m", LONG, layers(len(LONG)))
    (second,) = saved(tmp_path)
    assert first != second
    assert [description["tokens"] for description in descriptions(tmp_path)] == [len(LONG)]
    # Another engine's beginning stays.
    prompts(key="another").insert_cache("m", [*LONG, *range(BLOCK_TOKENS)], layers(len(LONG) + BLOCK_TOKENS))
    assert second in saved(tmp_path)


def test_on_stop_saves_once_what_was_asked_last(prompts: Prompts, tmp_path: Path) -> None:
    cache = prompts(each_turn=False)
    cache.insert_cache("m", LONG[:LEAST], layers(LEAST))
    cache.insert_cache("m", LONG, layers(len(LONG)))
    other = [*range(1000, 1000 + LEAST)]
    cache.insert_cache("m", other, layers(LEAST))
    assert saved(tmp_path) == []
    cache.save_all()
    assert sorted(description["tokens"] for description in descriptions(tmp_path)) == [LEAST, len(LONG)]
    first = saved(tmp_path)
    cache.save_all()
    assert saved(tmp_path) == first


@pytest.mark.parametrize("each_turn", [True, False])
def test_a_private_conversation_leaves_nothing(prompts: Prompts, tmp_path: Path, each_turn: bool) -> None:
    cache = prompts(each_turn=each_turn)
    cache.keep_out(tuple(LONG[:10]))
    cache.insert_cache("m", LONG, layers(len(LONG)))
    cache.save_all()
    assert saved(tmp_path) == []
    # Only the one request asked for it.
    cache.insert_cache("m", LONG, layers(len(LONG)))
    cache.save_all()
    assert len(saved(tmp_path)) == 1


def test_the_size_and_the_age_of_the_folder_are_bounded(prompts: Prompts, tmp_path: Path) -> None:
    cache = prompts()
    cache.insert_cache("m", LONG, layers(len(LONG)))
    (first,) = saved(tmp_path)
    size = first.stat().st_size
    os.utime(first, (time.time() - 60, time.time() - 60))
    bounded = prompts(max_bytes=2 * size)
    for start in (300, 500):
        bounded.insert_cache("m", [*range(start, start + len(LONG))], layers(len(LONG)))
    assert len(saved(tmp_path)) == 2
    assert not first.exists()
    assert not first.with_suffix(".json").exists()
    second = saved(tmp_path)[0]
    os.utime(second, (1, time.time() - 2 * DAY + 60))
    prompts(max_age_days=2).insert_cache("m", [*range(700, 700 + len(LONG))], layers(len(LONG)))
    assert second.exists()
    os.utime(second, (1, time.time() - 2 * DAY - 60))
    prompts(max_age_days=2).insert_cache("m", [*range(800, 800 + len(LONG))], layers(len(LONG)))
    assert not second.exists()


def test_a_changed_file_is_removed_and_told(prompts: Prompts, tmp_path: Path, capfd: Any) -> None:
    damages: list[Callable[[bytes], bytes]] = [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])]
    for damage in damages:
        prompts().insert_cache("m", LONG, layers(len(LONG)))
        (file,) = saved(tmp_path)
        file.write_bytes(damage(file.read_bytes()))
        assert restored(prompts(), [*LONG, 7]) == 0
        assert [*tmp_path.iterdir()] == []
        assert capfd.readouterr().err == f"a saved prompt was not restored: {file.stem} is damaged\n"


def test_a_full_disk_is_told_and_leaves_no_half_file(
    prompts: Prompts, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.statvfs(tmp_path)
    need = mlx_prompts.SPARE_BYTES + sum(layer.nbytes for layer in layers(len(LONG)))
    blocks = -(-need // free.f_frsize)
    for spare, files in ((blocks - 1, 0), (blocks, 1)):
        values = list(free)
        values[4] = spare
        monkeypatch.setattr(os, "statvfs", lambda folder, values=values: os.statvfs_result(values))
        prompts().insert_cache("m", LONG, layers(len(LONG)))
        assert len(saved(tmp_path)) == files
        assert len([*tmp_path.iterdir()]) == 2 * files
        assert ("a prompt was not saved: the file system is full" in capfd.readouterr().err) == (files == 0)


def test_counts_that_nobody_asks_for_are_bounded(prompts: Prompts) -> None:
    cache = prompts(min_tokens=BLOCK_TOKENS)
    for number in range(MAX_KNOWN + 2):
        tokens = [*range(number * 1000, number * 1000 + BLOCK_TOKENS)]
        prompts(min_tokens=BLOCK_TOKENS).insert_cache("m", tokens, layers(BLOCK_TOKENS))
        cache.fetch_nearest_cache("m", [*tokens, 7])
    assert len(cache.restored) == MAX_KNOWN
    assert next(iter(cache.restored))[0] == 2000


def test_a_chain_has_a_hash_for_each_full_block() -> None:
    assert [len(chain(LONG[:size])) for size in (BLOCK_TOKENS - 1, BLOCK_TOKENS, 2 * BLOCK_TOKENS - 1)] == [0, 1, 1]
    assert chain(LONG)[:2] == chain(LONG[: 2 * BLOCK_TOKENS])
    changed = chain([1, *LONG[1:]])
    assert not set(changed) & set(chain(LONG))


def ask(cache: Any, tokens: list[int], owner: str, *, answered: bool = True) -> int:
    """How many of the tokens the cache had for the owner."""
    cache.begin(tuple(tokens), owner)
    _, rest = cache.fetch_nearest_cache("m", tokens)
    if answered:
        cache.insert_cache("m", [*tokens, 7], layers(len(tokens) + 1))
    return len(tokens) - len(rest)


@pytest.mark.parametrize("each_turn", [True, False])
def test_each_owner_finds_its_own_prompts(prompts: Prompts, each_turn: bool) -> None:
    cache = prompts(each_turn=each_turn)
    their = {owner: [*LONG, number, number] for number, owner in enumerate(("", "a", "b"))}
    assert [ask(cache, prompt, owner) for owner, prompt in their.items()] == [0, 0, 0]
    assert [ask(cache, [*prompt, 7, 8], owner) for owner, prompt in their.items()] == [len(LONG) + 3] * 3
    assert ask(cache, [*their["a"], 7, 8], "c") == 0


def test_a_file_is_found_by_its_owner_alone(prompts: Prompts, tmp_path: Path) -> None:
    cache = prompts(each_turn=False)
    ask(cache, LONG, "a")
    ask(cache, LONG[::-1], "b")
    cache.save_all()
    assert len(saved(tmp_path)) == 2
    found = [ask(prompts(), LONG, owner) for owner in ("", "b", "a")]
    assert found[:2] == [0, 0]
    assert found[2] >= LEAST


def test_what_may_be_of_two_owners_is_nobodys(prompts: Prompts) -> None:
    cache = prompts(each_turn=False)
    ask(cache, LONG, "a", answered=False)
    ask(cache, LONG, "b")
    assert [ask(cache, [*LONG, 7], owner, answered=False) for owner in ("a", "b")] == [0, 0]
    other = LONG[::-1]
    ask(cache, other, "a")
    assert ask(cache, other, "b", answered=False) == 0
    assert ask(cache, other, "a", answered=False) > 0
