"""Prompts as chains of block hashes: prompts with a common prefix have chains with a common prefix. No I/O."""

from __future__ import annotations

from hashlib import blake2b

BLOCK_BYTES = 256
"""Bytes of rendered text in a block: 60 to 100 tokens. An engine matches single tokens; a chain only finds the slot."""
HASH_BYTES = 10

Chain = tuple[bytes, ...]
"""Each hash covers all blocks up to its own, so equal hashes mean equal prefixes."""


def chain(text: str, owner: str = "") -> Chain:
    """The chain of a rendered prompt, without an incomplete last block, in which a longer prompt would differ.

    owner: whose prompt it is, see `gateway.wire.chat.Caller`; the chains of two owners share nothing.
    """
    return chain_of(text.encode("utf-8", "surrogatepass"), BLOCK_BYTES, owner)


def chain_of(data: bytes, block: int, owner: str = "") -> Chain:
    """The chain of blocks of `block` bytes."""
    hashes: list[bytes] = []
    before = blake2b(owner.encode(), digest_size=HASH_BYTES).digest() if owner else b""
    for start in range(0, len(data) - block + 1, block):
        before = blake2b(data[start : start + block], digest_size=HASH_BYTES, key=before).digest()
        hashes.append(before)
    return tuple(hashes)


def shared(one: Chain, other: Chain) -> int:
    """How many blocks two prompts have in common at their start."""
    low, high = 0, min(len(one), len(other))
    if high and one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def in_common(one: str, other: str) -> int:
    """How many characters two texts share at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
