"""OpenAI's Responses API over the gateway's one stream of chat chunks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from gateway.api.streaming import (
    StreamedAnswer,
    chat_stream,
    dropped_header,
    estimate_header,
    extra_headers,
    write_events,
)
from gateway.core.in_thread import LARGE, in_thread_if_large
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse, ProviderUnavailable
from gateway.feature import offered
from gateway.features.responses.background import Background, Backgrounds
from gateway.features.responses.references import resolved
from gateway.features.responses.stored import conversations, paging, responses
from gateway.features.responses.wire.answer import RUNNING, ResponseEncoder, new_id, response_object
from gateway.features.responses.wire.compact import Compact, compaction
from gateway.features.responses.wire.compact import chat_fields as compact_fields
from gateway.features.responses.wire.conversations import Written, shown, with_ids, written
from gateway.features.responses.wire.request import CreateResponse, Item, ToolTable, chat_fields, left_out
from gateway.server.asgi import ASGIApp, Headers, Receive, Scope, Send
from gateway.server.client import INTERNAL, ASGIClient, Client
from gateway.server.http import JSON, EventStream, Request
from gateway.server.keepalive import SSE_HEADERS
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.pieces import End, TextPiece, UsagePiece, pieces
from gateway.wire.stored import listed

if TYPE_CHECKING:
    from gateway.features.responses.response_store import ResponseStore

Events = list[dict[str, Any]]
Hear = Callable[[Events], Awaitable[None]]

STOPPED = ProviderUnavailable("the gateway was stopped before the response was complete")

log = logging.getLogger("ctxgate")


class RemoteTurn(Protocol):
    """An answer during which the gateway calls tools; a feature makes it."""

    def stream(self) -> StreamedAnswer: ...

    async def run(self, hear: Hear, began: Callable[[], Awaitable[None]] | None = None) -> Events:
        """Writes the answer: `hear` gets all events but the last, which are returned, once the response is stored.

        began: called once an engine has taken the request; up to then, errors leave no event. Raises GatewayError.
        """
        ...


async def create(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted = await request.translated(CreateResponse.parse)
    stored = is_stored(request, wanted)
    if wanted.background and not stored:
        cure = "leave out store: false"
        if wanted.store is not False:
            cure = "this gateway stores none (server.responses_days: 0)"
        raise ProviderInvalidRequest(f"background: needs a stored response: {cure}", param="background")
    background, stream = wanted.background, wanted.stream
    answer = await prepared(request, wanted, stored=stored, size=size)
    del wanted  # what it says is in the answer's request, and need not be in memory twice
    headers = (
        *dropped_header(b"x-ctxgate-dropped-tools", answer.tools.dropped),
        *dropped_header(b"x-ctxgate-dropped-items", answer.left_out),
    )
    answer.headers = (*answer.headers, *headers)
    if background:
        backgrounds, id = request.services.shared(Backgrounds), answer.encoder.response["id"]
        running = backgrounds.start(id, request.principal, request.caller.meter, answer.save, answer.run)
        await running.saved()
        return _follow(running, after=-1) if stream else JSON(answer.encoder.response, headers)
    if stream:
        return answer
    return JSON(answer.encoder.response, (*headers, *await answer.whole()))


async def retrieve(request: Request) -> ASGIApp:
    id = request.path_params["id"]
    running = request.services.shared(Backgrounds).get(id, request.principal)
    if request.query_params.get("stream", "").lower() == "true":
        if running is None:
            message = f"{id}: can't be streamed: the gateway keeps the events of the last background responses alone"
            raise ProviderInvalidRequest(message, param="stream")
        return _follow(running, request.number("starting_after", -1, 2**31))
    return JSON(await _present(request))


async def _present(request: Request) -> dict[str, Any]:
    """The stored response in its present state: one that nobody writes any more has ended. Raises GatewayError."""
    id = request.path_params["id"]
    running = request.services.shared(Backgrounds).get(id, request.principal)
    # Check this before the read: a response that ends in between stores its end, which the read might just miss.
    ended = running is None or running.ended
    response = (await (await responses(request)).get(id, request.principal)).response
    if response["status"] in RUNNING and ended:
        if running is not None and running.unsaved is not None:
            return running.unsaved
        response |= {"status": "failed", "error": {"code": "server_error", "message": STOPPED.message}}
    return response


async def delete(request: Request) -> ASGIApp:
    id = request.path_params["id"]
    # Before the deletion: its task stores the response once more as it ends.
    await request.services.shared(Backgrounds).forget(id, request.principal)
    await (await responses(request)).delete(id, request.principal)
    return JSON({"id": id, "object": "response", "deleted": True})


async def cancel(request: Request) -> ASGIApp:
    id, response = request.path_params["id"], await _present(request)
    if not response["background"]:
        message = f"{id}: only background responses can be cancelled; to end another one, close its stream"
        raise ProviderInvalidRequest(message)
    running = request.services.shared(Backgrounds).get(id, request.principal)
    if running is not None:
        await running.cancel()
        response = await _present(request)
    return JSON(response)


async def input_items(request: Request) -> ASGIApp:
    store = await responses(request)
    found = await store.items(request.path_params["id"], request.principal, paging(request))
    return JSON(listed([shown(item) for item in found.items], more=found.more))


async def input_tokens(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted = await request.translated(CreateResponse.parse)
    answer = await prepared(request, wanted, stored=False, size=size)
    count = await request.gateway.count_tokens(answer.chat)
    return JSON({"object": "response.input_tokens", "input_tokens": count.tokens}, estimate_header(count))


async def compact(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted = await request.translated(Compact.parse)
    before: list[Item] = []
    if wanted.previous_response_id is not None:
        before = await (await responses(request)).conversation(wanted.previous_response_id, request.principal)
    asked = wanted.items
    given = await resolved(request, asked, before)
    items = [*before, *given]

    def translated() -> ChatRequest:
        return ChatRequest.parse(encode(compact_fields(wanted, items)), "responses", request.caller)

    chat = await in_thread_if_large(_size(size, before if given is asked else items), translated)
    written: list[str] = []
    usage, cut = UsagePiece(), False
    with await request.gateway.chat(chat) as run:
        for piece in pieces(await run.whole()):
            match piece:
                case TextPiece(refused=False):
                    written.append(piece.text)
                case End():
                    cut = piece.reason == "length"
                case UsagePiece():
                    usage = piece
    summary = "".join(written).strip()
    if not summary:
        raise ProviderInvalidResponse("the model wrote no summary")
    model = run.request.fallback or request.gateway.route(wanted.model).model.name
    made = compaction(items, summary, cut=cut, model=model, usage=usage, created_at=int(time.time()))
    return JSON(made, extra_headers(run))


def _size(body: int, stored: list[Item]) -> int:
    """What `in_thread_if_large` is told: items that the request doesn't have itself may be large."""
    return max(body, LARGE + 1) if stored else body


