"""Decides which saved prompt serves a request, and which ones to remove. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gateway.prompts.blocks import Chain, shared

DAY = 86_400.0
PINNED_SECONDS = 3600.0
"""How long agents may pause before the prefix that they share counts as any other prompt."""


class Saved(Struct, kw_only=True):
    """One prompt in a file.

    name: of the file, without its suffix. key: see `gateway.prompts.key`. size and sha256: of the file, checked before
    an engine reads it. tokens: in the file. chain: of the prompt as the model's template rendered it; the file may hold
    the answer to it as well. sure: the gateway chose the slot that the file comes from, so it holds this prompt. saved,
    used: seconds since 1970. prefix: it was read for the conversations that begin with it, and stays while they do.
    """

    name: str
    key: str
    model: str
    size: int
    sha256: str
    tokens: int
    chain: Chain
    sure: bool
    saved: float
    used: float
    prefix: bool = False


class Match(Struct, frozen=True):
    """blocks: how many the request and the saved prompt share."""

    saved: Saved
    blocks: int


def best(entries: Iterable[Saved], key: str, chain: Chain) -> Match | None:
    """The saved prompt that shares the most blocks with a request; among equals, the newest with the fewest others."""
    found: tuple[int, int, float] | None = None
    match: Match | None = None
    for entry in entries:
        if entry.key != key:
            continue
        blocks = shared(entry.chain, chain)
        rank = blocks, -len(entry.chain), entry.saved
        if blocks and (found is None or rank > found):
            found, match = rank, Match(entry, blocks)
    return match


def superseded(entries: Iterable[Saved], newer: Saved) -> list[Saved]:
    """Earlier turns of the conversation in `newer`, which contains them. A shared prefix isn't one."""
    return [
        entry
        for entry in entries
        if entry.name != newer.name
        and not entry.prefix
        and entry.key == newer.key
        and entry.tokens <= newer.tokens
        and shared(entry.chain, newer.chain) == len(entry.chain)
    ]


def excess(entries: Mapping[str, Saved], *, max_bytes: int, max_age_days: float, now: float) -> list[Saved]:
    """The prompts to remove: those unused for `max_age_days`, then the least recently used above `max_bytes`; of those,
    prefixes that were used within PINNED_SECONDS go last."""
    old = [entry for entry in entries.values() if now - entry.used > max_age_days * DAY]
    rest = sorted(
        (entry for entry in entries.values() if entry not in old),
        key=lambda entry: (entry.prefix and now - entry.used < PINNED_SECONDS, entry.used),
    )
    size = sum(entry.size for entry in rest)
    for entry in rest:
        if size <= max_bytes:
            break
        old.append(entry)
        size -= entry.size
    return old
