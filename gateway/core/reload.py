"""A changed config.yaml, applied while the gateway runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gateway.config import Config, ConfigError, Problem
from gateway.config.diff import Difference, ModelChange, difference
from gateway.core import Gateway
from gateway.errors import GatewayError

POLL_SECONDS = 0.5
"""Between two looks at the file. It is read once two of them find it the same: whoever writes it has finished."""

Load = Callable[[str | None], Config]
"""The configuration of the file as it is now or, where text is given, as if that stood in it. The arguments of the
command line go before it. Raises ConfigError, and GatewayError where it can't be served."""

log = logging.getLogger("ctxgate")


class Reloader:
    """Keeps a gateway at what its file says.

    problems: what is wrong with the file; then the last good configuration goes on. pending: what the file says and
    only a restart of the gateway brings about. applied_at: when the configuration was read, in seconds since 1970.
    """

    def __init__(self, gateway: Gateway, load: Load) -> None:
        self.problems: tuple[Problem, ...] = ()
        self.pending: tuple[str, ...] = ()
        self.applied_at = time.time()
        self.reloads = 0
        self._gateway = gateway
        self._load = load
        self._seen = _signature(gateway.config.source)
        self._one_at_a_time = asyncio.Lock()

    async def plan(self, text: str | None = None) -> Difference:
        """What `reload` would change; with `text`, if that stood in the file. Raises ConfigError."""
        return difference(self._gateway.config, await self._read(text))

    async def reload(self) -> Difference:
        """Applies the file as it is now. Raises ConfigError where it can't be: then nothing changes."""
        async with self._one_at_a_time:
            try:
                config = await self._read(None)
            except ConfigError as error:
                self.problems = error.problems
                log.error("the configuration stays as it was: %s", error)
                raise
            self.problems = ()
            running = self._gateway.config
            planned = difference(running, config)
            self.pending = tuple(change.key for change in planned.at_start)
            self._gateway.apply(_kept(running, config))
            self.applied_at = time.time()
            self.reloads += 1
            for line in told(planned):
                log.info("%s: %s", config.source.name, line)
            return planned

    async def watch(self) -> None:
        """Reloads whenever the file has changed; for ever."""
        before = self._seen
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = _signature(self._gateway.config.source)
            # An editor that writes a new file and renames it leaves none for a moment.
            if now is not None and now == before and now != self._seen:
                self._seen = now
                try:
                    with contextlib.suppress(ConfigError):  # told already
                        await self.reload()
                except Exception:
                    log.exception("the configuration can't be applied")
            before = now

    async def _read(self, text: str | None) -> Config:
        try:
            return await asyncio.to_thread(self._load, text)
        except GatewayError as error:
            raise ConfigError((Problem(str(error), "", self._gateway.config.source),)) from error


def told(difference: Difference) -> list[str]:
    """The difference for people, a line for each thing."""
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


def _kept(running: Config, config: Config) -> Config:
    """`config` with what can't be changed as it is."""
    old = running.server
    return replace(
        config,
        server=replace(config.server, host=old.host, port=old.port, uds=old.uds, cors_origins=old.cors_origins),
        ctx=replace(config.ctx, enabled=running.ctx.enabled, root=running.ctx.root),
        state_dir=running.state_dir,
        store=running.store,
        rooms=running.rooms,
    )


def _signature(file: Path) -> tuple[int, int, int] | None:
    """Of the file behind links; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
