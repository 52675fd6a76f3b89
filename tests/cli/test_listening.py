"""Where `ctxgate serve` listens, and what it says where it can't."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.cli.listening import UNSENT, listening
from gateway.config import Server
from tests.cli.commands import config, ctxgate, serving
from tests.patience import PATIENCE

ECHO = "active_model: echo\nmodels: {echo: {runtime: echo}}\n"
PATH_LIMIT = 108
"""Bytes of a Unix socket's path, on any system."""


@pytest.fixture
def held() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield int(other.getsockname()[1])


def test_a_port_that_is_taken(held: int, tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    done = ctxgate("serve", "--port", str(held), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        69,
        f"ctxgate: can't listen on 127.0.0.1 port {held}: the port is in use; if it is a gateway, "
        "`ctxgate status` shows it: stop it, or name another one with --port or server.port of config.yaml\n",
    )


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        pytest.param("none/s", 2, "No such file or directory; correct --uds or server.uds", id="no folder"),
        pytest.param("s" * PATH_LIMIT, 2, "path too long; correct --uds or server.uds", id="too long"),
        pytest.param("file", 69, "the file exists", id="a file"),
        pytest.param("socket", 69, "name another path with --uds or server.uds", id="a server's"),
    ],
)
def test_bad_socket_paths(path: str, code: int, message: str, tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    (tmp_path / "file").write_text("mine")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "socket"))
        other.listen()
        done = ctxgate("serve", "--uds", path, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith(f"ctxgate: can't listen on {tmp_path / path}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    config(tmp_path, f"{ECHO}server: {{host: 192.0.2.1, api_keys: ['${{KEY}}']}}\n")
    done = ctxgate("serve", cwd=tmp_path, KEY="of-a-caller")
    assert done.returncode == 2
    assert "can't listen on 192.0.2.1 port 4000: " in done.stderr
    assert "; correct --host or server.host of config.yaml" in done.stderr


def test_a_free_port_is_announced(tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    with serving(tmp_path, "--port", "0") as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[1]
        assert not url.endswith(":0/v1")
        # It listens already as it says so.
        assert httpx.get(f"{url}/models", trust_env=False, timeout=PATIENCE).status_code == 200


def test_a_dead_gateways_socket_is_taken_over(tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with serving(tmp_path, "--uds", "s") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"ctxgate: unix:{tmp_path / 's'}  ")
        transport = httpx.HTTPTransport(uds=str(tmp_path / "s"))
        with httpx.Client(transport=transport, base_url="http://gateway", timeout=PATIENCE) as client:
            assert client.get("/health").status_code == 200
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system can't be told")
def test_the_system_keeps_little_for_a_client_that_reads_nothing() -> None:
    (opened,) = listening(Server(host="127.0.0.1", port=0))
    with opened, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(opened.getsockname())
        accepted, _ = opened.accept()
        with accepted:
            accepted.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 100 * UNSENT:
                    sent += accepted.send(bytes(16 * 1024))
    assert sent <= 4 * UNSENT
