"""How much memory engines need, hold and may have. Bytes throughout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from gateway.backends import gguf
from gateway.config import Model
from gateway.engines.recipe import slots

MB = 1024 * 1024
PROCESS = 48 * MB
"""What a server without a model holds."""
KV_BYTES = 2
"""Of one number in the cache: f16."""
BATCH = 512
"""Tokens whose activations are held at a time."""
UNKNOWN_WINDOW = 4096
SPARE, LEAST_SPARE = 0.15, 1024 * MB
"""Of the machine's memory, left to everything else."""
UNIFIED = 0.75
"""Of a Mac's memory, which its GPU may use."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


class Footprint(Struct, frozen=True):
    """Memory of an engine: the machine's, and its GPUs'."""

    ram: int = 0
    gpu: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.ram + other.ram, self.gpu + other.gpu)

    def largest(self, other: Footprint) -> Footprint:
        return Footprint(max(self.ram, other.ram), max(self.gpu, other.gpu))


class Budget(Struct, frozen=True):
    """What engines may hold together. gpu: None where no GPU memory is counted.

    strict: a person set it. Without, an engine that needs more than all of it is tried alone.
    """

    ram: int
    gpu: int | None = None
    strict: bool = False

    def holds(self, footprint: Footprint) -> bool:
        return footprint.ram <= self.ram and (self.gpu is None or footprint.gpu <= self.gpu)


# What a model will need


def estimate(model: Model, *, on_gpu: bool) -> Footprint:
    """For a first run: the weights, the cache of a full context window for each slot, and what computing takes.

    Reads the model's metadata. Raises OSError where it can't be read.
    """
    assert model.path is not None
    weights = sum(path.stat().st_size for path in files(model.path))
    if model.mmproj_path is not None and model.mmproj_path.exists():
        weights += model.mmproj_path.stat().st_size
    shape = _shape(model.path)
    tokens = (model.context_window or shape.window) * slots(model)
    computing = BATCH * 4 * (shape.vocabulary + 12 * shape.width)
    data = weights + tokens * shape.cache_per_token + computing
    return Footprint(PROCESS + computing, data) if on_gpu else Footprint(PROCESS + data)


def files(path: Path) -> list[Path]:
    """The files that hold the weights at `path`: itself, all parts of a split GGUF, or what lies in a folder."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    if found := _SPLIT.search(path.name):
        stem, count = path.name[: found.start()], int(found[1])
        parts = [path.with_name(f"{stem}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1)]
        return [part for part in parts if part.exists()]
    return [path]


class _Shape(Struct, frozen=True):
    cache_per_token: int
    vocabulary: int
    width: int
    window: int


def _shape(path: Path) -> _Shape:
    return _shape_of_folder(path) if path.is_dir() else _shape_of_gguf(path)


_WANTED = (
    "block_count", "embedding_length", "context_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
)  # fmt: skip


def _shape_of_gguf(path: Path) -> _Shape:
    try:
        name = gguf.metadata(path, {"general.architecture"}).get("general.architecture", "")
        keys = {f"{name}.{key}": key for key in _WANTED}
        array = {f"{name}.attention.head_count_kv"}
        known = {keys[key]: value for key, value in gguf.metadata(path, keys, array, until="tokenizer.").items()}
    except gguf.NotGGUF:
        known = {}
    return _of(
        layers=known.get("block_count"),
        width=known.get("embedding_length"),
        heads=known.get("attention.head_count"),
        kv_heads=known.get("attention.head_count_kv"),
        key=known.get("attention.key_length"),
        value=known.get("attention.value_length"),
        vocabulary=known.get("vocab_size"),
        window=known.get("context_length"),
    )


def _shape_of_folder(path: Path) -> _Shape:
    try:
        config = json.loads((path / "config.json").read_bytes())
        config = {**config, **(config.get("text_config") or {})}
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        config = {}
    head = config.get("head_dim")
    return _of(
        layers=config.get("num_hidden_layers"),
        width=config.get("hidden_size"),
        heads=config.get("num_attention_heads"),
        kv_heads=config.get("num_key_value_heads"),
        key=head,
        value=head,
        vocabulary=config.get("vocab_size"),
        window=config.get("max_position_embeddings"),
    )


def _of(
    *, layers: Any, width: Any, heads: Any, kv_heads: Any, key: Any, value: Any, vocabulary: Any, window: Any
) -> _Shape:
    """What isn't known is taken to be that of a common small model, or nothing where there is no telling."""
    width = width or 2048
    layers = layers or 24
    heads = heads if isinstance(heads, int) and heads else 16
    if not isinstance(kv_heads, list):
        # A list has a number for each layer: 0 where a layer keeps no cache.
        kv_heads = [kv_heads or heads] * layers
    key, value = key or width // heads, value or width // heads
    cache = sum(kv_heads) * (key + value) * KV_BYTES
    return _Shape(cache, vocabulary or 32_000, width, window or UNKNOWN_WINDOW)


# What a process holds


class Usage(Struct, frozen=True):
    """Of a process and its children. peak: the most that they held at a time, as far as the system tells.

    cpu: seconds of processor time.
    """

    resident: int
    anonymous: int
    peak: int
    cpu: float


def usage(pid: int) -> Usage | None:
    """None where the process is gone, or nobody tells. Reads /proc, or asks ps."""
    if not sys.platform.startswith("linux"):
        return _usage_by_ps(pid)
    total: Usage | None = None
    for each in _family(pid):
        try:
            status = Path(f"/proc/{each}/status").read_text("utf-8", "replace")
            stat = Path(f"/proc/{each}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        sizes = {
            key: int(value.split()[0]) * 1024
            for key, _, value in (line.partition(":") for line in status.splitlines())
            if key in ("VmHWM", "VmRSS", "RssAnon", "RssShmem")
        }
        ticks = stat.rpartition(b")")[2].split()
        one = Usage(
            resident=sizes.get("VmRSS", 0),
            anonymous=sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0),
            peak=sizes.get("VmHWM", 0),
            cpu=(int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
        )
        total = one if total is None else _sum(total, one)
    return total


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.resident + other.resident, one.anonymous + other.anonymous, one.peak + other.peak, one.cpu + other.cpu
    )


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children.split():
        yield from _family(int(child))


def _usage_by_ps(pid: int) -> Usage | None:
    try:
        done = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "rss=,time=", "-p", str(pid)], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    if len(words) != 2:
        return None
    resident = int(words[0]) * 1024
    seconds = 0.0
    for part in words[1].replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part)
    return Usage(resident, resident, resident, seconds)


# What the machine has


def machine_budget() -> Budget:
    """What engines may hold on this machine: its memory less what everything else needs, and its GPUs' memory.

    Asks nvidia-smi and rocm-smi where they are installed: takes up to a second.
    """
    from gateway.engines import gpu

    total = total_memory()
    if sys.platform == "darwin":
        return Budget(int(total * UNIFIED))
    return Budget(total - max(LEAST_SPARE, int(total * SPARE)), gpu.total())


def total_memory() -> int:
    """The machine's, or what the control group of this process may use of it."""
    total = _PAGE * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            written = Path(limit).read_text().strip()
        except OSError:
            continue
        if written.isdigit():
            total = min(total, int(written))
    return total
