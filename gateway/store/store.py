"""One writer thread, which commits waiting writes together, and a pool of readers."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gateway.errors import GatewayError, InternalError, ProviderRateLimit, ProviderUnavailable
from gateway.observe.shares import Workers
from gateway.store.claim import Claim, Work, claim
from gateway.store.clock import Clock
from gateway.store.migrate import upgrade

T = TypeVar("T")

WAITING, QUEUE_SECONDS = 1024, 30
"""How many writes may be queued, and how long another one waits for a place in the queue."""
BATCH = 128
"""The most writes that share a commit."""
READERS = 4
BUSY_SECONDS = 10
"""How long to wait for another process's write."""
LOG_SECONDS = 60.0

log = logging.getLogger("ctxgate")


class StoreBusy(ProviderRateLimit):
    """Too many writes are queued. This one wrote nothing."""


@dataclass(slots=True)
class _Write:
    work: Callable[[Connection], Any]
    done: Future[Any]


class Store:
    """Runs work on the database.

    `write` returns after the commit has been synced to disk. Writes run one after another, in the order of their calls.
    Each is all or nothing: work that raises leaves nothing behind.
    """

    def __init__(self, engine: Engine) -> None:
        """Use `open`, which creates the tables."""
        self.clock = Clock()
        self.holder: str | None = None
        """The holder's name in claims; None: this process."""
        self._engine = engine
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._readers = Workers(READERS, name="store reader")
        self._room = asyncio.Semaphore(WAITING)
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
                await self._room.acquire()
        except TimeoutError:
            raise StoreBusy(f"{WAITING} writes are queued", retry_after=QUEUE_SECONDS) from None
        if self._closed:  # nobody would do the write any more, and the next one that waits has to hear of it
            self._room.release()
        self._check_open()
        write = _Write(work, Future())
        self._writes.put(write)
        done = asyncio.wrap_future(write.done)
        done.add_done_callback(self._leave)
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

    def _leave(self, done: asyncio.Future[Any]) -> None:
        self._room.release()
        if not done.cancelled():
            done.exception()  # retrieved, since the caller may be gone

    def _close(self) -> None:
        self._writes.put(None)
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
        while self._write_some():
            pass  # the frame that knew the last batch is gone: nothing keeps what was written

    def _write_some(self) -> bool:
        """Waits for a write, and commits all that are there by then; False after the last one."""
        batch: list[_Write] = []
        more = self._writes.get()
        while more is not None:
            batch.append(more)
            if len(batch) == BATCH:
                break
            try:
                more = self._writes.get_nowait()
            except queue.Empty:
                break
        if batch:
            self._commit([write for write in batch if write.done.set_running_or_notify_cancel()])
        return more is not None

    def _commit(self, batch: list[_Write]) -> None:
        results: list[tuple[_Write, Any]] = []
        try:
            with self._engine.connect().execution_options(ctxgate_write=True) as connection, connection.begin():
                for write in batch:
                    try:
                        with connection.begin_nested():
                            results.append((write, write.work(connection)))
                    except Exception as error:
                        if isinstance(error, DBAPIError) and error.connection_invalidated:
                            raise
                        write.done.set_exception(self._fault(error) if isinstance(error, DBAPIError) else error)
        except SQLAlchemyError as error:
            for write in batch:
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
