"""Runs batches: reads their input, runs their requests, and writes their files.

Everything that must survive the process is in the store. Whenever it dies, the next process continues: it reads
incompletely read input files again, runs the requests that have no answer yet, and writes unfinished files again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.core.in_thread import in_thread_if_large
from gateway.errors import Backoff, GatewayError, ProviderInvalidRequest
from gateway.features.batches.batch_store import Batch, BatchStore, Pending
from gateway.features.batches.file_store import FileStore
from gateway.features.batches.lines import AGAIN, BUSY, ask
from gateway.features.batches.objects import (
    MAX_FAULTS,
    UNANSWERED,
    CreateBatch,
    Fault,
    Line,
    LineReader,
    answered,
    unanswered,
)
from gateway.features.batches.settings import Batches as Settings
from gateway.observe.shares import TenantPlaces, tenant
from gateway.server.keys import FILE, KeyFile
from gateway.server.principal import Principal
from gateway.services import Services
from gateway.store import Claimed, Store, insist

MARKER = "batches.open"
"""A file in the state folder that exists while there may be batches to resume after a restart."""
ATTEMPTS = 10
"""How often to try a request that fails temporarily."""
BACKOFF = Backoff(first=1.0, longest=60.0, jitter=0.2)
AHEAD = 32
"""How many requests to read from the store at a time."""
CLOSE_SECONDS = 10
TAKE_OVER_SECONDS = 1.0

log = logging.getLogger("ctxgate")


class Batches:
    """All batches of this process. They take turns, request by request; `batches.at_a_time` run at a time.

    Create one per process with `services.shared(Batches)`.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._config = services.gateway.config
        self._places = TenantPlaces(self._config.section(Settings).at_a_time)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        """Those of them whose files are being written: a further cancellation would only begin that again."""
        self._opening = asyncio.Lock()
        self._opened = False
        self._closed = False
        self._store: Store
        self.batches: BatchStore

    async def open(self) -> None:
        """Claims the batches, and resumes those of an earlier process.

        Raises ProviderUnavailable if the store can't be opened, Claimed if another gateway has the batches.
        """
        async with self._opening:
            self._store = await self._services.store()
            self.batches = BatchStore(self._store)
            if self._opened and await self._store.holds("batches"):
                return
            self._opened = False
            try:
                await self._store.claim("batches")
            except Claimed:
                # The store has ended our claim, and another gateway continues them.
                for task in self._running.values():
                    task.cancel()
                raise
            await asyncio.to_thread(self._mark)
            for id in await self.batches.open():
                self._start(id)
            self._opened = True

    async def create(self, wanted: CreateBatch, principal: Principal) -> Batch:
        """Raises what `BatchStore.create` and `open` raise."""
        await self.open()
        batch = await self.batches.create(wanted, self._config, principal)
        self._start(batch.id)
        return batch

    async def cancel(self, id: str, principal: Principal) -> Batch:
        """Cancels the requests in flight, even if an earlier call couldn't.

        Raises ProviderInvalidRequest (409) for a batch that has ended.
        """
        await self.open()
        batch = await self.batches.get(id, principal)
        if batch.status == "cancelled":
            return batch
        if batch.status not in ("validating", "in_progress", "cancelling"):
            message = f"{id}: a batch that is {batch.object['status']} can't be cancelled"
            raise ProviderInvalidRequest(message, code="batch_not_cancellable", status=409)
        if batch.status != "cancelling":
            batch = await self.batches.move(id, "cancelling", cancelling_at=self.batches.now())
        if (task := self._running.get(id)) is not None and id not in self._ending:
            task.cancel()
            await asyncio.wait({task})
        if not batch.over:
            self._start(id)
        return batch

    async def aclose(self) -> None:
        """Leaves the batches as they are: the next start resumes them. Idempotent."""
        if self._closed:
            return
        self._closed = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        if self._opened and not await self.batches.open():
            (self._config.state_dir / MARKER).unlink(missing_ok=True)

    def _mark(self) -> None:
        self._config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._config.state_dir / MARKER).touch(mode=0o600)

    def _start(self, id: str) -> None:
        if self._closed or id in self._running:
            return
        task = asyncio.create_task(self._run(id), name=f"batch {id}")
        self._running[id] = task
        task.add_done_callback(lambda ended: self._ended(id, ended))

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        if self._running.get(id) is task:
            del self._running[id]
            self._ending.discard(id)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("batch %s stopped; the next start of the gateway resumes it", id, exc_info=error)

    async def _run(self, id: str) -> None:
        """Runs one step after another until the batch has ended."""
        failures = 0
        while True:
            try:
                await self._keep()
                batch = await self.batches.load(id)
                tenant.set(batch.principal.tenant)
                if batch.over:
                    return
                match batch.status:
                    case "validating":
                        await self._validate(batch)
                    case "in_progress":
                        await self._answer_all(batch)
                    case _:
                        self._ending.add(id)
                        await self.batches.finish(batch)
                failures = 0
            except Claimed as error:
                log.warning("batch %s: %s", id, error)
                return
            except GatewayError as error:
                failures += 1
                log.warning("batch %s waits: %s", id, error)
                await asyncio.sleep(BACKOFF.delay(failures))

    async def _keep(self) -> None:
        """Raises Claimed if another gateway has claimed the batches meanwhile."""
        if not await self._store.holds("batches"):
            await self._store.claim("batches")

    async def _validate(self, batch: Batch) -> None:
        """Reads the input file: its lines, or what is wrong with them."""
        settings, id = self._config.section(Settings), batch.object["input_file_id"]
        files, reader = FileStore(self._store, self._config), LineReader(batch.object["endpoint"], settings.max_lines)
        faults: list[Fault] = []

        async def take(found: list[Line | Fault]) -> None:
            faults.extend(one for one in found if isinstance(one, Fault))
            if not faults:
                await self.batches.add_lines(batch.id, [one for one in found if isinstance(one, Line)])
                if not await self.batches.room(batch.principal, settings.storage_max_bytes):
                    faults.append(Fault("storage_limit_exceeded", UNANSWERED["storage_limit_exceeded"]))

        await self.batches.begin_lines(batch.id)
        left = await files.size(id)
        async for part in files.parts(id):
            left -= len(part)
            await take(await in_thread_if_large(len(part), reader.feed, part))
            if len(faults) >= MAX_FAULTS:
                break
        else:
            if left:
                faults.append(Fault("input_file_deleted", "The input file was deleted before it was read."))
            else:
                await take(reader.finish())
        if faults:
            await self.batches.fail(batch.id, faults[:MAX_FAULTS], reader.total)
        else:
            await self.batches.begin(batch.id, reader.total)

    async def _answer_all(self, batch: Batch) -> None:
        left = batch.object["expires_at"] - self.batches.now()
        try:
            async with asyncio.timeout(left):
                await self._answer_pending(batch)
        except TimeoutError:
            await self.batches.move(batch.id, "expiring", finalizing_at=self.batches.now())
        except ExceptionGroup as errors:
            refusals, bugs = errors.split(GatewayError)
            if refusals is None or bugs is not None:
                raise
            raise refusals.exceptions[0] from None
        else:
            await self.batches.move(batch.id, "finalizing", finalizing_at=self.batches.now())

    async def _answer_pending(self, batch: Batch) -> None:
        last: Pending | None = None
        ahead = asyncio.Semaphore(self._config.section(Settings).at_a_time)
        async with asyncio.TaskGroup() as group:
            while found := await self.batches.pending(batch.id, last, AHEAD):
                await self._keep()
                principal = await asyncio.to_thread(self._principal, batch)
                if principal is None:
                    await self.batches.move(batch.id, "cancelling", cancelling_at=self.batches.now())
                    return
                fits = await self.batches.room(batch.principal, self._config.section(Settings).storage_max_bytes)
                for line in found:
                    await ahead.acquire()
                    answering = group.create_task(self._answer(batch, principal, line, fits))
                    answering.add_done_callback(lambda _: ahead.release())
                last = found[-1]

    def _principal(self, batch: Batch) -> Principal | None:
        """The batch's creator with the present limits of their key; None once it is revoked. Blocks."""
        made_by = batch.principal
        if not made_by.key:
            return made_by
        keys = KeyFile(self._config.state_dir / FILE).read()
        return next((key.principal for key in keys if key.id == made_by.key), None)

    async def _answer(self, batch: Batch, principal: Principal, line: Pending, fits: bool) -> None:
        if not fits:
            output, failed = unanswered(line.custom_id, "storage_limit_exceeded"), True
        else:
            status, answer = await self._ask(batch, principal, line)
            output, failed = answered(line.custom_id, status, answer), status != 200
        await insist(lambda: self.batches.answer(batch.id, line.number, output, failed=failed), "a batch's answer")

    async def _ask(self, batch: Batch, principal: Principal, line: Pending) -> tuple[int, bytes]:
        """The status and the answer. A request that waits for a retry leaves its place to others meanwhile."""
        failures = busy = 0
        while True:
            async with self._places.place():
                status, retry_after, answer = await ask(self._services, principal, batch.object["endpoint"], line.body)
            if status == BUSY:
                busy += 1
            else:
                failures += 1
            if status not in (BUSY, *AGAIN) or failures == ATTEMPTS:
                return status, answer
            await asyncio.sleep(BACKOFF.delay(failures + busy, at_least=min(retry_after, BACKOFF.longest)))


@asynccontextmanager
async def resume(services: Services) -> AsyncIterator[None]:
    """Resumes the batches of an earlier process, without delaying the start; in a cluster, those of a gateway that
    died."""
    opening = asyncio.create_task(_resume(services.shared(Batches), services), name="resume the batches")
    try:
        yield
    finally:
        opening.cancel()
        await asyncio.wait({opening})


async def _resume(batches: Batches, services: Services) -> None:
    alone = services.gateway.pool is None
    failures = 0
    while True:
        try:
            await batches.open()
            if alone:
                return
        except GatewayError as error:
            failures += 1
            if alone and failures == 1:
                log.warning("can't resume the batches yet: %s", error)
        await asyncio.sleep(BACKOFF.delay(failures) if alone else TAKE_OVER_SECONDS)
