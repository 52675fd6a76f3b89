"""The frame itself: `unharmed` passes what is harmless and fails what isn't."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.harness import proc
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway, Upstream
from tests.ports import free_port

SERVER = """
import sys, time, socket
kept = []
with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=99) as listener:
    while True:
        with listener.accept()[0] as one:
            asked = one.recv(1000)
            if asked.startswith(b"GET /grow"):
                kept.append(b"x" * 40_000_000)
            elif asked.startswith(b"GET /spike"):
                len(b"x" * 40_000_000)
            elif asked.startswith(b"GET /sleep"):
                time.sleep(1)
            status = b"503 No" if asked.startswith(b"GET /health") and kept[:1] == [b""] else b"200 OK"
            if asked.startswith(b"GET /fail"):
                kept.append(b"")
            one.sendall(b"HTTP/1.1 " + status + b"\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""
"""A server that comes to harm on demand."""


@contextmanager
def fragile(folder: Path) -> Iterator[Gateway]:
    port = free_port()
    server = proc.Server.start([sys.executable, "-c", SERVER, str(port)], port, folder / "log")
    try:
        server.wait_ready("/health", 60)
        yield Gateway(server, folder)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("act", "harm"),
    [
        ("/", None),
        ("/sleep", "seconds="),
        ("/grow", "grown="),
        pytest.param(
            "/spike", "grown=", marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the peak")
        ),
        ("/fail", "503 No"),
    ],
)
def test_harm_is_seen(act: str, harm: str | None, tmp_path: Path, unharmed: Unharmed) -> None:
    with fragile(tmp_path) as server:
        if harm is None:
            with unharmed(server):
                server.ask("GET", act)
        else:
            with pytest.raises(AssertionError, match=harm), unharmed(server):
                server.ask("GET", act)


def test_a_gateway_that_hangs_is_seen(tmp_path: Path, unharmed: Unharmed) -> None:
    def pause() -> None:
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(server.pid, signal.SIGCONT)

    with fragile(tmp_path) as server, pytest.raises(AssertionError, match="seconds="), unharmed(server):
        pause()


def test_the_gateway_serves(gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    before = upstream.asked
    with unharmed():
        assert gateway.chat().status == 200
        assert gateway.chat(model="echo").status == 200
    assert upstream.asked == before + 1
    assert b"[DONE]" in gateway.chat(stream=True).body


def test_the_real_engine_answers(gateway: Gateway) -> None:
    listed = [model["id"] for model in gateway.ask("GET", "/v1/models").json["data"]]
    if "tiny" not in listed:
        pytest.skip("xllamacpp is not installed")
    assert gateway.chat("What's the weather in Paris?", model="tiny").status == 200
