"""What the gateway tells of itself: that it runs, which models it has, and whether they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from gateway import __version__
from gateway.api.chat import JSON_TYPE, Client
from gateway.api.endpoint import Request, RoutedFace, Row, json
from gateway.api.models import model_list, model_object
from gateway.services import Services
from gateway.wire.chat import encode

TEXT_TYPE = (b"content-type", b"text/plain; charset=utf-8")


class OverviewFace(RoutedFace):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._looking: set[asyncio.Task[None]] = set()

    def rows(self) -> Iterable[Row]:
        return (
            ("GET", "/", self.root),
            ("GET", "/health/?", self.health),
            ("GET", "/ready", self.ready_now),
            ("GET", "/ready/(.*)", self.ready_now),
            ("GET", "/models/?", self.models),
            ("GET", "/models/([^/]+)/ready", self.ready),
            ("GET", "/models/(.+)", self.model),
        )

    async def root(self, request: Request, client: Client) -> None:
        await client.whole(200, (TEXT_TYPE,), b"ctxgate is running")

    async def health(self, request: Request, client: Client) -> None:
        gateway, reloader = self.gateway, self.services.reloader
        body: dict[str, Any] = {
            "status": "ok",
            "version": __version__,
            "active_model": gateway.config.active_model,
        }
        if reloader is not None and reloader.problems:
            # What is wrong may be told to whoever has a key alone.
            body["config"] = "the file has mistakes, the last good one is served: see `ctxgate status`"
        body["engines"] = {
            name: route.engine.state for name, route in gateway.routes.items() if route.engine is not None
        }
        await json(client, body)

    async def ready_now(self, request: Request, client: Client) -> None:
        """Whether requests are answered at once; starts nothing. Without a name only the states are told: no key."""
        name = request.parts[0] if request.parts else None
        route = self.gateway.route(name)
        error = await route.readiness()
        engine = route.engine
        body = {"id": route.model.name, "ready": error is None, "state": engine.state if engine is not None else None}
        if error is None:
            await json(client, body)
            return
        told = body if name is None else {**body, **error.body()}
        await client.whole(503, (JSON_TYPE, *error.headers()), encode(told))

    async def models(self, request: Request, client: Client) -> None:
        # What only a model's files tell is there the next time.
        for route in self.gateway.routes.values():
            if not route.evidence:
                task = asyncio.create_task(route.look())
                self._looking.add(task)
                task.add_done_callback(self._looking.discard)
        await json(client, model_list(self.gateway, [*self.gateway.routes.values()]))

    async def model(self, request: Request, client: Client) -> None:
        await json(client, model_object(self.gateway, self.gateway.route(request.parts[0])))

    async def ready(self, request: Request, client: Client) -> None:
        name = self.gateway.route(request.parts[0]).model.name
        await self.gateway.ready(name)
        await json(client, {"id": name, "ready": True})
