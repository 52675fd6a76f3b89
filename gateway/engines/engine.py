"""One engine: its states, and every transition between them.

    stopped ──ensure──► starting ──► ready ──stop──► stopping ──► stopped
       ▲                   │           │
       └──ensure── failed ◄┴───────────┘ the process ended by itself

Whether a start is needed is decided here and nowhere else, so callers can't race.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, Literal
from urllib.parse import urlsplit
from weakref import WeakSet

from gateway import backends
from gateway.backends import Address
from gateway.config import Model
from gateway.config.values import STARTABLE
from gateway.engines.machine import this_machine
from gateway.engines.process import Process
from gateway.engines.recipe import Machine, Recipe, recipe
from gateway.errors import GatewayError, ProviderModelNotLoaded, ProviderUnavailable
from gateway.upstream import Upstream

State = Literal["stopped", "starting", "ready", "stopping", "failed"]

STARTS_ON_A_FREE_PORT = 3
PROBE_SECONDS = 5.0
"""For a server that may already listen on the model's port to say whether it is healthy."""
POLL_SECONDS = (0.02, 0.5)
"""First and longest pause between two looks at an engine that loads."""
DEATH_SECONDS = 1.0
"""Between the moment that an engine's socket closes and the moment that its process has ended."""
SHOWN_LINES, SHOWN_CHARS = 8, 1500
"""Of an engine's last words, in an error."""


