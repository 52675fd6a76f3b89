"""`/v1/completions`: a text goes on, without any chat template. The engine's answer passes as it is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from gateway.api import face
from gateway.api.chat import JSON_TYPE, Client
from gateway.api.face import Request, Row
from gateway.api.pulse import SSE_HEADERS
from gateway.backends import Backend
from gateway.errors import GatewayError, ProviderInvalidResponse, ProviderUnavailable
from gateway.wire.chat import encode
from gateway.wire.completions import CreateCompletion
from gateway.wire.sse import DONE, event, events


class CompletionsFace(face.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (("POST", "/completions", self.create),)

    async def create(self, request: Request, client: Client) -> None:
        asked = CreateCompletion.parse(request.body)
        route = self.gateway.route(asked.model, "chat")
        async with route.post("completions", asked.fields) as (reply, backend):
            if not asked.stream:
                body = await reply.whole()
                _check(body, backend)
                await client.whole(200, (JSON_TYPE,), body)
                return
            payloads = await reply.payloads()
            _check(payloads[0], backend)
            await client.start(SSE_HEADERS)
            last = DONE
            try:
                while payloads:
                    if b'"error"' in payloads[-1]:
                        _check(payloads[-1], backend)
                    await client.write(events(payloads))
                    payloads = await reply.payloads()
                if not reply.done:
                    raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
            except GatewayError as error:
                last = event(encode(error.body())) + DONE
        await client.end(last)


def _check(payload: bytes, backend: Backend) -> None:
    """Raises what an error in a 200 means, and ProviderInvalidResponse for what no client could read."""
    try:
        found = _decode(payload)
    except msgspec.DecodeError as error:
        raise ProviderInvalidResponse(f"the engine's answer can't be read: {error}") from error
    if found.get("error") is not None and bytes(found["error"]) != b"null":
        raise backend.error(500, payload)


_decode = msgspec.json.Decoder(dict[str, Raw]).decode
