"""Gateways on real engines that share memory: what they are asked, and what is seen of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.config import Config, Engines, Model, Residence
from gateway.core import Gateway, Run
from gateway.engines import Engine, memory
from gateway.engines.recipe import Machine
from gateway.features.operations.commands.status import notes
from gateway.features.operations.snapshot import snapshot
from gateway.wire.chat import ChatRequest
from tests.patience import PATIENCE

EACH = 60 * memory.MB
"""A third more than one engine of the test model holds."""
ONE = Engines(memory_budget=100 * memory.MB)
"""Room for one of them."""
FOREVER = 600.0


def asked(model: str, **more: Any) -> ChatRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 6}
    return ChatRequest.parse(json.dumps({**body, **more}).encode())


@dataclass
class Seen:
    """Records what was in memory at each change of a state."""

    engines: list[Engine]
    counted: int = 0
    resident: int = 0
    maximum: int = 0
    changes: list[tuple[str, str]] = field(default_factory=list)

    def look(self, engine: Engine) -> None:
        self.changes.append((engine.name, engine.state))
        here = [each for each in self.engines if each.held.ram]
        self.maximum = max(self.maximum, len(here))
        self.counted = max(self.counted, sum(each.held.ram for each in here))
        pids = [each.pid for each in self.engines if each.pid is not None]
        usages = [memory.usage(pid) for pid in pids]
        self.resident = max(self.resident, sum(usage.resident for usage in usages if usage is not None))

    def started(self) -> list[str]:
        return [name for name, state in self.changes if state == "starting"]


@asynccontextmanager
async def gateway_of(
    model: Model,
    names: Mapping[str, Residence],
    limits: Engines,
    machine: Callable[[], Machine],
    state_dir: Path,
) -> AsyncIterator[tuple[Gateway, Seen]]:
    models = {name: replace(model, name=name, residence=residence) for name, residence in names.items()}
    config = Config(
        source=Path("config.yaml"), active_model=next(iter(names)), models=models, engines=limits, state_dir=state_dir
    )
    async with asyncio.timeout(PATIENCE), Gateway(config) as gateway:
        engines = [route.engine for route in gateway.routes.values() if route.engine is not None]
        seen = Seen(engines)
        for engine in engines:
            engine.launcher.machine = machine
            engine.on_change(seen.look)
        yield gateway, seen


async def whole(gateway: Gateway, model: str, **more: Any) -> bytes:
    with await gateway.chat(asked(model, **more)) as run:
        return await run.whole()


async def rest(run: Run) -> list[bytes]:
    chunks: list[bytes] = []
    while payloads := await run.payloads():
        chunks += payloads
    return chunks


def engine_of(gateway: Gateway, name: str) -> Engine:
    engine = gateway.routes[name].engine
    assert engine is not None
    return engine


def sized(**more: Any) -> Residence:
    return Residence(memory=EACH, **more)


def notes_on(gateway: Gateway, name: str) -> list[str]:
    """What `ctxgate status` says of a model below its table."""
    return [note for note in notes(snapshot(gateway, None)) if note.startswith(f"{name}: ")]


def limits(**more: float) -> Engines:
    waits = {"swap_after_seconds": FOREVER, "flex_max_wait_seconds": FOREVER, **more}
    return replace(ONE, **waits)
