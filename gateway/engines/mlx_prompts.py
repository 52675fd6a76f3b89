"""Saves mlx_lm's prompt cache on disk: does inside mlx_lm.server what `gateway.prompts` does for llama.cpp.

`mlx_server.py` loads this by path, on the standard library and mlx_lm alone. Files and their descriptions are those of
`gateway.prompts.folder`. Everything here runs in the thread that generates.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import time
from collections import OrderedDict, deque
from hashlib import blake2b, file_digest
from pathlib import Path
from secrets import token_hex
from typing import Any

from mlx_lm.models.cache import LRUPromptCache, load_prompt_cache, save_prompt_cache

BLOCK_TOKENS = 32
HASH_BYTES = 10
MAX_KNOWN = 64
"""The most requests in flight to keep notes on."""
MAX_OWNED = 256
"""The last prompts whose owners are known; more than are ever in flight."""
DAY = 86_400.0
SPARE_BYTES = 256 * 1024 * 1024
"""Bytes that must stay free on the file system."""


class OwnedPromptCache(LRUPromptCache):  # type: ignore[misc]
    """mlx_lm's cache, in which each owner finds only its own prompts. mlx_lm doesn't say whose cache it hands over, so
    that follows from the prompts in flight; nobody gets what may be of two owners."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._owner = ""
        """Of the prompt that is looked for next."""
        self._owned: deque[tuple[tuple[int, ...], str]] = deque(maxlen=MAX_OWNED)
        """Prompts and their owners, the oldest first."""
        self._several = False

    def begin(self, prompt: tuple[int, ...], owner: str) -> None:
        """A request of this owner comes; `fetch_nearest_cache` is called next."""
        self._several = self._several or (bool(self._owned) and owner != self._owner)
        self._owner = owner
        self._owned.append((prompt, owner))

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> Any:
        """Like mlx_lm's."""
        return super().fetch_nearest_cache((self._owner, model), tokens)

    def insert_cache(self, model: Any, tokens: list[int], prompt_cache: Any, *, cache_type: str = "assistant") -> None:
        """Like mlx_lm's."""
        owner = self._owner_of(tuple(tokens))
        if owner is not None:
            super().insert_cache((owner, model), tokens, prompt_cache, cache_type=cache_type)

    def _owner_of(self, tokens: tuple[int, ...]) -> str | None:
        """Whose prompt these tokens begin, or go on from; None if that isn't sure."""
        if not self._several:
            return self._owner
        owners = {owner for prompt, owner in self._owned if _begins(prompt, tokens)}
        return owners.pop() if len(owners) == 1 else None


