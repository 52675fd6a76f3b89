"""`GET /-/clients`: how each known client uses this gateway, from the table of `ctxgate doctor` and `launch`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from gateway.errors import ProviderInvalidRequest
from gateway.features.clients.contracts import CONTRACTS, Contract, filled
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request

MAX_ADDRESS = 300


async def clients(request: Request) -> ASGIApp:
    """model: for the snippets, the active one by default. address: as the caller reaches the gateway."""
    address = request.query_params.get("address") or f"http://{request.headers.get('host', '')}"
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    if len(address) > MAX_ADDRESS or parts.scheme not in ("http", "https") or not parts.netloc or not address.isascii():
        raise ProviderInvalidRequest("address: must be a URL such as http://127.0.0.1:4000", param="address")
    address = f"{parts.scheme}://{parts.netloc}"
    model = request.gateway.config.resolve(request.query_params.get("model") or None, "chat")

    def shown(name: str, contract: Contract) -> dict[str, Any]:
        def ours(text: str) -> str:
            return filled(text, address, model.name, model.context_window)

        return {
            "name": name,
            "place": contract.place,
            "snippet": ours(contract.snippet),
            "also": {place: ours(text) for place, text in contract.also.items()},
            "launch": contract.program.command if contract.program is not None else None,
            "install": contract.program.install if contract.program is not None else None,
            "window": contract.window,
            "tools": contract.tools,
        }

    return JSON(
        {
            "model": model.name,
            "context_window": model.context_window,
            "bases": {"OpenAI": f"{address}/v1", "Anthropic": address, "Ollama": address},
            "recorded": f"{address}/-",
            "clients": [shown(name, contract) for name, contract in CONTRACTS.items()],
        }
    )
