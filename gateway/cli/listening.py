"""Opens the gateway's listening sockets before anything else starts, so that a bad address fails at once."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from pathlib import Path

from gateway.cli.text import say
from gateway.config import Server
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnavailable

BACKLOG = 2048
UNSENT = 128 * 1024
"""Bytes that the system keeps for a client that hasn't read the ones before; by itself, it keeps megabytes, and each
answer as long as that goes on though nobody reads it."""
PROBE_SECONDS = 1.0
"""Bound on the wait for a server on a Unix socket to accept a connection."""


def listening(server: Server) -> list[socket.socket]:
    """Opens `server.uds`, or else each address of `server.host`; takes over what systemd has opened instead.

    Raises ProviderUnavailable if the address is in use, ProviderInvalidRequest if it is invalid or not permitted.
    """
    if "LISTEN_FDS" in os.environ and (opened := _handed_over(server)):
        return opened
    try:
        return [_unix(server.uds)] if server.uds is not None else _addresses(server.host, server.port)
    except OSError as error:
        raise _refused(server, error) from None
    except UnicodeError:
        raise _refused(server, OSError("invalid host name")) from None


def _handed_over(server: Server) -> list[socket.socket]:
    from gateway.server.activation import differs, handed_over

    opened = handed_over(os.environ)
    path = str(server.uds) if server.uds is not None else None
    if problem := differs(opened, server.port, path):
        cure = "`ctxgate service install` applies what config.yaml says"
        say(f"ctxgate: systemd's ctxgate.socket {problem}; {cure}", file=sys.stderr)
    return opened


def _addresses(host: str, port: int) -> list[socket.socket]:
    """Opens each address of the host. Port 0 picks one free port for all of them."""
    opened: list[socket.socket] = []
    absent: OSError | None = None
    # As bytes, a plain name needn't wait for the codec of international ones.
    name = host.encode() if host.isascii() else host
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            if opened:
                port = opened[0].getsockname()[1]
            try:
                opened.append(socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG))
                if (limit := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
                    opened[-1].setsockopt(socket.IPPROTO_TCP, limit, UNSENT)  # accepted sockets inherit it
            except OSError as error:
                # "localhost" also names ::1, even on machines without IPv6.
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
    """Opens a socket that only its owner can use. Replaces the socket file of a gateway that was killed."""
    if _is_stale(path):
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


def _is_stale(path: Path) -> bool:
    """Whether the path is a socket without a listener."""
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
    # The system's message alone, without the address that create_server adds.
    reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        taken = "the port is in use" if server.uds is None else "the file exists"
        return ProviderUnavailable(
            f"can't listen on {place}: {taken}; if it is a gateway, `ctxgate status` shows it: stop it, or name "
            f"{other} of config.yaml",
            code="address_in_use",
        )
    cure = "correct --host or server.host" if server.uds is None else "correct --uds or server.uds"
    if error.errno == errno.EACCES:
        cure = f"name {other}"
    return ProviderInvalidRequest(f"can't listen on {place}: {reason}; {cure} of config.yaml")
