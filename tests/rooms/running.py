"""Rooms behind a real server, before a scripted engine, and a client that follows their events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.features.agents.settings import MCP, MCPServer, Rooms
from tests.cli.commands import answering, config, serving
from tests.gateway.double import Double, Exchange, Script, chunk
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.provider.server import serve

Json = dict[str, Any]

REAL = """\
active_model: tiny
models:
  tiny:
    runtime: llama.cpp
    path: {model}
    temperature: 0
    context_window: 1024
    threads: 1
    parallel: 1
state_dir: {folder}/state
server: {{port: {port}}}
{more}
"""


@dataclass
class House:
    config: Config
    engine: Double
    http: httpx.AsyncClient

    async def call(self, method: str, path: str, status: int, body: Json | None = None, /, **headers: str) -> Any:
        """The envelope's data; of an error the whole envelope."""
        answer = await self.http.request(method, path, json=body, headers=headers)
        envelope = answer.json()
        assert answer.status_code == status, envelope
        assert [name for name in envelope if name != "more"] == ["success", "data", "error", "code", "message"]
        if status < 400:
            assert [envelope[name] for name in ("success", "error", "code", "message")] == [True, None, None, None]
            return envelope["data"]
        assert envelope["success"] is False
        assert envelope["data"] is None
        assert envelope["error"] == envelope["message"]
        return envelope

    async def rent(self, **settings: Any) -> str:
        room: Json = await self.call("POST", "/llm/room", 201, settings)
        assert room["status"] == "rented"
        return str(room["id"])

    async def say(self, room: str, content: str = "Hi", **fields: Any) -> Json:
        said: Json = await self.call("POST", f"/llm/room/{room}/messages", 202, {"content": content, **fields})
        return said

    async def post(self, room: str, verb: str, status: int = 200, **body: Any) -> Json:
        done: Json = await self.call("POST", f"/llm/room/{room}/{verb}", status, body)
        return done

    async def get(self, room: str) -> Json:
        shown: Json = await self.call("GET", f"/llm/room/{room}", 200)
        return shown

    async def history(self, room: str) -> Json:
        history: Json = await self.call("GET", f"/llm/room/{room}/history", 200)
        assert [event["seq"] for event in history["events"]] == list(range(1, len(history["events"]) + 1))
        return history

    async def types(self, room: str) -> list[str]:
        return [event["event_type"] for event in (await self.history(room))["events"]]

    async def until(self, room: str, event_type: str, after: int = 0) -> Json:
        """The first event of the type behind number `after`."""
        async for event in self.follow(room, after):
            if event["event_type"] == event_type:
                return event
        raise AssertionError(f"the stream ended without {event_type}: {await self.types(room)}")

    async def follow(self, room: str, after: int = 0, *, tail: bool = True) -> AsyncIterator[Json]:
        """The room's events, until the server ends the stream."""
        path = f"/llm/room/{room}/events?follow={str(tail).lower()}"
        async with (
            asyncio.timeout(PATIENCE),
            self.http.stream("GET", path, headers={"last-event-id": str(after)}) as stream,
        ):
            assert stream.status_code == 200
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            frame: dict[str, str] = {}
            async for line in stream.aiter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    frame[name] = value
                    continue
                if "data" in frame:
                    event = json.loads(frame["data"])
                    assert (frame["id"], frame["event"]) == (str(event["seq"]), event["event_type"])
                    yield event
                frame = {}


@asynccontextmanager
async def house(
    state: Path,
    *scripts: Script,
    keys: tuple[str, ...] = (),
    store: str | None = None,
    keep_alive: float = 15.0,
    model: Mapping[str, Any] | None = None,
    mcp: Mapping[str, MCPServer] | None = None,
    **rooms: Any,
) -> AsyncIterator[House]:
    """Model `m`, the active one, is the scripted engine, with these further settings; `rooms` are of that name."""
    async with asyncio.timeout(PATIENCE), Double(*scripts).serve() as double:
        address = f"http://127.0.0.1:{double.address.port}"
        rooms.setdefault("secret_key_file", state / "secrets.key")
        rooms.setdefault("turn_retries", 0)  # a scripted failure is meant
        config = Config(
            source=Path(__file__),
            active_model="m",
            models={
                "m": Model(name="m", runtime="openai", base_url=address, **(model or {})),
                "echo": Model(name="echo", runtime="echo"),
                "vectors": Model(name="vectors", runtime="openai", role="embedding", base_url=address),
            },
            server=Server(api_keys=tuple(map(SecretStr, keys)), keep_alive_seconds=keep_alive),
            state_dir=state,
            store=store,
            sections={"rooms": Rooms(**rooms), "mcp": MCP(servers=mcp or {})},
        )
        with ExitStack() as stack:
            url = stack.enter_context(
                serve(build(config), lifespan="on", http="gateway.server.fast_protocol:FastProtocol")
            )
            try:
                async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as http:
                    yield House(config, double, http)
            finally:
                await asyncio.to_thread(stack.close)


@asynccontextmanager
async def real_house(folder: Path, test_model: Path, more: str) -> AsyncIterator[House]:
    """`ctxgate serve` before the real small model. more: a line of its configuration."""
    port = free_port()
    config(folder, REAL.format(model=test_model, folder=folder, port=port, more=more))
    with serving(folder), answering(port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE) as http:
            yield House(None, None, http)  # type: ignore[arg-type]


def speaks(*pieces: str, tokens: int | None = None) -> Script:
    """A script: a streamed answer of these pieces; tokens: what the engine says it wrote."""

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for piece in pieces:
            await exchange.event(chunk(piece))
        await _end(exchange, "stop", tokens)

    return script


def calls(*made: tuple[str, Json | str], text: str | None = None) -> Script:
    """A script: a streamed answer that calls tools."""

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        if text:
            await exchange.event(chunk(text))
        for index, (name, arguments) in enumerate(made):
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call = {"index": index, "id": f"call_{index}_{name}", "type": "function"}
            await exchange.event(chunk(tool_calls=[{**call, "function": {"name": name, "arguments": written}}]))
        await _end(exchange, "tool_calls", 5)

    return script


async def _end(exchange: Exchange, reason: str, tokens: int | None) -> None:
    await exchange.event(chunk(reason=reason))
    if tokens is not None:
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        await exchange.event({**chunk(), "choices": [], "usage": usage})
    await exchange.end()


def of_type(history: dict[str, Any], event_type: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in history["events"] if event["event_type"] == event_type]
