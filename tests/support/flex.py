"""Flex requests that wait at a gateway."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from tests.gateway.double import Exchange
from tests.hostile.running import Answer, Gateway, Json, Upstream, polite
from tests.patience import PATIENCE


@contextmanager
def flex_waits(gateway: Gateway, upstream: Upstream, count: int) -> Iterator[None]:
    """So many flex requests wait for model `m`, which works on another one."""
    came, go_on = threading.Event(), threading.Event()

    async def held(exchange: Exchange) -> None:
        came.set()
        await asyncio.to_thread(go_on.wait, PATIENCE)
        await polite(exchange)

    upstream.script = held
    asking: list[Future[Answer]] = []
    with ThreadPoolExecutor(count + 1) as threads:
        try:
            asking.append(threads.submit(gateway.chat))
            assert came.wait(PATIENCE)
            asking += [threads.submit(gateway.chat, service_tier="flex") for _ in range(count)]
            until_waiting(gateway, count)
            yield
        finally:
            go_on.set()
    assert [one.result().status for one in asking] == [200] * (count + 1)


def until_waiting(gateway: Gateway, count: int) -> Json:
    end = time.monotonic() + PATIENCE
    while (model := status(gateway))["waiting"] != count:
        assert time.monotonic() < end, model
    return model


def status(gateway: Gateway) -> Json:
    model: Json = gateway.ask("GET", "/-/status").json["models"][0]
    return model
