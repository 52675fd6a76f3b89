"""A provider whose server is a table of routes."""

from __future__ import annotations

from typing import Any

import httpx
import respx

from gateway.provider import OpenAIProvider

SERVER = "http://server"


def provider_of(routes: respx.MockRouter, api_key: str | None = None, **options: Any) -> OpenAIProvider:
    """Asks `routes`, at `SERVER`, for the model "m". A request that no route expects fails the test."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(routes.async_handler))
    return OpenAIProvider(SERVER, "m", api_key, http_client=client, **options)


def answering(answer: httpx.Response | Exception) -> respx.MockRouter:
    """Routes that give every request the same answer, or raise the same error."""
    routes = respx.MockRouter(base_url=SERVER)
    given: dict[str, Any] = {"side_effect": answer} if isinstance(answer, Exception) else {"return_value": answer}
    routes.post("/v1/chat/completions").mock(**given)
    routes.get("/v1/models").mock(**given)
    return routes
