"""The sockets that the gateway listens on, opened before anything else starts: what can't be had is told at once."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from gateway.config import Server
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnavailable

BACKLOG = 2048
PROBE_SECONDS = 1.0
"""How long a server on a Unix socket may take to accept a connection."""


def listening(server: Server) -> list[socket.socket]:
    """The open sockets of `server.uds`, else of each address of `server.host`. Raises ProviderUnavailable for an
    address that others hold, ProviderInvalidRequest for one that can't be listened on."""
    try:
        return [_unix(server.uds)] if server.uds is not None else _addresses(server.host, server.port)
    except OSError as error:
        raise _refused(server, error) from None
    except UnicodeError:
        raise _refused(server, OSError("that is no host's name")) from None


def _addresses(host: str, port: int) -> list[socket.socket]:
    """Port 0 is the same free one on all addresses."""
    opened: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            if opened:
                port = opened[0].getsockname()[1]
            try:
                opened.append(socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG))
            except OSError as error:
                # "localhost" is ::1 as well on machines that have no IPv6.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error
        if not opened and absent is not None:
            raise absent
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def _unix(path: Path) -> socket.socket:
    """Its owner's alone from the first moment. What a gateway that was killed has left is replaced."""
    if _left(path):
        path.unlink()
    opened = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        opened.bind(os.fspath(path))
        opened.listen(BACKLOG)
    except BaseException:
        opened.close()
        raise
    finally:
        os.umask(before)
    return opened


def _left(path: Path) -> bool:
    """Whether it is a socket on which nobody listens."""
    with contextlib.suppress(FileNotFoundError, TimeoutError), socket.socket(socket.AF_UNIX) as probe:
        if stat.S_ISSOCK(path.stat().st_mode):
            probe.settimeout(PROBE_SECONDS)
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                return True
    return False


def _refused(server: Server, error: OSError) -> GatewayError:
    if server.uds is not None:
        place, other = str(server.uds), "another path with --uds or server.uds"
    else:
        place, other = f"{server.host} port {server.port}", "another one with --port or server.port"
    # The system's words alone, without the address that create_server adds.
    reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        taken = "something listens there already" if server.uds is None else "it is there already"
        return ProviderUnavailable(
            f"can't listen on {place}: {taken}; if it is a gateway, `ctxgate status` shows it: end it, or name {other} "
            "of config.yaml",
            code="address_in_use",
        )
    cure = "correct --host or server.host" if server.uds is None else "correct --uds or server.uds"
    if error.errno == errno.EACCES:
        cure = f"name {other}"
    return ProviderInvalidRequest(f"can't listen on {place}: {reason}; {cure} of config.yaml")
