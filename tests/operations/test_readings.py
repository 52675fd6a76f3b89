"""A recorded answer, read as other formats: nobody else waits for that, and it ends when nobody wants it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx
import pytest

from gateway.app import build
from gateway.config import Config, Model
from gateway.config.values import Log
from gateway.errors import ProviderRateLimit
from gateway.features.models import manage
from gateway.features.operations import endpoints
from gateway.features.operations.replay import AT_ONCE, Replays, formats
from gateway.services import Services
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve


@dataclass
class Reader:
    """In place of what reads an answer: it waits for `go`."""

    url: str
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go: threading.Event = field(default_factory=threading.Event)
    count: int = 0

    def read(self, *_: object) -> list[bytes]:
        self.count += 1
        self.begun.release()
        assert self.go.wait(PATIENCE)
        return []


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Of a gateway that has recorded request 1."""
    config = Config(
        source=tmp_path / "config.yaml",
        active_model="echo",
        models={"echo": Model(name="echo", runtime="echo")},
        state_dir=tmp_path / "state",
        log=Log(bodies=True),
    )
    with serve(build(config), lifespan="on", http=FAST) as url:
        made = Reader(url)
        body = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE).status_code == 200
        for module in (manage, endpoints):
            monkeypatch.setattr(module, "replayed", made.read)
        yield made
        made.go.set()


@pytest.mark.parametrize("path", ["/-/readings?request=1", "/-/requests/1?as=hermes"])
def test_it_takes_no_thread_of_others(path: str, reader: Reader) -> None:
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        asked = [pool.submit(httpx.get, reader.url + path, timeout=PATIENCE) for _ in range(AT_ONCE + 1)]
        try:
            (refused,), read = wait(asked, PATIENCE, FIRST_COMPLETED)
            assert (refused.result().status_code, refused.result().headers["retry-after"]) == (429, "2")
            assert httpx.get(f"{reader.url}/-/evaluations", timeout=PATIENCE).status_code == 200
            assert reader.count == 1
        finally:
            reader.go.set()
        assert [each.result().status_code for each in read] == [200] * AT_ONCE


def test_the_rest_is_not_read_for_one_who_has_left(reader: Reader) -> None:
    at = httpx.URL(reader.url)
    with socket.create_connection((at.host, at.port or 0), PATIENCE) as client:
        client.sendall(b"GET /-/readings?request=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reader.begun.acquire(timeout=PATIENCE)
    # The gateway sees the end of that connection before it sees these.
    for _ in range(3):
        assert httpx.get(f"{reader.url}/-/evaluations", timeout=PATIENCE).status_code == 200
    reader.go.set()
    assert httpx.get(f"{reader.url}/-/readings?request=1", timeout=PATIENCE).status_code == 200
    assert reader.count == 1 + len(formats())


async def test_who_leaves_is_told_to_the_work() -> None:
    replays = Replays(cast(Services, None))
    begun, go = asyncio.Event(), threading.Event()
    loop, told = asyncio.get_running_loop(), []

    def work(left: Callable[[], bool]) -> None:
        loop.call_soon_threadsafe(begun.set)
        told.append(left())
        assert go.wait(PATIENCE)
        told.append(left())

    first, second = (asyncio.create_task(replays.read(work)) for _ in range(AT_ONCE))
    await begun.wait()
    first.cancel()
    await asyncio.wait({first})
    with pytest.raises(ProviderRateLimit):  # its thread isn't free yet
        await replays.read(work)
    go.set()
    await second
    assert told == [False, True, False, False]
    await replays.aclose()
