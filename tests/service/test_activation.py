"""Sockets that systemd opened: the gateway takes them over, its children don't."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import config, environment
from tests.patience import PATIENCE
from tests.ports import free_port

ECHO = "active_model: e\nmodels: {e: {runtime: echo}}\n"
START = """
import os, sys
os.dup2(int(os.environ["FD"]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "gateway", "serve"])
"""
"""As systemd starts it: the socket is descriptor 3."""


@contextmanager
def activated(folder: Path, opened: socket.socket, **extra: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", START]
    number = opened.fileno()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder, FD=str(number), **extra),
        pass_fds=[number],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def test_a_request_that_came_before_the_gateway_is_answered(tmp_path: Path) -> None:
    port = free_port()
    config(tmp_path, f"{ECHO}server: {{port: {port}}}\n")
    with socket.create_server(("127.0.0.1", port)) as opened:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as early:
            early.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            with activated(tmp_path, opened) as process:
                assert b" 200 OK" in early.makefile("rb").readline()
                assert process.stderr is not None
                assert process.stderr.readline().startswith(f"ctxgate: http://127.0.0.1:{port}/v1  active model e")
        # The socket stays open between two gateways, so nobody is refused.
        with activated(tmp_path, opened):
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE, trust_env=False).status_code == 200


def test_a_unix_socket(tmp_path: Path) -> None:
    config(tmp_path, f"{ECHO}server: {{uds: {tmp_path}/s}}\n")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "s"))
        opened.listen()
        with activated(tmp_path, opened) as process:
            over = httpx.HTTPTransport(uds=str(tmp_path / "s"))
            with httpx.Client(transport=over, base_url="http://gateway", timeout=PATIENCE) as client:
                assert client.get("/health").status_code == 200
            assert process.stderr is not None
            assert process.stderr.readline().startswith(f"ctxgate: unix:{tmp_path}/s  ")


def test_another_address_than_the_configured_one_is_said(tmp_path: Path) -> None:
    config(tmp_path, f"{ECHO}server: {{port: {free_port()}}}\n")
    with socket.create_server(("127.0.0.1", 0)) as opened, activated(tmp_path, opened) as process:
        port = opened.getsockname()[1]
        assert process.stderr is not None
        assert process.stderr.readline() == (
            f"ctxgate: systemd's ctxgate.socket listens at port {port}; `ctxgate service install` applies what "
            "config.yaml says\n"
        )
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE, trust_env=False).status_code == 200


def test_what_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    with socket.socket() as opened, activated(tmp_path, opened) as process:
        assert process.stderr is not None
        assert "descriptor 3 of LISTEN_FDS is not a listening socket" in process.stderr.read()
        assert process.wait(PATIENCE) == 2


def test_sockets_for_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.server.activation import handed_over

    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "HOME": "/"}
    assert handed_over(environ) == []
    assert environ == {"HOME": "/"}


def test_engines_get_neither_the_socket_nor_the_news_of_it(tmp_path: Path) -> None:
    """In a process of its own, since the number of the first socket is fixed."""
    program = """
import os, socket, subprocess, sys
environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
first = socket.create_server(("127.0.0.1", 0))
address = first.getsockname()
os.dup2(first.detach(), 3)
os.set_inheritable(3, True)
from gateway.server.activation import handed_over
(taken,) = handed_over(environ)
assert taken.getsockname() == address and environ == {}
code = "import os; os.fstat(3)"
print(subprocess.run([sys.executable, "-c", code], close_fds=False, stderr=subprocess.DEVNULL).returncode)
taken.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
