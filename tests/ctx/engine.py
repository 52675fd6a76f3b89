"""An engine that says as many words as it is let, and the configuration of a tree in front of one."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.gateway.double import Double, Exchange, chunk


class Words:
    """An engine that says a word for each permit, to all that ask."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.asked: list[Any] = []

    async def script(self, exchange: Exchange) -> None:
        self.asked.append(exchange.json)
        await exchange.start()
        for number in range(200):
            permit = asyncio.ensure_future(self.permits.acquire())
            both: set[asyncio.Future[Any]] = {permit, exchange.gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if exchange.gone.done():
                if not permit.cancel():
                    self.permits.release()  # it came in the same turn of the loop; somebody else waits for it
                return
            await exchange.event(chunk(f"word{number} "))
        await exchange.end()


def with_engine(double: Double) -> dict[str, Any]:
    return {
        "active_model": "m",
        "models": {"m": {"runtime": "openai", "port": double.address.port}},
        "ctx": {"models": {"m": {"object": "acme/m"}}},
    }
