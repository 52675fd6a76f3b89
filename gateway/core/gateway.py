"""The Gateway: all configured models in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from gateway.config import Config, Model, Role
from gateway.config.diff import Difference, difference, launch
from gateway.core.fallbacks import just_removed, open_with_fallbacks
from gateway.core.images import Describes
from gateway.core.in_thread import in_thread_if_large
from gateway.core.permission import check, tier_of
from gateway.core.pool import EnginePool
from gateway.core.route import Route
from gateway.core.run import Run
from gateway.errors import GatewayError, ProviderUnavailable
from gateway.feature import offered
from gateway.observe.request_log import RequestLog
from gateway.request.token_estimate import TokenCount, estimate
from gateway.schema.pool import Pool, Threads
from gateway.wire.chat import DEFAULT, ChatRequest

if TYPE_CHECKING:
    from gateway.config.values import Log
    from gateway.engines import Engine, Residency
    from gateway.prompts.saved import SavedPrompts

log = logging.getLogger("ctxgate")

RouteOf = Callable[[str], Route | None]
"""By a model's name; called anew for each request, since a reload may replace or end a route."""
Hear = Callable[[RouteOf, ChatRequest, str], Awaitable[ChatRequest]]
"""Replaces the sound in a chat by a transcript that the model of that name makes."""


