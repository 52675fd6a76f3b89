"""One writer thread, which commits waiting writes together, and a pool of readers. Tenants take turns at both."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gateway.errors import Backoff, GatewayError, InternalError, ProviderRateLimit, ProviderUnavailable
from gateway.observe.shares import TenantPlaces, Turns, Workers
from gateway.store.claim import Claim, Work, claim
from gateway.store.clock import Clock
from gateway.store.migrate import upgrade

T = TypeVar("T")

WAITING, QUEUE_SECONDS = 1024, 30
"""How many writes may be queued, and how long another one waits for a place in the queue."""
BATCH, BATCH_SECONDS = 128, 0.05
"""The most writes that share a commit, and after how long no further one joins them."""
READERS = 4
BUSY_SECONDS = 10
"""How long to wait for another process's write."""
LOG_SECONDS = 60.0
AGAIN = Backoff(first=1.0, longest=60.0, jitter=0.2)

log = logging.getLogger("ctxgate")


class StoreBusy(ProviderRateLimit):
    """Too many writes are queued. This one wrote nothing."""


@dataclass(slots=True)
class _Write:
    work: Callable[[Connection], Any]
    done: Future[Any]


class Store:
    """Runs work on the database.

    `write` returns after the commit has been synced to disk. Writes run one after another, those of one tenant in the
    order of their calls. Each is all or nothing: work that raises leaves nothing behind.
    """

    def __init__(self, engine: Engine) -> None:
        """Use `open`, which creates the tables."""
        self.clock = Clock()
        self.holder: str | None = None
        """The holder's name in claims; None: this process."""
        self._engine = engine
        self._turns: Turns[_Write] = Turns(1)
        """The writes that wait."""
        self._changed = threading.Condition()
        """Held while `_turns` is used; told of a write that waits, and of the end."""
        self._readers = Workers(READERS, name="store reader")
        self._places = TenantPlaces(WAITING)
        self._closed = False
        self._claims: dict[Work, Claim] = {}
        self._claiming = threading.Lock()
        self._logged = -LOG_SECONDS
        self._writer = threading.Thread(target=self._write_all, name="store writer", daemon=True)
        self._writer.start()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Opens the store at an SQLAlchemy URL and upgrades its tables.

        Only the owner can read a new SQLite file and new folders above it.
        Raises ProviderUnavailable.
        """
        return await asyncio.to_thread(cls._open, url)

    @classmethod
    def _open(cls, url: str) -> Self:
        parsed = make_url(url)
        try:
            engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
            upgrade(engine)
        except ModuleNotFoundError as error:
            message = f"store: PostgreSQL needs the package {error.name}: pip install 'ctxgate[postgresql]'"
            raise ProviderUnavailable(message, code="store_unavailable") from error
        except (OSError, SQLAlchemyError) as error:
            _log(error, parsed)
            raise _unavailable(error) from error
        return cls(engine)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Returns the result of `work` after its commit. `work` runs in the writer thread and must not block.

        Raises what `work` raises, StoreBusy, and ProviderUnavailable if the database fails.
        """
        self._check_open()
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                who = await self._places.take()
        except TimeoutError:
            raise StoreBusy("too many writes are queued", retry_after=QUEUE_SECONDS) from None
        if self._closed:  # nobody would do the write any more, and the next one that waits has to hear of it
            self._places.leave(who)
        self._check_open()
        write = _Write(work, Future())
        with self._changed:
            self._turns.add(write)
            self._changed.notify()
        done = asyncio.wrap_future(write.done)
        done.add_done_callback(partial(self._leave, who))
        # A caller that gives up doesn't cancel the write: it may already be committed.
        result: T = await asyncio.shield(done)
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Returns the result of `work`, which sees one snapshot of the database.

        Raises what `work` raises, and ProviderUnavailable.
        """
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def claim(self, work: Work) -> None:
        """Claims the work, until this store closes or `holds` is False: no other store of the database can.

        Raises Claimed if another store has the claim, and ProviderUnavailable.
        """
        self._check_open()
        await asyncio.to_thread(self._claim, work)

    async def holds(self, work: Work) -> bool:
        """Whether this store still has the claim. A restart of PostgreSQL ends all; `claim` again then."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._holds, work)

    async def aclose(self) -> None:
        """Finishes queued writes, then closes. Idempotent."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _check_open(self) -> None:
        if self._closed:
            raise ProviderUnavailable("the store is closed")

    def _claim(self, work: Work) -> None:
        with self._claiming:
            if work not in self._claims:
                try:
                    self._claims[work] = claim(self._engine, work, self.holder)
                except (OSError, SQLAlchemyError) as error:
                    raise self._fault(error) from error

    def _holds(self, work: Work) -> bool:
        with self._claiming:
            if work in self._claims and not self._claims[work].held():
                self._claims.pop(work).release()
            return work in self._claims

    def _leave(self, who: str, done: asyncio.Future[Any]) -> None:
        self._places.leave(who)
        if not done.cancelled():
            done.exception()  # retrieved, since the caller may be gone

    def _close(self) -> None:
        with self._changed:
            self._changed.notify()
        self._writer.join()
        self._readers.shutdown()
        for each in self._claims.values():
            each.release()
        self._engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._engine.connect() as connection, connection.begin():
                return work(connection)
        except DBAPIError as error:
            raise self._fault(error) from error

    def _write_all(self) -> None:
        while self._waits():
            self._commit()  # its frame is gone then: nothing keeps what was written

    def _waits(self) -> bool:
        """True once there is a write; False if the store is closed and all are done."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._turns.due())
            return bool(self._turns.due())

    def _next(self) -> Iterator[_Write]:
        """The writes of one commit: those that wait, and those that come while these run."""
        until = time.monotonic() + BATCH_SECONDS
        for number in range(BATCH):
            with self._changed:
                if (number and time.monotonic() > until) or (found := self._turns.begin()) is None:
                    return
                who, write = found
                self._turns.end(who)
            if write.done.set_running_or_notify_cancel():
                yield write

    def _commit(self) -> None:
        results: list[tuple[_Write, Any]] = []
        begun: list[_Write] = []
        try:
            with self._engine.connect().execution_options(ctxgate_write=True) as connection, connection.begin():
                for write in self._next():
                    begun.append(write)
                    try:
                        with connection.begin_nested():
                            results.append((write, write.work(connection)))
                    except Exception as error:
                        if isinstance(error, DBAPIError) and error.connection_invalidated:
                            raise
                        write.done.set_exception(self._fault(error) if isinstance(error, DBAPIError) else error)
        except SQLAlchemyError as error:
            for write in begun or self._next():  # none has begun if the database can't be reached
                if not write.done.done():
                    write.done.set_exception(self._fault(error))
        else:
            for write, result in results:
                write.done.set_result(result)

    def _fault(self, error: Exception) -> GatewayError:
        """Logs it, but only once in LOG_SECONDS: each request may meet the same one."""
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            _log(error, self._engine.url)
        return _unavailable(error)


