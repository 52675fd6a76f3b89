"""Retries and fallbacks of a model, as set in config.yaml: one stage around `Route.open`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from gateway.config import Model
from gateway.core.route import Route
from gateway.core.run import Run
from gateway.errors import Backoff, GatewayError, ProviderModelNotLoaded
from gateway.wire.chat import ChatRequest

RETRY = Backoff(0.25, 5.0, jitter=0.5)
"""Between a model's retries. An engine may ask for a longer pause, up to the longest."""


async def open_with_fallbacks(model: Model, route_of: Callable[[str], Route | None], request: ChatRequest) -> Run:
    """Asks `model`, then each of its fallbacks, each with `model.retries` retries.

    A retry doesn't help if weights or an engine are missing, but a fallback may. Returns once the answer's first byte
    is there: until then another model can still answer. Raises any other error at once; at the end, the last transient
    error, else the first lasting one.
    route_of: by the model's name; called anew for each attempt, since a reload may replace or end one meanwhile.
    """
    last: GatewayError | None = None
    for name in (model.name, *model.fallbacks):
        for attempt in range(1 + model.retries):
            if attempt and last is not None:
                await asyncio.sleep(RETRY.delay(attempt, min(last.retry_after or 0.0, RETRY.longest)))
            if (route := route_of(name)) is None:
                break
            asked = request if name == model.name else replace(request, fallback=name)
            try:
                return await _begun(await route.open_in_turn(asked))
            except GatewayError as error:
                if error.lasting:
                    last = last or error
                    break
                if not error.transient:
                    raise
                last = error
    raise last or just_removed(model.name)


def just_removed(model: str) -> GatewayError:
    return ProviderModelNotLoaded(f"model {model!r} was just removed", retry_after=1)


async def _begun(run: Run) -> Run:
    try:
        await run.begin()
    except BaseException as error:
        run.__exit__(type(error), error, None)
        raise
    return run
