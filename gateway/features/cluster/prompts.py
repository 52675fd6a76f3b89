"""Assigns an engine's slots to the requests of all gateways, in the actor beside the engine.

No gateway knows what the others sent, so the engine's actor has the engine's `LivePrompts`. Over a connection of its
own, a gateway asks it for a slot before a request, and sends the token counts afterwards. Messages are MessagePack,
each after its length in 4 bytes; the first one is the cluster's key. When a connection ends, the requests of its
gateway count as over.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from gateway.config import Prompts
from gateway.errors import Backoff
from gateway.features.cluster.listener import Listener
from gateway.line import Tell, ignore
from gateway.prompts.blocks import Chain
from gateway.prompts.live import LivePrompts
from gateway.prompts.protocols import TROUBLE, PromptPlace, SlotServer, is_short
from gateway.prompts.speed import counts, reading_seconds
from gateway.prompts.turn import Turn
from gateway.upstream import reached_itself

MAX_BYTES = 64 * 1024 * 1024
"""Limit of a message, which may contain a prompt."""
MAX_LENGTH = 4
CONNECT_SECONDS = 2.0
RECONNECT = Backoff(0.1, 5.0)

log = logging.getLogger("ctxgate.cluster")


class Key(Struct, frozen=True, tag="key"):
    key: str


class Beside(Struct, frozen=True, tag="beside"):
    """A request that isn't saved; see `LivePrompts.place_short`."""

    id: int
    sent: bytes
    private: bool
    owner: str = ""


class Long(Struct, frozen=True, tag="long"):
    """A request with this rendered prompt. seconds_per_token: how long other engines of the model read; 0: unknown."""

    id: int
    prompt: str
    seconds_per_token: float = 0.0
    owner: str = ""


class Left(Struct, frozen=True, tag="left"):
    """The request has ended. counts: tokens of its prompt, the cached part and the answer; None if it was cut off.
    reading: seconds until its first token. refused: the engine didn't accept it."""

    id: int
    counts: tuple[int, int, int] | None = None
    reading: float = 0.0
    refused: bool = False


class Disturbed(Struct, frozen=True, tag="disturbed"):
    """A request goes to the engine and may use any slot. id: until it has `Left`. owner: None if unknown."""

    id: int
    owner: str | None = None


Asked = Key | Beside | Long | Left | Disturbed


class Placed(Struct, frozen=True):
    """The answer to `Beside` and `Long`. slot: None leaves the choice to the engine. restored: tokens of the file.
    apart, fresh: see `gateway.prompts.turn.Turn`."""

    id: int
    slot: int | None = None
    restored: int = 0
    seconds_per_token: float = 0.0
    apart: bool = False
    fresh: bool = False


_encode = msgspec.msgpack.encode
_asked = msgspec.msgpack.Decoder(Asked).decode
_placed = msgspec.msgpack.Decoder(Placed).decode