def is_stored(request: Request, wanted: CreateResponse) -> bool:
    return request.gateway.config.server.responses_days > 0 and wanted.store is not False


async def prepared(
    request: Request,
    wanted: CreateResponse,
    *,
    stored: bool,
    size: int,
    before: list[Item] | None = None,
    held: Sequence[Item] = (),
    kind: type[ResponseInProgress] | None = None,
) -> ResponseInProgress:
    """size: of the request, in bytes. before: the earlier items, if they don't come from the store. held: others that
    the input may refer to. kind: the answer's class."""
    model = request.gateway.route(wanted.model).model.name
    conversation = wanted.conversation_id
    needed = stored or conversation is not None or (wanted.previous_response_id is not None and before is None)
    store = await responses(request) if needed else None
    cut = wanted.truncation == "auto"
    if conversation is not None:
        before = await (await conversations(request)).items(conversation, request.principal, cut=cut)
    elif before is None:
        previous = wanted.previous_response_id
        before = []
        if store is not None and previous is not None:
            before = await store.conversation(previous, request.principal, cut=cut)
    asked = wanted.items
    items = await resolved(request, asked, before, held)
    size = _size(size, [] if items is asked else items)
    tools = ToolTable(wanted.tools)
    begin: Begin | None = None
    if tools.servers:
        join: Join = offered("remote_tools")
        begin = await join(request, tools)
    kept = store if stored or conversation is not None else None
    given = [*before, *items]
    rows: list[Written] = []
    if kept is not None or kind is not None:
        rows = await in_thread_if_large(size, _written, items, before)
    said, chat = await _said(request, wanted, given, tools, _size(size, before))
    response = response_object(wanted, model, tools, id=new_id("resp"), created_at=int(time.time()), store=stored)
    encoder = ResponseEncoder(response, tools, time.time, sealed=wanted.includes("reasoning.encrypted_content"))
    answer = (kind or ResponseInProgress)(request, chat, tools, encoder, left_out(given), rows, before, kept)
    if begin is not None:
        answer.turn = begin(answer, wanted, said)
    return answer


