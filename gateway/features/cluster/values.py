"""The messages and values that gateways, placer and engines exchange. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gateway.config import Engines, Model, Prompts
from gateway.config.diff import launch
from gateway.engines.memory import Budget, Footprint
from gateway.features.cluster.settings import Cluster, ClusterTLS
from gateway.wire.limits import Used

NAMESPACE, PLACER, ENGINE = "ctxgate", "ctxgate placer", "ctxgate engine "
"""Ray's namespace, and the names of our actors in it."""
HERE, AWAY = "ctxgate: Ray is here", "ctxgate: Ray is away"
"""What a gateway's agent reports about Ray's head."""

EngineState = Literal["ready", "draining"]


class Settings(Struct, frozen=True):
    """The parts of config.yaml that the placer and the engines need. Contains the store's password: sent only through
    Ray."""

    cluster: Cluster
    store: str
    models: Mapping[str, Model]
    limits: Engines
    prompts: Prompts
    state_dir: Path

    @property
    def saved(self) -> Prompts | None:
        """Settings of saved prompts; None if engines save none: without a share, they would die with it."""
        return self.prompts if self.prompts.share is not None and self.prompts.save != "off" else None


class EngineRow(Struct, frozen=True):
    """An engine's row in PostgreSQL. node, host: where it runs. launch: see `fingerprint`. slots: requests that it
    answers at once. places: the port of its `gateway.features.cluster.prompts.PlaceServer`; 0: it has none."""

    id: str
    model: str
    node: str
    host: str
    url: str
    launch: str
    slots: int
    state: EngineState
    places: int = 0


class Node(Struct, frozen=True):
    """A machine of the cluster. needs: memory that a model's engine takes there; a model whose weights it lacks is
    missing. address: by which other machines reach it."""

    id: str
    host: str
    labels: Mapping[str, str]
    budget: Budget
    needs: Mapping[str, Footprint] = field(default_factory=dict)
    gpus: float = 0.0
    cpus: float = 0.0
    address: str = ""


class NodeRow(Struct, frozen=True):
    """A node for status pages. used: bytes of `memory` that engines hold; the same on its GPUs. cpus, gpus: as Ray
    counts them. alive: False for a while after Ray has lost it."""

    id: str
    host: str
    labels: Mapping[str, str]
    memory: int
    used: int
    gpu_memory: int
    gpu_used: int
    engines: tuple[str, ...]
    address: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    alive: bool = True


class Load(Struct, frozen=True, tag="load"):
    """What a gateway does. busy: engine → requests in flight. waiting: model → requests without an engine. read: engine
    → hashes of prompts that it has read since the last time. used: API key with limits → what its requests used. whole:
    engines that aren't in `busy` have none, and keys that aren't in `used` have no request on its way. goes_on: with
    what the message before had no room for."""

    gateway: str
    url: str
    busy: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    used: Mapping[str, Used] = field(default_factory=dict)
    whole: bool = False
    goes_on: bool = False


class Changed(Struct, frozen=True, tag="changed"):
    """The engines in the store, or the callers' keys, have changed."""


class Failed(Struct, frozen=True, tag="failed"):
    """An engine of the model can't be started."""

    model: str
    why: str
    code: str | None = None


Message = Load | Changed | Failed

encode = msgspec.json.encode
decode = msgspec.json.Decoder(Message).decode


def placeable(model: Model) -> bool:
    """Whether the cluster starts the model's engines; otherwise its server is external."""
    return (
        model.startable
        and model.path is not None
        and model.base_url is None
        and model.uds is None
        and model.port is None
    )


def fingerprint(model: Model, tls: ClusterTLS | None = None) -> str:
    """Equal for models whose engines are interchangeable. tls: of the cluster; engines without it can't replace
    those with it."""
    # Enums, paths and structs of one model always print alike.
    return hashlib.sha256(repr((launch(model), tls is not None)).encode()).hexdigest()[:16]


def split(load: Load, maximum: int) -> list[bytes]:
    """Splits `load` into messages of at most `maximum` bytes each, which together say the same."""
    data = encode(load)
    names = [*dict.fromkeys([*load.busy, *load.waiting, *load.read, *load.used])]
    if len(data) <= maximum or (len(names) < 2 and not load.read):
        return [data]
    if len(names) < 2:
        # One engine with too many prompts: the newest are worth the most.
        read = {name: prompts[(len(prompts) + 1) // 2 :] for name, prompts in load.read.items() if len(prompts) > 1}
        return split(replace(load, read=read), maximum)
    halves = {*names[: len(names) // 2]}
    found: list[bytes] = []
    for at, half in enumerate((halves, {*names} - halves)):
        busy = {name: count for name, count in load.busy.items() if name in half}
        waiting = {name: count for name, count in load.waiting.items() if name in half}
        read = {name: prompts for name, prompts in load.read.items() if name in half}
        used = {key: one for key, one in load.used.items() if key in half}
        whole, goes_on = load.whole and at == 0, load.goes_on or at > 0
        found += split(Load(load.gateway, load.url, busy, waiting, read, used, whole, goes_on), maximum)
    return found


def joined(before: Load | None, load: Load) -> Load:
    """What a gateway does, after one more message of it, without what it has read."""
    busy = {**({} if before is None or load.whole else before.busy), **load.busy}
    waiting = {**(before.waiting if before is not None and load.goes_on else {}), **load.waiting}
    return replace(load, busy=busy, waiting=waiting, read={})


def shortened(failed: Failed, maximum: int) -> bytes:
    """The message, with as much of `why` as `maximum` bytes take, about."""
    while len(data := encode(failed)) > maximum and failed.why:
        failed = replace(failed, why=failed.why[: len(failed.why) * 3 // 4])
    return data