def _write(writer: asyncio.StreamWriter, message: Struct) -> None:
    data = _encode(message)
    writer.write(len(data).to_bytes(MAX_LENGTH, "big") + data)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Raises EOFError or ConnectionError if the other side is gone, ValueError for a message that is too long."""
    size = int.from_bytes(await reader.readexactly(MAX_LENGTH), "big")
    if size > MAX_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return await reader.readexactly(size)


class PlaceServer(Listener):
    """Beside an engine: answers gateways that have the key."""

    def __init__(self, live: LivePrompts, slots: SlotServer, key: str) -> None:
        super().__init__()
        self._live = live
        self._slots = slots
        self._key = key

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        placing: dict[int, asyncio.Task[Turn | None]] = {}
        try:
            # A connection that doesn't send the key at once isn't a gateway's.
            async with asyncio.timeout(CONNECT_SECONDS):
                first = _asked(await _read(reader))
            if not isinstance(first, Key) or not hmac.compare_digest(first.key.encode(), self._key.encode()):
                return
            while True:
                self._heard(_asked(await _read(reader)), placing, writer)
        except (EOFError, OSError, TimeoutError, ValueError, msgspec.DecodeError) as error:
            log.debug("places: a gateway's connection ended: %r", error)
        finally:
            for id in [*placing]:
                self._left(Left(id), placing)

    def _heard(
        self, message: Asked, placing: dict[int, asyncio.Task[Turn | None]], writer: asyncio.StreamWriter
    ) -> None:
        if isinstance(message, Beside | Long | Disturbed):
            placing[message.id] = asyncio.create_task(self._place(message, writer), name="place a request")
        elif isinstance(message, Left):
            self._left(message, placing)

    async def _place(self, message: Beside | Long | Disturbed, writer: asyncio.StreamWriter) -> Turn | None:
        if isinstance(message, Disturbed):
            return self._live.anywhere(self._slots, message.owner)
        turn: Turn | None = None
        try:
            if isinstance(message, Long):
                if message.seconds_per_token:
                    self._live.speed.assume(message.seconds_per_token)
                turn = await self._live.place_long(self._slots, message.prompt, message.owner)
            else:
                turn = await self._live.place_short(
                    self._slots, message.sent, private=message.private, owner=message.owner
                )
        except TROUBLE as error:
            log.debug("places: none for a request: %s", error)
        if turn is None and self._live.table.owners.several:
            turn = self._live.anywhere(self._slots, message.owner)
        restored = turn.restored.tokens if turn is not None and turn.restored is not None else 0
        slot = turn.slot if turn is not None else None
        several, fresh = self._live.table.owners.several, turn is not None and turn.fresh
        _write(writer, Placed(message.id, slot, restored, self._live.speed.measured, several, fresh))
        return turn

    def _left(self, message: Left, placing: dict[int, asyncio.Task[Turn | None]]) -> None:
        task = placing.pop(message.id, None)
        if task is None:
            return
        if not task.done():
            # The client disconnected while it waited; if it is given a slot after all, it leaves it at once.
            task.cancel()
            task.add_done_callback(_leave)
            return
        turn = _turn(task)
        if turn is None:
            return
        if message.refused:
            turn.refused()
            return
        turn.leave()
        if message.counts is not None:
            prompt, cached, completion = message.counts
            usage = {
                "prompt_tokens": prompt,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens": completion,
            }
            turn.answered(usage, 0.0, turn.since + message.reading)


def _turn(task: asyncio.Task[Turn | None]) -> Turn | None:
    return None if task.cancelled() or task.exception() is not None else task.result()


def _leave(task: asyncio.Task[Turn | None]) -> None:
    if (turn := _turn(task)) is not None:
        turn.leave()


class Rate:
    """How long the engines of a model take to read a token, as last reported by one of them; 0: unknown."""

    seconds_per_token = 0.0


class ClusterPlaces:
    """A gateway's side, for one engine; see `gateway.prompts.protocols.Placing`.

    Without a connection the engine chooses. rate: shared by the engines of the model."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, key: str, settings: Callable[[], Prompts], rate: Rate
    ) -> None:
        self._rate = rate
        self._address = host, port
        self._tls = tls
        self._key = key
        self._settings = settings
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[Placed]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self.connected = asyncio.Event()
        self._connects_until = time.monotonic() + CONNECT_SECONDS
        self._running = asyncio.create_task(self._run(), name=f"places at {host}:{port}")

    async def place(
        self,
        server: SlotServer,
        sent: Sequence[bytes],
        render: Callable[[], Awaitable[str | None]],
        *,
        private: bool,
        owner: str = "",
        other: Callable[[], Awaitable[str | None]] | None = None,
        tell: Tell = ignore,
    ) -> PromptPlace | None:
        """See `LivePrompts.place`. `server` is asked by the engine's actor, which reads no prefix by itself."""
        return await self._placed(sent, render, private=private, owner=owner) or nowhere(owner)

    async def _placed(
        self, sent: Sequence[bytes], render: Callable[[], Awaitable[str | None]], *, private: bool, owner: str
    ) -> PromptPlace | None:
        """None without a connection, or if it breaks."""
        if self._writer is None and not await self._first_connected():
            return None
        id = next(self._ids)
        message: Beside | Long = Beside(id, b"" if private else b"".join(sent), private, owner)
        if not private and not is_short(sent, self._settings()):
            try:
                prompt = await render()
            except TROUBLE as error:
                log.debug("a prompt can't be rendered: %s", error)
                return None
            message = (
                Long(id, prompt, self._rate.seconds_per_token, owner)
                if prompt is not None
                else Beside(id, b"", private=True, owner=owner)
            )
        since = time.monotonic()
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        turn = RemoteTurn(self, id)
        try:
            if not self.tell(message):
                return None
            turn.placed(await answer, time.monotonic())
        except ConnectionError as error:
            log.debug("no place for a request after %.1f s: %s", time.monotonic() - since, error)
            return None
        except BaseException:
            turn.leave()
            raise
        finally:
            self._waiting.pop(id, None)
        return turn

    def admit_owner(self, owner: str) -> bool:
        """See `LivePrompts.admit_owner`. Only the engine's actor knows who else uses it."""
        return owner != ""

    def anywhere(self, server: SlotServer, owner: str | None = None) -> PromptPlace | None:
        """See `LivePrompts.anywhere`."""
        id = next(self._ids)
        turn = RemoteTurn(self, id)
        self.tell(Disturbed(id, owner))
        turn.placed(Placed(id, apart=bool(owner), fresh=bool(owner)), time.monotonic())
        return turn

    async def _first_connected(self) -> bool:
        """A new engine's first request waits for the connection; else the engine would choose a slot that nobody learns
        of. Later ones don't."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._connects_until - time.monotonic())):
                await self.connected.wait()
        return self._writer is not None

    def tell(self, message: Struct) -> bool:
        """False without a connection."""
        if self._writer is None or self._writer.is_closing():
            return False
        _write(self._writer, message)
        return True

    async def aclose(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        for failures in count(1):
            with contextlib.suppress(EOFError, OSError, TimeoutError, ValueError, msgspec.DecodeError):
                await self._connected()
            await asyncio.sleep(RECONNECT.delay(min(failures, 8)))

    async def _connected(self) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address, ssl=self._tls)
        if reached_itself(writer.transport):
            raise ConnectionRefusedError
        _write(writer, Key(self._key))
        self._writer = writer
        self.connected.set()
        try:
            while True:
                answer = _placed(await _read(reader))
                self._rate.seconds_per_token = answer.seconds_per_token or self._rate.seconds_per_token
                if (waiting := self._waiting.get(answer.id)) is not None and not waiting.done():
                    waiting.set_result(answer)
        finally:
            self._writer = None
            self.connected.clear()
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the engine's bookkeeper is gone"))


class RemoteTurn:
    """A request's place; see `gateway.prompts.turn.Turn`."""

    __slots__ = ("_id", "_left", "_places", "_since", "_told", "apart", "asked", "chain", "fresh", "slot")

    def __init__(self, places: ClusterPlaces, id: int) -> None:
        self._places = places
        self._id = id
        self._left = False
        self._since = 0.0
        self._told = Placed(id)
        self.slot: int | None = None
        self.apart = self.fresh = False
        self.chain: Chain = ()
        self.asked: tuple[bytes, bytes] | None = None

    def placed(self, told: Placed, since: float) -> None:
        self._told, self._since, self.slot = told, since, told.slot
        self.apart, self.fresh = told.apart, told.fresh

    def leave(self) -> None:
        """Idempotent. If the answer is complete, its counts follow in the same step of the event loop."""
        if not self._left:
            self._left = True
            asyncio.get_running_loop().call_soon(self._tell, Left(self._id))

    def answered(self, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        found = counts(usage)
        if found is None:
            return usage
        self._tell(Left(self._id, found, reading_seconds(found, max(began, self._since), first)))
        helped = min(self._told.restored, found[1])
        if not helped:
            return usage
        seconds = round(helped * self._told.seconds_per_token, 3)
        return {**usage, "restored_tokens": helped, "seconds_saved": seconds}

    def _tell(self, left: Left) -> None:
        # The second one, without counts, finds nothing there.
        self._places.tell(left)

    def __enter__(self) -> None:
        """Enter this around sending the request: if sending raises, the engine didn't accept it."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._left:
            self._left = True
            self._tell(Left(self._id, refused=True))


class Unplaced:
    """A request of which no actor knows, so it must reuse nothing of the engine's; see `gateway.prompts.turn.Turn`."""

    slot: int | None = None
    chain: Chain = ()
    asked: tuple[bytes, bytes] | None = None
    apart = fresh = True

    def leave(self) -> None:
        """Nobody counts it."""

    def answered(self, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        return usage

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


def nowhere(owner: str) -> Unplaced | None:
    """The place of a request of which no actor knows; None for the owner of the machines."""
    return Unplaced() if owner else None


class NoPlaces:
    """For an engine whose prompts no actor knows; see `gateway.prompts.protocols.Placing`."""

    async def place(
        self,
        server: SlotServer,
        sent: Sequence[bytes],
        render: Callable[[], Awaitable[str | None]],
        *,
        private: bool,
        owner: str = "",
        other: Callable[[], Awaitable[str | None]] | None = None,
        tell: Tell = ignore,
    ) -> PromptPlace | None:
        return nowhere(owner)

    def admit_owner(self, owner: str) -> bool:
        return owner != ""

    def anywhere(self, server: SlotServer, owner: str | None = None) -> PromptPlace | None:
        return nowhere(owner or "")
