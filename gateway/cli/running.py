"""Finds the gateway that runs on this machine, wherever its command line let it listen."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace

from gateway.config import ConfigError, Server, find
from gateway.errors import ProviderInvalidRequest

if TYPE_CHECKING:
    import psutil

POLL_SECONDS = 1.0
"""Bound on a look at one address."""


def located(
    server: Server, file: Path | None, url: str | None = None, port: int | None = None, *, others: bool = False
) -> Server:
    """Where the gateway listens: at `url` or `port`, else as configured, else where one of this user's runs.

    server: as configured; it is also the answer if none runs. The others are as for `candidates`. Raises
    ProviderInvalidRequest for a URL that is none.
    """
    if url is not None:
        return _at(server, url)
    if port is not None:
        return replace(server, uds=None, port=port)
    return next((found for found in candidates(server, file, others=others) if listens(found)), server)


def candidates(server: Server, file: Path | None, *, others: bool = False) -> Iterator[Server]:
    """Where to look for a gateway: as configured, then where one of this user's, with this configuration, runs.

    file: the configuration; None: the one that is found. others: at last, look for those with another one.
    """
    yield server
    yield from _running(server, file, others)


def _at(server: Server, url: str) -> Server:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if host is None or parts.scheme not in ("http", "https"):
        raise ProviderInvalidRequest(f"--url {url}: write it as http://HOST:PORT or https://HOST:PORT")
    if parts.scheme == "http":
        return replace(server, uds=None, tls=None, host=host, port=port or 80)
    if server.tls is None:
        raise ProviderInvalidRequest(f"--url {url}: config.yaml has no server.tls, whose certificate this could check")
    return replace(server, uds=None, host=host, port=port or 443)


def listens(server: Server) -> bool:
    """Whether something does, with TLS where it is configured."""
    family = socket.AF_UNIX if server.uds is not None else socket.AF_INET6 if ":" in server.host else socket.AF_INET
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(server.host, server.host)  # noqa: S104
    address = str(server.uds) if server.uds is not None else (host, server.port)
    try:
        with socket.socket(family) as probe:
            probe.settimeout(POLL_SECONDS)
            probe.connect(address)
            return server.https is None or _speaks_tls(probe)
    except OSError:
        return False


def _speaks_tls(connected: socket.socket) -> bool:
    """Whether a handshake succeeds, with whatever certificate. Raises OSError if it doesn't."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(connected):
        return True


def _running(server: Server, file: Path | None, others: bool) -> Iterator[Server]:
    """Where processes of this user that run `ctxgate serve` listen: those with this configuration, the youngest
    first, then the others."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline", "uids", "create_time"]):
        uids = process.info["uids"]
        if _serves(process.info["cmdline"] or []) and uids is not None and uids.real == os.getuid():
            own = _has(process, file)
            if own or others:
                found.append((own, process.info["create_time"], process))
    for _, _, process in sorted(found, key=lambda each: each[:2], reverse=True):
        with contextlib.suppress(psutil.Error, OSError):
            yield from _sockets(process, server)


def _has(process: psutil.Process, file: Path | None) -> bool:
    """Whether the gateway has this configuration; None: the one that is found."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError, ConfigError):
        return _configuration(process.info["cmdline"], Path(process.cwd())) == (file or find()).resolve()
    return False


def _serves(command: list[str]) -> bool:
    """Whether it is the command line of a gateway: `ctxgate serve …`, or `python -m gateway serve …`."""
    for at, argument in enumerate(command[:-1]):
        if command[at + 1] == "serve" and (argument == "gateway" or Path(argument).name == "ctxgate"):
            return True
    return False


def _configuration(command: list[str], folder: Path) -> Path:
    """The file that a gateway with this command line and working folder serves. Raises ConfigError if there is none."""
    for at, argument in enumerate(command):
        if argument == "--config" and at + 1 < len(command):
            return (folder / command[at + 1]).resolve()
        if argument.startswith("--config="):
            return (folder / argument.removeprefix("--config=")).resolve()
    return find(folder).resolve()


def _sockets(process: psutil.Process, server: Server) -> Iterator[Server]:
    if "--no-tls" in process.info["cmdline"]:
        server = replace(server, tls=None)
    connections = getattr(process, "net_connections", process.connections)
    for one in connections("inet"):
        if one.status == "LISTEN":
            yield replace(server, uds=None, host=one.laddr.ip, port=one.laddr.port)
    for one in connections("unix"):
        # Accepted connections carry the same path; each leads to the gateway.
        if one.laddr and os.path.exists(str(one.laddr)):
            yield replace(server, uds=Path(str(one.laddr)))