def _written(items: list[Item], before: list[Item]) -> list[Written]:
    return written(with_ids(items, {item.get("id") for item in before}))


async def _said(
    request: Request, wanted: CreateResponse, items: list[Item], tools: ToolTable, size: int
) -> tuple[list[Item], ChatRequest]:
    """The items that the model shall see, and the chat request that shows them. size: of all, about, in bytes."""

    def translated(items: list[Item]) -> ChatRequest:
        fields = chat_fields(wanted, items, tools)
        if wanted.background:
            # Always streamed by the engine: clients may follow its events later.
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return ChatRequest.parse(encode(fields), "responses", request.caller)

    if wanted.truncation == "auto":
        from gateway.features.responses.truncation import fitting

        async def count(items: list[Item]) -> int:
            chat = await in_thread_if_large(size, translated, items)
            return (await request.gateway.count_tokens(chat)).tokens

        window = request.gateway.route(wanted.model).model.context_window
        items = await fitting(items, window, wanted.max_output_tokens, count, size)
    chat = await in_thread_if_large(size, translated, items)
    return items, chat


Begin = Callable[["ResponseInProgress", CreateResponse, list[Item]], RemoteTurn]
"""Starts the turn of an answer. The list: all items up to it."""

Join = Callable[[Request, ToolTable], Awaitable[Begin]]
"""Adds the tools of the servers that a request names to its table. Raises ProviderInvalidRequest."""


