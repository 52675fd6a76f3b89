"""What decides whether an engine may read a file that another one wrote. No I/O but for `fingerprint`.

An engine reads a file of other weights of the same shape without complaint, and then writes wrong text. So the key
holds everything that shapes the cache: weights, adapters, build, and all options.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FORMAT = 1
"""Of the files beside the saved prompts; another number is another key."""
SAMPLES, SAMPLE_BYTES = 64, 64 * 1024
"""Hashing all weights would take as long as loading them. These samples, size and time tell any two files apart that
anybody makes by accident."""
PLACES = ("--port", "--host", "--alias", "-a", "--slot-save-path")
"""Options that say where the engine is and what it is called."""


class FileVersion(NamedTuple):
    """changed: the time that no program can set."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def fingerprint(paths: Iterable[Path]) -> str:
    """Tells the contents of files apart by size, time of change and samples.

    Blocks to read up to 4 MB of each file, the first time and after each change.

    Raises OSError.
    """
    digest = sha256()
    for path in paths:
        digest.update(_samples(path, version_of(path)))
    return digest.hexdigest()


def version_of(path: Path) -> FileVersion:
    """Changes with each write to the file, as long as the system runs. Raises OSError."""
    stat = path.stat()
    return FileVersion(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=256)
def _samples(path: Path, version: FileVersion) -> bytes:
    digest = sha256(f"{version.size} {version.modified}\n".encode())
    step = max(1, version.size // SAMPLES)
    with path.open("rb") as file:
        for start in range(0, version.size, max(step, SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, version.size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()


def options(argv: Iterable[str]) -> list[str]:
    """The arguments that shape a cache: all but those in PLACES."""
    kept: list[str] = []
    skip = False
    for arg in argv:
        if skip:
            skip = False
        elif arg in PLACES:
            skip = True
        elif not arg.startswith(tuple(f"{place}=" for place in PLACES if place.startswith("--"))):
            kept.append(arg)
    return kept


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that llama.cpp reads its options from."""
    wanted = ("LLAMA_ARG_", "GGML_", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in sorted(variables.items()) if name.startswith(wanted)}


def key(*facts: object) -> str:
    """A name for these facts, which JSON can write."""
    return sha256(json.dumps([FORMAT, *facts], sort_keys=True).encode()).hexdigest()[:32]
