"""Which models the lists show: those that can be served.

A look asks the file system for each model, in one thread, whose work the event loop doesn't wait for. All lists share
one look, and use it for FRESH_SECONDS.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gateway.core import Gateway, Route
from gateway.engines import Engine
from gateway.engines.launch import weights_missing
from gateway.errors import ProviderUnavailable
from gateway.services import Services

FRESH_SECONDS = 1.0
"""The greatest age of a look that lists still use."""
SURVEY_SECONDS = 10.0
"""How long a list waits for a look: a network disk may never answer."""


class Survey(Struct, frozen=True):
    """What one survey found.

    routes: those that it looked at. available: names of the models that can be served. files: the size in bytes and the
    time of the last change, in seconds since 1970, of each model's file; folders have none. changed: that time of
    config.yaml, 0 if it is gone.
    """

    routes: Mapping[str, Route]
    available: frozenset[str]
    files: Mapping[str, tuple[int, float]]
    changed: float

    def listed(self, *, all: bool) -> Sequence[Route]:
        """The routes that a list shows, in the order of config.yaml. all: those without weights, too."""
        return [route for name, route in self.routes.items() if all or name in self.available]


class Listing:
    """The last survey of this process."""

    def __init__(self, services: Services) -> None:
        self._gateway = services.gateway
        self._seen: Survey | None = None
        self._at = 0.0
        self._survey_task: asyncio.Task[Survey] | None = None

    async def survey(self) -> Survey:
        """What there is, unless the last survey is fresh. Raises ProviderUnavailable after SURVEY_SECONDS."""
        seen = self._seen
        if seen is not None and seen.routes is self._gateway.routes and time.monotonic() - self._at < FRESH_SECONDS:
            return seen
        if self._survey_task is None:
            self._survey_task = asyncio.create_task(self._survey(), name="survey the models")
        try:
            async with asyncio.timeout(SURVEY_SECONDS):
                # A caller may leave; the survey continues for the others.
                return await asyncio.shield(self._survey_task)
        except TimeoutError:
            message = f"the folders of the models don't answer within {SURVEY_SECONDS:g} s"
            raise ProviderUnavailable(message, retry_after=5) from None

    async def _survey(self) -> Survey:
        try:
            self._at = time.monotonic()
            self._seen = await survey(self._gateway)
            return self._seen
        finally:
            self._survey_task = None

    async def aclose(self) -> None:
        if self._survey_task is not None:
            self._survey_task.cancel()
            await asyncio.wait({self._survey_task})


async def survey(gateway: Gateway) -> Survey:
    """Checks the files of all models, and the addresses of those without weights."""
    routes = gateway.routes
    engines = {name: route.engine for name, route in routes.items() if route.engine is not None}
    idle = [engine for engine in engines.values() if engine.current_backend is None]
    paths = {name: route.model.path for name, route in routes.items() if route.model.path is not None}
    without, files, changed = await asyncio.to_thread(_stat_files, idle, paths, gateway.config.source)
    served = await asyncio.gather(*(engine.launcher.served_already() for engine in without))
    gone = {engine.name for engine, there in zip(without, served, strict=True) if not there}
    return Survey(routes, frozenset(routes.keys() - gone), files, changed)


def _stat_files(
    engines: Iterable[Engine], paths: Mapping[str, Path], source: Path
) -> tuple[list[Engine], dict[str, tuple[int, float]], float]:
    without = [engine for engine in engines if weights_missing(engine.model) is not None]
    files = {name: found for name, path in paths.items() if (found := _file(path)) is not None}
    of_source = _file(source)
    return without, files, of_source[1] if of_source is not None else 0.0


def _file(path: Path) -> tuple[int, float] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None
