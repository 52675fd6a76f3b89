"""Answers requests whose caller is known: those of connections, and those that the gateway itself makes."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING, Protocol

from uvicorn.importer import import_from_string

from gateway.api import health, routes
from gateway.api.chat import PATHS, Chat, chat_asgi
from gateway.feature import offered
from gateway.observe.shares import tenant
from gateway.server import keys
from gateway.server.asgi import ASGIApp, Headers, Message, MethodNotAllowed, Receive, Scope, Send
from gateway.server.bodies import SCOPE_KEY as BODY_KEY
from gateway.server.principal import CALLER_KEY, SCOPE_KEY, Callers, Principal
from gateway.services import Services
from gateway.wire.chat import Caller, Meter

if TYPE_CHECKING:
    from gateway.wire.limits import Standing

REMAINING_KEY = "ctxgate.left"
"""The key in an ASGI scope of the headers that say what is left of a key's limits."""

RECORDED = "/-/chat/completions"
"""Takes another scope than the APIs of models, but makes one work, so it counts towards a key's limits."""


class Limiter(Protocol):
    """The meters of all API keys with limits."""

    async def meter(self, principal: Principal) -> Meter:
        """That of a principal with limits. Raises GatewayError if nobody knows what is left."""

    async def aclose(self) -> None: ...


class Dispatch:
    """Finds the handler of a path: the hot route, the answers at `/` and `/health`, or Starlette's router.

    There is one in a process, `services.shared(Dispatch)`.
    """

    def __init__(self, services: Services) -> None:
        self.chat = Chat(services.gateway)
        self.callers = Callers(services.gateway.config.prompts.share_prefixes)
        self._services = services
        self._router: ASGIApp | None = None

    async def aclose(self) -> None:
        """Holds nothing open; see `Services.shared`."""

    async def answer_as(self, principal: Principal, agent: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request of the principal, within its limits. agent: its User-Agent, b"" for none.

        Raises GatewayError.
        """
        scope[SCOPE_KEY] = scope[BODY_KEY].principal = principal
        tenant.set(principal.tenant)
        caller = scope[CALLER_KEY] = await self.caller(agent, principal)
        if caller.meter is None:
            await self._dispatched(scope, receive, send)
        else:
            await self._limited(caller.meter, scope, receive, send)

    async def _limited(self, meter: Meter, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises LimitReached. Only what makes models work counts as a request."""
        path = scope["path"]
        if (
            scope["method"] != "POST"
            or path.endswith("/cancel")
            or (path != RECORDED and keys.wanted("POST", path) not in keys.MODEL_SCOPES)
        ):
            await self._dispatched(scope, receive, send)
            return
        headers: Callable[[Standing, float], Headers] = import_from_string(routes.routes_of(path).limits)
        try:
            meter.enter()
        finally:
            scope[REMAINING_KEY] = left = headers(meter.standing(), time())
        try:
            await self._dispatched(scope, receive, with_headers(send, left))
        finally:
            meter.leave()

    async def caller(self, agent: bytes, principal: Principal) -> Caller:
        """Raises what `Limiter.meter` raises."""
        if (known := self.callers.known(agent, principal)) is not None:
            return known
        if principal.limits is None:
            return self.callers.add(agent, principal)
        limiter: Callable[[Services], Limiter] = offered("limiter")
        return self.callers.add(agent, principal, await self._services.shared(limiter).meter(principal))

    async def _dispatched(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in PATHS:
            if method != "POST":
                raise MethodNotAllowed(method, path, ("POST",))
            await chat_asgi(self.chat, scope, receive, send)
        elif path in health.PATHS:
            await health.answer(self._services, scope, send)
        else:
            await self._routed(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            # Starlette costs more start time than everything that the hot route needs.
            from gateway.server import http

            self._router = http.router(
                (
                    spelling,
                    http.Endpoint(self._services, handlers, finishes=table.finishes, uploads=table.uploads),
                    list(handlers),
                )
                for table in routes.routes()
                for path, handlers in table.paths.items()
                for spelling in routes.spellings(path)
            )
        await self._router(scope, receive, send)


def with_headers(send: Send, more: Headers) -> Send:
    """A `send` that adds headers to the answer."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sent
