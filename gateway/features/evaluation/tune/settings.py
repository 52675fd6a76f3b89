"""The settings of llama.cpp that are worth trying on a machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from gateway.config import Draft, Model
from gateway.engines.recipe import SPECULATION, speculates

Keys = Mapping[str, Any]
"""Keys of a model's entry in config.yaml, with values as in the file."""

FLAGS: Mapping[str, tuple[str, ...]] = {
    "threads": ("--threads", "-t"),
    "draft": tuple(SPECULATION),
    "kv_cache_type": ("--cache-type-k", "-ctk", "--cache-type-v", "-ctv"),
    "flash_attention": ("--flash-attn", "-fa"),
}
"""Key → the options of llama.cpp that it sets. If a model's own `args` contain one, that one wins."""


def configured(model: Model, cores: int) -> dict[str, Any]:
    """The values with which the model's engine starts today, for the keys that can be tried.

    Leaves out those that the model's `args` set, and a draft model, which not every machine has.
    """
    engine = model.engine
    values: dict[str, Any] = {
        "threads": engine.threads or cores,
        "draft": _draft(engine.draft) if speculates(model) else {"ngram": False},
        "kv_cache_type": engine.kv_cache_type or "f16",
        "flash_attention": engine.flash_attention is not False,
    }
    given = {arg.partition("=")[0] for arg in engine.args}
    fixed = {key for key, flags in FLAGS.items() if given.intersection(flags)}
    if engine.draft is not None and engine.draft.model is not None:
        fixed.add("draft")
    return {key: value for key, value in values.items() if key not in fixed}


def _draft(draft: Draft | None) -> dict[str, Any]:
    tokens = draft.tokens if draft is not None else None
    return {"ngram": True} if tokens is None else {"ngram": True, "tokens": tokens}


def choices(own: Keys, cores: int, processors: int) -> dict[str, Sequence[Any]]:
    """Key → values to try, the model's own first. cores: physical; processors: hardware threads."""
    offered: dict[str, list[Any]] = {
        "threads": [cores, max(1, cores - 1), processors],
        "draft": [{"ngram": True}, *({"ngram": True, "tokens": tokens} for tokens in (4, 8, 16)), {"ngram": False}],
        "kv_cache_type": ["f16", "q8_0"],
        "flash_attention": [True, False],
    }
    return {key: _unique([value, *offered[key]]) for key, value in own.items()}


def grid(tried: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination that llama.cpp can start: the first value of each key, then those that differ in fewer keys."""
    made = (dict(zip(tried, chosen, strict=True)) for chosen in product(*tried.values()))
    first, *others = made
    return [first, *sorted(filter(_possible, others), key=lambda keys: len(changed(keys, first)))]


def _possible(keys: Keys) -> bool:
    """llama.cpp quantizes the cache's values only with flash attention."""
    return bool(keys.get("flash_attention", True)) or keys.get("kv_cache_type", "f16") == "f16"


def _unique(values: Sequence[Any]) -> list[Any]:
    return [value for place, value in enumerate(values) if value not in values[:place]]


def changed(keys: Keys, own: Keys) -> dict[str, Any]:
    """The keys that differ from the model's own."""
    return {key: value for key, value in keys.items() if own.get(key) != value}


def applied(model: Model, changes: Keys) -> Model:
    """The model with these keys in its entry."""
    fields = {key: Draft(**value) if key == "draft" else value for key, value in changes.items()}
    return replace(model, engine=replace(model.engine, **fields))


def described(keys: Keys) -> str:
    return ", ".join(f"{key} {written(value)}" for key, value in keys.items())


def written(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {written(inner)}" for name, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
