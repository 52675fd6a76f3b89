"""The memory of GPUs, where a tool of theirs tells it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Mapping

MB = 1024 * 1024
TOOL_SECONDS = 5.0


def total() -> int | None:
    """Bytes of all GPUs together, by nvidia-smi, else by rocm-smi; None where neither tells of any."""
    if (told := _ask("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")) is not None:
        return nvidia_total(told)
    if (told := _ask("rocm-smi", "--showmeminfo", "vram", "--json")) is not None:
        return rocm_total(told)
    return None


def by_process() -> Mapping[int, int]:
    """Bytes of GPU memory by pid; empty where no tool tells."""
    told = _ask("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits")
    if told is not None:
        return nvidia_processes(told)
    if (told := _ask("rocm-smi", "--showpids", "--json")) is not None:
        return rocm_processes(told)
    return {}


def nvidia_total(told: str) -> int | None:
    return sum(int(line) * MB for line in told.split() if line.isdecimal()) or None


def nvidia_processes(told: str) -> dict[int, int]:
    held: dict[int, int] = {}
    for row in csv.reader(told.splitlines(), skipinitialspace=True):
        # "[N/A]" instead of a number, where the driver doesn't know.
        if len(row) == 2 and row[0].isdecimal() and row[1].isdecimal():
            held[int(row[0])] = held.get(int(row[0]), 0) + int(row[1]) * MB
    return held


def rocm_total(told: str) -> int | None:
    try:
        return sum(int(card.get("VRAM Total Memory (B)", 0)) for card in json.loads(told).values()) or None
    except (ValueError, AttributeError, TypeError):
        return None


def rocm_processes(told: str) -> dict[int, int]:
    """`{"system": {"PID1234": "name, gpus, vram bytes, …"}}`"""
    try:
        rows = json.loads(told).get("system", {}).items()
    except (ValueError, AttributeError):
        return {}
    held = {}
    for name, row in rows:
        words = [word.strip() for word in str(row).split(",")]
        if name.startswith("PID") and name[3:].isdecimal() and len(words) > 2 and words[2].isdecimal():
            held[int(name[3:])] = int(words[2])
    return held


def _ask(tool: str, *arguments: str) -> str | None:
    program = shutil.which(tool)
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603
            [program, *arguments], capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
