"""A real HTTP server on loopback for an ASGI app of the test's own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

import uvicorn

from gateway.app import IDLE_SECONDS
from tests.patience import PATIENCE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Server(uvicorn.Server):
    """Ends at once when it is told to, which uvicorn looks for ten times a second; thousands of tests wait for it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, less its pauses."""
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await self.lifespan.shutdown()


@contextmanager
def serve(
    app: App, *, lifespan: Literal["on", "off"] = "off", http: str = "auto", idle: int = IDLE_SECONDS
) -> Iterator[str]:
    """Yields the base URL; the server has ended when the block is left. idle: seconds an unused connection lasts."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        config = uvicorn.Config(
            app,
            lifespan=lifespan,
            http=http,
            ws="none",
            log_config=None,
            proxy_headers=False,
            backlog=2048,
            timeout_keep_alive=idle,
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.end()
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server did not end"


async def read_json(receive: Receive) -> Any:
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            return json.loads(body)


async def answer(send: Send, status: int, body: Any, content_type: bytes = b"application/json") -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [(b"content-type", content_type), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def completion(content: str, **message: Any) -> dict[str, Any]:
    """A chat completion as servers answer it."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


class Gathering:
    """Echoes, but answers nobody until everybody has come: calls that were serialised anywhere would wait for ever."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.waiting = 0
        self.complete = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            await answer(send, 200, {"data": [{"id": "m"}]})
            return
        body = await read_json(receive)
        self.waiting += 1
        if self.waiting == self.expected:
            self.complete.set()
        await self.complete.wait()
        await answer(send, 200, completion(body["messages"][-1]["content"]))
