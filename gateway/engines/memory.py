"""How much memory engines need, hold and may have. Bytes throughout."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from gateway.backends import gguf
from gateway.config import Engines, Model
from gateway.engines.recipe import SOUND, slots

MB = 1024 * 1024
PROCESS = 48 * MB
"""Memory of a server without a model."""
KV_BYTES = 2
"""Size of one number in the cache: f16."""
NUMBER_BYTES = {
    "f32": 4,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Its size with another `kv_cache_type`, including its part of what a block of 32 numbers stores besides them."""
SOUND_PROCESS = 320 * MB
"""Memory of `sound_server.py` and its libraries, with five minutes of sound; what a model computes is about as large as
its weights."""
BATCH = 512
"""How many tokens have their activations in memory at a time."""
UNKNOWN_WINDOW = 4096
SPARE, LEAST_SPARE = 0.15, 1024 * MB
"""What is left to everything else: a share of the machine's memory, and the least in bytes."""
UNIFIED = 0.75
"""The share of a Mac's memory that its GPU may use."""

_PEAK = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


class Footprint(Struct, frozen=True):
    """An engine's use of the machine's memory and of its GPUs' memory."""

    ram: int = 0
    gpu: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.ram + other.ram, self.gpu + other.gpu)

    def largest(self, other: Footprint) -> Footprint:
        return Footprint(max(self.ram, other.ram), max(self.gpu, other.gpu))


class Budget(Struct, frozen=True):
    """Memory that all engines may use together.

    gpu: None if GPU memory isn't counted. strict: the user set it; otherwise it is a guess, and an engine that needs
    more is tried alone.
    """

    ram: int
    gpu: int | None = None
    strict: bool = False

    def holds(self, footprint: Footprint) -> bool:
        return footprint.ram <= self.ram and (self.gpu is None or footprint.gpu <= self.gpu)


def limited(machine: Budget, limits: Engines) -> Budget:
    """The engines' budget: as config.yaml says, else what the machine can spare."""
    gpu = limits.gpu_memory_budget if limits.gpu_memory_budget is not None else machine.gpu
    if limits.memory_budget is not None:
        return Budget(limits.memory_budget, gpu, strict=True)
    return Budget(machine.ram, gpu, strict=limits.gpu_memory_budget is not None)


# What a model will need


def estimate(model: Model, *, on_gpu: bool) -> Footprint:
    """The need of a model that never ran: weights, the cache of a full context window for each slot, and buffers.

    Reads the model's metadata. Raises OSError if it can't be read. Nobody knows what a command without weights needs.
    """
    if model.path is None:
        return Footprint(PROCESS)
    weights = sum(path.stat().st_size for path in files(model.path))
    if model.mmproj_path is not None and model.mmproj_path.exists():
        weights += model.mmproj_path.stat().st_size
    weights += sum(part.stat().st_size for path in model.engine.files.values() if path.exists() for part in files(path))
    if model.runtime in SOUND:
        return Footprint(SOUND_PROCESS + 2 * weights)
    shape = _shape(model.path)
    tokens = (model.context_window or shape.window) * slots(model)
    computing = (model.engine.batch or BATCH) * 4 * (shape.vocabulary + 12 * shape.width)
    data = weights + _cache(model, shape, tokens) + computing
    return Footprint(PROCESS + computing, data) if on_gpu else Footprint(PROCESS + data)


def window_bytes(model: Model) -> int:
    """The cache of one full context window. Reads the model's metadata. Raises OSError if it can't be read."""
    assert model.path is not None
    shape = _shape(model.path)
    return _cache(model, shape, model.context_window or shape.window)


def _cache(model: Model, shape: _Shape, tokens: int) -> int:
    number = NUMBER_BYTES.get(model.engine.kv_cache_type or "f16", KV_BYTES)
    return int(tokens * shape.cache_per_token * number / KV_BYTES)


def files(path: Path) -> list[Path]:
    """The weight files at `path`: the file itself, with what belongs to it, all parts of a split GGUF, or those of a
    folder."""
    if path.is_dir():
        # CTranslate2 has one file, of this name.
        return sorted(path.glob("*.safetensors")) or [*path.glob("model.bin")]
    if path.suffix == ".onnx":
        # A voice of piper: the settings are beside it.
        return [file for file in (path, path.with_name(f"{path.name}.json")) if file.exists()]
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
    """Replaces unknown values by those of a common small model."""
    width, heads = _count(width) or 2048, _count(heads) or 16
    # A list has a number for each layer: 0 for a layer without cache.
    every = kv_heads if isinstance(kv_heads, list) else [_count(kv_heads) or heads]
    layers = 1 if isinstance(kv_heads, list) else _count(layers) or 24
    key, value = _count(key) or width // heads, _count(value) or width // heads
    cache = layers * sum(map(_count, every)) * (key + value) * KV_BYTES
    return _Shape(cache, _count(vocabulary) or 32_000, width, _count(window) or UNKNOWN_WINDOW)


def _count(value: object) -> int:
    """A number from a model's file; 0 for anything else."""
    return value if type(value) is int and value > 0 else 0


# What a process holds


class ProcessUsage(Struct, frozen=True):
    """Resources that a process and its descendants use.

    anonymous: neither mapped from files nor shared. peak: the most that they held at a time, as far as the system
    knows. cpu: seconds of processor time.
    """

    resident: int
    anonymous: int
    peak: int
    cpu: float

    def __add__(self, other: ProcessUsage) -> ProcessUsage:
        return ProcessUsage(
            self.resident + other.resident,
            self.anonymous + other.anonymous,
            self.peak + other.peak,
            self.cpu + other.cpu,
        )


def usage(pid: int) -> ProcessUsage | None:
    """None if the process has ended. Takes milliseconds: it looks through all processes for descendants."""
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return None
    total: ProcessUsage | None = None
    for member in family:
        try:
            with member.oneshot():
                sizes, times = member.memory_info(), member.cpu_times()
        except psutil.Error:
            continue
        resident: int = sizes.rss
        peak = max(resident, _peak(member.pid))
        one = ProcessUsage(resident, resident - getattr(sizes, "shared", 0), peak, times.user + times.system)
        total = one if total is None else total + one
    return total


def _peak(pid: int) -> int:
    """Only Linux knows it, and psutil doesn't read it; 0 elsewhere."""
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found else 0


# What the machine has


def machine_budget() -> Budget:
    """The engines' budget on this machine: its memory minus what everything else needs, and its GPUs' memory.

    Runs nvidia-smi and rocm-smi if they are installed, which takes up to a second.
    """
    from gateway.engines import gpu

    total = total_memory()
    if sys.platform == "darwin":
        return Budget(int(total * UNIFIED))
    return Budget(total - max(LEAST_SPARE, int(total * SPARE)), gpu.total())


def total_memory() -> int:
    """The machine's memory, or the limit of this process's control group."""
    import psutil

    total: int = psutil.virtual_memory().total
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            written = Path(limit).read_text().strip()
        except OSError:
            continue
        if written.isdigit():
            total = min(total, int(written))
    return total
