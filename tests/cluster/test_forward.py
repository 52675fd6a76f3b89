"""Requests for what another gateway holds, while that one dies."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from starlette.requests import Request

from gateway.features.cluster.forward import Forward
from gateway.store import Claimed


@pytest.fixture
def silent() -> Iterator[str]:
    """An address whose connections neither open nor fail, as that of a machine without power."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # its queue is full then
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("holder", ["silent", "refusing"])
async def test_a_request_waits_until_the_claim_of_a_dead_gateway_moves(
    holder: str, request: pytest.FixtureRequest
) -> None:
    address, asked = request.getfixturevalue(holder), []

    async def handler(request: Request) -> str:
        asked.append(request)
        if len(asked) == 1:
            error = Claimed("another gateway has the rooms", code="store_claimed")
            error.holder = address
            raise error
        return "the answer"

    forward = Forward()
    scope = {"type": "http", "method": "GET", "path": "/llm/room", "query_string": b"", "headers": []}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    try:
        assert await forward(handler, Request(scope, receive)) == "the answer"
    finally:
        await forward.aclose()
    assert len(asked) == 2
