"""Applies a changed config.yaml while the gateway runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gateway.config import Config, ConfigError, Model, Problem
from gateway.config.diff import Difference, ModelChange, difference, kept
from gateway.config.loader import signature
from gateway.core import Gateway
from gateway.errors import GatewayError

POLL_SECONDS = 0.5
"""How often to poll the file. It is read once two polls agree: then its writer has finished."""

Load = Callable[[str | None], Config]
"""Reads the configuration from the file, or from `text` in its place. Command-line arguments win over both. Raises
ConfigError, and GatewayError for a configuration that can't be served."""

log = logging.getLogger("ctxgate")


class Reloader:
    """Keeps a gateway in step with its file.

    problems: mistakes in the file; while there are any, the last good configuration stays. pending: changes that only a
    restart of the gateway applies. applied_at: when we read the configuration, in seconds since 1970.
    """

    def __init__(self, gateway: Gateway, load: Load) -> None:
        self.problems: tuple[Problem, ...] = ()
        self.pending: tuple[str, ...] = ()
        self.applied_at = time.time()
        self.reloads = 0
        self._gateway = gateway
        self._load = load
        self._seen = gateway.config.seen or signature(gateway.config.source)
        self._one_at_a_time = asyncio.Lock()

    async def plan(self, text: str | None = None) -> Difference:
        """What `reload` would change if the file held `text`, or as it is. Raises ConfigError."""
        return self._planned(await self._read(text))

    async def reload(self) -> Difference:
        """Applies the file. Raises ConfigError for a file with mistakes, and then changes nothing."""
        async with self._one_at_a_time:
            try:
                config = await self._read(None)
                planned = self._planned(config)
            except ConfigError as error:
                self.problems = error.problems
                log.error("the configuration stays as it was: %s", error)
                raise
            self.problems = ()
            running = self._gateway.config
            self.pending = tuple(change.key for change in planned.at_start)
            self._gateway.apply(kept(running, config))
            self.applied_at = time.time()
            self.reloads += 1
            for line in describe(planned):
                log.info("%s: %s", config.source.name, line)
            return planned

    async def try_reload(self) -> None:
        """Applies the file, or logs why it can't."""
        try:
            with contextlib.suppress(ConfigError):  # already logged
                await self.reload()
        except Exception:
            log.exception("the configuration can't be applied")

    async def watch(self) -> None:
        """Reloads after each change of the file; never returns."""
        before = self._seen
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = signature(self._gateway.config.source)
            # When an editor replaces the file, it is missing for a moment.
            if now is not None and now == before and now != self._seen:
                self._seen = now
                await self.try_reload()
            before = now

    def _planned(self, config: Config) -> Difference:
        """Raises ConfigError if an engine that may be running would be replaced by one without weights."""
        found = difference(self._gateway.config, config)
        old = self._gateway.config.models
        problems = [
            Problem(f"models.{change.name}: there is no file {path}", "correct it, or fetch it first", config.source)
            for change in found.models
            if change.effect == "restarts" and all(path.exists() for path in _weights(old[change.name]))
            for path in _weights(config.models[change.name])
            if not path.exists()
        ]
        if problems:
            raise ConfigError(tuple(problems))
        return found

    async def _read(self, text: str | None) -> Config:
        try:
            return await asyncio.to_thread(self._load, text)
        except GatewayError as error:
            raise ConfigError((Problem(str(error), "", self._gateway.config.source),)) from error


def _weights(model: Model) -> list[Path]:
    return [path for path in (model.path, model.mmproj_path, *model.engine.files.values()) if path is not None]


def describe(difference: Difference) -> list[str]:
    """The difference for people, one line for each change."""
    lines = [f"model {change.name} {EFFECTS[change.effect]}{_listed(change)}" for change in difference.models]
    lines += [str(change) for change in difference.others]
    return lines + [f"{change}: takes effect when the gateway is started again" for change in difference.at_start]


EFFECTS = {
    "added": "is added",
    "removed": "is removed: its engine ends once its answers have",
    "restarts": "changes: its engine ends once its answers have, the next request starts another",
    "settings": "changes, what runs goes on",
}


def _listed(change: ModelChange) -> str:
    return f" ({', '.join(map(str, change.changes))})" if change.changes else ""
