"""What a stranger can do to the HTTP server: each row is sent to a running gateway, which serves others meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.errors import LASTING_STATUS
from gateway.server.end_guard import DOUBLED_SECONDS
from tests.gateway.double import Exchange, chunk
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway, Upstream, configuration, started, warm
from tests.patience import PATIENCE

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
ORIGIN = "http://app.example"

WRITES: dict[str, Any] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions?x=1": CHAT,
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi", "store": False},
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": {"input": "Hi"},
    "/api/chat": {**CHAT, "model": "m"},
    "/api/generate": {"model": "m", "prompt": "Hi"},
    "/api/show": {"model": "m"},
    "/-/reload": {},
    "/-/plan": {},
    "/llm/room": {},
    "/api/user/secrets": {},
}
READS = (
    *("/health", "/ready", "/v1/models", "/v1/models/m/ready", "/metrics", "/-/status", "/-/requests", "/-/plan"),
    *("/llm/room", "/api/user/secrets", "/api/tags", "/api/ps", "/openapi.json", "/v1/responses/x", "/nowhere"),
)


def error_of(path: str, body: Any) -> tuple[str, str]:
    """Code and message of an error, in the format of the path's own API; Anthropic's and Ollama's have no code."""
    if path.startswith(("/llm/room", "/api/user")):
        assert body["success"] is False
        return body["code"], body["message"]
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        return "", body["error"]["message"]
    if path.startswith("/api/"):
        return "", body["error"]
    return body["error"]["code"], body["error"]["message"]


@contextmanager
def configured(
    upstream: Upstream, folder: Path, test_model: Path, server: dict[str, Any], **environment: str
) -> Iterator[Gateway]:
    """A warm gateway with these settings of its server."""
    with started(folder, {**configuration(upstream, folder, test_model), "server": server}, **environment) as gateway:
        warm(gateway)
        yield gateway


# Web pages