class ResponseInProgress:
    """A response in the making: the encoding of a stream, or the work of a background task."""

    headers = SSE_HEADERS
    comments = True
    ping = b""
    unchanged = False

    def __init__(
        self,
        request: Request,
        chat: ChatRequest,
        tools: ToolTable,
        encoder: ResponseEncoder,
        left_out: list[str],
        items: list[Written],
        before: list[Item],
        store: ResponseStore | None,
    ) -> None:
        """left_out: as `left_out` of the request says. items: the input of this turn, where it is kept. before: of
        earlier ones. store: None for a response that isn't stored."""
        self.chat = chat
        self.tools = tools
        self.left_out = left_out
        self.encoder = encoder
        self.turn: RemoteTurn | None = None
        """For an answer during which the gateway calls tools."""
        self._gateway = request.gateway
        self._principal = request.principal
        self._items = items
        self._before = before
        self._store = store
        self._saved = ""
        """The state in which it was stored last."""

    @property
    def conversation(self) -> list[Item]:
        """The whole conversation, this answer included."""
        return [*self._before, *(decode(json) for _, json in self._items), *self.encoder.response["output"]]

    def write(self, events: list[dict[str, Any]]) -> bytes:
        return write_events(events)

    async def save(self) -> None:
        """Stores the response in its present state, unless it was deleted since it was stored before."""
        if self._store is not None:
            from gateway.features.responses.response_store import Stored

            response, conversation = self.encoder.response, self.encoder.response["conversation"]
            if response["store"]:
                stored = Stored(response, self._items, conversation and conversation["id"])
            else:
                # Nobody can retrieve the response, but its items belong to the conversation.
                stored = Stored({}, [*self._items, *written(response["output"])], conversation["id"])
            await self._store.put(stored, self._principal, again=bool(self._saved))
            self._saved = response["status"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.send(ASGIClient(send))

    async def send(self, client: Client) -> None:
        """Streams the answer."""
        stream = chat_stream(self._gateway, self.chat, self) if self.turn is None else self.turn.stream()
        try:
            await stream.send(client)
        except BaseException:
            if self.encoder.response["status"] in RUNNING:  # and not only its end waits for the store
                self.encoder.cancel()
                await self._keep()
            raise

    async def _keep(self) -> None:
        """Stores what was written of a stream that broke off, since its client may refer to that. A conversation stays
        as it was: clients send the turn again."""
        response = self.encoder.response
        if self._store is not None and response["store"] and response["output"]:
            from gateway.features.responses.response_store import Stored

            with suppress(GatewayError):
                await self._store.put(Stored(response, self._items), self._principal)

    async def whole(self) -> Headers:
        """Writes the whole answer and stores it; the headers that it adds. Raises GatewayError."""
        if self.turn is not None:
            await self.turn.run(_unheard)
            return ()
        with await self._gateway.chat(self.chat) as run:
            self.open_events()
            payload = await run.whole()
            await in_thread_if_large(len(payload), lambda: self.encoder.feed(pieces(payload)))
        headers = extra_headers(run)
        del run
        self.encoder.close()
        await self._end()
        return headers

    async def _end(self) -> None:
        """Stores the response; what its request said is no longer needed then, and may be long."""
        self.chat.fields.clear()
        if self.encoder.response["background"]:
            from gateway.store import insist

            await insist(self.save, "a background response")  # nobody else has it
        else:
            await self.save()

    def opening(self) -> bytes:
        return self.write(self.open_events())

    def open_events(self) -> list[dict[str, Any]]:
        self.encoder.response["service_tier"] = self.chat.serving.tier or "default"
        return self.encoder.opening()

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join([self.write(self.encoder.feed(pieces(payload))) for payload in payloads])

    async def finish(self) -> bytes:
        return self.write(await self.finish_events())

    async def fail(self, error: GatewayError) -> bytes:
        events = self.encoder.fail(error)
        await self._keep()
        return self.write(events)

    async def run(self, running: Background) -> None:
        """Writes the whole response and stores its end, good or bad."""
        try:
            running.add(await self._ended(running))
        except asyncio.CancelledError:
            if self.encoder.response["status"] in RUNNING:  # and not only its end waits for the store
                if running.stopping:
                    running.add(self.encoder.fail(STOPPED))
                else:
                    self.encoder.cancel()
            with suppress(GatewayError):
                await self.save()
            raise
        finally:
            if self._saved != self.encoder.response["status"]:
                running.keep(self.encoder.response)

    async def _ended(self, running: Background) -> Events:
        try:
            return await self._written(running)
        except GatewayError as error:
            last = self.encoder.fail(error)
        except Exception:
            log.exception("response %s broke", self.encoder.response["id"])
            last = self.encoder.fail(INTERNAL)
        await self._end()
        return last

    async def _written(self, running: Background) -> list[dict[str, Any]]:
        """All but the last events are in `running`."""
        if self.turn is not None:
            return await self.turn.run(running.hear, self._begun)
        with await self._gateway.chat(self.chat) as run:
            running.add(self.open_events())
            await self._begun()
            while payloads := await run.payloads():
                for payload in payloads:
                    running.add(self.encoder.feed(pieces(payload)))
        del run
        return await self.finish_events()

    async def _begun(self) -> None:
        """Stores that the answer has begun, if the store can take it: the end will be stored anyway."""
        with suppress(GatewayError):
            await self.save()

    async def finish_events(self, limit: str | None = None) -> list[dict[str, Any]]:
        """The last events, once the response is stored. limit: see `ResponseEncoder.close`."""
        events = self.encoder.close(limit)
        try:
            await self._end()
        except GatewayError as error:
            # A client may ask for any response that is announced as complete.
            return [*events, *self.encoder.fail(error)]
        return [*events, self.encoder.last()]


async def _unheard(events: list[dict[str, Any]]) -> None:
    """For a client that gets only the response."""


def _follow(running: Background, after: int) -> EventStream:
    """Streams the events after number `after`, future ones included."""
    return EventStream(running.events(after))
