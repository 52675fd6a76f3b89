"""Two tenants side by side: whatever one of them does, the other one finds room."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.features.agents.settings import RoomTools
from gateway.features.agents.tools import ToolContext
from gateway.features.agents.tools.curl import Curl
from gateway.features.agents.tools.fetch import AT_ONCE
from gateway.features.agents.tools.files import file_system
from gateway.features.rooms.files import ZIPS, packed
from gateway.server.keys import FILE, KeyFile
from gateway.server.principal import Principal
from gateway.wire.limits import Limits
from tests.gateway.double import Exchange
from tests.hostile.conftest import Unharmed
from tests.hostile.frames import FIN, TEXT, opened
from tests.hostile.running import Gateway, Upstream, configuration, polite, started
from tests.patience import PATIENCE

Keys = dict[str, dict[str, str]]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """The header of each tenant; `one` may have one request at a time, `two` two a minute."""
    file = KeyFile(tmp_path / "state" / FILE)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    limits = {"one": Limits(parallel=1), "two": Limits(requests_per_minute=2), "greedy": None, "other": None}
    limits["echoes"] = Limits(models=("echo",))
    made = {
        tenant: file.add(tenant=tenant, user="x", scopes=["models"] if limits else ["models", "rooms"], limits=limits)[
            1
        ]
        for tenant, limits in limits.items()
    }
    return {tenant: {"Authorization": f"Bearer {key}"} for tenant, key in made.items()}


@pytest.fixture
def shared(keys: Keys, upstream: Upstream, tmp_path: Path, test_model: Path) -> Iterator[Gateway]:
    config = configuration(upstream, tmp_path, test_model)
    config["server"] = {"max_bodies_bytes": 8_000_000}
    with started(tmp_path, config) as gateway:
        yield gateway


async def silent(exchange: Exchange) -> None:
    """An engine that takes a request and says nothing."""
    await (polite(exchange) if not exchange.body else asyncio.Event().wait())


BACKGROUND = {"input": "Hi", "background": True}


def test_a_background_response_keeps_its_place(shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    upstream.script = silent
    first = shared.ask("POST", "/v1/responses", BACKGROUND, keys["one"])
    assert first.status == 200, first
    for _ in range(3):
        assert shared.ask("POST", "/v1/responses", BACKGROUND, keys["one"]).status == 429
    assert shared.ask("POST", f"/v1/responses/{first.json['id']}/cancel", {}, keys["one"]).status == 200
    upstream.script = polite
    assert shared.chat(headers=keys["one"]).status == 200
    assert shared.chat(headers=keys["one"]).status == 200


def test_background_responses_have_a_share(shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    upstream.script = silent
    asked = [shared.ask("POST", "/v1/responses", BACKGROUND, keys["greedy"]).status for _ in range(64)]
    assert set(asked) == {200, 429}
    assert shared.ask("POST", "/v1/responses", BACKGROUND, keys["other"]).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_is_a_request(stream: bool, shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    upstream.script = polite
    answer = shared.ask("POST", "/v1/completions", {"prompt": ["a"] * 20, "stream": stream}, keys["two"])
    assert answer.status == 429 or b"requests a minute" in answer.body, answer
    one = shared.ask("POST", "/v1/completions", {"prompt": ["a"] * 3, "stream": stream}, keys["one"])
    assert one.status == 200, one
    assert shared.chat(headers=keys["one"]).status == 200


def test_unfinished_uploads_leave_room(shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    """On the hot route, and on the others."""
    upstream.script = polite
    paths = ("/v1/chat/completions", "/v1/files")
    with ExitStack() as stack:
        for number in range(33):
            one = stack.enter_context(shared.connect())
            head = f"POST {paths[number % 2]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            given = f"Authorization: {keys['greedy']['Authorization']}\r\nContent-Length: 1000000\r\n\r\n"
            with suppress(ConnectionError):
                one.sendall((head + given).encode() + b" " * 999_000)
        large = {"messages": [{"role": "user", "content": "x" * 1_000_000}]}
        for path in ("/v1/chat/completions", "/v1/chat/completions?x=1"):
            assert shared.ask("POST", path, large, keys["other"]).status == 200
        assert shared.ask("POST", "/v1/chat/completions?x=1", b" " * 4_100_000, keys["greedy"]).status == 503


def test_unread_messages_leave_room(shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    """Unfinished ones of WebSockets."""
    upstream.script = polite
    with ExitStack() as stack:
        for _ in range(9):
            one = stack.enter_context(opened(shared, "/v1/responses", keys["greedy"]["Authorization"]))
            with suppress(ConnectionError):
                one.sendall(bytes([FIN | TEXT, FIN | 127]) + struct.pack("!Q", 1_000_000) + bytes(4) + b" " * 990_000)
        large = {"messages": [{"role": "user", "content": "x" * 1_000_000}]}
        for path in ("/v1/chat/completions", "/v1/chat/completions?x=1"):
            assert shared.ask("POST", path, large, keys["other"]).status == 200


@pytest.fixture
def place(gateway: Gateway) -> Gateway:
    """Has a model `place`, and has loaded what the first query needs."""
    assert gateway.ask("PUT", "/llm/describe/place", {"schema": {"type": "object"}}).status == 200
    for verb in ("find", "aggregate"):
        assert gateway.ask("POST", f"/llm/{verb}/place", {"where": LARGEST}).status == 200
    return gateway


TEXTS = [str(number) for number in range(200)]
LARGEST: dict[str, Any] = {"t": {"$all": TEXTS[:100], "$any": TEXTS[100:]}}
TOO_LARGE: dict[str, dict[str, Any]] = {
    "$all": {"$or": [{"t": {"$all": TEXTS}} for _ in range(100)]},
    "$in": {"$or": [{"t": {"$in": TEXTS}} for _ in range(100)]},
    "two lists": {"t": {"$in": TEXTS, "$nin": ["x"]}},
    "nothing": {"$and": [{"$or": [{}] * 200}] * 3},
    "nothing, denied": {"$and": [{"$not": {}}] * 101},
}


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.parametrize("verb", ["find", "aggregate"])
def test_a_query_of_many_values(place: Gateway, unharmed: Unharmed, verb: str, name: str) -> None:
    with unharmed(body=len(json.dumps(TOO_LARGE[name]))):
        answer = place.ask("POST", f"/llm/{verb}/place", {"where": TOO_LARGE[name]})
        assert answer.status == 400
        assert b"at most" in answer.body


def test_queries_leave_nothing_behind(place: Gateway, unharmed: Unharmed) -> None:
    """Each of them another statement."""
    with unharmed(body=0):
        for number in range(30):
            where = {"t": {"$all": TEXTS[: 100 - number], "$any": TEXTS[100:]}}
            assert place.ask("POST", "/llm/find/place", {"where": where}).status == 200


class Hanging(BaseHTTPRequestHandler):
    """Answers `/` alone at once."""

    over = threading.Event()
    came = threading.Semaphore(0)

    def do_GET(self) -> None:
        if self.path != "/":
            Hanging.came.release()
            Hanging.over.wait(PATIENCE)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


async def test_hanging_fetches_are_the_tenant_s_own(tmp_path: Path) -> None:
    """The tools themselves: a turn ends with its wall time, which is no tenant's fault."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hanging) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host = f"127.0.0.1:{server.server_port}"
        [get, *_] = Curl(RoomTools(allow_hosts=(host,))).tools()
        try:
            greedy = ToolContext(share="greedy")
            hanging = [
                asyncio.ensure_future(get.run(greedy, {"url": f"http://{host}/hangs"})) for _ in range(AT_ONCE + 4)
            ]
            for _ in range(AT_ONCE):
                assert await asyncio.to_thread(Hanging.came.acquire, timeout=PATIENCE)
            async with asyncio.timeout(PATIENCE):
                assert (await get.run(ToolContext(share="other"), {"url": f"http://{host}/"}))["status"] == 200
            assert not any(task.done() for task in hanging)
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
        finally:
            Hanging.over.set()
            await asyncio.to_thread(server.shutdown)
            thread.join(PATIENCE)


