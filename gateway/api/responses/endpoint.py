"""OpenAI's Responses API over the gateway's one stream of chat chunks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gateway.api import endpoint
from gateway.api.chat import INTERNAL, Client, stand_in
from gateway.api.endpoint import Request, Row
from gateway.api.responses.background import Background, Backgrounds
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.server.keepalive import SSE_HEADERS
from gateway.server.principal import Principal
from gateway.services import Services
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.pieces import pieces
from gateway.wire.responses.answer import RUNNING, ResponseEncoder, new_id, response_object, sse
from gateway.wire.responses.request import CreateResponse, Item, ToolTable, chat_fields

if TYPE_CHECKING:
    from gateway.api.responses.response_store import Responses

log = logging.getLogger("ctxgate")

ID = r"/responses/([^/]+)"
PAGE, LARGEST_PAGE = 20, 100


class ResponsesFace(endpoint.RoutedFace):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._days = services.gateway.config.server.responses_days
        self._backgrounds = Backgrounds()

    def rows(self) -> Iterable[Row]:
        return (
            ("POST", "/responses/?", self.create),
            ("POST", "/responses/input_tokens", self.input_tokens),
            ("GET", ID, self.retrieve),
            ("DELETE", ID, self.delete),
            ("POST", f"{ID}/cancel", self.cancel),
            ("GET", f"{ID}/input_items", self.input_items),
        )

    async def create(self, request: Request, client: Client) -> None:
        asked = CreateResponse.parse(request.body)
        background = bool(asked.background)
        stores = self._days > 0 and asked.store is not False
        if background and not stores:
            raise ProviderInvalidRequest("background: such a response has to be stored", param="background")
        made = await self._made(asked, request.principal, stores=stores)
        headers = endpoint.without(made.tools.dropped)
        if background:
            await made.keep()
            running = self._backgrounds.start(made.encoder.response["id"], request.principal, made.work)
            if asked.stream:
                await _follow(running, client, after=-1)
            else:
                await endpoint.json(client, made.encoder.response, headers)
        elif asked.stream:
            await endpoint.stream(self.gateway, made.chat, made, client)
        else:
            with await self.gateway.chat(made.chat) as run:
                made.encoder.opening()
                made.encoder.feed(pieces(await run.whole()))
            made.encoder.close()
            await made.keep()
            await endpoint.json(client, made.encoder.response, (*headers, *stand_in(run)))

    async def retrieve(self, request: Request, client: Client) -> None:
        id = request.parts[0]
        running = self._backgrounds.get(id, request.principal)
        if request.query.get("stream", "").lower() == "true":
            if running is None:
                message = f"{id}: only a response that was made in the background, and lately, can be streamed"
                raise ProviderInvalidRequest(message, param="stream")
            await _follow(running, client, _number(request, "starting_after", -1, 2**31))
            return
        # Before it is read: what ends meanwhile writes down how, which this reading may just miss.
        over = running is None or running.ended
        kept = await (await self._responses()).get(id, request.principal)
        response = kept.response
        if response["status"] in RUNNING and over:
            error = {"code": "server_error", "message": "the gateway was stopped before the response was complete"}
            response |= {"status": "failed", "error": error}
        await endpoint.json(client, response)

    async def delete(self, request: Request, client: Client) -> None:
        id = request.parts[0]
        # First: what works on it writes it down once more as it ends.
        await self._backgrounds.forget(id, request.principal)
        await (await self._responses()).delete(id, request.principal)
        await endpoint.json(client, {"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request, client: Client) -> None:
        id = request.parts[0]
        kept = await (await self._responses()).get(id, request.principal)
        if not kept.response["background"]:
            message = f"{id} can't be cancelled: leave its stream instead; this is for responses in the background"
            raise ProviderInvalidRequest(message)
        running = self._backgrounds.get(id, request.principal)
        if running is not None:
            await running.cancel()
            kept = await (await self._responses()).get(id, request.principal)
        await endpoint.json(client, kept.response)

    async def input_items(self, request: Request, client: Client) -> None:
        kept = await (await self._responses()).get(request.parts[0], request.principal)
        items = kept.items if request.query.get("order") == "asc" else kept.items[::-1]
        if after := request.query.get("after"):
            places = [place for place, item in enumerate(items) if item.get("id") == after]
            if not places:
                raise ProviderInvalidRequest(f"after: there is no item {after!r}", param="after")
            items = items[places[0] + 1 :]
        limit = _number(request, "limit", PAGE, LARGEST_PAGE)
        page = items[: max(1, limit)]
        ends = {"first_id": page[0].get("id") if page else None, "last_id": page[-1].get("id") if page else None}
        await endpoint.json(client, {"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})

    async def input_tokens(self, request: Request, client: Client) -> None:
        asked = CreateResponse.parse(request.body)
        made = await self._made(asked, request.principal, stores=False)
        count = await self.gateway.count_tokens(made.chat)
        body = {"object": "response.input_tokens", "input_tokens": count.tokens}
        await endpoint.json(client, body, endpoint.told(count))

    async def aclose(self) -> None:
        await self._backgrounds.aclose()

    async def _made(self, asked: CreateResponse, principal: Principal, *, stores: bool) -> _Made:
        model = self.gateway.route(asked.model).model.name
        kept = await self._responses() if stores or asked.previous_response_id is not None else None
        before: list[Item] = []
        if kept is not None and asked.previous_response_id is not None:
            before = await kept.conversation(asked.previous_response_id, principal)
        tools = ToolTable(asked.tools)
        fields = chat_fields(asked, [*before, *asked.items], tools)
        if asked.background:
            # Its events must be there for whoever comes to see them.
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        response = response_object(asked, model, tools, id=new_id("resp"), created_at=int(time.time()), store=stores)
        sealed = asked.asks("reasoning.encrypted_content")
        encoder = ResponseEncoder(response, tools, time.time, sealed=sealed)
        items = [item if "id" in item else {"id": new_id("item"), **item} for item in asked.items]
        chat = ChatRequest.parse(encode(fields), "responses")
        return _Made(self, chat, tools, encoder, items, principal, kept if stores else None)

    async def _responses(self) -> Responses:
        from gateway.api.responses.response_store import Responses

        return Responses(await self.services.store(), self._days)


class _Made:
    """A response on its way, as an `Encoding` and as work in the background."""

    def __init__(
        self,
        owner: ResponsesFace,
        chat: ChatRequest,
        tools: ToolTable,
        encoder: ResponseEncoder,
        items: list[Item],
        principal: Principal,
        kept: Responses | None,
    ) -> None:
        self._owner = owner
        self.chat = chat
        self.tools = tools
        self.encoder = encoder
        self._items = items
        self._principal = principal
        self._kept = kept

    async def keep(self) -> None:
        """Stores the response as it stands, if it is to be stored."""
        if self._kept is not None:
            from gateway.api.responses.response_store import Kept

            await self._kept.put(Kept(self.encoder.response, self._items), self._principal)

    def opening(self) -> bytes:
        return b"".join(map(sse, self.encoder.opening()))

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join(sse(event) for payload in payloads for event in self.encoder.feed(pieces(payload)))

    async def finish(self) -> bytes:
        return b"".join(map(sse, await self._finish()))

    def fail(self, error: GatewayError) -> bytes:
        return b"".join(map(sse, self.encoder.fail(error)))

    async def work(self, running: Background) -> None:
        """Makes the whole response, however it ends."""
        try:
            with await self._owner.gateway.chat(self.chat) as run:
                running.tell(self.encoder.opening())
                await self.keep()
                while payloads := await run.payloads():
                    for payload in payloads:
                        running.tell(self.encoder.feed(pieces(payload)))
            last = await self._finish()
        except GatewayError as error:
            last = self.encoder.fail(error)
            await self.keep()
        except Exception:
            log.exception("response %s broke", self.encoder.response["id"])
            last = self.encoder.fail(INTERNAL)
            await self.keep()
        except asyncio.CancelledError:
            self.encoder.cancel()
            await self.keep()
            raise
        running.tell(last)

    async def _finish(self) -> list[dict[str, Any]]:
        events = self.encoder.close()
        try:
            await self.keep()
        except GatewayError as error:
            # What is told to be complete can be asked for later.
            return [*events, *self.encoder.fail(error)]
        return [*events, self.encoder.last()]


async def _follow(running: Background, client: Client, after: int) -> None:
    """Streams the events behind number `after`, those to come as well."""
    await client.start(SSE_HEADERS)
    async for events in running.events(after):
        await client.write(b"".join(map(sse, events)))
    await client.end(b"")


def _number(request: Request, name: str, default: int, most: int) -> int:
    value = request.query.get(name)
    if value is None:
        return default
    if not value.isascii() or not value.isdigit() or int(value) > most:
        raise ProviderInvalidRequest(f"{name}: a whole number up to {most} is needed", param=name)
    return int(value)