def _begins(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one of two sequences begins with the other."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]


class SavedPromptCache(OwnedPromptCache):
    """folder: where the files are. key: of everything that shapes a cache. each_turn: save after each answer, not only
    in `save_all`. A failure is reported on standard error, and costs no more than reading the prompt."""

    def __init__(
        self, size: int, *, folder: Path, key: str, model: str, each_turn: bool, min_tokens: int, max_bytes: int,
        max_age_days: float,
    ) -> None:  # fmt: skip
        super().__init__(size)
        self._folder = folder
        self._key = key
        self._model = model
        self._each_turn = each_turn
        self._min_tokens = min_tokens
        self._max_bytes = max_bytes
        self._max_age_days = max_age_days
        self._unsaved: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._private: deque[tuple[int, ...]] = deque(maxlen=MAX_KNOWN)
        self.restored: OrderedDict[tuple[int, ...], int] = OrderedDict()
        """By prompt: how many of its tokens came from a file. Read in the threads that answer."""

    def keep_out(self, prompt: tuple[int, ...]) -> None:
        """Doesn't save the conversation that begins with this prompt once its answer is there."""
        self._private.append(prompt)

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> Any:
        """Like mlx_lm's, but looks at the files first."""
        found = super().fetch_nearest_cache(model, tokens)
        try:
            if self._restore(model, tokens, len(tokens) - len(found[1])):
                found = super().fetch_nearest_cache(model, tokens)
                self.restored[tuple(tokens)] = len(tokens) - len(found[1])
                while len(self.restored) > MAX_KNOWN:
                    self.restored.popitem(last=False)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            _tell(f"a saved prompt was not restored: {error}")
        return found

    def insert_cache(self, model: Any, tokens: list[int], prompt_cache: Any, *, cache_type: str = "assistant") -> None:
        """Like mlx_lm's, but saves whole conversations, or notes them for `save_all`."""
        owner = self._owner_of(tuple(tokens))
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        if owner is None or cache_type != "assistant" or len(tokens) < self._min_tokens:
            return
        private = next((prompt for prompt in self._private if tuple(tokens[: len(prompt)]) == prompt), None)
        if private is not None:
            self._private.remove(private)
        elif self._each_turn:
            self._try_to_save(tokens, prompt_cache, owner)
        else:
            longer = tuple(tokens)
            self._unsaved = {
                (its, known): of
                for (its, known), of in self._unsaved.items()
                if its != owner or known != longer[: len(known)]
            }
            self._unsaved[owner, longer] = model

    def save_all(self) -> None:
        """Saves the prompts in memory that aren't in a file yet."""
        for (owner, tokens), model in self._unsaved.items():
            self._owner = owner
            cache, rest = super().fetch_nearest_cache(model, list(tokens))
            if cache is not None and not rest:
                self._try_to_save(list(tokens), cache, owner)
        self._unsaved.clear()

    # Files

    def _restore(self, model: Any, tokens: list[int], known: int) -> bool:
        """Loads the best saved prompt if it saves at least `min_tokens` more than the `known` ones."""
        begins = chain(tokens, self._owner)
        best: tuple[int, dict[str, Any]] | None = None
        for description in self._described():
            blocks = _shared(description["chain"], begins)
            if description["key"] == self._key and (best is None or blocks > best[0]):
                best = blocks, description
        if best is None or best[0] * BLOCK_TOKENS - known < self._min_tokens:
            return False
        name = best[1]["name"]
        path = self._folder / f"{name}.prompt"
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == best[1]["size"]
            if not whole or file_digest(file, "sha256").hexdigest() != best[1]["sha256"]:
                self._remove(name)
                raise ValueError(f"{name} is damaged")
        # mlx goes by the end of the name.
        link = self._folder / f"new-{os.getpid()}-{token_hex(8)}.safetensors"
        os.link(path, link)
        try:
            cache, metadata = load_prompt_cache(str(link), return_metadata=True)
            _evaluate(cache)
        finally:
            link.unlink()
        os.utime(path)
        LRUPromptCache.insert_cache(self, (self._owner, model), json.loads(metadata["tokens"]), cache)
        return True

    def _try_to_save(self, tokens: list[int], cache: Any, owner: str) -> None:
        fresh = self._folder / f"new-{os.getpid()}-{token_hex(8)}.safetensors"
        try:
            stat = os.statvfs(self._folder)
            if stat.f_bavail * stat.f_frsize < SPARE_BYTES + sum(layer.nbytes for layer in cache):
                raise OSError("the file system is full")
            save_prompt_cache(str(fresh), cache, {"tokens": json.dumps(tokens)})
            self._keep(fresh, tokens, owner)
        except (OSError, RuntimeError, ValueError) as error:
            fresh.unlink(missing_ok=True)
            _tell(f"a prompt was not saved: {error}")

    def _keep(self, fresh: Path, tokens: list[int], owner: str) -> None:
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{token_hex(4)}"
        now = time.time()
        with fresh.open("rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
            digest = file_digest(file, "sha256").hexdigest()
        begins = chain(tokens, owner)
        description = {
            "name": name, "key": self._key, "model": self._model, "size": fresh.stat().st_size, "sha256": digest,
            "tokens": len(tokens), "chain": begins, "sure": True, "saved": now, "used": now,
        }  # fmt: skip
        older = [
            known
            for known in self._described()
            if known["key"] == self._key and known["chain"] == begins[: len(known["chain"])]
        ]
        fresh.replace(self._folder / f"{name}.prompt")
        half = self._folder / f"{name}.json.new"
        with open(os.open(half, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as written:
            json.dump(description, written)
            written.flush()
            os.fsync(written.fileno())
        half.replace(self._folder / f"{name}.json")
        for known in older:
            self._remove(known["name"])
        self._tidy()

    def _tidy(self) -> None:
        """Removes prompts that are too old, and the least recently used ones above `max_bytes`."""
        known = sorted(self._described(), key=lambda each: float(each["used"]), reverse=True)
        size = 0
        for each in known:
            size += each["size"]
            if size > self._max_bytes or time.time() - each["used"] > self._max_age_days * DAY:
                self._remove(each["name"])

    def _described(self) -> list[dict[str, Any]]:
        found = []
        for path in self._folder.glob("*.json"):
            try:
                description = json.loads(path.read_bytes())
                description["used"] = path.with_suffix(".prompt").stat().st_mtime
            except (OSError, ValueError, TypeError, RecursionError):
                continue
            found.append(description)
        return found

    def _remove(self, name: str) -> None:
        for suffix in (".json", ".prompt"):
            (self._folder / (name + suffix)).unlink(missing_ok=True)


def chain(tokens: list[int], owner: str = "") -> list[str]:
    """One hash for each full block of tokens, over all blocks up to it; base64, as in the descriptions. Those of two
    owners have nothing in common."""
    hashes, before = [], blake2b(owner.encode(), digest_size=HASH_BYTES).digest() if owner else b""
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = struct.pack(f"<{BLOCK_TOKENS}q", *tokens[start : start + BLOCK_TOKENS])
        before = blake2b(block, digest_size=HASH_BYTES, key=before).digest()
        hashes.append(base64.b64encode(before).decode())
    return hashes


def _shared(one: list[str], other: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _evaluate(cache: Any) -> None:
    """Reads the file now; mlx would do so at the first use."""
    import mlx.core as mx

    mx.eval([layer.state for layer in cache])


def _tell(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
