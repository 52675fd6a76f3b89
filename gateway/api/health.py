"""`/` and `/health`: whether the gateway runs. Both answer without Starlette, soon after the start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway import __version__
from gateway.feature import offered
from gateway.server.asgi import Headers, MethodNotAllowed, Scope, Send
from gateway.server.client import JSON_TYPE, ASGIClient
from gateway.server.principal import STRANGER_KEY
from gateway.services import Services
from gateway.wire.chat import encode

ROOT_PATHS = ("/", "/v1/")
PATHS = (*ROOT_PATHS, "/health", "/health/", "/v1/health", "/v1/health/")
RUNNING = b"ctxgate is running"
TEXT_TYPE = (b"content-type", b"text/plain; charset=utf-8")


async def answer(services: Services, scope: Scope, send: Send) -> None:
    """Raises MethodNotAllowed."""
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed(scope["method"], scope["path"], ("GET",))
    if scope["path"] in ROOT_PATHS:
        await _root(services, scope, send)
    else:
        told = health(services)
        if scope.get(STRANGER_KEY):
            # The name alone stays: programs know a gateway by it.
            told = {"status": told["status"], "active_model": None}
        await ASGIClient(send).whole(200, (JSON_TYPE,), encode(told))


async def _root(services: Services, scope: Scope, send: Send) -> None:
    """The page for a browser, a line for a program."""
    if scope["path"] != "/" or not services.gateway.config.server.page:
        await ASGIClient(send).whole(200, (TEXT_TYPE,), RUNNING)
    elif any(name == b"accept" and b"text/html" in value for name, value in scope["headers"]):
        index: Callable[[Headers, Send], Awaitable[None]] = offered("page")
        await index(scope["headers"], send)
    else:
        await ASGIClient(send).whole(200, (TEXT_TYPE, (b"vary", b"Accept")), RUNNING)


def health(services: Services) -> dict[str, Any]:
    gateway, reloader = services.gateway, services.reloader
    problems = [*services.vitals.problems(), *_engine_problems(services)]
    body: dict[str, Any] = {
        "status": "degraded" if problems else "ok",
        "version": __version__,
        "active_model": gateway.config.active_model,
    }
    if problems:
        body["problems"] = problems
    if reloader is not None and reloader.problems:
        # Details need a key.
        body["config"] = "the file has mistakes; the last good one is in use: see `ctxgate status`"
    body["engines"] = {name: route.engine.state for name, route in gateway.routes.items() if route.engine is not None}
    return body


def _engine_problems(services: Services) -> list[str]:
    name = services.gateway.config.resolve(None).name
    route = services.gateway.routes.get(name)
    if route is None or route.engine is None or route.engine.state != "failed":
        return []
    return [f"the engine of {name}, the active model, can't start: see `ctxgate status`"]
