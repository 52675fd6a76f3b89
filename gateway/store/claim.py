"""Claims on work that only one process of a database may do. A process that dies, even by SIGKILL, loses its claim."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from typing import Literal, Protocol

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import ProviderUnavailable

Work = Literal["rooms", "batches"]
LEAVE_SECONDS = 2.0
"""Time for PostgreSQL to notice that a process has died."""

_KEYS: dict[Work, int] = {"rooms": 4001, "batches": 4002}
"""Keys of PostgreSQL's advisory locks."""


class Claimed(ProviderUnavailable):
    """Another process has the claim. holder: what it calls itself; "" if unknown."""

    holder = ""


class Claim(Protocol):
    def held(self) -> bool:
        """Whether this process still has the claim. Blocks. Once False, always False."""
        ...

    def release(self) -> None: ...


def claim(engine: Engine, work: Work, holder: str | None = None) -> Claim:
    """Claims the work for this process. holder: what others see as its name, on PostgreSQL up to 50 bytes; None: its
    process and host. On PostgreSQL waits LEAVE_SECONDS for a holder that may be dead, unless this one has a name: the
    gateways of a cluster try again themselves. Raises Claimed, OSError, SQLAlchemyError."""
    if engine.dialect.name != "postgresql":
        return _sqlite(engine, work)
    patience = 0.0 if holder is not None else LEAVE_SECONDS
    return _postgresql(engine, work, holder or _me(), patience)


class _File:
    def __init__(self, file: int | None) -> None:
        self._file = file

    def held(self) -> bool:
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)


class _Session:
    """A lock of the database session. A restart of the server ends it, too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lost = False

    def held(self) -> bool:
        try:
            if not self._lost:
                self._connection.execute(_ALIVE)
        except SQLAlchemyError:
            # A reconnect would be another session, without the lock.
            self._lost = True
        return not self._lost

    def release(self) -> None:
        self._connection.close()


def _sqlite(engine: Engine, work: Work) -> Claim:
    """Locks a file beside the database. The file names the holder and is never deleted."""
    database = engine.url.database
    if database in (None, "", ":memory:"):
        return _File(None)
    file = os.open(f"{os.path.realpath(str(database))}.{work}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, _me().encode(), 0)
    except BlockingIOError:
        holder = os.pread(file, 200, 0).decode(errors="replace")
        os.close(file)
        raise _taken(engine, work, holder) from None
    except BaseException:
        os.close(file)
        raise
    return _File(file)


def _postgresql(engine: Engine, work: Work, me: str, patience: float) -> Claim:
    """Takes an advisory lock on a connection of its own, whose application name names the holder."""
    key = {"key": _KEYS[work]}
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.detach()
        connection.execute(_NAME, {"name": f"ctxgate, {me}"})
        connection.execute(_SETTINGS)
        deadline = time.monotonic() + patience
        while not connection.execute(_LOCK, key).scalar_one():
            if time.monotonic() >= deadline:
                holder = connection.execute(_HOLDER, key).scalar() or ""
                raise _taken(engine, work, holder.removeprefix("ctxgate, "))
            time.sleep(0.05)
    except BaseException:
        connection.close()
        raise
    return _Session(connection)


def _me() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _taken(engine: Engine, work: Work, holder: str) -> Claimed:
    place = engine.url.render_as_string(hide_password=True)
    error = Claimed(
        f"another gateway ({holder or 'unknown'}) has the {work} of {place}: stop it, or give this one its own store "
        "(store: in config.yaml)",
        code="store_claimed",
    )
    error.holder = holder
    return error


_ALIVE = text("SELECT 1")
_NAME = text("SELECT set_config('application_name', :name, false)")
_SETTINGS = text(
    "SELECT set_config(wanted.name, wanted.value, false) FROM pg_settings JOIN (VALUES ('idle_session_timeout', '0'), "
    "('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3')) "
    "AS wanted (name, value) USING (name)"
)
"""Keeps the idle connection open, and ends it some ten seconds after its machine has died."""
_LOCK = text("SELECT pg_try_advisory_lock(:key)")
_HOLDER = text(
    "SELECT activity.application_name FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid) "
    "WHERE held.locktype = 'advisory' AND held.granted AND held.classid = 0 AND held.objid = :key "
    "AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