PAGES: dict[str, dict[str, str]] = {
    "another origin": {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    "another port of this machine": {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    "a sandbox, a file": {"Origin": "null"},
    "an extension": {"Origin": "vscode-webview://1q2w3e"},
    "an image, a script, a link": {"Sec-Fetch-Site": "cross-site"},
    "two origins": {"Origin": "http://evil.example", "origin": "http://evil.example"},
}


@pytest.mark.parametrize("page", PAGES)
def test_a_foreign_page_can_neither_write_nor_read(
    page: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    asked = upstream.asked
    with unharmed():
        for path, body in [*WRITES.items(), *((path, None) for path in READS)]:
            answer = gateway.ask("GET" if body is None else "POST", path, body, PAGES[page])
            assert answer.status == (400 if page == "two origins" else 403), path
            code, message = error_of(path.partition("?")[0], answer.json)
            assert code in ("", "invalid_origin" if page == "two origins" else "origin_not_allowed"), path
            assert page == "two origins" or "server.cors_origins" in message, path
            assert "access-control-allow-origin" not in answer.headers
    assert upstream.asked == asked


def test_pages_of_the_gateway_and_a_persons_own_visit_are_let_in(gateway: Gateway) -> None:
    own = {"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
    assert gateway.chat(headers=own).status == 200
    assert gateway.ask("GET", "/v1/models", headers={"Sec-Fetch-Site": "same-origin"}).status == 200
    assert gateway.ask("GET", "/v1/models", headers={"Sec-Fetch-Site": "none"}).status == 200
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert gateway.ask("GET", "/", headers=followed).status == 200
    assert gateway.ask("GET", "/", headers={**followed, "Sec-Fetch-Dest": "iframe"}).status == 403
    assert gateway.ask("GET", "/v1/models/tiny/ready", headers=followed).status == 403


HOSTS: dict[str, int] = {
    "localhost": 200,
    "LOCALHOST:4000": 200,
    "localhost.": 200,
    "a.localhost": 200,
    "127.0.0.1:1": 200,
    "192.168.1.7": 200,
    "[::1]:4000": 200,
    "host.docker.internal:4000": 200,
    "evil.example": 403,
    "localhost.evil.example": 403,
    "evillocalhost": 403,
    "2130706433": 403,
    "": 400,
    "a b": 400,
    "[::1": 400,
    "user@localhost": 400,
    "localhost:4000x": 400,
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/-/status", "/health", "/llm/room"])
def test_a_name_that_leads_here_is_none_of_ours(
    path: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed, subtests: pytest.Subtests
) -> None:
    """DNS rebinding: the browser takes the gateway for the page's own server, and sends no Origin with a GET."""
    body = None if path in READS and path != "/llm/room" else b"{"
    with unharmed():
        for host, status in HOSTS.items():
            with subtests.test(host):
                answer = gateway.ask("GET" if body is None else "POST", path, body, {"Host": host})
                # What passes is answered as ever.
                assert answer.status == (400 if body is not None and status == 200 else status)
                code, message = error_of(path, answer.json) if answer.status != 200 else ("", "")
                if status == 403:
                    assert code in ("", "host_not_allowed")
                    assert "server.allowed_hosts" in message
                if status == 400:
                    assert code in ("", "invalid_host")


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/responses", b"/v1/models"])
def test_there_is_one_host(path: bytes, gateway: Gateway, unharmed: Unharmed) -> None:
    with unharmed():
        for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: localhost\r\nhost: evil.example\r\n"):
            raw = b"%b %b HTTP/1.1\r\n%bConnection: close\r\nContent-Length: 2\r\n\r\n{}"
            answer = gateway.send(raw % (b"GET" if path == b"/v1/models" else b"POST", path, hosts))
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"invalid_host" in answer
        assert gateway.send(b"GET /v1/models HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "), "HTTP/1.0 needs none"


def test_hosts_and_origins_of_the_configuration(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    """On the same protocol, with its bounds; a change takes effect without a restart."""
    server = {"allowed_hosts": ["gateway.lan", "*.corp.example"], "cors_origins": [ORIGIN]}
    with configured(upstream, tmp_path, test_model, server) as gateway, unharmed(gateway):
        for host, status in (("gateway.lan:80", 200), ("a.b.corp.example", 200), ("corp.example", 403), ("lan", 403)):
            assert gateway.chat(headers={"Host": host}).status == status, host
        for origin, status in ((ORIGIN, 200), (ORIGIN + ":81", 403), ("null", 403)):
            for stream in (True, False):
                answer = gateway.chat(headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"}, stream=stream)
                assert answer.status == status
                assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        refused = gateway.send(HEAD + f"Origin: {ORIGIN}\r\n".encode() + b"X: " + b"x" * 200_000)
        assert refused.startswith(b"HTTP/1.1 431 ")
        upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
        assert gateway.chat(headers={**upgrade, "Origin": ORIGIN}).status == 200
        changed = json.loads((tmp_path / "config.yaml").read_text())
        changed["server"]["cors_origins"] = ["http://other.example"]
        (tmp_path / "config.yaml").write_text(json.dumps(changed))
        assert gateway.ask("POST", "/-/reload").json["at_start"] == []
        assert gateway.chat(headers={"Origin": ORIGIN}).status == 403
        assert gateway.chat(headers={"Origin": "http://other.example"}).status == 200


# Bounds before any key is looked at


def endless(gateway: Gateway, begin: bytes, piece: bytes, maximum: int = 300_000_000) -> tuple[int, bytes]:
    """Sends `piece` until the gateway wants no more: the bytes sent, and its answer."""
    sent, answer = 0, b""
    with gateway.connect() as one:
        one.sendall(begin)
        try:
            while sent < maximum:
                one.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        try:
            while part := one.recv(65536):
                answer += part
        except OSError:
            pass
    return sent, answer


WITHOUT_END: dict[str, tuple[bytes, bytes]] = {
    "a target": (b"GET /", b"x" * 10_000),
    "a header": (HEAD + b"X: ", b"x" * 10_000),
    "headers": (HEAD, b"X-More: y\r\n" * 1000),
    "empty lines": (b"", b"\r\n" * 5000),
    "trailers": (HEAD + CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-More: y\r\n" * 1000),
    "trailers of a GET": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED + b"0\r\n", b"X-More: y\r\n" * 1000),
    "a chunk extension": (HEAD + CHUNKED + b"2;x=", b"x" * 10_000),
    "chunk extensions": (HEAD + CHUNKED, b"1;%b\r\nx\r\n" % (b"x" * 1000) * 10),
    "a chunk's size": (HEAD + CHUNKED, b"0" * 10_000),
    "interim: expect": (HEAD + b"Expect: 100-continue\r\n" + CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-More: y\r\n" * 1000),
}


@pytest.mark.parametrize("what", WITHOUT_END)
def test_what_has_no_end_is_ended(what: str, gateway: Gateway, unharmed: Unharmed) -> None:
    with unharmed():
        sent, answer = endless(gateway, *WITHOUT_END[what])
        assert sent < 50_000_000, "of 300 MB; sockets hold some"
        statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        if statuses:  # else the client was too busy sending to read why
            assert statuses[-1] in (400, 431) or statuses == [200], statuses


def test_trailers_are_no_headers(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    """Else a proxy that looks at headers alone would let through what the gateway believes."""
    config = {**configuration(upstream, tmp_path, test_model), "server": {"api_keys": ["${HOSTILE_KEY}"]}}
    with started(tmp_path, config, HOSTILE_KEY="sk-right") as gateway:
        late = b"0\r\nAuthorization: Bearer sk-right\r\n\r\n"
        for path in (b"/v1/chat/completions", b"/v1/responses"):
            head = HEAD.replace(b"/v1/chat/completions", path) + b"Connection: close\r\n" + CHUNKED
            assert gateway.send(head + b"2\r\n{}\r\n" + late).startswith(b"HTTP/1.1 401 ")


def test_many_small_chunks_are_no_harm(gateway: Gateway) -> None:
    body = json.dumps({**CHAT, "x": "y" * 50_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    assert gateway.send(HEAD + b"Connection: close\r\n" + CHUNKED + chunks).startswith(b"HTTP/1.1 200 ")


def test_requests_sent_ahead_are_bounded(gateway: Gateway, unharmed: Unharmed) -> None:
    """Nobody reads their answers; and each answer would let in more of them."""
    sent = 0
    with unharmed(), gateway.connect() as one:
        one.settimeout(2)
        while sent < 300_000_000:
            try:
                sent += one.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
            except OSError:
                break
    assert sent < 50_000_000, "of 300 MB; sockets hold some"


def slow(done: threading.Event) -> Any:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("one"))
        while not done.is_set() and not exchange.gone.done():
            await exchange.event(chunk("more"))
            await asyncio.sleep(0.01)
        await exchange.event(chunk(reason="stop"))
        await exchange.end()

    return script


@pytest.mark.parametrize("garbage", [b"\x00\x01garbage\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nX"])
def test_garbage_behind_a_running_stream_comes_after_it(
    garbage: bytes, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    done = threading.Event()
    upstream.script = slow(done)
    body = json.dumps({**CHAT, "stream": True}).encode()
    with unharmed(), gateway.connect() as one:
        one.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = one.recv(65536)
        one.sendall(garbage)
        if garbage.endswith(b"X"):
            one.sendall(b"x" * 100_000)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            answer += one.recv(65536)
        done.set()
        answer += b"".join(iter(lambda: one.recv(65536), b""))
        stream, end, rest = answer.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert end
        assert stream.count(b"HTTP/1.1 ") == 1
        assert rest.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_requests_of_a_client_that_left_reach_no_engine(
    how: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    gone = threading.Event()

    async def silent(exchange: Exchange) -> None:
        await exchange.gone
        gone.set()

    upstream.script = silent
    asked = upstream.asked
    body = json.dumps(CHAT).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with unharmed():
        with gateway.connect() as one:
            one.sendall(request * 50)
            while upstream.asked == asked:
                time.sleep(0.01)
            if how == "reset":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            elif how == "half-close":
                one.shutdown(socket.SHUT_WR)
                assert gone.wait(PATIENCE)
        assert gone.wait(PATIENCE), "the first request's engine is left, too"
    assert upstream.asked == asked + 1


def test_a_body_that_drips_is_ended(upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed) -> None:
    """Its time is bounded as a whole: each piece alone would come in time."""
    quick = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    (tmp_path / "sitecustomize.py").write_text("from gateway.server import bodies\nbodies.BODY_SECONDS = 1.0\n")
    with configured(upstream, tmp_path, test_model, {}, **quick) as gateway, unharmed(gateway):
        for path in (b"/v1/chat/completions", b"/v1/responses"):
            with gateway.connect() as one:
                one.sendall(HEAD.replace(b"/v1/chat/completions", path) + b"Content-Length: 9999\r\n\r\n")
                one.settimeout(0.1)
                began, answer = time.monotonic(), b""
                while not answer and time.monotonic() - began < PATIENCE:
                    one.sendall(b" ")
                    try:
                        answer = one.recv(65536)
                    except TimeoutError:
                        continue
                one.settimeout(PATIENCE)
                while b"request_timeout" not in answer and (more := one.recv(65536)):
                    answer += more
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert b"request_timeout" in answer


def test_all_bodies_together_are_bounded(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    maximum = 4_000_000
    with configured(upstream, tmp_path, test_model, {"max_bodies_bytes": maximum}) as gateway, ExitStack() as stack:
        paths = [b"/v1/chat/completions", b"/v1/responses"]
        with unharmed(gateway):
            open_ = []
            for at in range(30):
                one = stack.enter_context(gateway.connect())
                one.sendall(HEAD.replace(b"/v1/chat/completions", paths[at % 2]) + b"Content-Length: 2000000\r\n\r\n")
                one.sendall(b" " * 1_000_000)
                open_.append(one)
            waiting, refused = set(open_), 0
            while refused < 26:
                answered = select.select(waiting, [], [], PATIENCE)[0]
                assert answered, refused
                for one in answered:
                    answer = b""
                    while b"too_many_bodies" not in answer and (more := one.recv(65536)):
                        answer += more
                    assert answer.startswith(b"HTTP/1.1 503 ")
                    assert b"too_many_bodies" in answer
                    assert b"retry-after: 1\r\n" in answer
                    refused += 1
                waiting.difference_update(answered)
            assert gateway.chat().status == 200, "small ones have room"
        for one in open_:
            one.close()
        deadline = time.monotonic() + PATIENCE
        while gateway.chat("x" * 2_000_000).status != 200:
            assert time.monotonic() < deadline, "their room is free again"


def test_connections_are_bounded(upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed) -> None:
    """Those that ask nothing give way to those that do; where all are being answered, a new one is told so."""
    done = threading.Event()
    with configured(upstream, tmp_path, test_model, {"max_connections": 20}) as gateway, ExitStack() as stack:
        with unharmed(gateway):
            for at in range(300):
                one = stack.enter_context(gateway.connect())
                one.sendall([b"", b"GET", HEAD, HEAD + b"Content-Length: 99\r\n\r\n{"][at % 4])
            for _ in range(20):
                assert gateway.chat().status == 200
            assert len(os.listdir(f"/proc/{gateway.pid}/fd")) < 100
        upstream.script = slow(done)
        body = json.dumps({**CHAT, "stream": True}).encode()
        for _ in range(20):
            one = stack.enter_context(gateway.connect())
            one.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        answer = gateway.ask("GET", "/health")
        assert (answer.status, answer.json["error"]["code"]) == (503, "too_many_connections")
        assert answer.headers["retry-after"] == "1"
        done.set()


# Health


def test_health_tells_that_the_loop_lagged(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        time.sleep(0.3)
        os.kill(gateway.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(gateway.pid, signal.SIGCONT)
        health = gateway.ask("GET", "/health")
        assert (health.status, health.json["status"]) == (200, "degraded")
        assert "event loop" in health.json["problems"][0]
        lag = next(
            line for line in gateway.ask("GET", "/metrics").body.split(b"\n") if line.startswith(b"ctxgate_loop_lag")
        )
        assert float(lag.split()[1]) > 1


def test_health_tells_that_the_active_engine_cannot_start(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    config = configuration(upstream, tmp_path, test_model)
    config["models"]["broken"] = {"runtime": "llama.cpp", "path": str(test_model), "command": "false", "args": []}
    config["active_model"] = "broken"
    with started(tmp_path, config) as gateway:
        assert gateway.ask("GET", "/health").json["status"] == "ok"
        assert gateway.chat().status == LASTING_STATUS
        health = gateway.ask("GET", "/health").json
        assert health["status"] == "degraded"
        assert "broken" in health["problems"][0]


HANGS = """
import asyncio, ctypes, gateway.app, sys, threading, time
startup = gateway.app._Server.startup

async def hanging(self, sockets=None):
    await startup(self, sockets)
    loop = asyncio.get_running_loop()
    for _ in range({threads}):
        loop.run_in_executor(None, time.sleep, 600)
    if {loop}:
        loop.call_later(1, hang)
    if {lock}:
        threading.Thread(target=keep_lock, args=(self._end_guard,), daemon=True).start()

def hang():
    print("now the loop hangs", file=sys.stderr, flush=True)
    time.sleep(600)

def told_to_end(self, end_at_last=gateway.app._Server._arm_forced_exit):
    end_at_last(self)
    print("told to end", file=sys.stderr, flush=True)

def keep_lock(guard):
    while not guard.started:
        time.sleep(0.02)
    print("now C code keeps the lock", file=sys.stderr, flush=True)
    ctypes.PyDLL(None).sleep(600)

gateway.app._Server.startup = hanging
gateway.app._Server._arm_forced_exit = told_to_end
gateway.app.END_SECONDS = {end}
"""
"""Makes the gateway's threads, or its event loop, hang, or C code keep Python's lock: no request does that any more."""


@contextmanager
def hanging(upstream: Upstream, folder: Path, test_model: Path, **how: Any) -> Iterator[Gateway]:
    """`gateway.app` is imported by the command, so this replaces parts of it through an import hook of Python's own."""
    (folder / "hangs.py").write_text(HANGS.format(**{"threads": 0, "loop": False, "lock": False, "end": 30, **how}))
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'uvicorn.protocols.http.httptools_impl' and 'gateway.app' in sys.modules:\n"
        "            sys.meta_path.remove(self)\n"
        "            import hangs\n"
        "sys.meta_path.insert(0, Hook())\n"
    )
    env = {"PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[2]}"}
    with started(folder, configuration(upstream, folder, test_model), **env) as gateway:
        yield gateway


def logged(gateway: Gateway, words: str) -> None:
    """Waits until the gateway's log has the words."""
    deadline = time.monotonic() + PATIENCE
    while words not in gateway.log():
        assert time.monotonic() < deadline, gateway.log()
        time.sleep(0.05)


def test_health_tells_that_all_threads_are_taken(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with hanging(upstream, tmp_path, test_model, threads=50) as gateway:
        deadline = time.monotonic() + PATIENCE
        while (health := gateway.ask("GET", "/health").json)["status"] == "ok" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "worker threads" in health["problems"][0]
        os.kill(gateway.pid, signal.SIGTERM)
        logged(gateway, "told to end")
        time.sleep(2 * DOUBLED_SECONDS)
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.server.process.wait(PATIENCE) == -signal.SIGTERM


def test_threads_that_hang_hold_up_no_end(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with hanging(upstream, tmp_path, test_model, threads=2) as gateway:
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.server.process.wait(PATIENCE) == -signal.SIGTERM


def test_a_loop_that_hangs_ends_at_last(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with hanging(upstream, tmp_path, test_model, loop=True, end=2) as gateway:
        logged(gateway, "now the loop hangs")
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.server.process.wait(PATIENCE) == 1
        assert "Timeout" in gateway.log(), "and it says where it hung"


def test_the_second_signal_ends_a_loop_that_hangs(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with hanging(upstream, tmp_path, test_model, loop=True) as gateway:
        logged(gateway, "now the loop hangs")
        os.kill(gateway.pid, signal.SIGTERM)
        logged(gateway, "told to end")
        time.sleep(2 * DOUBLED_SECONDS)
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.server.process.wait(PATIENCE) == -signal.SIGTERM


@pytest.mark.parametrize("signals", [1, 2])
def test_the_gateway_ends_though_c_code_keeps_pythons_lock(
    signals: int, upstream: Upstream, tmp_path: Path, test_model: Path
) -> None:
    """Then no handler of Python's runs. The first test waits until the gateway's time is over."""
    with hanging(upstream, tmp_path, test_model, lock=True, end=2 if signals == 1 else 60) as gateway:
        logged(gateway, "now C code keeps the lock")
        os.kill(gateway.pid, signal.SIGTERM)
        if signals == 2:
            time.sleep(1)
            assert gateway.server.process.poll() is None
            os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.server.process.wait(PATIENCE) == -signal.SIGKILL
        assert "ctxgate: killed" in gateway.log()


def guards_end(process: psutil.Process) -> bool:
    """It isn't one before it has become the program, or if it has ended."""
    try:
        return any(argument.endswith("/end_guard.sh") for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_the_guard_of_the_end_goes_with_the_gateway(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        deadline = time.monotonic() + PATIENCE
        while not (guards := [child for child in psutil.Process(gateway.pid).children() if guards_end(child)]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        [guard] = guards
        guard.terminate()  # a service manager tells every process
        os.kill(gateway.pid, signal.SIGHUP)  # reloads
        assert gateway.chat().status == 200
        os.kill(gateway.pid, signal.SIGKILL)
        assert guard.wait(PATIENCE) is None
