"""`/v1/completions`: a text goes on, without any chat template. The engine's answer passes as it is."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.api import endpoint
from gateway.api.chat import JSON_TYPE, Client
from gateway.api.endpoint import Request, Row
from gateway.errors import GatewayError
from gateway.server.keepalive import SSE_HEADERS
from gateway.wire.chat import encode
from gateway.wire.completions import CreateCompletion
from gateway.wire.sse import DONE, event, events


class CompletionsFace(endpoint.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (("POST", "/completions", self.create),)

    async def create(self, request: Request, client: Client) -> None:
        asked = CreateCompletion.parse(request.body)
        route = self.gateway.route(asked.model, "chat")
        started = False
        last = DONE
        try:
            async with route.post("completions", asked.fields, "completions", stream=asked.stream) as posted:
                if not asked.stream:
                    await client.whole(200, (JSON_TYPE,), await posted.whole())
                    return
                payloads = await posted.payloads()
                started = True
                await client.start(SSE_HEADERS)
                while payloads:
                    await client.write(events(payloads))
                    payloads = await posted.payloads()
        except GatewayError as error:
            if not started:
                raise
            last = event(encode(error.body())) + DONE
        await client.end(last)
