"""`/v1/completions`: continues a text, without a chat template. The engine's answer passes unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import Response

from gateway.api.streaming import Opened, PayloadEncoding, Stream
from gateway.core import Route
from gateway.server.asgi import ASGIApp
from gateway.server.http import Request
from gateway.wire.completions import CreateCompletion


async def create(request: Request) -> ASGIApp:
    wanted = CreateCompletion.parse(await request.body())
    route = request.gateway.route(wanted.model, "chat")
    if wanted.stream:
        return Stream(_opened(route, wanted), PayloadEncoding(), request.gateway.config.server)
    async with route.post("completions", wanted.fields, "completions") as answer:
        return Response(await answer.whole(), media_type="application/json")


@asynccontextmanager
async def _opened(route: Route, wanted: CreateCompletion) -> AsyncIterator[Opened]:
    async with route.post("completions", wanted.fields, "completions", stream=True) as answer:
        yield answer, tuple
