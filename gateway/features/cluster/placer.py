"""The placer: one Ray actor for the whole cluster. It decides how many engines there are, and where.

It can rebuild all of its state: engines are named actors that outlive it, gateways report their load, and nodes report
what they hold.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import ray
import ray.exceptions
from msgspec.structs import replace
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from sqlalchemy import Connection

from gateway.engines.admission import Resident
from gateway.engines.memory import Budget, Footprint
from gateway.engines.recipe import slots
from gateway.engines.states import State
from gateway.errors import Backoff, GatewayError
from gateway.features.cluster import scaling, tables
from gateway.features.cluster.actor import EngineActor, Refused, Running, Seen, probe
from gateway.features.cluster.bus import MAX_BYTES, Bus
from gateway.features.cluster.placement import Placed, Placement, Wish, place
from gateway.features.cluster.values import (
    ENGINE,
    NAMESPACE,
    EngineRow,
    Failed,
    Load,
    Message,
    Node,
    NodeRow,
    Settings,
    fingerprint,
    joined,
    placeable,
    shortened,
)
from gateway.store import Store

_CHILDREN_STAY = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Otherwise Ray would kill the guard process, which is what ends an engine once its actor is gone."""
TICK_SECONDS = 1.0
SILENT_SECONDS = 8.0
"""A gateway that sends nothing for this long counts as dead, and its requests as over."""
SETTLE_SECONDS = 1.5
"""After this time, every gateway knows that an engine drains."""
RPC_SECONDS = 10.0
PROBE_SECONDS = 60.0
FIRST_PROBE_SECONDS = 30.0
"""How long a new node has to describe itself before engines are placed without it."""
LOST_SECONDS = 600.0
"""How long status pages still show a node that is gone."""
AGAIN = Backoff(1.0, 60.0)
"""Pause before another try to start a model after a failure."""

log = logging.getLogger("ctxgate.placer")


@dataclass(eq=False)
class _Engine:
    """An engine that holds memory; row: None until it answers."""

    id: str
    model: str
    launch: str
    node: str
    held: Footprint
    actor: Any
    state: State = "starting"
    row: EngineRow | None = None
    since: float = field(default_factory=time.monotonic)
    idle_since: float = field(default_factory=time.monotonic)
    load_seconds: float | None = None
    busy: int = 0
    for_good: bool = False
    """It drains, and this can't be undone."""
    task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class _Failure:
    count: int
    until: float


