"""`/v1/responses` over WebSocket: one response after another, with the events of a stream as messages.

A turn that continues the connection's last response is answered from memory, so that `store: false` needs no store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec

from gateway.core.in_thread import in_thread_if_large
from gateway.errors import GatewayError, ProviderAuthentication, ProviderInvalidRequest, ProviderRateLimit
from gateway.features.responses.endpoints import ResponseInProgress, is_stored, prepared
from gateway.features.responses.wire.errors import error_object
from gateway.features.responses.wire.request import CreateResponse, Item
from gateway.server.asgi import Headers, Message, Receive, Scope, Send
from gateway.server.bodies import Bodies, Body
from gateway.server.client import INTERNAL
from gateway.server.http import Request
from gateway.server.principal import ADMIT_KEY, CALLER_KEY, Principal
from gateway.server.principal import SCOPE_KEY as PRINCIPAL_KEY
from gateway.server.websocket import SCOPE_KEY, WebSocket
from gateway.services import Services
from gateway.wire.chat import Meter, encode

WAITING = 8
"""Requests that a connection may send ahead."""
LIFE_SECONDS = 3600.0
"""Seconds after which a connection takes no further request: OpenAI's limit."""
LARGEST_CONVERSATION = 32 * 1024 * 1024
"""Bytes of JSON that a connection keeps of its last response."""
CLOSED, POLICY, RESTARTS = 1000, 1008, 1012

log = logging.getLogger("ctxgate")


class _Event(msgspec.Struct):
    type: str
    generate: bool | None = None


_decode = msgspec.json.Decoder(_Event).decode


