"""Ollama's `/api/pull` and `/api/delete`: `ctxgate add`, `pull` and `remove`, for clients.

They write files and config.yaml, so a caller's key needs the scope `operations`, and no web page may ask at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from gateway.config import Config, ConfigError, load
from gateway.core.reload import Reloader
from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderRateLimit,
)
from gateway.features.models.inventory import add
from gateway.features.models.inventory.remove import remove
from gateway.features.models.pull import pull as fetch
from gateway.features.models.pull.stopping import Stop, Stopped, stop
from gateway.features.ollama.wire.answer import error_object
from gateway.features.ollama.wire.request import Named, plain_name
from gateway.features.operations.endpoints import reloader_of
from gateway.server.asgi import ASGIApp
from gateway.server.client import INTERNAL
from gateway.server.http import JSON, EventStream, Request
from gateway.services import Services
from gateway.wire.chat import encode

log = logging.getLogger("ctxgate")

HEADERS = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"))
HUB = ("hf.co/", "huggingface.co/")
STOP_SECONDS = 2.0
"""How long the end of the gateway waits for a pull. What it has fetched by then stays for the next one."""
TICK_SECONDS = 0.25
"""The least time between two reports of progress."""


async def pull(request: Request) -> ASGIApp:
    """Fetches the weights of a model of config.yaml, or adds one of the hub or of Ollama's library."""
    _refuse_pages(request)
    wanted = await request.translated(Named.parse)
    reloader = reloader_of(request.services)
    name = plain_name(wanted.model or wanted.name)
    if not name:
        raise ProviderInvalidRequest("model: name one to pull", param="model")
    work = request.services.shared(Pulls).begin(request.gateway.config, name)
    if wanted.stream is False:
        async for _ in work.steps(reloader):
            pass
        return JSON({"status": "success"})
    return EventStream(_lines(work, reloader), HEADERS)


async def delete(request: Request) -> ASGIApp:
    """Removes a model from config.yaml, with the weights that `pull` can fetch again."""
    _refuse_pages(request)
    wanted = await request.translated(Named.parse)
    reloader = reloader_of(request.services)
    name = plain_name(wanted.model or wanted.name)
    with _configuration():
        config = await asyncio.to_thread(_on_disk, request.gateway.config)
    model = config.resolve(name)
    if name != model.name and name not in model.aliases:
        raise ProviderInvalidModel(f"name the model to delete, not {name!r}", param="model")
    with _configuration():
        pulled = replace(model, mmproj_path=None)  # a pull doesn't bring the projector
        await asyncio.to_thread(remove, config, pulled, weights=model.pull is not None)
        await reloader.reload()
    return Response(status_code=200)


@contextmanager
def _configuration() -> Iterator[None]:
    """Raises ProviderInvalidRequest for mistakes in config.yaml, old ones or such as the change would make."""
    try:
        yield
    except ConfigError as error:
        raise ProviderInvalidRequest(str(error), code="invalid_configuration", status=422) from error


def _on_disk(running: Config) -> Config:
    """The file as it is now. Raises ConfigError."""
    return load(running.source, os.environ)


def _refuse_pages(request: Request) -> None:
    """Raises ProviderAuthentication for a web page's request, whatever `server.cors_origins` allows."""
    site = request.headers.get("sec-fetch-site")
    if "origin" in request.headers or site not in (None, "none"):
        raise ProviderAuthentication(
            "web pages may not pull or delete models: use ctxgate add, ctxgate remove or ollama pull",
            code="origin_not_allowed",
            status=403,
        )


class Pulls:
    """The pull that is under way: one at a time, since each may fill the disk and the line."""

    def __init__(self, services: Services) -> None:
        self._work: Work | None = None

    def begin(self, config: Config, name: str) -> Work:
        """Raises ProviderRateLimit while another one is under way."""
        if self._work is not None and not self._work.ended.is_set():
            raise ProviderRateLimit(
                f"{self._work.name} is being pulled: only one pull can run at a time",
                code="pull_running",
                retry_after=30,
            )
        self._work = Work(config, name)
        return self._work

    async def aclose(self) -> None:
        if self._work is not None:
            await self._work.stop()


class Work:
    """One pull, in a thread of its own.

    Progress that nobody has read is replaced by newer, so nothing piles up behind a slow client.
    """

    def __init__(self, config: Config, name: str) -> None:
        self.name = name
        self.ended = threading.Event()
        """No thread of it runs."""
        self.model = ""
        """The name in config.yaml of what was fetched, once it is."""
        self._config = config
        self._news: dict[str, dict[str, Any]] = {}
        self._stop = Stop()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._thread: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name=f"pull {name}", daemon=True).start()

    async def steps(self, reloader: Reloader) -> AsyncIterator[dict[str, Any]]:
        """Ollama's lines but the last. Raises a GatewayError if the pull fails."""
        try:
            yield {"status": "pulling manifest"}
            done = False
            while not done:
                await self._changed.wait()
                self._changed.clear()
                done = self._thread.done()  # all news came before
                news, self._news = self._news, {}
                for line in news.values():
                    yield line
                if not done:
                    await asyncio.wait({self._thread}, timeout=TICK_SECONDS)
            with _configuration():
                self._thread.result()
                yield {"status": "writing manifest"}
                await reloader.reload()
        finally:
            self._stop.say()  # the client may have left

    async def stop(self) -> None:
        self._stop.say()
        await asyncio.wait({self._thread}, timeout=STOP_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        stop.set(self._stop)
        try:
            self._pull()
        except Exception as raised:  # noqa: BLE001 - it goes to who waits for the pull
            error = raised
        self.ended.set()
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        self._changed.set()
        if error is None or isinstance(error, Stopped):
            self._thread.set_result(None)
        else:
            self._thread.set_exception(error)
            self._thread.exception()  # who asked may have left

    def _pull(self) -> None:
        config = _on_disk(self._config)
        known = next((model for model in config.models.values() if self.name in (model.name, *model.aliases)), None)
        if known is not None:
            if known.pull is not None or known.path is None or not known.path.exists():
                fetch(known, self._told)
            self.model = known.name
            return
        host, slash, path = self.name.partition("/")
        if f"{host}/" in HUB:
            written = f"hf:{path}"
        elif slash and ("." in host or ":" in host):
            raise ProviderInvalidRequest(f"{self.name}: models can be pulled only from hf.co or Ollama's library")
        else:
            written = f"ollama:{self.name}"
        found = add.fetch(config, add.identify(config, written), self._told)
        add.add(config, found)
        self.model = found.name

    def _told(self, label: str, done: int, total: int | None) -> None:
        self._stop.check()
        digest = f"sha256:{sha256(label.encode()).hexdigest()}"
        line = {"status": f"pulling {label}", "digest": digest, "total": total or done, "completed": done}
        self._loop.call_soon_threadsafe(self._keep, label, line)

    def _keep(self, label: str, line: dict[str, Any]) -> None:
        self._news[label] = line
        self._changed.set()


async def _lines(work: Work, reloader: Reloader) -> AsyncIterator[bytes]:
    """An error after the first line becomes the last one."""
    try:
        async for step in work.steps(reloader):
            yield encode(step) + b"\n"
    except GatewayError as error:
        yield encode(error_object(error)) + b"\n"
    except Exception:
        log.exception("a pull failed")
        yield encode(error_object(INTERNAL)) + b"\n"
    else:
        yield encode({"status": "success"}) + b"\n"
