"""What a new configuration changes, and what that means for the engines that run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from gateway.config.values import STARTABLE, Config, Model

Effect = Literal["added", "removed", "restarts", "settings"]
"""restarts: its engine is drained, and the next request starts another one. settings: whatever runs goes on running."""

AT_START = (
    *("server.host", "server.port", "server.uds", "server.cors_origins"),
    *("ctx.enabled", "ctx.root", "state_dir", "store", "rooms"),
)
"""What a running gateway can't change."""


class Change(Struct, frozen=True):
    """`old` and `new` are for people: None where the value isn't told, since it may come out of a variable."""

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
    """models: those that change. others: what changes for the whole gateway. at_start: what does only with a restart of
    the gateway."""

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
    held = tuple(change for change in changed if _at_start(change.key))
    return Difference(tuple(models), tuple(change for change in changed if change not in held), held)


def launch(model: Model) -> tuple[object, ...]:
    """All of a model that its engine is started from: two that agree in it can share the process."""
    engine = model.engine
    return (
        *(model.name, model.runtime, model.role, model.path, model.mmproj_path, model.upstream_name),
        *(model.context_window, model.base_url, model.uds, model.port),
        *(engine.command, engine.args, engine.threads, engine.parallel),
    )


def _model(name: str, old: Model | None, new: Model | None) -> ModelChange | None:
    if old is None:
        return ModelChange(name, "added")
    if new is None:
        return ModelChange(name, "removed")
    if old == new:
        return None
    started = old.path is not None and (old.runtime in STARTABLE or old.engine.command is not None)
    effect: Effect = "restarts" if started and launch(old) != launch(new) else "settings"
    return ModelChange(name, effect, tuple(_fields(old, new)))


def _fields(old: Any, new: Any, prefix: str = "") -> Iterator[Change]:
    """The fields in which two values of one class differ, those of a model by the names that the file has for them."""
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name in ("engine", "residence"):
            yield from _fields(before, after, prefix)
        elif name == "defaults":
            for key in dict.fromkeys([*before, *after]):
                if before.get(key) != after.get(key):
                    yield _change(prefix + key, before.get(key), after.get(key))
        else:
            yield _change(prefix + name, before, after)


def _top(old: Config, new: Config) -> Iterator[Change]:
    if old.active_model != new.active_model:
        yield Change("active_model", old.active_model, new.active_model)
    for section in ("server", "engines", "log", "ctx"):
        yield from _fields(getattr(old, section), getattr(new, section), f"{section}.")
    for key in ("state_dir", "store", "rooms"):
        if getattr(old, key) != getattr(new, key):
            yield Change(key)


def _at_start(key: str) -> bool:
    return key in AT_START


CHOICES = (
    "runtime",
    "tool_call_format",
    "tool_prompt",
    "role",
    "enforcement",
    "server.host",
    "log.format",
    "log.level",
)
"""Keys whose texts are told: they are names, or checked against a list of them."""


def _change(key: str, old: Any, new: Any) -> Change:
    if all(isinstance(value, bool | int | float | None) or key in CHOICES for value in (old, new)):
        return Change(key, _shown(old), _shown(new))
    return Change(key)


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
