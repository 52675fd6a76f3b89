"""What answers for one model: the engine that we start, or an external server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway import backends
from gateway.backends import Address, Backend, ReplicaStatus
from gateway.config import Model
from gateway.errors import GatewayError, ProviderModelNotLoaded, ProviderUnavailable, WeightsMissing
from gateway.upstream import EngineGone

if TYPE_CHECKING:
    from gateway.engines import Engine

READY_SECONDS = 5.0
"""How long an engine may take to say that it is ready."""


class ModelServer:
    def __init__(self, model: Model, engine: Engine | None = None, external: Backend | None = None) -> None:
        """engine: the one to use, if the gateway runs it. external: the backend to use without an engine; None: that
        of the server that config.yaml names."""
        self.external = external
        """The backend of an external server; None before its first request. An engine of ours has its own."""
        self._model = model
        self._engine = engine
        self._passed_on = False
        """Another route has taken over the engine."""
        self._replaced: Backend | None = None
        """The engine's former backend, if another route has taken it over."""

    async def backend(self) -> Backend:
        """The backend of a running engine; starts the engine if it is ours.

        Raises what `EngineRequests.join` raises.
        """
        engine = self._engine
        if engine is not None:
            if engine.accepting is not None:
                return engine.accepting
            backend = await engine.requests.join()
            engine.requests.leave()
            return backend
        if self.external is None:
            kind = backends.load(self._model.runtime)
            if self._model.replicas:
                from gateway.backends.replicas import replicas

                self.external = replicas(self._model, kind)
            else:
                self.external = kind(self._model, address_of(self._model))
        return self.external

    @asynccontextmanager
    async def use(self, rank: int) -> AsyncIterator[Backend]:
        """`backend`, whose engine stays up meanwhile. rank: of the request's service tier."""
        engine = self._engine
        backend = await self.backend() if engine is None else await engine.requests.join(rank=rank)
        try:
            yield backend
        except EngineGone:
            if engine is not None:
                engine.lost()
            raise
        finally:
            if engine is not None:
                engine.requests.leave(rank)

    async def missing(self) -> WeightsMissing | None:
        """Why no request can be answered; see `Engine.missing`. None for the model of an external server."""
        return await self._engine.missing() if self._engine is not None else None

    async def readiness(self) -> GatewayError | None:
        """Why a request would have to wait, or None. Asks the engine, but starts nothing."""
        engine, name = self._engine, self._model.name
        backend = engine.accepting if engine is not None else await self.backend()
        if backend is None:
            assert engine is not None
            if (error := await engine.missing()) is not None:
                return error
            cure = "the next request starts it" if engine.state == "stopped" else "requests wait for it"
            return engine.failure or ProviderModelNotLoaded(
                f"model {name!r}: its engine is {engine.state}; {cure}", retry_after=engine.load_seconds or 1
            )
        try:
            async with asyncio.timeout(READY_SECONDS):
                await backend.ready()
        except TimeoutError:
            return ProviderUnavailable(f"model {name!r}: its engine says nothing for {READY_SECONDS:g} s")
        except GatewayError as error:
            return error
        return None

    async def load(self, keep_alive: float | None = None) -> None:
        """Returns once the model is in memory. keep_alive: see `Backend.load`; of an engine of ours, until its end. 0:
        unloads it.

        Raises what `EngineRequests.join` raises, and ProviderInvalidRequest if the model's server can't be told.
        """
        if self._engine is None:
            await (await self.backend()).load(keep_alive)
        elif keep_alive == 0:
            await self._engine.shutdown.unload()
        else:
            await self._engine.requests.join()
            self._engine.keep_alive = keep_alive
            self._engine.requests.leave()

    async def unload(self) -> None:
        """Returns once the model is out of memory, its answers in flight complete. Raises as `load` does."""
        await self.load(0)

    def replicas(self) -> Sequence[ReplicaStatus]:
        """The model's servers, if it has several and one has been asked."""
        return self.external.replicas() if self.external is not None else ()

    def pass_on(self, model: Model) -> None:
        """Gives the engine to another route, with other settings; closing this leaves it alone."""
        assert self._engine is not None
        self._replaced = self._engine.reconfigure(model)
        self._passed_on = True

    async def retire(self) -> None:
        """Ends the engine once its answers in flight have ended."""
        if self._engine is not None and not self._passed_on:
            await self._engine.shutdown.retire()

    async def aclose(self) -> None:
        for backend in (self.external, self._replaced):
            if backend is not None:
                await backend.aclose()
        if self._engine is not None and not self._passed_on:
            self._engine.startup.close()
            await self._engine.stop()


def address_of(model: Model) -> Address | None:
    """The address of the model's external server, from config.yaml."""
    if model.uds is not None:
        return Address(uds=str(model.uds))
    return None if model.base_url is None else Address.parse(model.base_url)
