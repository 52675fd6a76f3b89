"""The Gateway: all configured models in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from gateway.config import Config, Model, Role
from gateway.config.diff import Difference, difference, launch
from gateway.core.fallbacks import open_with_fallbacks
from gateway.core.route import Route
from gateway.core.run import Run
from gateway.engines import Residency, for_model
from gateway.observe.request_log import RequestLog
from gateway.prompts.saved import SavedPrompts
from gateway.request.token_estimate import TokenCount, estimate
from gateway.schema.pool import Pool, Threads
from gateway.wire.chat import ChatRequest

log = logging.getLogger("ctxgate")


class Gateway:
    """All configured models. Use as an async context manager, or `aclose` it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.request_log = RequestLog(config.log.requests, bodies=config.log.bodies)
        self.leaving: dict[asyncio.Task[None], Route] = {}
        """Routes that a reload removed, until their last answers have ended."""
        self._watchers: list[Callable[[], None]] = []
        self.prompts = SavedPrompts(config.prompts, config.state_dir / "prompts")
        self.residency = Residency(config.engines, state_dir=config.state_dir, prompts=self.prompts)
        """Decides which engines may use the memory."""
        self.schemas = Threads(Pool())
        """Where the work on clients' schemas is done."""
        self.routes: Mapping[str, Route] = {
            name: Route(model, self.request_log, self.schemas, for_model(model, self.residency))
            for name, model in config.models.items()
        }
        self._asked: dict[str | None, Route] = {}
        """Routes by the model names in chat requests, resolved once for each name."""

    def apply(self, config: Config) -> Difference:
        """Answers requests by `config` from now on. Returns the changes.

        Engines whose launch didn't change keep their process and cache. The others finish their answers, then stop.
        """
        found = difference(self.config, config)
        before, routes = self.routes, dict[str, Route]()
        for name, model in config.models.items():
            old = before.get(name)
            if old is None or (old.model != model and (old.engine is None or launch(old.model) != launch(model))):
                routes[name] = Route(model, self.request_log, self.schemas, for_model(model, self.residency))
            else:
                routes[name] = old if old.model == model else old.become(model)
        self.config, self.routes = config, routes
        self._asked.clear()
        self.request_log.configure(config.log.requests, bodies=config.log.bodies)
        self.residency.limits = config.engines
        self.prompts.settings = config.prompts
        self.residency.schedule()
        for name, route in before.items():
            if routes.get(name) is not route:
                leaving = asyncio.create_task(route.retire(config.engines.drain_timeout_seconds), name=f"retire {name}")
                self.leaving[leaving] = route
                leaving.add_done_callback(self._left)
        for watcher in self._watchers:
            watcher()
        return found

    def _left(self, leaving: asyncio.Task[None]) -> None:
        route = self.leaving.pop(leaving)
        if not leaving.cancelled() and (error := leaving.exception()) is not None:
            log.error("the former engine of model %s did not end: %s", route.model.name, error, exc_info=error)

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after each change of the configuration. It must not wait or raise."""
        self._watchers.append(watcher)

    def route(self, name: str | None, role: Role | None = None) -> Route:
        """The route of a model. None, "" and "default" name the active model, or the first with the role.

        Raises what `Config.resolve` raises.
        """
        return self.routes[self.config.resolve(name, role).name]

    def models(self) -> list[Model]:
        """The configured models in the file's order. Asks no engine."""
        return list(self.config.models.values())

    async def ready(self, name: str | None = None) -> None:
        """Returns if the next chat with the model is expected to succeed. Starts its engine if needed."""
        route = self.route(name)
        engine = route.engine
        if engine is None:
            await (await route.backend()).ready()
            return
        backend = await engine.join()
        try:
            await backend.ready()
        finally:
            engine.leave()

    def chat(self, request: ChatRequest) -> Awaitable[Run]:
        """Opens an answer. Awaiting it raises a GatewayError if no engine accepts the request."""
        route = self._asked.get(request.model)
        if route is None:
            route = self._asked[request.model] = self.route(request.model, "chat")
        model = route.model
        if model.retries or model.fallbacks:
            return open_with_fallbacks(model, lambda name: self.routes.get(name), request)
        return route.open(request)

    async def count_tokens(self, request: ChatRequest) -> TokenCount:
        """The length of the request's prompt; an estimate if the engine can't tell."""
        found = await self.route(request.model).count_tokens(request)
        return TokenCount(found, True) if found is not None else TokenCount(estimate(request), False)

    async def aclose(self) -> None:
        """Closes every connection and stops every engine that the gateway started."""
        routes = [*self.routes.values(), *self.leaving.values()]
        for leaving in self.leaving:
            leaving.cancel()
        results = await asyncio.gather(*(route.aclose() for route in routes), return_exceptions=True)
        await self.prompts.kept()
        self.residency.close()
        self.schemas.close()
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise BaseExceptionGroup("while closing", failures)

    async def __aenter__(self) -> Self:
        await self.residency.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
