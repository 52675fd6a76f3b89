"""`/v1/models` and `/ready`: the models that can be served, and whether they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any

from gateway.api.listing import Listing, Survey
from gateway.core import Route
from gateway.core.permission import check
from gateway.errors import GatewayError
from gateway.feature import offered
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.server.principal import STRANGER_KEY
from gateway.services import Services

SHARED_SECONDS = 2.0

ENDPOINTS = {"chat": (), "embedding": ("embeddings",)}
"""The capabilities that a role adds, where they aren't its own name."""


def model_object(request: Request, seen: Survey, route: Route) -> dict[str, Any]:
    """OpenAI's object with Anthropic's fields, and the context length under the names that clients look for.

    Asks no engine and no file. Leaves out unknown values. What both have is in the words of the client's API.
    """
    config, model = request.gateway.config, route.model
    created = int(seen.changed)
    active = model.name == config.active_model
    of_roles = [name for role in model.roles for name in ENDPOINTS.get(role, (role,))]
    shown: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": model.runtime,
        "type": "model",
        "display_name": model.display_name or model.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "role": model.role,
        "roles": model.roles,
        "active": active,
        "available": model.name in seen.available,
        "aliases": [*model.aliases, *(["default"] if active else [])],
        "capabilities": [*dict.fromkeys((*model.capabilities, *of_roles))],
        "tool_call_format": route.sender.capability.reader.name,
        "tool_call_format_evidence": route.sender.capability.evidence,
        # Relative to the base URL. A GET there starts the engine if need be and answers once it serves.
        "ready_path": f"models/{model.name}/ready",
    }
    if "anthropic-version" in request.headers:
        shown |= offered("anthropic_model")(model)
    if model.context_window is not None:
        for name in ("context_window", "context_length", "max_model_len"):
            shown[name] = model.context_window
        shown["meta"] = {"n_ctx": model.context_window}  # as llama-server's list
    return shown


def model_list(request: Request, seen: Survey, routes: Sequence[Route]) -> dict[str, Any]:
    data = [model_object(request, seen, route) for route in routes]
    return {
        "object": "list",
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


async def models(request: Request) -> ASGIApp:
    all = request.flag("all")
    seen = await request.services.shared(Listing).survey()
    # Some formats show only in the model's files: read those now, for the next listing.
    request.services.shared(Inspections).begin(
        route for route in seen.listed(all=False) if not route.sender.capability.evidence
    )
    return JSON(model_list(request, seen, seen.listed(all=all)))


async def model(request: Request) -> ASGIApp:
    route, all = request.gateway.route(request.path_params["name"]), request.flag("all")
    if not all and (error := await route.server.missing()) is not None:
        raise error
    return JSON(model_object(request, await request.services.shared(Listing).survey(), route))


async def start(request: Request) -> ASGIApp:
    """Starts the model's engine if need be; answers once it serves."""
    route = request.gateway.route(request.path_params["name"])
    check(route.model, request.caller)
    await request.gateway.ready(route.model.name)
    return JSON({"id": route.model.name, "ready": True})


async def load(request: Request) -> ASGIApp:
    """Answers once the model is in memory."""
    route = request.gateway.route(request.path_params["name"])
    await route.server.load()
    return JSON(_in_memory(route))


async def unload(request: Request) -> ASGIApp:
    """Answers once the model is out of memory."""
    route = request.gateway.route(request.path_params["name"])
    await route.server.unload()
    return JSON(_in_memory(route))


def _in_memory(route: Route) -> dict[str, Any]:
    """The state of its engine; of another's server, null."""
    engine = route.engine
    state, seconds = (engine.state, engine.load_seconds) if engine is not None else (None, None)
    return {"id": route.model.name, "state": state, "load_seconds": seconds}


async def ready(request: Request) -> ASGIApp:
    """Whether the model would answer at once; starts nothing. Without a name it needs no key, and tells strangers no
    more than that."""
    name = request.path_params.get("name")
    route = request.gateway.route(name)
    stranger = bool(request.scope.get(STRANGER_KEY))
    error = await (request.services.shared(Readiness).of(route) if stranger else route.server.readiness())
    engine = route.engine
    body = {"id": route.model.name, "ready": error is None, "state": engine.state if engine is not None else None}
    if stranger:
        body = {"ready": error is None}
    if error is None:
        return JSON(body)
    return JSON(body if name is None else {**body, **error.body()}, error.headers(), 503)


class Readiness:
    """What strangers are told: they all share one question to the model's server, which their number can't repeat."""

    def __init__(self, services: Services) -> None:
        self._last: tuple[Route, float, asyncio.Task[GatewayError | None]] | None = None

    async def of(self, route: Route) -> GatewayError | None:
        """See `ModelServer.readiness`; at most SHARED_SECONDS old."""
        asked, since, task = self._last or (None, 0.0, None)
        if task is None or asked is not route or (task.done() and monotonic() - since >= SHARED_SECONDS):
            task = asyncio.create_task(route.server.readiness(), name=f"is {route.model.name} ready")
            self._last = route, monotonic(), task
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Holds nothing open; a question ends by itself."""


class Inspections:
    """Reads models' files in the background, to find their formats of tool calls."""

    def __init__(self, services: Services) -> None:
        self._tasks: dict[Route, asyncio.Task[None]] = {}

    def begin(self, routes: Iterable[Route]) -> None:
        """Begins with those that aren't under way."""
        for route in routes:
            if route not in self._tasks:
                task = self._tasks[route] = asyncio.create_task(
                    route.sender.capability.detect(), name=f"inspect {route.model.name}"
                )
                task.add_done_callback(partial(self._ended, route))

    def _ended(self, route: Route, task: asyncio.Task[None]) -> None:
        del self._tasks[route]

    async def aclose(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
