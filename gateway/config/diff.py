"""Differences between two configurations, and their effect on running engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gateway.config.values import Config, Model
from gateway.feature import installed

Effect = Literal["added", "removed", "restarts", "settings"]
"""restarts: the engine drains, and the next request starts a new one. settings: running engines keep running."""

AT_START = (
    *("server.host", "server.port", "server.uds", "server.tls"),
    *("state_dir", "store"),
    *("prompts.share", "prompts.share_prefixes"),
    *("log.traces", "log.trace_content"),
)


def at_start() -> tuple[str, ...]:
    """Keys that only a restart of the gateway applies."""
    return (*AT_START, *(key for feature in installed() for key in feature.at_start))


class Change(Struct, frozen=True):
    """`old` and `new` are for people; None if the value may come from a variable and so must not be shown."""

    key: str
    old: str | None = None
    new: str | None = None

    def __str__(self) -> str:
        return self.key if self.old is None and self.new is None else f"{self.key}: {self.old} → {self.new}"


class ModelChange(Struct, frozen=True):
    name: str
    effect: Effect
    changes: tuple[Change, ...] = ()


class Difference(Struct, frozen=True):
    """models: changed models. others: changes to the whole gateway. at_start: changes that need a restart."""

    models: tuple[ModelChange, ...] = ()
    others: tuple[Change, ...] = ()
    at_start: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.models or self.others or self.at_start)


def difference(old: Config, new: Config) -> Difference:
    models = [
        change
        for name in dict.fromkeys([*old.models, *new.models])
        if (change := _model(name, old.models.get(name), new.models.get(name))) is not None
    ]
    changed = [*_top(old, new)]
    fixed = tuple(change for change in changed if change.key in at_start())
    return Difference(tuple(models), tuple(change for change in changed if change not in fixed), fixed)


def kept(running: Config, config: Config) -> Config:
    """`config`, except for values that a running gateway can't change: these stay."""
    for key in at_start():
        name, _, inner = key.partition(".")
        if name in Config.__struct_fields__:
            config = replace(config, **{name: _kept(getattr(running, name), getattr(config, name), inner)})
        else:
            section = _kept(running.sections.get(name), config.sections.get(name), inner)
            config = replace(config, sections={**config.sections, name: section})
    return replace(config, sections={key: section for key, section in config.sections.items() if section is not None})


def _kept(old: Any, new: Any, inner: str) -> Any:
    """The new value with the old one's field. inner: "" stands for all of it."""
    if not inner or (old is None and new is None):
        return old
    kind = type(new if old is None else old)
    return replace(kind() if new is None else new, **{inner: getattr(kind() if old is None else old, inner)})


def launch(model: Model) -> tuple[object, ...]:
    """Everything that determines a model's engine process; models that agree in it can share one."""
    engine = model.engine
    return (
        *(model.name, model.runtime, model.roles, model.path, model.mmproj_path, model.upstream_name),
        *(model.context_window, model.base_url, model.uds, model.port),
        *(engine.command, engine.args, engine.pass_env, engine.threads, engine.parallel),
        *(engine.gpu_layers, engine.flash_attention, engine.kv_cache_type, engine.batch, engine.mmap, engine.numa),
        *(engine.main_gpu, engine.tensor_split, engine.rope, engine.draft, engine.adapters, engine.fit),
    )


def _model(name: str, old: Model | None, new: Model | None) -> ModelChange | None:
    if old is None:
        return ModelChange(name, "added")
    if new is None:
        return ModelChange(name, "removed")
    if old == new:
        return None
    effect: Effect = "restarts" if old.startable and launch(old) != launch(new) else "settings"
    return ModelChange(name, effect, tuple(_fields(old, new)))


def _fields(old: Any, new: Any, prefix: str = "") -> Iterator[Change]:
    """The fields in which two values of one class differ, by their keys in the file."""
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after or name in ("from_variables", "private_defaults"):
            continue
        if name in ("engine", "residence"):
            yield from _fields(before, after, prefix)
        elif name == "defaults":
            for key in dict.fromkeys([*before, *after]):
                if before.get(key) != after.get(key):
                    yield _change(prefix + key, before.get(key), after.get(key))
        else:
            yield _change(prefix + ("placement" if name == "spread" else name), before, after)


def _top(old: Config, new: Config) -> Iterator[Change]:
    if old.active_model != new.active_model:
        yield Change("active_model", old.active_model, new.active_model)
    for section in ("server", "engines", "log", "prompts"):
        yield from _fields(getattr(old, section), getattr(new, section), f"{section}.")
    for key in ("state_dir", "store"):
        if getattr(old, key) != getattr(new, key):
            yield Change(key)
    for key in dict.fromkeys([*old.sections, *new.sections]):
        before, after = old.sections.get(key), new.sections.get(key)
        kind: Any = type(before if after is None else after)
        if before == after:
            continue
        if any(name.startswith(f"{key}.") for name in at_start()):
            yield from _fields(before or kind(), after or kind(), f"{key}.")
        else:
            yield Change(key)


CHOICES = (
    *("runtime", "tool_call_format", "tool_prompt", "tool_wording", "tool_examples", "call_threshold"),
    *("keep_reasoning", "role", "enforcement", "call_deltas", "images", "kv_cache_type", "numa"),
    *("describe_with", "transcribe_with", "speak_with"),
    *("server.host", "log.format", "log.level", "prompts.save"),
)
"""Keys whose texts may be shown: they are names, or come from a fixed list."""


def _change(key: str, old: Any, new: Any) -> Change:
    if all(isinstance(value, bool | int | float | None) or key in CHOICES for value in (old, new)):
        return Change(key, _shown(old), _shown(new))
    return Change(key)


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
