"""A gateway as a process of its own, before the real engine and a scripted one, and what a stranger can send to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import proc
from tests.conftest import ROOT
from tests.gateway.double import Double, Exchange, Script, chunk, completion
from tests.hostile.watch import Look, Memory, Report
from tests.patience import PATIENCE
from tests.ports import free_port

Json = dict[str, Any]

ANSWER_SECONDS = 0.5
GROWTH = 20_000_000
"""Bytes. While a stranger does harm, each answer of /health comes within ANSWER_SECONDS, and the gateway's memory grows
by less than this."""
LAG_SECONDS = 0.25
"""The same for what a stranger sends in one large body, which memory may hold three times."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Gateway:
    """A running gateway. `server.process` is it, `server.log` what it wrote."""

    server: proc.Server
    folder: Path

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.server.log.read_text("utf-8", "replace")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send(self, data: bytes) -> bytes:
        """Raw bytes on a connection of their own, and all that comes back until the gateway closes it."""
        with self.connect() as one:
            one.sendall(data)
            return b"".join(iter(lambda: one.recv(65536), b""))

    def ask(
        self, method: str, path: str, body: Json | bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request, its body as JSON, on a connection of its own."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {} if content is None else {"Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, content, {**kind, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def chat(self, text: str = "Hi", headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.ask("POST", "/v1/chat/completions", body, headers)


@dataclass
class Upstream:
    """The scripted engine, in a thread of its own: model `m` of the gateway. Replace `script` as you like."""

    script: Script = field(default_factory=lambda: polite)
    double: Double = field(init=False)

    def __post_init__(self) -> None:
        self.double = Double(self._run)

    async def _run(self, exchange: Exchange) -> None:
        await self.script(exchange)

    @property
    def asked(self) -> int:
        """How many requests have come."""
        return len(self.double.requests)

    @property
    def port(self) -> int:
        assert self.double.address.port is not None
        return self.double.address.port

    @contextmanager
    def serve(self) -> Iterator[Upstream]:
        serving, done = threading.Event(), asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        async def run() -> None:
            loops.append(asyncio.get_running_loop())
            async with self.double.serve():
                serving.set()
                await done.wait()

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert serving.wait(PATIENCE)
        try:
            yield self
        finally:
            loops[0].call_soon_threadsafe(done.set)
            thread.join(PATIENCE)
            assert not thread.is_alive()


def asked_of(body: bytes) -> Json:
    """The fields that the engine's answer depends on; none of a body that Python's decoder refuses, as for an integer
    of a million digits, or for arrays in arrays, which /upstream passes on."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def polite(exchange: Exchange) -> None:
    """A script: answers as it was asked, whole or streamed; a request without a body with a list of models."""
    if not exchange.body:
        await exchange.whole({"object": "list", "data": [{"id": "m", "object": "model"}]})
        return
    if not asked_of(exchange.body).get("stream"):
        await exchange.whole(completion())
        return
    await exchange.start()
    await exchange.event(chunk("Hello"))
    await exchange.event(chunk(reason="stop"))
    await exchange.end()


def configuration(upstream: Upstream, folder: Path, test_model: Path) -> Json:
    """`m`: the scripted engine, `tiny`: the embedded engine with the test model, where it is installed, `echo`."""
    models: Json = {
        "m": {"runtime": "openai", "base_url": f"http://127.0.0.1:{upstream.port}"},
        "echo": {"runtime": "echo"},
    }
    if find_spec("xllamacpp") is not None:
        models["tiny"] = {
            "runtime": "llama.cpp",
            "path": str(test_model),
            "context_window": 1024,
            "tool_call_format": "pythonic",
            "temperature": 0,
            "max_tokens": 64,
            "threads": 1,
            "parallel": 1,
        }
    return {"active_model": "m", "models": models, "state_dir": str(folder / "state"), "log": {"bodies": False}}


@contextmanager
def started(folder: Path, config: Mapping[str, Any], **environment: str) -> Iterator[Gateway]:
    """`ctxgate serve` on a port of its own. JSON is YAML, too."""
    with started_at(free_port(), folder, config, **environment) as gateway:
        yield gateway


@contextmanager
def started_at(port: int, folder: Path, config: Mapping[str, Any], **environment: str) -> Iterator[Gateway]:
    file = folder / "config.yaml"
    file.write_text(json.dumps(config), "utf-8")
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(port)]
    env = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state"), **environment}
    server = proc.Server.start(command, port, folder / "log", env=env, cwd=folder)
    try:
        server.wait_ready("/health", PATIENCE)
        yield Gateway(server, folder)
    finally:
        server.stop()


WARM = (
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}),
    ("POST", "/v1/responses", {"input": "Hi", "store": False}),
    ("POST", "/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
    ("POST", "/api/chat", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    ("GET", "/llm/room", None),
    ("GET", "/v1/models", None),
    ("GET", "/-/status", None),
    ("GET", "/metrics", None),
    ("GET", "/openapi.json", None),
)
"""One request of each API: what they load at first isn't growth."""


def warm(gateway: Gateway, headers: Mapping[str, str] | None = None) -> None:
    for method, path, body in WARM:
        answer = gateway.ask(method, path, body, headers)
        assert answer.status == 200, (path, answer)


_idle_watchers: list[subprocess.Popen[str]] = []
"""They take longer to start than most tests, so they are kept; each ends when this process does, as its input does."""


def _started_watcher() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.hostile.watch"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _asked(watcher: subprocess.Popen[str], line: str) -> str:
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    watcher.stdin.write(line + "\n")
    watcher.stdin.flush()
    return watcher.stdout.readline()


@contextmanager
def watching(gateway: Gateway, body: int | None = None) -> Iterator[None]:
    """While the block does its harm, others are served: each answer of /health comes within ANSWER_SECONDS, which a
    process beside measures, and the gateway grows by less than GROWTH.

    body: bytes of each thing that the block sends or has the gateway read. Then each answer comes within LAG_SECONDS,
    and the gateway may grow by three times the body more.
    """
    watcher = _idle_watchers.pop() if _idle_watchers else _started_watcher()
    try:
        assert _asked(watcher, f"{gateway.port} {gateway.pid}") == "watching\n"
        yield
        report = Report(**json.loads(_asked(watcher, "")))
    except BaseException:
        watcher.kill()
        watcher.communicate()
        raise
    _idle_watchers.append(watcher)
    assert report.statuses == ["HTTP/1.1 200 OK"], report
    assert report.seconds <= (ANSWER_SECONDS if body is None else LAG_SECONDS), report
    assert report.grown < GROWTH + 3 * (body or 0), report


@dataclass(frozen=True)
class Watcher:
    """Watches from a process beside, for as long as tests like. See `tests.hostile.watch.keep_watching`."""

    process: subprocess.Popen[str]
    memory: Memory

    def late(self) -> list[Look]:
        """The answers of /health that were late, or none, since this was asked last."""
        return [Look(**each) for each in json.loads(_asked(self.process, ""))]


@contextmanager
def keep_watching(gateway: Gateway) -> Iterator[Watcher]:
    command = [sys.executable, "-m", "tests.hostile.watch", str(gateway.port), str(gateway.pid), "on"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watcher = Watcher(process, Memory(gateway.pid))
        watcher.late()
        try:
            yield watcher
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