async def insist(write: Callable[[], Awaitable[None]], what: str) -> None:
    """Retries a write that the store couldn't take: losing it would cost more than waiting. what: for the log."""
    for failures in count(1):
        try:
            return await write()
        except GatewayError as error:
            if not error.transient:
                raise
            log.warning("%s isn't stored yet: %s", what, error)
            await asyncio.sleep(AGAIN.delay(failures))


def _unavailable(error: Exception) -> GatewayError:
    """What clients are told: neither where the store is, nor a statement's values."""
    reason: object = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(error, DBAPIError) and type(error).__name__ in ("IntegrityError", "ProgrammingError"):
        return InternalError(f"the store refused a statement: {type(reason).__name__}")
    if isinstance(reason, OSError):
        reason = reason.strerror or type(reason).__name__
    elif not isinstance(reason, sqlite3.Error):  # PostgreSQL's driver names the server
        reason = type(reason).__name__
    return ProviderUnavailable(f"the store can't be used: {reason}; the log says more", code="store_unavailable")


def _log(error: Exception, url: URL) -> None:
    """Names the database, without its password and without a statement's values."""
    reason: object = error.orig if isinstance(error, DBAPIError) else error
    log.error("the store %s can't be used: %s", url.render_as_string(hide_password=True), reason)


def _sqlite(url: URL) -> Engine:
    if url.database not in (None, "", ":memory:"):
        path = Path(str(url.database))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives its journals the mode of the database.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    # A statement that is kept keeps its text, and the values that it last had: megabytes, where clients have a say.
    options = {"timeout": BUSY_SECONDS, "cached_statements": 0}
    engine = create_engine(url, connect_args=options, pool_size=READERS + 1)

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # Python's implicit transactions don't support savepoints
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("ctxgate_write")
        # A transaction that starts as a reader fails to become a writer instead of waiting.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Retries, since SQLite ignores the connection's time-out for this statement."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _postgresql(url: URL) -> Engine:
    options = {"connect_timeout": BUSY_SECONDS}
    return create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=options, pool_size=READERS + 1, pool_pre_ping=True
    )
