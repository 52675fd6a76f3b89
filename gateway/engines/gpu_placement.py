"""Which GPU gets a model, by their free memory. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.config import Model

MB = 1024 * 1024
MARGIN = 1024 * MB
"""What llama.cpp leaves free on each GPU."""

OPTIONS = frozenset(
    (
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "-sm", "--split-mode", "-ts", "--tensor-split"),
        *("-mg", "--main-gpu", "-dev", "--device", "-fit", "--fit"),
    )
)
"""Options of llama.cpp that say where layers go. Where a model's own `args` hold one, it decides."""

_DEVICE = re.compile(r"^ +CUDA\d+: .*\(\d+ MiB, (\d+) MiB free\)$", re.MULTILINE)

_ANY_DEVICE = re.compile(r"^ +\S+: .*\(\d+ MiB", re.MULTILINE)


def devices(output: str) -> tuple[int, ...]:
    """The free bytes of each GPU that `llama-server --list-devices` prints, in the order of `--main-gpu`.

    Those of NVIDIA alone: with other drivers the list may hold integrated GPUs, which `--main-gpu` doesn't count.
    """
    return tuple(int(free) * MB for free in _DEVICE.findall(output))


def none(output: str) -> bool:
    """Whether `llama-server --list-devices` says that there is no GPU of any kind."""
    return output.startswith("Available devices:") and _ANY_DEVICE.search(output) is None


def decided(model: Model) -> bool:
    """Whether config.yaml says where layers go."""
    engine = model.engine
    keys = engine.gpu_layers, engine.main_gpu, engine.tensor_split, engine.fit
    return any(key is not None for key in keys) or any(arg.partition("=")[0] in OPTIONS for arg in engine.args)


def whole(need: int, free: Sequence[int]) -> int | None:
    """The GPU that gets all of a model: of several, the one with the most room, if the model fits there.

    None: llama.cpp divides the model by the GPUs' free memory, and leaves in the machine's memory what fits on none.
    """
    if len(free) < 2:
        return None
    roomiest = max(range(len(free)), key=lambda gpu: free[gpu])
    return roomiest if need + MARGIN <= free[roomiest] else None
