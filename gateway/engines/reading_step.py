"""How many tokens an engine reads in one step where config.yaml doesn't say it. No I/O.

While llama.cpp reads a step of one prompt, no other answer of the engine goes on. So a step has a length, in time. On a
CPU, small steps read as fast as large ones, down to a size that `ctxgate tune` measures; a GPU needs large ones.
"""

from __future__ import annotations

from collections.abc import Mapping

SIZES = (64, 128, 256, 512)
"""The largest is llama.cpp's own."""
USUAL = 128
"""Reads within 5 % as fast as 512 where it was measured; 112 and 96 are slower by up to 8 and 12 %, 64 by 4 to 13 %."""
SHORT_SECONDS = 0.1
"""A step that is shorter keeps nobody waiting, so an engine that reads fast takes larger ones."""
BYTES_PER_SECOND = 3e10
"""Weights of 4 bits by which one core multiplies in a second, where it was measured: 2e10 to 3.5e10."""
MAX_LOST = 0.05
"""The share of the reading speed that a smaller step may cost."""


def usual(seconds_per_token: float | None) -> int:
    """The step of an engine on a CPU that takes this long to read a token; None: unknown."""
    size = USUAL
    while seconds_per_token and size < SIZES[-1] and 2 * size * seconds_per_token <= SHORT_SECONDS:
        size *= 2
    return size


def guess(weights: int, cores: int) -> float:
    """Roughly how long a CPU takes to read a token with so many bytes of weights, in seconds."""
    return weights / (cores * BYTES_PER_SECOND)


def smallest(speeds: Mapping[int, float]) -> int:
    """The smallest step by which reading loses less than MAX_LOST. speeds: step → tokens read per second."""
    fastest = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed > fastest * (1 - MAX_LOST))
