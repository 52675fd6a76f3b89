"""Decides whether an engine may read a file that another one wrote. Only `fingerprint` and `contents` do I/O.

An engine loads a file of other weights with the same shape without an error, and then writes wrong text. So the key
contains everything that shapes the cache: weights, adapters, build, and all options.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import NamedTuple

FORMAT = 1
"""Format version of the files; another number makes another key."""
SAMPLES, SAMPLE_BYTES = 64, 64 * 1024
"""Hashing all weights would take as long as loading them. These samples, size and time distinguish any two files,
unless somebody forges one."""
MAX_KNOWN = 256
"""How many files' hashes to remember on disk."""
PLACES = ("--port", "--host", "--alias", "-a", "--slot-save-path")
"""Options that say where the engine is and what it is called."""
STEPS = ("--batch-size", "--ubatch-size", "-b", "-ub")
"""Options that say how many tokens are read at once. A conversation that goes on has had steps of every size anyway."""
OF_THE_MACHINE = ("--threads", "--threads-batch", "-t", "-tb")
"""Options that differ between machines and don't affect the cache."""


class FileVersion(NamedTuple):
    """changed: the ctime, which programs can't set."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def fingerprint(paths: Iterable[Path]) -> str:
    """Identifies the contents of files by size, time of change and samples.

    Blocks to read up to 4 MB of each file, the first time and after each change.

    Raises OSError.
    """
    digest = sha256()
    for path in paths:
        digest.update(_samples(path, version_of(path)))
    return digest.hexdigest()


def contents(paths: Iterable[Path], remembered: Path) -> str:
    """Identifies the contents of files on any machine, by their hashes.

    Blocks to read all of each file, the first time and after each change. remembered: where hashes are kept. Raises
    OSError.
    """
    known = _remembered(remembered)
    found: dict[str, str] = {}
    for path in paths:
        name = " ".join(map(str, (path, *version_of(path))))
        if name in known:
            found[name] = known[name]
            continue
        with path.open("rb") as file:
            found[name] = file_digest(file, "sha256").hexdigest()
    kept = dict([*{**known, **found}.items()][-MAX_KNOWN:])
    if kept != known:
        fresh = remembered.with_suffix(f".{os.getpid()}")
        remembered.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(kept), "utf-8")
        fresh.replace(remembered)
    return sha256("\n".join(found.values()).encode()).hexdigest()


def _remembered(file: Path) -> dict[str, str]:
    try:
        known = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in known.items()} if isinstance(known, dict) else {}


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


def options(argv: Iterable[str], without: Sequence[str] = PLACES) -> list[str]:
    """The arguments that affect the cache: all but `without`."""
    kept: list[str] = []
    skip = False
    for arg in argv:
        if skip:
            skip = False
        elif arg in without:
            skip = True
        elif not arg.startswith(tuple(f"{option}=" for option in without if option.startswith("--"))):
            kept.append(arg)
    return kept


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that llama.cpp reads its options from."""
    wanted = ("LLAMA_ARG_", "GGML_", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in sorted(variables.items()) if name.startswith(wanted)}


def key(*facts: object) -> str:
    """A name for these facts, which JSON can write."""
    return sha256(json.dumps([FORMAT, *facts], sort_keys=True).encode()).hexdigest()[:32]
