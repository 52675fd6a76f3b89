"""A tree that is kept in this process, and asynchronous clients of its sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.ctx.live import LiveTree
from gateway.features.ctx.settings import Ctx, CtxModel
from gateway.services import Services
from tests.gateway.double import Double
from tests.patience import PATIENCE


@dataclass
class Kept:
    root: Path
    services: Services
    tree: LiveTree

    @property
    def gateway(self) -> Gateway:
        return self.services.gateway

    def connect(self, name: str = "acme/m") -> Client:
        return Client(self.root / "model" / f"{name}.sock")

    async def execute(self, name: str, input: str, run: str = "r1") -> tuple[list[dict[str, Any]], int]:
        """As the runner does it: the events and the exit code."""
        fields = ["1", f"model/{name}", name.rpartition("/")[2], run, "/", "ooo", "jsonl", "--", input]
        call = "\0".join(fields).encode()
        async with Client(self.root / ".ctxgate/exec.sock") as client:
            client.writer.write(b"h%d\n%b" % (len(call), call))
            printed = b""
            while True:
                head = await client.reader.readline()
                payload = await client.reader.readexactly(int(head[1:]))
                if head[:1] == b"x":
                    return [json.loads(line) for line in printed.splitlines()], int(payload)
                printed += payload if head[:1] == b"o" else b""


@asynccontextmanager
async def keeping(
    folder: Path,
    double: Double | None = None,
    *,
    store: str | None = None,
    object: CtxModel | None = None,
    waits: bool = True,
    **model: Any,
) -> AsyncIterator[Kept]:
    """The echo, and `acme/m`, which is asked at the double. object, model: further settings of that. waits: until it
    is served."""
    models = {"echo": Model(name="echo", runtime="echo")}
    objects: Mapping[str, CtxModel] = {}
    if double is not None:
        models["m"] = Model(name="m", runtime="openai", base_url=f"http://127.0.0.1:{double.address.port}", **model)
        objects = {"m": object or CtxModel(object="acme/m")}
    config = Config(
        source=folder / "config.yaml",
        active_model="echo",
        models=models,
        sections={"ctx": Ctx(enabled=True, root=folder / "t", models=objects)},
        state_dir=folder / "state",
        store=store,
    )
    services = Services(Gateway(config))
    tree = LiveTree(services)
    running = asyncio.create_task(tree.run())
    try:
        async with asyncio.timeout(PATIENCE):
            if waits:
                await tree.ready.wait()
        yield Kept(folder / "t", services, tree)
    finally:
        tree.stop.set()
        await running
        await services.aclose()
        await services.gateway.aclose()


async def eventually(met: Callable[[], bool]) -> None:
    """Waits for what nobody tells."""
    async with asyncio.timeout(PATIENCE):
        while not met():  # noqa: ASYNC110 - it is a file that changes
            await asyncio.sleep(0.05)


class Client:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_unix_connection(self.path, limit=2**21)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def ask(self, **request: Any) -> None:
        self.writer.write(json.dumps(request).encode() + b"\n")
        await self.writer.drain()

    async def frame(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            line = await self.reader.readline()
        assert line.endswith(b"\n"), line
        return dict(json.loads(line))

    async def until(self, kind: str = "done") -> list[dict[str, Any]]:
        frames = [await self.frame()]
        while frames[-1]["type"] != kind:
            frames.append(await self.frame())
        return frames

    async def refused(self, **request: Any) -> str:
        """The code with which a request is refused."""
        await self.ask(**request)
        frame = await self.frame()
        assert frame["type"] == "error", frame
        return str(frame["code"])

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()