async def serve(services: Services, bodies: Bodies, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers until the client leaves or the gateway ends. Cancels answers that the client no longer waits for."""
    await send({"type": "websocket.accept"})
    connection = _Connection(services, bodies, scope, send)
    answering = asyncio.create_task(connection.answer_all(), name="websocket")
    reading = asyncio.create_task(connection.read_all(receive), name="websocket reader")
    try:
        await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (answering, reading):
            task.cancel()
        await asyncio.wait({answering, reading})
        connection.close()
    for task in (answering, reading):
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a websocket failed", exc_info=error)


class _Connection:
    def __init__(self, services: Services, bodies: Bodies, scope: Scope, send: Send) -> None:
        self._services = services
        self._bodies = bodies
        self._scope = scope
        self._send = _undisturbed(send)
        self._protocol: WebSocket | None = scope.get(SCOPE_KEY)
        self._asked: asyncio.Queue[tuple[list[bytes], Body]] = asyncio.Queue(WAITING)
        """Each message in a list, which `_answer` empties once it has read it."""
        self._last: tuple[str, list[Item]] | None = None
        """The last response, and the conversation up to it."""
        self._principal: Principal = scope[PRINCIPAL_KEY]
        if self._protocol is not None:
            self._protocol.belongs_to(self._principal)
        self._kept = Body(bodies, LARGEST_CONVERSATION, self._principal)

    async def read_all(self, receive: Receive) -> None:
        limit = self._services.gateway.config.server.max_body_bytes
        while (message := await receive())["type"] != "websocket.disconnect":
            if message["type"] != "websocket.receive":
                continue
            data = message["bytes"] if message.get("text") is None else message["text"].encode()
            del message  # it may be large, and is kept once
            body = Body(self._bodies, limit, self._principal)
            try:
                body.has(len(data))
                self._asked.put_nowait(([data], body))
            except GatewayError as error:
                await self._refuse(error)
            except asyncio.QueueFull:
                body.close()
                await self._refuse(ProviderRateLimit(f"{WAITING} requests wait on this connection: wait for answers"))
            del data

    async def answer_all(self) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + LIFE_SECONDS
        try:
            while True:
                self._idle_since(loop.time())
                async with asyncio.timeout_at(ends):
                    asked, body = await self._asked.get()
                self._idle_since(None)
                try:
                    await self._scope[ADMIT_KEY]()
                    await self._answer(asked)
                except ProviderAuthentication as error:  # the key was revoked, or has lost its scope
                    await self._refuse(error)
                    await self._send({"type": "websocket.close", "code": POLICY})
                    return
                except GatewayError as error:
                    await self._refuse(error)
                finally:
                    body.close()
                if self._protocol is not None and self._protocol.ending:
                    await self._send({"type": "websocket.close", "code": RESTARTS})
                    return
        except TimeoutError:
            message = f"a connection lasts {LIFE_SECONDS:.0f} s: open a new one"
            await self._refuse(ProviderInvalidRequest(message, code="websocket_connection_limit_reached"))
            await self._send({"type": "websocket.close", "code": CLOSED})

    def close(self) -> None:
        """Frees what is in memory."""
        self._kept.close()
        while not self._asked.empty():
            self._asked.get_nowait()[1].close()

    async def _answer(self, asked: list[bytes]) -> None:
        wanted: CreateResponse | None = None
        meter = self._scope[CALLER_KEY].meter
        try:
            size = len(asked[0])
            event, read = await in_thread_if_large(size, _read, asked)
            wanted = read
            with nullcontext() if meter is None else _counted(meter):
                await self._respond(read, size, generate=event.generate is not False)
        except GatewayError as error:
            self._forget(wanted)
            await self._refuse(error)
        except Exception:
            log.exception("a response over websocket failed")
            await self._refuse(INTERNAL)

    async def _respond(self, wanted: CreateResponse, size: int, *, generate: bool) -> None:
        request = Request({**self._scope, "type": "http", "method": "POST"}, _nothing, self._services)
        before = None
        held = [] if self._last is None else self._last[1]
        if self._last is not None and wanted.previous_response_id == self._last[0]:
            before = held
        stored = is_stored(request, wanted)
        answer = await prepared(request, wanted, stored=stored, size=size, before=before, held=held, kind=_Spoken)
        client = _Messages(self._send)
        if generate:
            await answer.send(client)
        else:
            await client.write(answer.opening())
            answer.encoder.skip()
            await answer.save()
            await client.write(answer.write([answer.encoder.last()]))
        self._remember(answer)

    def _remember(self, answer: ResponseInProgress) -> None:
        response = answer.encoder.response
        if response["status"] not in ("completed", "incomplete"):
            self._last = None
            return
        self._last = None
        conversation = answer.conversation
        try:
            self._kept.has(len(encode(conversation)))
        except GatewayError:
            self._kept.close()  # a client that continues finds it in the store, or sends all of it
        else:
            self._last = response["id"], conversation

    def _forget(self, wanted: CreateResponse | None) -> None:
        """After an error, clients send the whole conversation next, as OpenAI's clients do."""
        if self._last is not None and wanted is not None and wanted.previous_response_id == self._last[0]:
            self._last = None

    async def _refuse(self, error: GatewayError) -> None:
        event = {"type": "error", "status": error.status, **error_object(error)}
        await self._send({"type": "websocket.send", "text": encode(event).decode()})

    def _idle_since(self, time: float | None) -> None:
        if self._protocol is not None:
            self._protocol.idle_since = time


@contextmanager
def _counted(meter: Meter) -> Iterator[None]:
    """Counts one request of a key with limits. Raises LimitReached."""
    meter.enter()
    try:
        yield
    finally:
        meter.leave()


def _read(asked: list[bytes]) -> tuple[_Event, CreateResponse]:
    """Takes the message. Raises ProviderInvalidRequest."""
    data = asked.pop()
    try:
        event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProviderInvalidRequest("a message must be a JSON object with a type", param="type") from None
    if event.type != "response.create":
        raise ProviderInvalidRequest(f"type: must be response.create, not {event.type[:80]!r}", param="type")
    wanted = CreateResponse.parse(data)
    if wanted.background:
        raise ProviderInvalidRequest("background: not supported over a WebSocket", param="background")
    # Every answer is streamed here, whatever the request says.
    wanted.stream = True
    return event, wanted


class _Spoken(ResponseInProgress):
    """Each event is a line, which `_Messages` sends as a message. The protocol's pings keep a silent stream alive."""

    comments = False

    def write(self, events: list[dict[str, Any]]) -> bytes:
        return b"".join([encode(event) + b"\n" for event in events])


async def _nothing() -> Any:
    await asyncio.Event().wait()


def _undisturbed(send: Send) -> Send:
    """Waits instead of failing once the client has left: the reader notices, and cancels the answer."""

    async def sent(message: Message) -> None:
        try:
            await send(message)
        except OSError:
            await asyncio.Event().wait()

    return sent


class _Messages:
    """The client of a stream: each line that is written becomes a message."""

    wrote = False

    def __init__(self, send: Send) -> None:
        self._send = send

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        raise NotImplementedError("streams alone are sent here")

    async def start(self, headers: Headers) -> None:
        """A message has no head."""

    async def write(self, data: bytes) -> None:
        self.wrote = True
        for line in data.split(b"\n")[:-1]:
            await self._send({"type": "websocket.send", "text": line.decode()})

    async def end(self, data: bytes) -> None:
        await self.write(data)

    def sink(self) -> None:
        return None
