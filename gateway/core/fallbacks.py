"""Retries and fallbacks of a model, as config.yaml has them: one stage around `Route.open`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import random

from gateway.config import Model
from gateway.core.route import Route
from gateway.core.run import Run
from gateway.errors import GatewayError, ProviderModelNotLoaded
from gateway.wire.chat import ChatRequest

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.25, 5.0
"""The pause before the first retry, doubled for each further one. An engine may name its own, up to the maximum."""


async def open_with_fallbacks(model: Model, route_of: Callable[[str], Route | None], request: ChatRequest) -> Run:
    """Asks `model`, with its retries, then each of its fallbacks, as long as the errors may pass.

    Returns once the answer's first byte is there: until then another model can still answer. Raises the last error.
    route_of: by the model's name; called anew for each attempt, since a reload may replace or end one meanwhile.
    """
    last: GatewayError | None = None
    for name in (model.name, *model.fallbacks):
        for attempt in range(1 + model.retries):
            if attempt and last is not None:
                await asyncio.sleep(_pause(attempt, last))
            if (route := route_of(name)) is None:
                break
            request.fallback = name if name != model.name else None
            try:
                return await _begun(await route.open(request))
            except GatewayError as error:
                if not error.transient:
                    raise
                last = error
    if last is None:
        raise ProviderModelNotLoaded(f"model {model.name!r} was just removed", retry_after=1)
    raise last


async def _begun(run: Run) -> Run:
    try:
        await run.begin()
    except BaseException as error:
        run.__exit__(type(error), error, None)
        raise
    return run


def _pause(attempt: int, error: GatewayError) -> float:
    pause = error.retry_after or RETRY_SECONDS * 2 ** (attempt - 1)
    return min(pause, MAX_RETRY_SECONDS) * (0.75 + random() / 2)  # noqa: S311
