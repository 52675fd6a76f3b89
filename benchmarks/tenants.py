"""What one tenant's requests wait while another one takes all it can get: `python -m benchmarks.tenants`.

Rounds alternate: a request of tenant B alone, then the same while tenant A does its worst. The gateway, the engine and
the clients are processes of their own; the engine takes 50 ms for an answer, or hangs for whoever asks it to. The last
line has a real engine: the test model with two slots, and saved prompts that both tenants begin alike.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.harness import proc
from benchmarks.harness.stacks import REPOSITORY
from gateway.server.keys import FILE, KeyFile

ENGINE_SECONDS = 0.05
HANG_SECONDS = 600.0
MAXIMUM = 2.0
"""How many times as long the goal lets a request take."""
A, B = "greedy", "other"
WITHIN = 60.0
Json = dict[str, Any]
HI: list[Json] = [{"role": "user", "content": "Hi"}]
LONG = "You are a shop. " + " ".join(f"Item {number} costs {number * 7 % 13} coins." for number in range(30))


class Engine(BaseHTTPRequestHandler):
    """Answers a chat after a while, calls `curl_get` with the URL that the user says, and serves pages."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/hangs":
            time.sleep(HANG_SECONDS)
        self._send({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = asked["messages"][-1]
        time.sleep(ENGINE_SECONDS)
        message: Json = {"role": "assistant", "content": "Done."}
        if last["role"] == "user" and "http://" in (said := str(last["content"])):
            url = "http://" + said.partition("http://")[2].split()[0].rstrip('"')
            function = {"name": "curl_get", "arguments": json.dumps({"url": url})}
            message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        envelope = {"id": "x", "created": 1, "model": "m"}
        if asked.get("stream"):
            calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", []))]
            delta = {**message, **({"tool_calls": calls} if calls else {})}
            chunk = {**envelope, "object": "chat.completion.chunk"}
            first = {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
            body = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (first, end)) + b"data: [DONE]\n\n"
            self._send(body, "text/event-stream")
        else:
            choice = {"index": 0, "message": message, "finish_reason": reason}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._send({**envelope, "object": "chat.completion", "choices": [choice], "usage": usage})

    def _send(self, body: Json | bytes, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass(frozen=True)
class Place:
    port: int
    engine: int
    keys: dict[str, str]

    def ask(self, who: str, method: str, path: str, body: Json | bytes | None = None) -> tuple[int, Any]:
        """The status, and the JSON of the answer or its bytes."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        head = {"authorization": f"Bearer {self.keys[who]}", "content-type": "application/json"}
        try:
            connection.request(method, path, data, head)
            response = connection.getresponse()
            read = response.read()
        finally:
            connection.close()
        return response.status, json.loads(read) if "json" in (response.getheader("content-type") or "") else read

    def must(self, who: str, method: str, path: str, body: Json | bytes | None = None) -> Any:
        status, answer = self.ask(who, method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {answer}")
        return answer

    @contextmanager
    def opened(self, who: str, head: str) -> Iterator[socket.socket]:
        """A request whose answer nobody reads."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(f"{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.keys[who]}\r\n".encode())
            yield one


@contextmanager
def again_and_again(threads: int, work: Callable[[], object]) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with suppress(OSError, http.client.HTTPException):
                work()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for each in running:
        each.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        over.set()
        for each in running:
            each.join()


def room_of(place: Place, who: str) -> str:
    return str(place.must(who, "POST", "/llm/room", {"tool_policy": {"access": "full"}})["data"]["id"])


def say(place: Place, who: str, room: str, text: str, *, wait: bool = True) -> None:
    place.must(who, "POST", f"/llm/room/{room}/messages", {"content": text})
    while wait and place.must(who, "GET", f"/llm/room/{room}")["data"]["status"] in ("active", "releasing"):
        time.sleep(0.01)


Request = Callable[[], object]


@contextmanager
def chats_beside_background(place: Place) -> Iterator[tuple[Request, Any]]:
    yield (
        _chat(place),
        lambda: again_and_again(
            4, lambda: place.ask(A, "POST", "/v1/responses", {"model": "m", "input": "Hi", "background": True})
        ),
    )


@contextmanager
def chats_beside_many_prompts(place: Place) -> Iterator[tuple[Request, Any]]:
    yield (
        _chat(place),
        lambda: again_and_again(
            4, lambda: place.ask(A, "POST", "/v1/completions", {"model": "m", "prompt": ["a"] * 20})
        ),
    )


@contextmanager
def chats_beside_uploads(place: Place) -> Iterator[tuple[Request, Any]]:
    @contextmanager
    def unfinished() -> Iterator[None]:
        with ExitStack() as stack:
            for _ in range(33):
                one = stack.enter_context(place.opened(A, "POST /v1/chat/completions"))
                with suppress(OSError):
                    one.sendall(b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" + b" " * 999_000)
            yield

    yield _chat(place, "x" * 200_000), unfinished


@contextmanager
def zips_beside_zips(place: Place) -> Iterator[tuple[Request, Any]]:
    rooms = {who: room_of(place, who) for who in (A, B)}
    for who, room in rooms.items():
        for number in range(8):
            place.must(who, "PUT", f"/llm/room/{room}/files/{number}.bin", bytes(range(256)) * 4000)

    @contextmanager
    def trickling() -> Iterator[None]:
        with ExitStack() as stack:
            for _ in range(8):
                one = stack.enter_context(place.opened(A, f"GET /llm/room/{rooms[A]}/zip"))
                one.sendall(b"\r\n")
            time.sleep(0.5)
            yield

    yield lambda: place.must(B, "GET", f"/llm/room/{rooms[B]}/zip"), trickling


@contextmanager
def fetches_beside_fetches(place: Place) -> Iterator[tuple[Request, Any]]:
    page = f"http://127.0.0.1:{place.engine}/"
    rooms = [room_of(place, A) for _ in range(20)]
    mine = room_of(place, B)

    @contextmanager
    def hanging() -> Iterator[None]:
        for room in rooms:
            say(place, A, room, f"{page}hangs", wait=False)
        time.sleep(1)
        yield
        for room in rooms:
            place.ask(A, "POST", f"/llm/room/{room}/interrupt", {})

    yield lambda: say(place, B, mine, page), hanging


@contextmanager
def chats_beside_the_same_prompt(place: Place) -> Iterator[tuple[Request, Any]]:
    def ask(who: str) -> Any:
        messages = [{"role": "system", "content": LONG}, *HI]
        return place.must(who, "POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 8})

    ask(A), ask(B)
    yield lambda: ask(B), lambda: again_and_again(1, lambda: ask(A))


def _chat(place: Place, text: str = "Hi") -> Request:
    messages = [{"role": "user", "content": text}]
    return lambda: place.must(B, "POST", "/v1/chat/completions", {"model": "m", "messages": messages})


KINDS: dict[str, Callable[[Place], Any]] = {
    "a chat, beside background responses": chats_beside_background,
    "a chat, beside completions of 20 prompts": chats_beside_many_prompts,
    "a chat of 200 kB, beside 33 unfinished uploads": chats_beside_uploads,
    "a zip of 8 MB, beside 8 that nobody reads": zips_beside_zips,
    "a room's fetch, beside 20 that hang": fetches_beside_fetches,
    "the test model, beside the same prompt": chats_beside_the_same_prompt,
}


def timed(request: Request, seconds: float) -> list[float]:
    """The seconds of each request of so many seconds; at least of one."""
    took: list[float] = []
    while sum(took) < seconds:
        began = time.perf_counter()
        request()
        took.append(time.perf_counter() - began)
    return took


def measure(place: Place, rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Kind → the median seconds alone and beside the other tenant."""
    found = {}
    for title, kind in KINDS.items():
        alone: list[float] = []
        beside: list[float] = []
        with kind(place) as (request, harm):
            timed(request, 0.2)
            for _ in range(rounds):
                alone += timed(request, seconds)
                with harm():
                    beside += timed(request, seconds)
                time.sleep(0.5)
        found[title] = statistics.median(alone), statistics.median(beside)
    return found


@contextmanager
def started(folder: Path, test_model: Path) -> Iterator[Place]:
    """A gateway with keys of two tenants, and the engine behind it."""
    state = folder / "state"
    state.mkdir(parents=True)
    keys = {who: KeyFile(state / FILE).add(tenant=who, user="x", scopes=["models", "rooms"])[1] for who in (A, B)}
    port, engine_port = proc.free_port(), proc.free_port()
    command = [sys.executable, "-m", "benchmarks.tenants", "--engine", str(engine_port)]
    engine = proc.Server.start(command, engine_port, folder / "engine.log", cwd=REPOSITORY)
    tiny = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 2048, "tool_call_format": "pythonic"}
    config = {
        "active_model": "m",
        "models": {
            "m": {"runtime": "openai", "base_url": f"http://127.0.0.1:{engine_port}"},
            "tiny": {**tiny, "temperature": 0, "parallel": 2},
        },
        "state_dir": str(state),
        "server": {"max_bodies_bytes": 8_000_000},
        "rooms": {"tools": {"allow_hosts": [f"127.0.0.1:{engine_port}"]}},
    }
    file = folder / "config.yaml"
    file.write_text(json.dumps(config))
    serve = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(port)]
    gateway = proc.Server.start(serve, port, folder / "log", cwd=REPOSITORY)
    try:
        engine.wait_ready("/", WITHIN)
        gateway.wait_ready("/health", WITHIN)
        yield Place(port, engine_port, keys)
    finally:
        gateway.stop()
        engine.stop()


def table(found: dict[str, tuple[float, float]]) -> str:
    lines = [f"{'a request of tenant B':<50}{'alone, ms':>10}{'beside, ms':>12}{'times':>8}"]
    for title, (alone, beside) in found.items():
        ratio = beside / alone
        over = "  over the goal" if ratio > MAXIMUM else ""
        lines.append(f"{title:<50}{alone * 1000:>10.1f}{beside * 1000:>12.1f}{ratio:>8.2f}{over}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of requests in each half of a round")
    parser.add_argument("--model", type=Path, default=REPOSITORY.parent / "shared/tiny-model/tiny-tools.Q8_0.gguf")
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.engine is not None:
        with ThreadingHTTPServer(("127.0.0.1", wanted.engine), Engine) as server:
            server.daemon_threads = True
            server.serve_forever()
    with tempfile.TemporaryDirectory(prefix="ctxgate-tenants-") as folder, started(Path(folder), wanted.model) as place:
        found = measure(place, wanted.rounds, wanted.seconds)
    print(proc.machine())
    print(table(found))
    return int(any(beside > MAXIMUM * alone for alone, beside in found.values()))


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())
