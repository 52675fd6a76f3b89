"""Rewrites old and foreign spellings to the normal form, before validation.

Knows all of LocalCowork's keys: those that only its app reads are ignored with a note.
"""

from __future__ import annotations

from typing import Any, get_args

from gateway.config.names import Role
from gateway.config.source import Document, KeyPath

RENAMED = {"model_path": "path"}
"""Keys of a model."""

RUNTIMES = {"llama_cpp": "llama.cpp", "llama_cpp_python": "llama-cpp-python"}

MEANT: dict[str, dict[str, str]] = {
    "file": {"model_list": "models", "default_model": "active_model"},
    "model": {
        **dict.fromkeys(("api_base", "url", "host"), "base_url"),
        **dict.fromkeys(("model", "model_id"), "model_name"),
        **dict.fromkeys(("n_ctx", "num_ctx", "ctx_size", "context_length", "max_model_len"), "context_window"),
        **dict.fromkeys(("num_predict", "n_predict", "max_completion_tokens"), "max_tokens"),
        **dict.fromkeys(("n_threads", "num_thread"), "threads"),
        **dict.fromkeys(("n_parallel", "num_parallel"), "parallel"),
        **dict.fromkeys(("n_gpu_layers", "num_gpu", "ngl"), "gpu_layers"),
        **dict.fromkeys(("mg", "gpu", "gpu_id"), "main_gpu"),
        **dict.fromkeys(("ts", "split", "gpu_split"), "tensor_split"),
        **dict.fromkeys(("flash_attn", "fa"), "flash_attention"),
        **dict.fromkeys(("cache_type_k", "cache_type_v", "kv_cache_dtype", "type_k", "type_v"), "kv_cache_type"),
        **dict.fromkeys(("n_batch", "num_batch", "batch_size", "ubatch_size"), "batch"),
        "use_mmap": "mmap",
        **dict.fromkeys(("lora", "lora_path", "adapter", "adapter_path", "lora_modules"), "adapters"),
        **dict.fromkeys(("draft_model", "model_draft", "speculative", "speculative_config"), "draft"),
        **dict.fromkeys(("num_retries", "max_retries"), "retries"),
        **dict.fromkeys(("engine", "backend", "provider"), "runtime"),
        "timeout": "request_timeout",
        "keep_alive": "idle_ttl_seconds",
        "repetition_penalty": "repeat_penalty",
    },
    "runtime name": {
        **dict.fromkeys(
            ("vllm", "sglang", "lmstudio", "lm-studio", "lm_studio", "tgi", "localai", "litellm"), "openai"
        ),
        **dict.fromkeys(("llama", "llama-server", "gguf"), "llama.cpp"),
        **dict.fromkeys(("mlx-lm", "mlx_lm"), "mlx"),
    },
}
"""Keys of LiteLLM, Ollama, llama.cpp and vLLM → ours. Used for "did you mean"; never accepted."""

_APP = "read by LocalCowork's app only"
ROLES = get_args(Role)
"""Our roles; LocalCowork's app has others under the same key."""
IGNORED: dict[str, dict[str, str]] = {
    "file": {
        "enabled_servers": _APP,
        "enabled_tools": _APP,
        "fallback_chain": _APP + "; write fallbacks: in a model",
        "orchestrator": _APP,
        "two_pass_tool_selection": _APP,
        "static_response": _APP,
    },
    "model": {
        "tool_temperature": _APP + "; send temperature with the request",
        "estimated_vram_gb": _APP,
        "force_json_response": _APP + "; send response_format with the request",
        "role": _APP,
        "fine_tuned": _APP,
        "deprecated": _APP,
    },
    "runtime": {"platform": "the gateway tries the engine wherever it is installed"},
}


def normalise(document: Document) -> None:
    """Renames keys and values in `document.data` in place, and reports clashes as its problems."""
    data = document.data
    _ignore(document, data, (), "file")
    for name, model in _mappings(data.get("models")):
        place = ("models", name)
        _ignore(document, model, place, "model")
        for old, new in RENAMED.items():
            if old not in model:
                continue
            if new in model:
                document.problem(
                    (*place, old), f"{old} and {new} are two names for the same key", f"keep {new}", key=True
                )
                del model[old]
            else:
                document.rename(model, place, old, new)
        if isinstance(runtime := model.get("runtime"), str):
            model["runtime"] = RUNTIMES.get(runtime, runtime)
    runtimes = data.get("runtimes")
    for name, runtime in _mappings(runtimes):
        _ignore(document, runtime, ("runtimes", name), "runtime")
    for old, new in RUNTIMES.items():
        if not isinstance(runtimes, dict) or old not in runtimes:
            continue
        if new in runtimes:
            place = ("runtimes", old)
            document.problem(place, f"{old} and {new} are two names for the same runtime", f"keep {new}", key=True)
            del runtimes[old]
        else:
            document.rename(runtimes, ("runtimes",), old, new)


def _mappings(value: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(k, v) for k, v in value.items() if isinstance(v, dict)] if isinstance(value, dict) else []


def _ignore(document: Document, mapping: dict[str, Any], place: KeyPath, kind: str) -> None:
    for key, reason in IGNORED[kind].items():
        if key in mapping and not (key == "role" and _like_ours(mapping[key])):
            document.note((*place, key), f"{key} is ignored: {reason}")
            del mapping[key]


def _like_ours(role: Any) -> bool:
    """Whether it is one of our roles, a misspelling of one, which must not pass as LocalCowork's, or a list."""
    if role in ROLES or isinstance(role, list):
        return True
    import difflib

    return bool(difflib.get_close_matches(str(role).lower(), ROLES, n=1, cutoff=0.6))
