"""Work on a database that one process at a time may do. Whoever dies, by SIGKILL too, does it no longer."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from typing import Literal

from sqlalchemy import Engine, text

from gateway.errors import ProviderUnavailable

Work = Literal["rooms"]
LEAVE_SECONDS = 2.0
"""For PostgreSQL to see that a process has died."""

_KEYS: dict[Work, int] = {"rooms": 4001}
"""Of PostgreSQL's advisory locks."""


class Claimed(ProviderUnavailable):
    """Another process does that work."""


def claim(engine: Engine, work: Work) -> Callable[[], None]:
    """Makes the work this process's own, until what is returned is called. Raises Claimed, OSError, SQLAlchemyError."""
    return _postgresql(engine, work) if engine.dialect.name == "postgresql" else _sqlite(engine, work)


def _sqlite(engine: Engine, work: Work) -> Callable[[], None]:
    """By a lock on a file beside the database, which says who holds it; the file stays."""
    database = engine.url.database
    if database in (None, "", ":memory:"):
        return lambda: None
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
    return lambda: os.close(file)


def _postgresql(engine: Engine, work: Work) -> Callable[[], None]:
    """By an advisory lock of a connection of its own, whose name says who holds it."""
    key = {"key": _KEYS[work]}
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.detach()
        connection.execute(_NAME, {"name": f"ctxgate, {_me()}"})
        connection.execute(_SETTINGS)
        deadline = time.monotonic() + LEAVE_SECONDS
        while not connection.execute(_LOCK, key).scalar_one():
            if time.monotonic() >= deadline:
                holder = connection.execute(_HOLDER, key).scalar() or ""
                raise _taken(engine, work, holder.removeprefix("ctxgate, "))
            time.sleep(0.05)
    except BaseException:
        connection.close()
        raise
    return connection.close


def _me() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _taken(engine: Engine, work: Work, holder: str) -> Claimed:
    place = engine.url.render_as_string(hide_password=True)
    return Claimed(
        f"another gateway ({holder or 'which one is not known'}) keeps the {work} of {place}: end it, or give this one "
        "a store of its own (store: in config.yaml)",
        code="store_claimed",
    )


_NAME = text("SELECT set_config('application_name', :name, false)")
_SETTINGS = text(
    "SELECT set_config(wanted.name, wanted.value, false) FROM pg_settings JOIN (VALUES ('idle_session_timeout', '0'), "
    "('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'), ('tcp_keepalives_count', '3')) "
    "AS wanted (name, value) USING (name)"
)
"""The connection stays while nothing is said, and ends a minute after its machine has."""
_LOCK = text("SELECT pg_try_advisory_lock(:key)")
_HOLDER = text(
    "SELECT activity.application_name FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid) "
    "WHERE held.locktype = 'advisory' AND held.granted AND held.classid = 0 AND held.objid = :key "
    "AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