class Traces(Protocol):
    """Makes a span of each request."""

    def route(self, *args: Any) -> Route:
        """One whose requests become spans. args: those of `Route`."""

    def continued(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The requests of the running task belong to the trace that these headers name, if they name a valid one."""

    def close(self) -> None:
        """Sends the remaining spans. Blocks."""


class Gateway:
    """All configured models. Use as an async context manager, or `aclose` it."""

    def __init__(self, config: Config, pool: EnginePool | None = None) -> None:
        """pool: the engines that it shares with other gateways; None: all are its own."""
        self.config = config
        self.pool = pool
        log = config.log
        traced = log.traces is not None
        self.request_log = RequestLog(log.requests, bodies=log.bodies, traced=traced and log.trace_content)
        self.traces = _traces(log) if traced else None
        """Makes requests spans; None: `log.traces` is not set."""
        self.leaving: dict[asyncio.Task[None], Route] = {}
        """Routes that a reload removed, until their last answers have ended."""
        self._watchers: list[Callable[[], None]] = []
        self._state_dir = config.state_dir
        self._own: tuple[SavedPrompts, Residency] | None = None
        """The saved prompts and the memory of the engines that the gateway starts; None before the first."""
        self.schemas = Threads(Pool())
        """The processes that work on clients' schemas."""
        self._describer: Describes | None = None
        """Made for the first image that has to be described."""
        self.routes: Mapping[str, Route] = {name: self._new_route(model) for name, model in config.models.items()}
        self._preloading: set[asyncio.Task[None]] = set()
        self._asked: dict[str | None, Route] = {}
        """Routes by the model names in chat requests, resolved once for each name."""

    def apply(self, config: Config) -> Difference:
        """Applies `config` to requests from now on. Returns the changes.

        Engines whose launch didn't change keep process, cache and answers. The others drain and stop.
        """
        found = difference(self.config, config)
        before, routes = self.routes, dict[str, Route]()
        for name, model in config.models.items():
            old = before.get(name)
            if old is None or (old.model != model and (old.engine is None or launch(old.model) != launch(model))):
                routes[name] = self._new_route(model)
            else:
                routes[name] = old if old.model == model else self._new_route(model, old.pass_on(model))
        self.config, self.routes = config, routes
        self._asked.clear()
        self.request_log.configure(config.log.requests, bodies=config.log.bodies)
        if self._own is not None:
            prompts, residency = self._own
            prompts.settings, residency.limits = config.prompts, config.engines
            residency.schedule()
        for name, route in before.items():
            if (now := routes.get(name)) is not route:
                stays = now is not None and launch(now.model) == launch(route.model)
                seconds = None if stays else config.engines.drain_timeout_seconds
                leaving = asyncio.create_task(route.retire(seconds), name=f"retire {name}")
                self.leaving[leaving] = route
                leaving.add_done_callback(self._left)
        for watcher in self._watchers:
            watcher()
        self._preload(
            without=[
                name
                for name, route in before.items()
                if route.model.residence.preload and name in routes and routes[name].engine is route.engine
            ]
        )
        return found

    def _preload(self, without: Collection[str] = ()) -> None:
        """Starts loading the models with `preload`, in the file's order. without: those that were loaded before."""
        wanted = [route for name, route in self.routes.items() if route.model.residence.preload and name not in without]
        if wanted:
            task = asyncio.create_task(_load_all(wanted), name="preload")
            self._preloading.add(task)
            task.add_done_callback(self._preloading.discard)

    def _left(self, leaving: asyncio.Task[None]) -> None:
        route = self.leaving.pop(leaving)
        if not leaving.cancelled() and (error := leaving.exception()) is not None:
            log.error("the former engine of model %s did not end: %s", route.model.name, error, exc_info=error)

    def _new_route(self, model: Model, engine: Engine | None = None) -> Route:
        """engine: that of the route before it; None: it needs one of its own, or none."""
        backend = self.pool.backend(model) if self.pool is not None and engine is None else None
        if engine is None and backend is None and model.startable:
            engine = self._engine(model)
        made = model, self.request_log, self.schemas, engine, lambda: self.config.engines, backend, self._describes
        return Route(*made) if self.traces is None else self.traces.route(*made)

    def _describes(self) -> Describes:
        if self._describer is None:
            describer: Callable[[RouteOf], Describes] = offered("describer")
            self._describer = describer(lambda name: self.routes.get(name))
        return self._describer

    def _engine(self, model: Model) -> Engine | None:
        from gateway.engines import for_model

        return for_model(model, self.residency)

    @property
    def prompts(self) -> SavedPrompts:
        """The saved prompts of all engines."""
        return self._of_engines()[0]

    @property
    def residency(self) -> Residency:
        """Decides which engines may use the memory."""
        return self._of_engines()[1]

    def _of_engines(self) -> tuple[SavedPrompts, Residency]:
        if self._own is None:
            from gateway.engines import Residency
            from gateway.prompts.saved import SavedPrompts

            prompts = SavedPrompts(self.config.prompts, self._state_dir / "prompts")
            self._own = prompts, Residency(self.config.engines, state_dir=self._state_dir, prompts=prompts)
        return self._own

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after each change of the configuration. It must not wait or raise."""
        self._watchers.append(watcher)

    def route(self, name: str | None, role: Role | None = None) -> Route:
        """The route of a model. None, "" and "default" name the active model, or the first with the role.

        Raises what `Config.resolve` raises.
        """
        return self.routes[self.config.resolve(name, role).name]

    async def ready(self, name: str | None = None) -> None:
        """Returns if the next chat with the model is expected to succeed. Starts its engine if needed."""
        async with self.route(name).server.use(DEFAULT) as backend:
            await backend.ready()

    def chat(self, request: ChatRequest) -> Awaitable[Run]:
        """Opens an answer. The call raises a GatewayError if the model is unknown, or if the caller may not use it or
        the tier; awaiting it raises one if no engine accepts the request."""
        route = self._asked.get(request.model)
        if route is None:
            route = self._asked[request.model] = self.route(request.model, "chat")
        if route.direct and request.serving.tier != "flex":
            meter = request.caller.meter
            if meter is None or not meter.limits.restricted:
                if request.serving.tier == "auto":
                    request.serving.settle("default")
                return route.open(request)
        model = route.model
        check(model, request.caller)
        request.serving.settle(tier_of(model, request.caller, request.model, request.serving.tier))
        open_chat = _open_with_sound if model.transcribe_with is not None else _open
        return open_chat(route, request, lambda name: self.routes.get(name))

    async def count_tokens(self, request: ChatRequest) -> TokenCount:
        """The length of the request's prompt; an estimate if the engine can't tell."""
        route = self.route(request.model)
        check(route.model, request.caller)
        found = await route.count_tokens(request)
        if found is not None:
            return TokenCount(found, True)
        return TokenCount(await in_thread_if_large(request.size, estimate, request), False)

    async def aclose(self) -> None:
        """Closes every connection and stops every engine that the gateway started."""
        routes = [*self.routes.values(), *self.leaving.values()]
        for leaving in (*self.leaving, *self._preloading):
            leaving.cancel()
        results = await asyncio.gather(*(route.aclose() for route in routes), return_exceptions=True)
        if self._own is not None:
            prompts, residency = self._own
            await prompts.kept()
            await prompts.share.done()
            residency.close()
        self.schemas.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise BaseExceptionGroup("while closing", failures)

    async def __aenter__(self) -> Self:
        if self._own is not None or (self._state_dir / "engines").exists():
            await self.residency.open()
        self._preload()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _open(route: Route, request: ChatRequest, route_of: RouteOf) -> Awaitable[Run]:
    model = route.model
    if model.retries or model.fallbacks:
        return open_with_fallbacks(model, route_of, request)
    return route.open_in_turn(request)


async def _open_with_sound(route: Route, request: ChatRequest, route_of: RouteOf) -> Run:
    """Has another model of config.yaml transcribe the sound of the chat first."""
    if (ears := route.model.transcribe_with) is not None:
        hear: Hear = offered("hear")
        request = await hear(route_of, request, ears)
        if (now := route_of(route.model.name)) is None:
            raise just_removed(route.model.name)
        route = now  # a reload may have replaced it meanwhile
    return await _open(route, request, route_of)


def _traces(log: Log) -> Traces:
    """Raises ProviderUnavailable if OpenTelemetry isn't installed."""
    try:
        traces: Callable[[Log], Traces] = offered("traces")
    except ImportError as error:
        raise ProviderUnavailable(
            f"log.traces needs the package {error.name}: pip install 'ctxgate[otel]'", code="otel_missing"
        ) from error
    return traces(log)


async def _load_all(routes: Iterable[Route]) -> None:
    """Loads one after the other. If a model can't be loaded now, its first request loads it."""
    for route in routes:
        try:
            await route.server.load()
        except GatewayError as error:
            log.warning("not preloaded: %s", error)
