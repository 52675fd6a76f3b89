"""`GET /-/usage`, and how long usage is kept."""

from __future__ import annotations

import time

from gateway.errors import ProviderInvalidRequest
from gateway.features.operations.usage_table import BY, first_day, prune, report
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request

__all__ = ["prune", "usage"]


async def usage(request: Request) -> ASGIApp:
    """Usage since a day, by day, key, model or client."""
    by = next((each for each in BY if each == request.query_params.get("by", "day")), None)
    if by is None:
        raise ProviderInvalidRequest(f"by: must be one of: {', '.join(BY)}", param="by")
    services = request.services
    since = first_day(request.query_params.get("since", "30d"), time.time())
    await services.save_usage()
    return JSON({"by": by, "since": since, "usage": await report(await services.store(), by, since)})
