"""GPU memory, as nvidia-smi or rocm-smi reports it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from gateway.engines.environment import inherited

MB = 1024 * 1024
TOOL_SECONDS = 5.0


class Card(NamedTuple):
    """The memory of one GPU, in bytes."""

    total: int
    used: int


def cards() -> tuple[Card, ...]:
    """The memory of each GPU, by the tool's own count; empty if neither tool reports any."""
    output = _run("nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits")
    if output is not None:
        return nvidia_cards(output)
    if (output := _run("rocm-smi", "--showmeminfo", "vram", "--json")) is not None:
        return rocm_cards(output)
    return ()


def total() -> int | None:
    """Bytes of all GPUs together; None if neither tool reports any."""
    return sum(card.total for card in cards()) or None


def by_process() -> Mapping[int, int]:
    """Bytes of GPU memory by pid; empty if neither tool reports any."""
    output = _run("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits")
    if output is not None:
        return nvidia_processes(output)
    if (output := _run("rocm-smi", "--showpids", "--json")) is not None:
        return rocm_processes(output)
    return {}


def nvidia_cards(output: str) -> tuple[Card, ...]:
    rows = [row for row in csv.reader(output.splitlines(), skipinitialspace=True) if len(row) == 2]
    # The driver prints "[N/A]" for a size that it doesn't know.
    sizes = [[int(word) * MB if word.isdecimal() else 0 for word in row] for row in rows]
    return tuple(Card(*size) for size in sizes if size[0])


def nvidia_processes(output: str) -> dict[int, int]:
    held: dict[int, int] = {}
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        # The driver prints "[N/A]" for a size that it doesn't know.
        if len(row) == 2 and row[0].isdecimal() and row[1].isdecimal():
            held[int(row[0])] = held.get(int(row[0]), 0) + int(row[1]) * MB
    return held


def rocm_cards(output: str) -> tuple[Card, ...]:
    names = "VRAM Total Memory (B)", "VRAM Total Used Memory (B)"
    try:
        sizes = [[int(card.get(name, 0)) for name in names] for card in json.loads(output).values()]
    except (ValueError, AttributeError, TypeError):
        return ()
    return tuple(Card(*size) for size in sizes if size[0])


def rocm_processes(output: str) -> dict[int, int]:
    """`{"system": {"PID1234": "name, gpus, vram bytes, …"}}`"""
    try:
        rows = json.loads(output).get("system", {}).items()
    except (ValueError, AttributeError):
        return {}
    held = {}
    for name, row in rows:
        words = [word.strip() for word in str(row).split(",")]
        if name.startswith("PID") and name[3:].isdecimal() and len(words) > 2 and words[2].isdecimal():
            held[int(name[3:])] = int(words[2])
    return held


def _run(tool: str, *arguments: str) -> str | None:
    """The tool's output; None if it isn't installed, fails, takes too long or prints no text."""
    program = shutil.which(tool)
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603
            [program, *arguments], capture_output=True, text=True, timeout=TOOL_SECONDS, check=False, env=inherited()
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
