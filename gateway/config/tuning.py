"""Which runtimes take which launch settings, and why the others don't. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.config.values import Draft

TAKEN: Mapping[str, tuple[str, ...]] = {
    "gpu_layers": ("llama.cpp", "ollama"),
    "main_gpu": ("llama.cpp", "ollama"),
    "tensor_split": ("llama.cpp",),
    "flash_attention": ("llama.cpp",),
    "kv_cache_type": ("llama.cpp", "mlx"),
    "batch": ("llama.cpp", "mlx", "ollama"),
    "mmap": ("llama.cpp", "ollama"),
    "numa": ("llama.cpp",),
    "rope": ("llama.cpp",),
    "draft": ("llama.cpp", "mlx"),
    "adapters": ("llama.cpp", "mlx"),
    "fit": ("llama.cpp",),
}
"""Launch setting → runtimes that take it. Those that aren't here belong to the gateway, whatever the engine."""

MLX_BITS = {"q8_0": 8, "q4_0": 4}
"""The types of `kv_cache_type` that MLX has, with its name for them."""

LEAVE_OUT = "leave it out"

WHY_NOT: Mapping[tuple[str, str], tuple[str, str]] = {
    ("mlx", "gpu_layers"): ("MLX keeps all layers on its one device", LEAVE_OUT),
    ("mlx", "main_gpu"): ("MLX has one device", LEAVE_OUT),
    ("mlx", "tensor_split"): ("MLX has one device", LEAVE_OUT),
    ("mlx", "flash_attention"): ("MLX has one kind of attention for each model", LEAVE_OUT),
    ("mlx", "mmap"): ("MLX decides itself how it reads the weights", LEAVE_OUT),
    ("mlx", "rope"): ("MLX reads it from the model's config.json", "write rope_scaling there"),
    ("mlx", "fit"): ("MLX doesn't fit a model to the free memory", LEAVE_OUT),
    ("ollama", "tensor_split"): ("Ollama divides models among GPUs by itself", LEAVE_OUT),
    ("ollama", "flash_attention"): (
        "Ollama takes it for all its models together",
        "set OLLAMA_FLASH_ATTENTION where `ollama serve` starts",
    ),
    ("ollama", "kv_cache_type"): (
        "Ollama takes it for all its models together",
        "set OLLAMA_KV_CACHE_TYPE where `ollama serve` starts",
    ),
    ("ollama", "rope"): ("Ollama reads it from the model's file", LEAVE_OUT),
    ("ollama", "adapters"): (
        "Ollama adds adapters when it creates a model",
        "write ADAPTER in a Modelfile, `ollama create` a model from it, and name that as model_name",
    ),
    ("ollama", "fit"): ("Ollama always fits models to the free memory", LEAVE_OUT),
}
"""Runtime and key → the reason, and what to do."""


def refusal(key: str, runtime: str, entry: Any) -> tuple[str, str] | None:
    """Why the runtime doesn't take the entry's value of this key, and the cure; None if it does."""
    runtimes = TAKEN[key]
    if runtime not in runtimes:
        others = f"only {' and '.join(runtimes)} {'take' if runtimes[1:] else 'takes'} this setting"
        return WHY_NOT.get((runtime, key), (f"{others}, not the runtime {runtime}", LEAVE_OUT))
    return _refusal_of_mlx(key, entry) if runtime == "mlx" else None


def _refusal_of_mlx(key: str, entry: Any) -> tuple[str, str] | None:
    """MLX takes less of some settings than llama.cpp."""
    if key == "kv_cache_type" and entry.kv_cache_type not in MLX_BITS:
        return f"MLX has no {entry.kv_cache_type}", f"write one of {', '.join(MLX_BITS)}"
    return _draft_of_mlx(entry.draft) if key == "draft" else None


def _draft_of_mlx(draft: Draft | None) -> tuple[str, str] | None:
    if draft is not None and draft.ngram is not None:
        return "MLX drafts with a model only", "write draft: {model: …}, or leave it out"
    if draft is not None and draft.gpu_layers is not None:
        return "MLX keeps all layers on its one device", "leave out gpu_layers"
    return None
