"""Ollama's options: the fields of a chat request that they become, by engine, and what to say about the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Warning = dict[str, str]

IGNORED = "option_ignored"
"""The code of the warnings here."""

OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
}
"""Options → fields of a chat request, for every engine."""

SERVICE = "service"
"""Stands for the runtime of a server on the internet, which may refuse a request with a field that it doesn't know."""

_MIROSTAT = ("mirostat", "mirostat_tau", "mirostat_eta")
_LLAMA_CPP = {
    **{name: name for name in ("typical_p", "repeat_last_n", "logit_bias", *_MIROSTAT)},
    "num_keep": "n_keep",
}
_ENGINES: Mapping[str, Mapping[str, str]] = {
    "llama.cpp": _LLAMA_CPP,
    "llama-cpp-python": {
        **{name: name for name in ("logit_bias", *_MIROSTAT)},
        "mirostat": "mirostat_mode",
    },
    "mlx": {"repeat_last_n": "repetition_context_size", "logit_bias": "logit_bias"},
    "ollama": {name: name for name in ("typical_p", "repeat_last_n", "num_keep")},
    "echo": {},
    SERVICE: {"logit_bias": "logit_bias"},
}
"""Runtime → further options and its own names for them. Other servers get llama.cpp's names, which many know."""

LOADING: Mapping[str, str] = {
    "num_ctx": "context_window",
    "num_gpu": "gpu_layers",
    "main_gpu": "main_gpu",
    "num_thread": "threads",
    "num_batch": "batch",
    "use_mmap": "mmap",
    "numa": "numa",
}
"""Options with which an engine loads its model → the model's keys in config.yaml."""

_NEUTRAL: Mapping[str, Any] = {
    **{"typical_p": 1, "tfs_z": 1, "mirostat": 0, "num_keep": 0, "logit_bias": {}, "penalize_newline": False},
    **dict.fromkeys(("use_mlock", "low_vram", "f16_kv", "logits_all", "vocab_only", "embedding_only", "numa"), False),
}
"""Values that ask for nothing: some clients send every option."""


def unlimited(options: Mapping[str, Any] | None) -> bool:
    """Whether the answer may be as long as it gets: -1, -2 (to the end of the context), and 0, as Ollama reads it."""
    limit = (options or {}).get("num_predict")
    return isinstance(limit, int | float) and not isinstance(limit, bool) and limit <= 0


def fields(options: Mapping[str, Any] | None, runtime: str | None = None) -> dict[str, Any]:
    """The fields of the chat request. runtime: of the engine; None: those that every engine gets."""
    names = OPTIONS if runtime is None else {**OPTIONS, **_ENGINES.get(runtime, _LLAMA_CPP)}
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if unlimited(options):
        del given["num_predict"]
    return {names[name]: value for name, value in given.items() if name in names}


def warnings(options: Mapping[str, Any] | None, runtime: str, window: int | None) -> Iterator[Warning]:
    """What the engine doesn't get, and why. window: of the model's context, in tokens."""
    known, given = _ENGINES.get(runtime, _LLAMA_CPP), options or {}
    for name, value in given.items():
        if value is None or name in OPTIONS or name in known or _asks_nothing(name, value, given):
            continue
        if name == "num_ctx":
            if value != window:
                size = f"{window} tokens, the model's context_window" if window is not None else "as its engine has it"
                yield ignored(name, f"the context stays {size} in config.yaml")
        elif name in LOADING:
            yield ignored(name, f"the engine is loaded as config.yaml says: set {LOADING[name]} of the model there")
        elif name in _LLAMA_CPP:
            it = "services on the internet have" if runtime == SERVICE else f"runtime {runtime} has"
            yield ignored(name, f"{it} no such option")
        else:
            yield ignored(name, "no engine has this option")


def _asks_nothing(name: str, value: Any, given: Mapping[str, Any]) -> bool:
    if name in ("mirostat_tau", "mirostat_eta"):
        return not given.get("mirostat")
    return name in _NEUTRAL and value == _NEUTRAL[name]


def ignored(name: str, reason: str) -> Warning:
    return {"code": IGNORED, "text": f"{name}: {reason}"}
