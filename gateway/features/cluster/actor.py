"""One engine as a Ray actor: the process that a gateway alone on its machine would start, on the node that the placer
chose. It dies with the actor, and the actor with its node."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from contextlib import suppress
from functools import partial

import psutil
import ray
from msgspec import Struct
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.config import Model
from gateway.engines import Residency
from gateway.engines.engine import Engine
from gateway.engines.launch import weights_missing
from gateway.engines.machine import free_port, this_machine
from gateway.engines.memory import Budget, Footprint, limited, machine_budget
from gateway.engines.recipe import HOST, Machine, slots
from gateway.errors import GatewayError
from gateway.features.cluster.prompts import PlaceServer
from gateway.features.cluster.tls import Front, context
from gateway.features.cluster.values import Settings, placeable
from gateway.features.cluster.weights import provide
from gateway.prompts.saved import SavedPrompts

UNBOUNDED = 1 << 62
"""The placer counts memory, not the actor."""


class Running(Struct, frozen=True):
    """An engine that answers. held: memory that it holds by now. load_seconds: how long its start took."""

    id: str
    model: str
    launch: str
    node: str
    host: str
    url: str
    slots: int
    places: int
    held: Footprint
    load_seconds: float


class Refused(Struct, frozen=True):
    """Why an engine can't be started; a value, since Ray would wrap an exception of ours."""

    why: str
    code: str | None


class Seen(Struct, frozen=True):
    """What a machine reports about itself; see `gateway.features.cluster.values.Node`."""

    host: str
    budget: Budget
    needs: dict[str, Footprint]


class EngineActor:
    """id: also names its folder for logs, so that engines of one model on one machine have one each."""

    def __init__(self, id: str, model: Model, launch: str, key: str, settings: Settings) -> None:
        self._id = id
        self._launch = launch
        self._settings = settings
        self._model = replace(
            model, api_key=SecretStr(key), residence=replace(model.residence, pinned=True, memory=None)
        )
        self._key = key
        self._host = ray.util.get_node_ip_address()
        self._ended = asyncio.Event()
        self._stopping = False
        self._running: Running | None = None
        state = settings.state_dir / "cluster" / id
        self._saved = _saved(settings)
        self._places: PlaceServer | None = None
        self._front: Front | None = None
        self._residency = Residency(
            replace(settings.limits, memory_budget=None, gpu_memory_budget=None),
            state_dir=state,
            budget=lambda: Budget(UNBOUNDED, UNBOUNDED if machine_budget().gpu is not None else None),
            prompts=self._saved,
        )
        self._engine = Engine(self._model, residency=self._residency, machine=self._machine)
        self._engine.on_change(self._changed)

    async def start(self) -> Running | Refused:
        """Fetches the weights if they aren't there, and returns once the engine answers."""
        try:
            tls = self._context()
            await asyncio.to_thread(provide, self._model, self._settings.cluster.weights)
            address = await self._engine.requests.ensure()
        except GatewayError as error:
            return Refused(error.message, error.code)
        url = await self._serve(address.port, tls)
        places = await self._serve_places(tls)
        self._running = Running(
            id=self._id,
            model=self._model.name,
            launch=self._launch,
            node=ray.get_runtime_context().get_node_id(),
            host=socket.gethostname(),
            url=url,
            slots=slots(self._model),
            places=places,
            held=self._engine.held,
            load_seconds=self._engine.load_seconds or 0.0,
        )
        return self._running

    async def describe(self) -> Running | None:
        """None while it starts."""
        if self._running is not None:
            self._running = replace(self._running, held=self._engine.held)
        return self._running

    async def ended(self) -> str:
        """Returns once the engine has ended by itself, with the reason."""
        await self._ended.wait()
        return str(self._engine.failure or "it ended")

    async def stop(self) -> None:
        """Saves the engine's prompts, and ends it."""
        self._stopping = True
        await self._engine.stop()
        for server in (self._places, self._front):
            if server is not None:
                server.close()
        if self._saved is not None:
            await self._saved.kept()
            await self._saved.share.done()
            await asyncio.to_thread(shutil.rmtree, self._saved.path, ignore_errors=True)

    async def _serve_places(self, tls: ssl.SSLContext | None) -> int:
        """The port; 0 if the engine saves no prompts."""
        kept = self._engine.current_backend.kept_prompts() if self._engine.current_backend is not None else None
        if kept is None:
            return 0
        live, server = kept
        await live.know(server)
        self._places = PlaceServer(live, server, self._key)
        return await self._places.start(self._host, tls)

    async def _serve(self, port: int, tls: ssl.SSLContext | None) -> str:
        """The engine's URL for gateways."""
        if tls is None:
            return f"http://{self._host}:{port}"
        self._front = Front(port)
        return f"https://{self._host}:{await self._front.start(self._host, tls)}"

    def _context(self) -> ssl.SSLContext | None:
        tls = self._settings.cluster.tls
        return context(tls) if tls is not None else None

    def _changed(self, engine: Engine) -> None:
        if engine.state == "failed" and self._running is not None and not self._stopping:
            self._ended.set()

    def _machine(self) -> Machine:
        host = self._host if self._settings.cluster.tls is None else HOST
        return replace(this_machine(), host=host, free_port=partial(free_port, host), key=self._key)


def _saved(settings: Settings) -> SavedPrompts | None:
    """Those of this process alone, in a folder that ends with it; removes the folders of processes that were killed."""
    if settings.saved is None:
        return None
    folder = settings.state_dir / "cluster" / "prompts"
    host = socket.gethostname()
    for left in folder.glob(f"{host}-*"):
        pid = left.name.removeprefix(f"{host}-")
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return SavedPrompts(settings.saved, folder / f"{host}-{os.getpid()}")


async def _probe_node(settings: Settings) -> Seen:
    needs: dict[str, Footprint] = {}
    saved = SavedPrompts(settings.saved, settings.state_dir) if settings.saved is not None else None
    residency = Residency(settings.limits, state_dir=settings.state_dir, prompts=saved)
    for name, model in settings.models.items():
        if not placeable(model):
            continue
        if weights_missing(model) is None:
            with suppress(GatewayError):
                needs[name] = await residency.need(model)
    budget = limited(machine_budget(), settings.limits)
    return Seen(socket.gethostname(), budget, needs)


def probe(settings: Settings) -> Seen:
    """Describes the machine on which this runs, for the placer."""
    return asyncio.run(_probe_node(settings))
