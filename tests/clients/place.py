"""The gateway that docs/clients/table.md is filled with: real, with keys, before a real and two scripted engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gateway.app import build
from gateway.config import Config, Model, PullSource, Runtime, Server
from gateway.server.asgi import ASGIApp, Message, Receive, Scope, Send
from tests.conftest import ROOT
from tests.gateway.double import Double, Exchange, Script, chunk
from tests.gateway.running import FAST, NO_COMMENTS
from tests.provider.server import serve

CELLS = ("chat", "stream", "tools", "structured", "cancel", "overflow", "wrong key", "missing weights")
ERRORS = CELLS[5:]
KEY, WRONG_KEY = "right", "wrong"
MODEL, ENDLESS, GONE, AGENTS = "tiny", "endless", "gone", "scripted"
WINDOW = 1024
"""Of `MODEL`, in tokens."""
SECONDS = 3.0
"""Bound on the time from the request, or from our answer, until a person sees the error, and until the engine stops."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "overflow": (f"maximum context length is {WINDOW} tokens", f"tokens > {WINDOW} maximum"),
    "wrong key": ("a valid API key is needed",),
    "missing weights": ("`ctxgate pull gone` fetches it",),
}
"""What of the gateway's message reaches the person."""
CLASSES: Mapping[str, tuple[str, ...]] = {
    "overflow": ("ContextWindowExceeded", "ContextLengthExceeded", "ContextOverflow"),
    "wrong key": ("AuthenticationError",),
    "missing weights": ("NotFoundError",),
}
"""Parts of the names of exceptions that say the same, for clients that leave the message out."""


@dataclass(frozen=True)
class Result:
    """Of one cell. state: `cannot` is the client's own limit, and `seen` says which; else it is what came instead, or
    the error as the client calls it. seconds: until an error was seen, or an engine stopped."""

    state: str
    seen: str = ""
    seconds: float | None = None


YES = Result("yes")
Row = dict[str, Result]


class Told:
    """The gateway, which notes each refusal: when, and with which status."""

    def __init__(self, app: ASGIApp) -> None:
        self.refusals: list[tuple[float, int]] = []
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self.refusals.append((time.monotonic(), message["status"]))
            await send(message)

        await self._app(scope, receive, noted)


@dataclass
class Place:
    """The gateway that the clients are run against, and its two scripted engines."""

    url: str
    told: Told
    endless: Double
    scripted: Double
    script: list[Script] = field(default_factory=list)
    """The last one answers the next requests for `AGENTS`."""


async def without_end(exchange: Exchange) -> None:
    await exchange.start()
    while not exchange.gone.done():
        await exchange.event(chunk("word "))
        await asyncio.wait([exchange.gone], timeout=0.02)


@asynccontextmanager
async def place(test_model: Path, folder: Path, *, noting: bool) -> AsyncIterator[Place]:
    """noting: with the times of refusals, which needs the plain ASGI way instead of the fast one."""
    scripts: list[Script] = []

    async def scripted(exchange: Exchange) -> None:
        await scripts[-1](exchange)

    async with AsyncExitStack() as stack:
        endless = await stack.enter_async_context(Double(without_end).serve())
        agents = await stack.enter_async_context(Double(scripted).serve())
        app = build(_config(test_model, folder, endless, agents))
        told = Told(app)
        with serve(told if noting else app, lifespan="on", http="httptools" if noting else FAST) as url:
            try:
                yield Place(url, told, endless, agents, scripts)
            finally:
                # The engines must go on while the gateway ends: `serve` waits for it in this thread.
                for double in (endless, agents):
                    for connection in [*double.open]:
                        connection.end()


def _config(test_model: Path, folder: Path, endless: Double, agents: Double) -> Config:
    def served(name: str, double: Double, **more: Any) -> Model:
        return Model(name=name, runtime="openai", base_url=f"http://127.0.0.1:{double.address.port}", **more)

    tiny = Model(
        name=MODEL,
        runtime="llama.cpp",
        path=test_model,
        context_window=WINDOW,
        tool_call_format="pythonic",
        defaults={"temperature": 0, "max_tokens": 256},
        engine=Runtime(threads=1, parallel=1),
    )
    gone = Model(
        name=GONE,
        runtime="llama.cpp",
        path=folder / "gone.gguf",
        pull=PullSource(kind="hub", name="owner/name"),
    )
    models = (tiny, gone, served(ENDLESS, endless), served(AGENTS, agents, tool_call_format="pythonic"))
    return Config(
        source=ROOT / "_models/config.yaml",
        active_model=MODEL,
        models={model.name: model for model in models},
        state_dir=folder / "state",
        server=Server(api_keys=(SecretStr(KEY),), **NO_COMMENTS),
    )


async def left(engine: Double, remark: str = "") -> Result:
    """Whether the engine of the last request may stop within the bound, because nobody waits for it any more."""
    began = time.monotonic()
    if not engine.requests:
        return Result("no", "it asked for nothing")
    done, _ = await asyncio.wait([engine.requests[-1].gone], timeout=SECONDS)
    seconds = round(time.monotonic() - began, 1)
    return Result("yes", remark, seconds) if done else Result("no", f"the engine still writes after {SECONDS:g} s")