class Placer:
    """settings: those of the gateway that made it; `configure` replaces them."""

    def __init__(self, settings: Settings) -> None:
        logging.basicConfig(level=logging.INFO)
        self._settings = settings
        self._engines: dict[str, _Engine] = {}
        self._nodes: dict[str, Node] = {}
        self._probed: dict[str, float] = {}
        self._lost: dict[str, tuple[NodeRow, float]] = {}
        """Nodes that are gone, with the time of their end."""
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._loads: dict[str, tuple[float, Load]] = {}
        self._wished: dict[str, float] = {}
        self._failures: dict[str, _Failure] = {}
        self._wake = asyncio.Event()
        self._published: object = None
        self._store: Store | None = None
        self._bus: Bus | None = None
        self._key: str | None = None
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def configure(self, settings: Settings) -> None:
        """Takes over a configuration, and begins to work."""
        self._settings = settings
        self._probed.clear()
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="placer")
        self._wake.set()

    async def ping(self) -> bool:
        """Whether the placer works."""
        return self._running is not None and not self._running.done()

    async def _run(self) -> None:
        store = await self._open()
        self._bus = Bus(self._settings.store, self._heard, self._connected)
        self._spawn(self._bus.run())
        await self._find_engines()
        while True:
            self._wake.clear()
            try:
                await self._tick(store)
            except (GatewayError, ray.exceptions.RayError) as error:
                log.warning("placer: %s", error)
            except Exception:
                # It places the next engine all the same.
                log.exception("placer: placing engines failed; the next tick tries again")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):  # wait_for loses cancellations before Python 3.12
                    await self._wake.wait()

    async def _open(self) -> Store:
        while True:
            try:
                if self._store is None:
                    self._store = await Store.open(self._settings.store)
                self._key = await self._store.write(tables.key)
            except GatewayError as error:
                log.warning("placer: %s", error)
                await asyncio.sleep(TICK_SECONDS)
            else:
                return self._store

    async def _tick(self, store: Store) -> None:
        await self._see_nodes()
        self._count()
        self._scale()
        wishes = self._wishes() if self._knows_nodes() else []
        placed = [Placed(engine.node, _resident(engine)) for engine in self._engines.values()]
        now = time.monotonic()
        placement = place([*self._nodes.values()], placed, wishes, self._settings.limits, now)
        self._carry_out(placement)
        await self._publish(store)

    # What it learns

    async def _find_engines(self) -> None:
        """Takes over the engines that were running before this placer."""
        names = await asyncio.to_thread(ray.util.list_named_actors)
        for name in names:
            if not name.startswith(ENGINE) or (id := name.removeprefix(ENGINE)) in self._engines:
                continue
            try:
                actor = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
                running: Running | None = await asyncio.wait_for(actor.describe.remote(), RPC_SECONDS)
            except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
                log.warning("placer: %s doesn't answer: %s", name, error)
                continue
            if running is None:
                ray.kill(actor)  # nobody would hear of the end of its start
                continue
            engine = _Engine(id, running.model, running.launch, running.node, running.held, actor)
            self._engines[id] = engine
            self._came(engine, running)
            log.info("placer: found %s on %s", id, running.host)

    async def _see_nodes(self) -> None:
        alive = {
            node["NodeID"]: node
            for node in await asyncio.to_thread(ray.nodes)
            if node["Alive"] and node["Resources"].get("CPU") and node["Resources"].get("memory")
        }
        for id in [*self._nodes]:
            if id not in alive:
                row = self._node_row(self._nodes.pop(id))
                self._lost[id] = replace(row, used=0, gpu_used=0, engines=(), alive=False), time.monotonic()
                self._probed.pop(id, None)
        for engine in [*self._engines.values()]:
            if engine.node not in alive:
                self._gone(engine, "its node is gone")
        now = time.monotonic()
        for id, node in alive.items():
            if id not in self._probes and now - self._probed.get(id, -PROBE_SECONDS) >= PROBE_SECONDS:
                self._probed[id] = now
                self._probes[id] = self._spawn(self._probe(id, node))

    def _knows_nodes(self) -> bool:
        """Whether every node has described itself, or had the time to."""
        now = time.monotonic()
        return all(
            now - self._probed.get(id, now) > FIRST_PROBE_SECONDS for id in self._probes if id not in self._nodes
        )

    async def _probe(self, id: str, node: dict[str, Any]) -> None:
        try:
            task = ray.remote(num_cpus=0, max_retries=0)(probe).options(scheduling_strategy=_on(id))
            seen: Seen = await asyncio.wait_for(task.remote(self._settings), 3 * RPC_SECONDS)
        except (TimeoutError, ray.exceptions.RayError) as error:
            log.warning("placer: node %s can't be inspected: %s", id[:8], error)
            self._probed.pop(id, None)
        else:
            resources = node["Resources"]
            gpus = resources.get("GPU", 0.0)
            budget = Budget(
                min(seen.budget.ram, int(resources["memory"])), seen.budget.gpu if gpus else None, strict=True
            )
            self._nodes[id] = Node(
                id=id,
                host=seen.host,
                labels=node.get("Labels") or {},
                budget=budget,
                needs=seen.needs,
                gpus=gpus,
                cpus=resources["CPU"],
                address=str(node["NodeManagerAddress"]),
            )
            self._lost.pop(id, None)
            self._wake.set()
        finally:
            self._probes.pop(id, None)

    def _heard(self, message: Message) -> None:
        if isinstance(message, Load):
            before = self._loads.get(message.gateway)
            load = joined(None if before is None else before[1], message)
            self._loads[message.gateway] = time.monotonic(), load
            if load.waiting and (before is None or before[1].waiting != load.waiting):
                self._wake.set()

    async def _connected(self) -> None:
        self._published = None

    def _count(self) -> None:
        """The load of each engine, from the gateways' reports."""
        now = time.monotonic()
        for gateway, (heard, _) in [*self._loads.items()]:
            if now - heard > SILENT_SECONDS:
                del self._loads[gateway]
        busy = scaling.together([load.busy for _, load in self._loads.values()])
        for engine in self._engines.values():
            engine.busy = busy.get(engine.id, 0)
            if engine.busy:
                engine.idle_since = now

    # What it decides

    def _scale(self) -> None:
        now = time.monotonic()
        waiting = scaling.together([load.waiting for _, load in self._loads.values()])
        tls = self._settings.cluster.tls
        launches = {name: fingerprint(model, tls) for name, model in self._settings.models.items() if placeable(model)}
        for engine in self._engines.values():
            if launches.get(engine.model) != engine.launch:
                self._drain(engine, for_good=True)
        for name, launch in launches.items():
            model = self._settings.models[name]
            ours = [
                engine
                for engine in self._engines.values()
                if engine.model == name and engine.launch == launch and engine.state in ("starting", "ready")
            ]
            replicas = [
                scaling.Replica(
                    engine.id,
                    engine.row.slots if engine.row is not None else slots(model),
                    engine.busy,
                    0.0 if engine.busy or engine.state == "starting" else now - engine.idle_since,
                )
                for engine in ours
            ]
            count = scaling.wanted(
                model.spread,
                replicas,
                waiting.get(name, 0),
                slots(model),
                idle_seconds=self._settings.cluster.idle_seconds,
                ttl=model.residence.idle_ttl_seconds,
            )
            for id in scaling.surplus(replicas, count):
                self._drain(self._engines[id], for_good=True)
            for number in range(1000):
                key = f"{name} {number}"
                if number < count - len(replicas):
                    self._wished.setdefault(key, now)
                elif self._wished.pop(key, None) is None:
                    break

    def _wishes(self) -> list[Wish]:
        now = time.monotonic()
        found = []
        for key, since in self._wished.items():
            model = self._settings.models.get(key.rpartition(" ")[0])
            if model is None:
                continue
            failure = self._failures.get(model.name)
            if failure is None or failure.until <= now:
                found.append(Wish(key, model.name, model.spread, since, model.residence.group))
        self._wished = {key: at for key, at in self._wished.items() if key.rpartition(" ")[0] in self._settings.models}
        return found

    def _carry_out(self, placement: Placement) -> None:
        for key, (node, need) in placement.starts.items():
            self._wished.pop(key, None)
            self._start(key.rpartition(" ")[0], node, need)
        for engine in [*self._engines.values()]:
            if engine.id in placement.drains:
                self._drain(engine)
            elif engine.state == "draining" and not engine.for_good and engine.row is not None:
                engine.state, engine.since = "ready", time.monotonic()
                engine.row = replace(engine.row, state="ready")
            if engine.state == "draining":
                waited = time.monotonic() - engine.since
                late = waited > self._settings.limits.drain_timeout_seconds
                if late or (not engine.busy and waited > SETTLE_SECONDS):
                    self._stop(engine)
        for key, why in placement.refused.items():
            # Nodes that were never looked at may fit.
            if not self._probes:
                self._failed(key.rpartition(" ")[0], why, "no_memory")

    # What it does

    def _start(self, name: str, node: str, need: Footprint) -> None:
        model = self._settings.models[name]
        id = f"{name}-{token_hex(3)}"
        launch = fingerprint(model, self._settings.cluster.tls)
        actor = (
            ray.remote(EngineActor)
            .options(
                name=f"{ENGINE}{id}",
                namespace=NAMESPACE,
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                runtime_env={"env_vars": _CHILDREN_STAY},
                scheduling_strategy=_on(node),
                **_resources(self._nodes[node], need),
            )
            .remote(id, model, launch, self._key, self._settings)
        )
        engine = _Engine(id, name, launch, node, need, actor)
        self._engines[id] = engine
        engine.task = self._spawn(self._bring_up(engine))
        log.info("placer: starts %s on %s", id, self._nodes[node].host)

    async def _bring_up(self, engine: _Engine) -> None:
        timeout = self._settings.models[engine.model].engine.startup_timeout_seconds
        try:
            running: Running | Refused = await asyncio.wait_for(engine.actor.start.remote(), timeout + 3600)
        except (TimeoutError, ray.exceptions.RayError) as error:
            self._gone(engine, f"its start failed: {type(error).__name__}")
            self._back_off(engine.model)
            return
        if isinstance(running, Refused):
            self._gone(engine, running.why)
            self._back_off(engine.model)
            self._failed(engine.model, running.why, running.code)
            return
        self._failures.pop(engine.model, None)
        self._came(engine, running)

    def _came(self, engine: _Engine, running: Running) -> None:
        now = time.monotonic()
        engine.state, engine.since, engine.idle_since = "ready", now, now
        engine.held = engine.held.largest(running.held)
        engine.load_seconds = running.load_seconds
        engine.row = EngineRow(
            running.id,
            running.model,
            running.node,
            running.host,
            running.url,
            running.launch,
            running.slots,
            "ready",
            running.places,
        )
        engine.task = self._spawn(self._watch(engine))
        self._wake.set()

    async def _watch(self, engine: _Engine) -> None:
        try:
            why: str = await engine.actor.ended.remote()
        except ray.exceptions.ActorUnavailableError:
            with suppress(TimeoutError, ray.exceptions.RayError):
                await asyncio.wait_for(engine.actor.describe.remote(), RPC_SECONDS)
                engine.task = self._spawn(self._watch(engine))
                return
            why = "its node doesn't answer"
        except ray.exceptions.RayError as error:
            why = f"it is gone: {type(error).__name__}"
        self._gone(engine, why)

    def _drain(self, engine: _Engine, *, for_good: bool = False) -> None:
        engine.for_good = engine.for_good or for_good
        if engine.state == "ready" and engine.row is not None:
            engine.state, engine.since = "draining", time.monotonic()
            engine.row = replace(engine.row, state="draining")
            self._wake.set()

    def _stop(self, engine: _Engine) -> None:
        engine.state = "stopping"
        engine.row = None
        engine.task = self._spawn(self._end(engine))

    async def _end(self, engine: _Engine) -> None:
        with suppress(TimeoutError, ray.exceptions.RayError):
            await asyncio.wait_for(engine.actor.stop.remote(), 3 * RPC_SECONDS)
        self._gone(engine, "nobody needs it")

    def _gone(self, engine: _Engine, why: str) -> None:
        if self._engines.pop(engine.id, None) is not None:
            log.info("placer: %s ended: %s", engine.id, why)
            with suppress(ray.exceptions.RayError):
                ray.kill(engine.actor)
            self._wake.set()

    def _back_off(self, model: str) -> None:
        count = self._failures[model].count + 1 if model in self._failures else 1
        self._failures[model] = _Failure(count, time.monotonic() + AGAIN.delay(count))

    def _failed(self, model: str, why: str, code: str | None) -> None:
        if self._bus is not None:
            self._spawn(self._bus.send(shortened(Failed(model, why, code), MAX_BYTES)))

    # What it publishes

    async def _publish(self, store: Store) -> None:
        """Writes the changes; if PostgreSQL is down, the next tick tries again."""
        rows = sorted((each.row for each in self._engines.values() if each.row is not None), key=lambda row: row.id)
        now = time.monotonic()
        self._lost = {id: (row, since) for id, (row, since) in self._lost.items() if now - since < LOST_SECONDS}
        nodes = [self._node_row(node) for node in self._nodes.values()] + [row for row, _ in self._lost.values()]
        nodes.sort(key=lambda node: node.id)
        if (rows, nodes) == self._published:
            return

        def write(connection: Connection) -> None:
            tables.replace_engines(connection, rows)
            tables.replace_nodes(connection, nodes)

        await store.write(write)
        self._published = (rows, nodes)

    def _node_row(self, node: Node) -> NodeRow:
        here = [engine for engine in self._engines.values() if engine.node == node.id]
        return NodeRow(
            id=node.id,
            host=node.host,
            labels={name: value for name, value in node.labels.items() if not name.startswith("ray.io/")},
            memory=node.budget.ram,
            used=sum(engine.held.ram for engine in here),
            gpu_memory=node.budget.gpu or 0,
            gpu_used=sum(engine.held.gpu for engine in here),
            engines=tuple(sorted(engine.id for engine in here)),
            address=node.address,
            cpus=node.cpus,
            gpus=node.gpus,
        )

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("placer: a bug", exc_info=error)


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _resources(node: Node, need: Footprint) -> dict[str, Any]:
    """The resources to reserve in Ray, so that other work on the cluster sees them. Engines share the processors."""
    found: dict[str, Any] = {"num_cpus": 0, "memory": min(need.ram, node.budget.ram)}
    if need.gpu and node.budget.gpu:
        # Unless we ask for a share of the GPUs, Ray hides them. Above one, it gives out only whole ones.
        share = need.gpu / node.budget.gpu * node.gpus
        found["num_gpus"] = min(node.gpus, max(0.01, round(share, 2) if share <= 1 else math.ceil(share)))
    return found


def _resident(engine: _Engine) -> Resident:
    return Resident(
        key=engine.id,
        name=engine.model,
        state=engine.state,
        held=engine.held,
        in_flight=engine.busy,
        ready_since=engine.since,
        idle_since=engine.idle_since,
        load_seconds=engine.load_seconds,
    )