class Engine:
    """The engine of one model, started on the first `ensure`.

    fixed: the address that config.yaml names. A healthy server that already listens there is used as it is,
    and left alone by `stop`. None: an address that the system chooses at each start.
    """

    _alive: ClassVar[WeakSet[Engine]] = WeakSet()
    """A port that another engine of this process holds must not be taken for a server of the user's."""

    def __init__(
        self,
        model: Model,
        fixed: Address | None = None,
        *,
        machine: Callable[[], Machine] = this_machine,
        grace: float = 5.0,
    ) -> None:
        self.model = model
        self.state: State = "stopped"
        self.failure: GatewayError | None = None
        """Why the state is failed."""
        self._fixed = fixed
        self._machine = machine
        self._grace = grace
        self._address: Address | None = None
        self._doubted = False
        self._process: Process | None = None
        self._starting: asyncio.Task[Address] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def address(self) -> Address | None:
        """Where the engine answers; None unless it is ready, and nobody has found it gone."""
        return self._address if self.state == "ready" and not self._doubted else None

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None where none runs or it isn't ours."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def tail(self) -> list[str]:
        """The last lines that the engine's process wrote, also once it has ended."""
        return list(self._process.tail) if self._process is not None else []

    async def ensure(self) -> Address:
        """The address of the running engine; starts it, or waits for the start that is under way.

        However many callers wait there is one start, and a caller that gives up doesn't end it for the others.
        Raises ProviderModelNotLoaded where the weights are missing or the engine fails to start, and
        ProviderUnavailable where there is no engine to start or its port is taken; the next call tries again.
        """
        while True:
            match self.state:
                case "ready":
                    if not self._doubted:
                        assert self._address is not None
                        return self._address
                    await self._look()
                    continue
                case "stopping":
                    assert self._stopping is not None
                    await asyncio.wait({self._stopping})
                    continue
                case "stopped" | "failed":
                    self.state = "starting"
                    self.failure = None
                    self._starting = asyncio.create_task(self._start(), name=f"start {self.model.name}")
                    self._starting.add_done_callback(_retrieved)
            starting = self._starting
            assert starting is not None
            await asyncio.wait({starting})
            if starting.cancelled():
                raise ProviderUnavailable(f"model {self.model.name!r}: its engine was stopped while it started")
            return starting.result()

    async def stop(self) -> None:
        """Ends the engine if it is ours, also in the middle of its start. Returns once it is gone. Idempotent."""
        if self.state == "stopped":
            return
        if self._stopping is None:
            self.state = "stopping"
            self._stopping = asyncio.create_task(self._stop(), name=f"stop {self.model.name}")
        await asyncio.shield(self._stopping)

    def lost(self) -> None:
        """A request found nobody at `address`: the next `ensure` looks before it says so again."""
        self._doubted = self.state == "ready"

    async def _look(self) -> None:
        """Ends the doubt: the engine's process has ended, or lives; a server that isn't ours is to be found again."""
        process = self._process
        if process is None:
            self._doubted, self._address, self.state = False, None, "stopped"
        elif await process.wait(DEATH_SECONDS):
            self._crashed(process)
        elif self._process is process:
            self._doubted = False

    async def _start(self) -> Address:
        try:
            address = await self._adopted() or await self._launched()
        except GatewayError as error:
            self.state, self.failure = "failed", error
            raise
        except asyncio.CancelledError:
            # Only `stop` cancels a start, and the state is its own already.
            raise
        except BaseException:
            self.state = "failed"
            raise
        self.state, self._address, self._doubted = "ready", address, False
        return address

    async def _stop(self) -> None:
        try:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.wait({self._starting})
            if self._watching is not None:
                self._watching.cancel()
            if self._process is not None:
                await self._process.stop()
        finally:
            self._address = self._stopping = self._watching = None
            self._alive.discard(self)
            self.state = "stopped"

    # Starting

    async def _adopted(self) -> Address | None:
        """The fixed address if a server of this model's kind answers there; None where nothing listens.

        Waits for one that loads. Raises ProviderUnavailable where something else listens.
        """
        address = self._fixed
        if address is None or self._ours(address.port) or not await _listens(address):
            return None
        deadline = time.monotonic() + self.model.engine.startup_timeout_seconds
        async with self._probe(address) as ready:
            pause = POLL_SECONDS[0]
            while True:
                try:
                    async with asyncio.timeout(PROBE_SECONDS):
                        await ready()
                except ProviderModelNotLoaded:
                    if time.monotonic() >= deadline:
                        raise
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, POLL_SECONDS[1])
                except (GatewayError, TimeoutError) as error:
                    raise ProviderUnavailable(
                        f"model {self.model.name!r}: what listens at {address} is no {self.model.runtime} server"
                        f" ({error or 'it said nothing'}); end it, or give the model another port",
                        code="port_in_use",
                    ) from error
                else:
                    return address

    async def _launched(self) -> Address:
        """Starts a process of our own. Raises what `ensure` raises."""
        model = self.model
        self._check_weights()
        port = self._fixed.port if self._fixed is not None and not self._ours(self._fixed.port) else None
        starts = 1
        while True:
            plan = recipe(model, self._machine(), port)
            try:
                process = await Process.start(plan.argv, plan.env, grace=self._grace)
            except OSError as error:
                raise ProviderUnavailable(f"model {model.name!r}: no process for {plan.engine}: {error}") from error
            self._process = process
            self._alive.add(self)
            try:
                try:
                    async with asyncio.timeout(plan.ready_timeout):
                        address = await self._ready(process, plan)
                except TimeoutError:
                    raise ProviderModelNotLoaded(
                        f"model {model.name!r}: {plan.engine} was not ready within {plan.ready_timeout:g} s"
                        f" (startup_timeout_seconds){_last_words(process)}",
                        retry_after=5,
                    ) from None
            except BaseException as error:
                await asyncio.shield(process.stop())
                self._alive.discard(self)
                chosen = plan.address
                if (
                    isinstance(error, ProviderModelNotLoaded)
                    and port is None
                    and chosen is not None
                    and starts < STARTS_ON_A_FREE_PORT
                    and await _listens(chosen)
                ):
                    # Somebody took the port between our choice and the engine's start.
                    starts += 1
                    continue
                raise
            self._watching = asyncio.create_task(self._watch(process), name=f"watch {model.name}")
            return address

    def _check_weights(self) -> None:
        model = self.model
        assert model.path is not None
        if not model.path.exists():
            cure = f"`ctxgate pull {model.name}` fetches it" if model.pull is not None else "correct its `path`"
            raise ProviderModelNotLoaded(
                f"model {model.name!r}: there is no file {model.path}; {cure}", code="weights_missing"
            )

    async def _ready(self, process: Process, plan: Recipe) -> Address:
        """Waits until the engine answers. Raises ProviderModelNotLoaded if it ends before."""
        try:
            address = plan.address or Address(await process.announced("host"), await process.announced("port"))
        except EOFError:
            raise self._died(process, plan) from None
        async with self._probe(address) as ready:
            pause = POLL_SECONDS[0]
            while True:
                try:
                    await ready()
                except (ProviderModelNotLoaded, ProviderUnavailable):
                    ended = await process.wait(pause)
                    pause = min(2 * pause, POLL_SECONDS[1])
                else:
                    # Answered by another server, while ours failed to take the port?
                    ended = await process.wait(0)
                    if not ended:
                        return address
                if ended:
                    raise self._died(process, plan)

    async def _watch(self, process: Process) -> None:
        await process.wait()
        self._crashed(process)

    def _crashed(self, process: Process) -> None:
        """The process ended by itself."""
        if self.state == "ready" and self._process is process:
            self._address = None
            self._doubted = False
            self._alive.discard(self)
            self.state = "failed"
            self.failure = ProviderUnavailable(
                f"model {self.model.name!r}: its engine {process.ending()}{_last_words(process)}", status=502
            )

    def _died(self, process: Process, plan: Recipe) -> ProviderModelNotLoaded:
        return ProviderModelNotLoaded(
            f"model {self.model.name!r}: {plan.engine} {process.ending()} while it started{_last_words(process)}"
        )

    def _ours(self, port: int) -> bool:
        """Whether another model's engine of this gateway holds the port."""
        return any(
            engine is not self and engine._address is not None and engine._address.port == port
            for engine in self._alive
        )

    @asynccontextmanager
    async def _probe(self, address: Address) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """The backend's own `ready`, or that of the configured health_check, whose path is asked at `address`."""
        check = self.model.engine.health_check
        if check is not None:
            upstream = Upstream(address, connect_timeout=PROBE_SECONDS, silence_timeout=PROBE_SECONDS)
            head = upstream.head("GET", urlsplit(check).path or "/", [])
            try:
                yield lambda: _healthy(upstream, head)
            finally:
                await upstream.aclose()
            return
        backend = backends.load(self.model.runtime)(self.model, address)
        try:
            yield backend.ready
        finally:
            await backend.aclose()


async def _healthy(upstream: Upstream, head: bytes) -> None:
    response = await upstream.request(head)
    response.close()
    if response.status != 200:
        raise ProviderUnavailable(f"its health check says {response.status}")


async def _listens(address: Address) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def _last_words(process: Process) -> str:
    lines = "\n".join(list(process.tail)[-SHOWN_LINES:])
    return f"; its last lines:\n{lines[-SHOWN_CHARS:]}" if lines else ""


def _retrieved(task: asyncio.Task[Address]) -> None:
    """The callers may all be gone: the failure stands in `Engine.failure` too."""
    if not task.cancelled():
        task.exception()


def for_model(model: Model) -> Engine | None:
    """The engine that the gateway is to start for a model; None where its server is external."""
    startable = model.runtime in STARTABLE or (model.engine.command is not None and model.runtime != "ollama")
    if model.path is None or not startable:
        return None
    if model.port is None:
        # An address without a port of this machine is a server that somebody else runs.
        return Engine(model) if model.base_url is None and model.uds is None else None
    return Engine(model, Address.parse(model.base_url) if model.base_url is not None else Address(port=model.port))
