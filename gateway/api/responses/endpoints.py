"""OpenAI's Responses API over the gateway's one stream of chat chunks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from gateway.api.responses.background import Background, Backgrounds
from gateway.api.streaming import chat_stream, dropped_tools, estimate, stand_in, write_events
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.server.asgi import ASGIApp
from gateway.server.client import INTERNAL
from gateway.server.http import JSON, EventStream, Request
from gateway.server.keepalive import SSE_HEADERS
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.pieces import pieces
from gateway.wire.responses.answer import RUNNING, ResponseEncoder, new_id, response_object
from gateway.wire.responses.request import CreateResponse, Item, ToolTable, chat_fields

if TYPE_CHECKING:
    from gateway.api.responses.response_store import ResponseStore

log = logging.getLogger("ctxgate")

PAGE, LARGEST_PAGE = 20, 100


async def create(request: Request) -> ASGIApp:
    wanted = CreateResponse.parse(await request.body())
    stored = request.gateway.config.server.responses_days > 0 and wanted.store is not False
    if wanted.background and not stored:
        raise ProviderInvalidRequest("background: needs a stored response: leave out store: false", param="background")
    answer = await _prepared(request, wanted, stored=stored)
    headers = dropped_tools(answer.tools.dropped)
    if wanted.background:
        await answer.save()
        id = answer.encoder.response["id"]
        running = request.services.shared(Backgrounds).start(id, request.principal, answer.run)
        return _follow(running, after=-1) if wanted.stream else JSON(answer.encoder.response, headers)
    if wanted.stream:
        return chat_stream(request.gateway, answer.chat, answer)
    with await request.gateway.chat(answer.chat) as run:
        answer.encoder.opening()
        answer.encoder.feed(pieces(await run.whole()))
    answer.encoder.close()
    await answer.save()
    return JSON(answer.encoder.response, (*headers, *stand_in(run)))


async def retrieve(request: Request) -> ASGIApp:
    id = request.path_params["id"]
    running = request.services.shared(Backgrounds).get(id, request.principal)
    if request.query_params.get("stream", "").lower() == "true":
        if running is None:
            message = f"{id}: can't be streamed: the gateway keeps the events of the last background responses alone"
            raise ProviderInvalidRequest(message, param="stream")
        return _follow(running, request.number("starting_after", -1, 2**31))
    # Asked before the read: a response that ends in between stores its end, which the read may just miss.
    ended = running is None or running.ended
    response = (await (await _store(request)).get(id, request.principal)).response
    if response["status"] in RUNNING and ended:
        error = {"code": "server_error", "message": "the gateway was stopped before the response was complete"}
        response |= {"status": "failed", "error": error}
    return JSON(response)


async def delete(request: Request) -> ASGIApp:
    id = request.path_params["id"]
    # Before the deletion: its task stores the response once more as it ends.
    await request.services.shared(Backgrounds).forget(id, request.principal)
    await (await _store(request)).delete(id, request.principal)
    return JSON({"id": id, "object": "response", "deleted": True})


async def cancel(request: Request) -> ASGIApp:
    id, store = request.path_params["id"], await _store(request)
    stored = await store.get(id, request.principal)
    if not stored.response["background"]:
        message = f"{id}: only background responses can be cancelled; to end another one, close its stream"
        raise ProviderInvalidRequest(message)
    running = request.services.shared(Backgrounds).get(id, request.principal)
    if running is not None:
        await running.cancel()
        stored = await store.get(id, request.principal)
    return JSON(stored.response)


async def input_items(request: Request) -> ASGIApp:
    stored = await (await _store(request)).get(request.path_params["id"], request.principal)
    items = stored.items if request.query_params.get("order") == "asc" else stored.items[::-1]
    if after := request.query_params.get("after"):
        places = [place for place, item in enumerate(items) if item.get("id") == after]
        if not places:
            raise ProviderInvalidRequest(f"after: there is no item {after!r}", param="after")
        items = items[places[0] + 1 :]
    limit = request.number("limit", PAGE, LARGEST_PAGE)
    page = items[: max(1, limit)]
    ends = {"first_id": page[0].get("id") if page else None, "last_id": page[-1].get("id") if page else None}
    return JSON({"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})


async def input_tokens(request: Request) -> ASGIApp:
    wanted = CreateResponse.parse(await request.body())
    answer = await _prepared(request, wanted, stored=False)
    count = await request.gateway.count_tokens(answer.chat)
    return JSON({"object": "response.input_tokens", "input_tokens": count.tokens}, estimate(count))


async def _prepared(request: Request, wanted: CreateResponse, *, stored: bool) -> _Answer:
    model = request.gateway.route(wanted.model).model.name
    store = await _store(request) if stored or wanted.previous_response_id is not None else None
    before: list[Item] = []
    if store is not None and wanted.previous_response_id is not None:
        before = await store.conversation(wanted.previous_response_id, request.principal)
    tools = ToolTable(wanted.tools)
    fields = chat_fields(wanted, [*before, *wanted.items], tools)
    if wanted.background:
        # Always streamed by the engine: clients may follow its events later.
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    response = response_object(wanted, model, tools, id=new_id("resp"), created_at=int(time.time()), store=stored)
    encoder = ResponseEncoder(response, tools, time.time, sealed=wanted.includes("reasoning.encrypted_content"))
    items = [item if "id" in item else {"id": new_id("item"), **item} for item in wanted.items]
    chat = ChatRequest.parse(encode(fields), "responses")
    return _Answer(request, chat, tools, encoder, items, store if stored else None)


async def _store(request: Request) -> ResponseStore:
    from gateway.api.responses.response_store import ResponseStore

    return ResponseStore(await request.services.store(), request.gateway.config.server.responses_max_bytes)


class _Answer:
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
        items: list[Item],
        store: ResponseStore | None,
    ) -> None:
        """items: the input of this turn. store: None for a response that isn't stored."""
        self.chat = chat
        self.tools = tools
        self.encoder = encoder
        self._gateway = request.gateway
        self._principal = request.principal
        self._items = items
        self._store = store

    async def save(self) -> None:
        """Stores the response in its present state."""
        if self._store is not None:
            from gateway.api.responses.response_store import Stored

            await self._store.put(Stored(self.encoder.response, self._items), self._principal)

    def opening(self) -> bytes:
        return write_events(self.encoder.opening())

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join([write_events(self.encoder.feed(pieces(payload))) for payload in payloads])

    async def finish(self) -> bytes:
        return write_events(await self._finish())

    def fail(self, error: GatewayError) -> bytes:
        return write_events(self.encoder.fail(error))

    async def run(self, running: Background) -> None:
        """Writes the whole response and stores its end, good or bad."""
        try:
            with await self._gateway.chat(self.chat) as run:
                running.add(self.encoder.opening())
                await self.save()
                while payloads := await run.payloads():
                    for payload in payloads:
                        running.add(self.encoder.feed(pieces(payload)))
            last = await self._finish()
        except GatewayError as error:
            last = self.encoder.fail(error)
            await self.save()
        except Exception:
            log.exception("response %s broke", self.encoder.response["id"])
            last = self.encoder.fail(INTERNAL)
            await self.save()
        except asyncio.CancelledError:
            self.encoder.cancel()
            await self.save()
            raise
        running.add(last)

    async def _finish(self) -> list[dict[str, Any]]:
        events = self.encoder.close()
        try:
            await self.save()
        except GatewayError as error:
            # A client may ask for any response that is announced as complete.
            return [*events, *self.encoder.fail(error)]
        return [*events, self.encoder.last()]


def _follow(running: Background, after: int) -> EventStream:
    """Streams the events after number `after`, future ones included."""

    async def frames() -> AsyncIterator[bytes]:
        async for events in running.events(after):
            yield write_events(events)

    return EventStream(frames())
