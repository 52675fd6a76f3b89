"""Gets an engine running: adopts a server that already listens, or starts a process and waits until it answers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway import backends
from gateway.backends import Address
from gateway.config import Model
from gateway.engines.process import Process
from gateway.engines.recipe import Machine, Recipe, recipe
from gateway.errors import Backoff, GatewayError, ProviderModelNotLoaded, ProviderUnavailable, WeightsMissing
from gateway.upstream import Upstream, reached_itself

STARTS_ON_A_FREE_PORT = 3
PROBE_SECONDS = 5.0
"""How long a server that already listens on the model's port has to show that it is healthy."""
POLLS = Backoff(0.02, 0.5, growth=1.1)
"""Pauses between polls of a loading engine: they notice that it is ready at most a tenth of its start time late."""
SHOWN_LINES, SHOWN_CHARS = 8, 1500
"""How much of an engine's last output an error quotes."""


async def adopted(model: Model, address: Address) -> bool:
    """True if a server of the model's kind answers at `address`, False if nothing listens.

    Waits for a server that is loading. Raises ProviderUnavailable if something else listens.
    """
    if not await listens(address):
        return False
    deadline = time.monotonic() + model.engine.startup_timeout_seconds
    async with _probe(model, address) as ready:
        looks = 0
        while True:
            looks += 1
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await ready()
            except ProviderModelNotLoaded:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(POLLS.delay(looks))
            except (GatewayError, TimeoutError) as error:
                raise ProviderUnavailable(
                    f"model {model.name!r}: the server at {address} does not answer as {model.runtime} does"
                    f" ({error or 'no answer'}); end it, or give the model another port",
                    code="port_in_use",
                ) from error
            else:
                return True


def weights_missing(model: Model) -> WeightsMissing | None:
    """The error, with the cure, if a file of the model isn't there. Asks the file system, which may take long."""
    named = (("path", model.path), ("mmproj_path", model.mmproj_path), *model.engine.files.items())
    for key, file in named:
        if file is not None and not os.path.exists(file):  # unlike Path.exists it never raises
            pulled = key == "path" and model.pull is not None
            cure = f"`ctxgate pull {model.name}` fetches it" if pulled else f"correct its `{key}`"
            return WeightsMissing(f"model {model.name!r}: there is no file {file}; {cure}", param="model")
    return None


async def launched(
    model: Model, machine: Callable[[], Machine], port: int | None, spawn: Callable[[Recipe], Awaitable[Process]]
) -> Address:
    """Starts a process by `spawn` and waits until it answers; where that fails, the process is gone.

    machine: called before each start, since the start before may have shown that a program doesn't run on it.
    port: None for a free one. Raises ProviderModelNotLoaded, ProviderUnavailable.
    """
    starts = 1
    while True:
        plan = await asyncio.to_thread(recipe, model, machine(), port)
        process = await spawn(plan)
        try:
            try:
                async with asyncio.timeout(plan.ready_timeout):
                    return await _ready(model, process, plan)
            except TimeoutError:
                raise ProviderModelNotLoaded(
                    f"model {model.name!r}: {plan.engine} was not ready within {plan.ready_timeout:g} s"
                    f" (startup_timeout_seconds){last_words(process)}",
                    retry_after=5,
                ) from None
        except BaseException as error:
            await asyncio.shield(process.stop())
            # The machine now knows that this program doesn't run on it; another one may.
            died = isinstance(error, ProviderModelNotLoaded) and process.illegal_instruction
            if died and (await asyncio.to_thread(recipe, model, machine(), port)).engine != plan.engine:
                continue
            chosen = plan.address
            if (
                isinstance(error, ProviderModelNotLoaded)
                and port is None
                and chosen is not None
                and starts < STARTS_ON_A_FREE_PORT
                and await listens(chosen)
            ):
                # Another program took the port between our choice and the engine's start.
                starts += 1
                continue
            raise


async def _ready(model: Model, process: Process, plan: Recipe) -> Address:
    """Waits until the engine answers. Raises ProviderModelNotLoaded if its process ends before."""
    # Load its modules while the engine loads.
    backends.load(model.runtime)
    try:
        address = plan.address or Address(await process.announced("host"), await process.announced("port"))
    except EOFError:
        raise _died(model, process, plan) from None
    async with _probe(model, address) as ready:
        looks = 0
        while True:
            looks += 1
            try:
                await ready()
            except (ProviderModelNotLoaded, ProviderUnavailable):
                ended = await process.wait(POLLS.delay(looks))
            else:
                # Our engine may have failed to bind the port, so that another server answered.
                ended = await process.wait(0)
                if not ended:
                    return address
            if ended:
                raise _died(model, process, plan)


def _died(model: Model, process: Process, plan: Recipe) -> ProviderModelNotLoaded:
    note = f" ({plan.note})" if plan.note is not None else ""
    return ProviderModelNotLoaded(
        f"model {model.name!r}: {plan.engine} {process.ending()} while it started{note}"
        f"{cure(process, plan)}{_forbidden(process)}{last_words(process)}"
    )


def _forbidden(process: Process) -> str:
    """What to try if the engine may not have what it needs."""
    found = any("permission denied" in line.lower() for line in process.tail)
    return "; if its sandbox keeps it from a file that it needs, set engines: {sandbox: off}" if found else ""


@asynccontextmanager
async def _probe(model: Model, address: Address) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The backend's own `ready`, or else a request for the path of the configured health_check at `address`."""
    check = model.engine.health_check
    if check is not None:
        upstream = Upstream(address, connect_timeout=PROBE_SECONDS, silence_timeout=PROBE_SECONDS)
        url = urlsplit(check)
        head = upstream.head("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""), [])
        try:
            yield lambda: _healthy(upstream, head)
        finally:
            await upstream.aclose()
        return
    backend = backends.load(model.runtime)(model, address)
    try:
        yield backend.ready
    finally:
        await backend.aclose()


async def _healthy(upstream: Upstream, head: bytes) -> None:
    response = await upstream.request(head)
    response.close()
    if response.status != 200:
        raise ProviderUnavailable(f"its health check answers {response.status}")


async def listens(address: Address) -> bool:
    """Whether anything accepts connections there."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    if reached_itself(writer.transport):
        return False
    writer.transport.abort()
    return True


def cure(process: Process, plan: Recipe) -> str:
    """The end of an error message: what to do after SIGILL killed the engine; empty in any other case."""
    return f": it was built for another processor; {plan.cure}" if process.illegal_instruction else ""


def last_words(process: Process) -> str:
    """The end of an error message: the last lines of the engine's output."""
    lines = "\n".join(list(process.tail)[-SHOWN_LINES:])
    return f"; its last lines:\n{lines[-SHOWN_CHARS:]}" if lines else ""