def test_zips_have_a_share(tmp_path: Path) -> None:
    files = file_system(RoomTools(), tmp_path / "files")
    greedy, other = Principal(tenant="greedy"), Principal(tenant="other")
    kept = []
    with suppress(OSError):
        for _ in range(ZIPS):
            kept.append(packed(files, "/", greedy))
    assert 0 < len(kept) < ZIPS
    kept.append(packed(files, "/", other))
    for file, _ in kept:
        file.close()


TURNS = [{"role": "user", "content": "Hi " * 50}, {"role": "user", "content": "Ho"}]
OF_ANOTHER_MODEL: dict[str, tuple[str, Any]] = {
    "truncation": ("/v1/responses", {"input": TURNS, "truncation": "auto"}),
    "truncation, in the background": ("/v1/responses", {"input": TURNS, "truncation": "auto", "background": True}),
    "tokens of a response": ("/v1/responses/input_tokens", {"input": TURNS, "truncation": "auto"}),
    "compact": ("/v1/responses/compact", {"input": TURNS}),
    "tokens of messages": ("/v1/messages/count_tokens", {"messages": TURNS}),
    "chat": ("/v1/chat/completions", {"messages": TURNS}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "load": ("/api/chat", {"messages": []}),
    "ready": ("/v1/models/counts/ready", None),
}


def test_a_key_limited_to_models_asks_no_other_engine(
    keys: Keys, upstream: Upstream, tmp_path: Path, test_model: Path, subtests: pytest.Subtests
) -> None:
    config = configuration(upstream, tmp_path, test_model)
    here = f"http://127.0.0.1:{upstream.port}"
    config["models"]["counts"] = {"runtime": "llama.cpp", "base_url": here, "context_window": 256}
    with started(tmp_path, config) as gateway:
        for what, (path, body) in OF_ANOTHER_MODEL.items():
            with subtests.test(what):
                asked = upstream.asked
                method, sent = ("GET", None) if body is None else ("POST", {"model": "counts", **body})
                answer = gateway.ask(method, path, sent, keys["echoes"])
                assert answer.status == 403, answer
                assert upstream.asked == asked
