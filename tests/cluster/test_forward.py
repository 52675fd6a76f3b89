"""Requests for what another gateway holds, while that one dies."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import unquote

import pytest
from starlette.requests import Request

from gateway.features.cluster.forward import Forward
from gateway.store import Claimed
from tests.agents.web import Web


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
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/llm/room",
        "raw_path": b"/llm/room",
        "query_string": b"",
        "headers": [],
    }

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    try:
        assert await forward(handler, Request(scope, receive)) == "the answer"
    finally:
        await forward.aclose()
    assert len(asked) == 2


@pytest.mark.parametrize(
    "target", ["/llm/room/r/files/report%231.txt", "/llm/room/r/files/a%3Fb%25/..%2Fc?x=%26&y=%C3%BC", "/a//b/../c"]
)
async def test_the_holder_gets_what_the_client_wrote(target: str) -> None:
    """Decoded, `report%231.txt` would be the file `report` with a fragment."""
    async with Web() as web:
        web.page(target, b"{}")

        async def handler(request: Request) -> str:
            error = Claimed("another gateway has the rooms", code="store_claimed")
            error.holder = web.url
            raise error

        path, _, query = target.partition("?")
        scope = {"type": "http", "method": "DELETE", "path": unquote(path), "raw_path": path.encode(), "headers": []}

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        forward, sent = Forward(), []

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        try:
            answer = await forward(handler, Request({**scope, "query_string": query.encode()}, receive))
            await answer(scope, receive, send)
        finally:
            await forward.aclose()
        assert [(asked.method, asked.target) for asked in web.asked] == [("DELETE", target)]
        assert sent[0]["status"] == 200
