"""Listening sockets that systemd opened for this process (sd_listen_fds(3))."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import MutableMapping

from gateway.errors import ProviderInvalidRequest

FIRST = 3
"""The number of the first descriptor."""


def handed_over(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Takes them over, and removes their variables from the environment, so that children don't use them.

    Empty if there are none. Raises ProviderInvalidRequest for descriptors that aren't listening sockets.
    """
    ours = environ.get("LISTEN_PID") == str(os.getpid())
    count = environ.get("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    if not ours or not count.isdigit():
        return []
    taken: list[socket.socket] = []
    try:
        for number in range(FIRST, FIRST + int(count)):
            os.set_inheritable(number, False)
            taken.append(socket.socket(fileno=number))
            if not taken[-1].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OSError(errno.EINVAL, "not listening")
    except OSError:
        for each in taken:
            each.close()
        raise ProviderInvalidRequest(
            f"descriptor {number} of LISTEN_FDS is not a listening socket; ctxgate.socket opens the right ones"
        ) from None
    return taken


def differs(sockets: list[socket.socket], port: int | None, path: str | None) -> str | None:
    """How the sockets' addresses differ from the configured port or path; None if they don't."""
    for each in sockets:
        at = each.getsockname()
        if isinstance(at, str):
            if at != path:
                return f"listens at {at}"
        elif at[1] != port:
            return f"listens at port {at[1]}"
    return None
