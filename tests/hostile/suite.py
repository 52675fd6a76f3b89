"""Sends many requests to one gateway, and finds those that anybody else had to wait for."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from gateway.api.routes import DIRECT, routes, spellings
from tests.gateway.double import Exchange, chunk, completion
from tests.hostile import grown
from tests.hostile.endpoints import ENDLESS, MULTIPART, PARAMETERS, ROWS, SCHEMA, URLENCODED, YAML, Row
from tests.hostile.grown import Grown
from tests.hostile.running import GROWTH, LAG_SECONDS, Gateway, Upstream, Watcher, asked_of, polite
from tests.patience import PATIENCE

HEAD = 60_000
"""Bytes of a path, a query or a header: about the longest that the server reads."""
LEAVE_SECONDS = 0.1
"""When the client of an endless stream leaves."""
TRIES = 3
"""A busy machine delays anything once. What the gateway itself does, it does each time."""

JSON = "application/json"


@dataclass(frozen=True)
class Case:
    """One request; `make` makes its body when it is sent."""

    name: str
    target: str
    make: Callable[[], bytes] | None = None
    kind: str = JSON
    headers: str = ""
    chunked: bool = False

    def head(self, method: str, length: int) -> bytes:
        framing = "transfer-encoding: chunked" if self.chunked else f"content-length: {length}"
        body = f"content-type: {self.kind}\r\n{framing}\r\n" if self.make is not None else ""
        lines = f"{method} {self.target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{self.headers}{body}\r\n"
        return lines.encode("latin-1")


QUERIES = (
    "&".join(f"{name}={'9' * 4000}" for name in ("limit", "after", "before", "offset", "order", "include", "since")),
    "&".join(f"{name}={'9' * 4000}" for name in ("path", "recursive", "lines", "raw", "clean", "as", "all", "trashed")),
    "a=1&" * (HEAD // 4),
    "%" * HEAD,
)
PATHS = ("x" * HEAD, "%2e%2e%2f" * (HEAD // 9), "a/" * (HEAD // 2), "%F0%9F%98%80" * (HEAD // 12), "9" * HEAD)
HEADERS = (
    f"accept: {'a/b;q=0.1,' * (HEAD // 10)}\r\n",
    f"user-agent: {'x' * HEAD}\r\n",
    f"authorization: Bearer {'x' * HEAD}\r\n",
    f"cookie: {'a=b; ' * (HEAD // 5)}\r\n",
    f"last-event-id: {'9' * HEAD}\r\n",
    f"traceparent: {'0-' * (HEAD // 2)}\r\n",
    f"if-none-match: {'a,' * (HEAD // 2)}\r\nrange: bytes={'0-1,' * 9000}\r\n",
    "".join(f"x-{at}: y\r\n" for at in range(HEAD // 11)),
)
CONTENT_TYPES: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "urlencoded": (URLENCODED, lambda size: b"a=1&" * (size // 4)),
    "multipart": (MULTIPART, lambda size: b"--x\r\n" + b"\r\n--" * (size // 4)),
    "zip": ("application/zip", lambda size: b"PK\x03\x04" + bytes(size)),
    "text in a strange charset": ("text/plain; charset=utf-7", lambda size: b"+A" * (size // 2)),
    "wrong UTF-8": (JSON, lambda size: b'{"a":"' + b"\xff" * size + b'"}'),
    "white space": (JSON, lambda size: b" " * size),
    "YAML": (YAML, lambda size: b"- " * (size // 2)),
    "options": (f"{JSON}{';a=1' * (HEAD // 4)}", lambda size: b"{}"),
}
PIECES = 20_000
"""Chunks of one byte."""


def endpoints() -> dict[str, str]:
    """`POST /v1/messages` → its path in the table. Where two have the same path, the earlier one answers."""
    found: dict[str, str] = {}
    for path, methods in [*DIRECT.items(), *((path, m) for table in routes() for path, m in table.paths.items())]:
        found |= {f"{method} {path}": path for method in methods if f"{method} {path}" not in found}
    return found


ENDPOINTS = endpoints()


def once() -> list[str]:
    """ENDPOINTS, of several methods of a path with a body and the same handler only the first."""
    tables = [DIRECT, *(table.paths for table in routes())]
    found: dict[tuple[str, str, bool], str] = {}
    for key, path in ENDPOINTS.items():
        method = key.partition(" ")[0]
        handler = next(table[path][method] for table in tables if method in table.get(path, {}))
        found.setdefault((path, handler, method == "GET"), key)
    return [*found.values()]


@dataclass(frozen=True)
class Place:
    """An endpoint, and a target that exists."""

    method: str
    path: str
    parameters: dict[str, str]

    @property
    def pattern(self) -> str:
        return next(spellings(self.path))

    @property
    def target(self) -> str:
        return self.at(self.parameters)

    def at(self, parameters: dict[str, str]) -> str:
        return re.sub(r"\{(\w+)(:path)?\}", lambda match: parameters[match[1]], self.pattern)

    @property
    def endless(self) -> bool:
        return self.path.replace("[/]", "") in ENDLESS

    @property
    def row(self) -> Row:
        return ROWS.get(f"{self.method} {self.path}", Row())

    @property
    def has_body(self) -> bool:
        return self.method != "GET"


def heads(place: Place) -> Iterator[Case]:
    """Long and wide paths, queries and headers."""
    make = (lambda: b"{}") if place.has_body else None
    for name in place.parameters:
        for path in PATHS:
            yield Case(f"{name}: {path[:12]}…", place.at({**place.parameters, name: path}), make)
    for query in QUERIES:
        yield Case(f"?{query[:12]}…", f"{place.target}?{query}", make)
    for header in HEADERS:
        yield Case(f"{header[:12]}…", place.target, make, headers=header)


def bodies(place: Place, size: int) -> Iterator[Case]:
    """Bodies without an example, in each content type and in pieces."""
    for way in grown.WHOLE:
        yield Case(f"the body: {way.__name__}", place.target, partial(way, size))
    for name, (kind, make) in {**CONTENT_TYPES, **place.row.others}.items():
        yield Case(name, place.target, partial(make, size), kind)
    yield Case("pieces of a byte", place.target, _in_pieces, chunked=True)


def _in_pieces() -> bytes:
    return b"1\r\n[\r\n" * PIECES + b"0\r\n\r\n"


def valid(place: Place, size: int, *, all: bool) -> list[Case]:
    """The examples, each part grown: in all ways, or each in one."""
    found = place.row.grown(size)
    return [Case(each.name, place.target, each.make) for each in (found if all else by_part(found))]


_LONG = re.compile(r"\.(content|text|arguments|output|input|prompt|tool_choice|description)(\[0\])?: text").search


def long_texts(key: str, size: int) -> list[Grown]:
    """The examples, each with one text that may well be long: what was said, called, answered or declared."""
    found = [each for example in ROWS[key].examples for each in grown.grown(example, size) if _LONG(each.name)]
    assert found, key
    return found


def by_part(all: Iterable[Grown]) -> list[Grown]:
    """One way for each part: always the same, another one for the next part."""
    parts: dict[str, list[Grown]] = {}
    for each in all:
        parts.setdefault(each.name.partition(":")[0], []).append(each)
    return [ways[at % len(ways)] for at, ways in enumerate(parts.values())]


# What they are sent to


FITS = '{"city": "Rome"}'
"""Meets the examples' schema."""
MAX_ANSWERED = 1000
"""Vectors or scores: an answer that is larger than its question would count as memory of the question."""


async def engine(exchange: Exchange) -> None:
    """Answers what each endpoint asks of an engine."""
    path, asked = exchange.path, asked_of(exchange.body)
    if path.endswith("/embeddings"):
        count = len(asked["input"]) if isinstance(asked.get("input"), list) else 1
        data = [{"object": "embedding", "index": at, "embedding": [0.5]} for at in range(min(count, MAX_ANSWERED))]
        await exchange.whole(
            {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        )
    elif path.endswith("/rerank"):
        results = [{"index": at, "relevance_score": 0.5} for at in range(min(len(asked["documents"]), MAX_ANSWERED))]
        await exchange.whole({"results": results})
    elif path.endswith("/completions") and not path.endswith("/chat/completions"):
        choice = {"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}
        await exchange.whole({**completion(), "object": "text_completion", "choices": [choice]})
    elif isinstance(asked.get("tool_choice"), dict):
        call = {"id": "c9", "type": "function", "function": {"name": "f", "arguments": FITS}}
        await exchange.whole(completion(tool_calls=[call]))
    elif asked.get("response_format") and asked.get("stream"):
        await exchange.start()
        await exchange.event(chunk(FITS), chunk(reason="stop"))
        await exchange.end()
    elif asked.get("response_format"):
        await exchange.whole(completion(FITS))
    else:
        await polite(exchange)


@dataclass(frozen=True)
class Sent:
    """status: 0 if the gateway closed the connection without one. size: bytes of the request."""

    status: int
    answer: bytes
    size: int


@dataclass(frozen=True)
class Act:
    """What nobody else may have to wait for."""

    name: str
    do: Callable[[], Sent]


@dataclass
class House:
    """The gateway of all tests here, and what watches it."""

    gateway: Gateway
    upstream: Upstream
    watcher: Watcher
    sent: int = 0

    def place(self, key: str) -> Place:
        method, _, path = key.partition(" ")
        names = [name for name, _ in re.findall(r"\{(\w+)(:path)?\}", path)]
        parameters = {name: PARAMETERS.get(name, "") for name in names}
        if "id" in parameters:
            parameters["id"] = self.made(path)
        if "item" in parameters:
            items = self.gateway.ask("GET", f"/v1/conversations/{parameters['id']}/items").json
            parameters["item"] = items["data"][0]["id"]
        if path.startswith("/llm/factory"):
            parameters = dict.fromkeys(parameters, "reader")
        return Place(method, path, parameters)

    def made(self, path: str) -> str:
        """The id of a new thing of the kind that the path names."""
        for begin, target, body in (
            ("/llm/room", "/llm/room", {}),
            ("[/v1]/responses", "/v1/responses", {"model": "m", "input": "Hi"}),
            ("[/v1]/conversations", "/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]}),
            ("/llm/data", "/llm/data/place", {"city": "Rome"}),
        ):
            if path.startswith(begin):
                if begin == "/llm/data":  # what the suite has grown meanwhile has other fields
                    assert self.gateway.ask("PUT", "/llm/describe/place", {"schema": SCHEMA}).status == 200
                answer = self.gateway.ask("POST", target, body)
                assert answer.status < 300, (target, answer)
                return str(answer.json.get("id") or answer.json["data"]["id"])
        return "x"

    def send(self, place: Place, case: Case) -> Sent:
        self.sent += 1
        body = case.make() if case.make is not None else b""
        head = case.head(place.method, len(body))
        answer = exchange(self.gateway.port, head, body, LEAVE_SECONDS if place.endless else None)
        self.upstream.double.requests.clear()
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        return Sent(int(found[1]) if found else 0, answer, len(head) + len(body))

    def tried(self, acts: list[Act]) -> None:
        """Does all; those that were late or took memory again, one by one. Raises AssertionError."""
        suspects = self._suspects(acts)
        for _ in range(TRIES - 1):
            again = [act for act in acts if act.name in suspects]
            suspects = {}
            for act in again:
                suspects |= self._suspects([act])
        assert not suspects, suspects

    def _suspects(self, acts: list[Act]) -> dict[str, str]:
        """Name → what was wrong."""
        found: dict[str, str] = {}
        spans: list[tuple[float, str]] = []
        self.watcher.late()
        for act in acts:
            self.watcher.memory.begin()
            spans.append((time.monotonic(), act.name))
            sent = act.do()
            limit = GROWTH + 3 * sent.size
            if (grew := self.watcher.memory.peak() - self.watcher.memory.before) > limit:
                found[act.name] = f"memory grew by {grew} bytes, above {limit}"
            if sent.status == 500:
                found[act.name] = f"500: {sent.answer[-500:]!r}"
        ends = [*(began for began, _ in spans[1:]), time.monotonic()]
        for look in self.watcher.late():
            if look.later_than(LAG_SECONDS) or look.status != "HTTP/1.1 200 OK":
                for (began, name), ended in zip(spans, ends, strict=True):
                    if began < look.began + look.seconds + look.delay and ended > look.began:
                        found[name] = f"/health was late: {look}"
        return found


def exchange(port: int, head: bytes, body: bytes, leaves: float | None) -> bytes:
    """Sends all that the gateway takes, and reads until it closes the connection, or for `leaves` seconds."""
    answer: list[bytes] = []
    left = memoryview(head + body)
    ends = time.monotonic() + (PATIENCE if leaves is None else leaves)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one:
        one.setblocking(False)
        while True:
            wait = ends - time.monotonic()
            readable, writable, _ = select.select([one], [one] if left else [], [], max(wait, 0))
            if not readable and not writable:
                assert leaves is not None, (head[:200], "no answer")
                return b"".join(answer)
            try:
                if readable:
                    part = one.recv(2**20)
                    if not part:
                        return b"".join(answer)
                    answer.append(part)
                if writable:
                    left = left[one.send(left[: 2**20]) :]
            except BlockingIOError:
                continue
            except OSError:
                if not readable:
                    left = left[:0]  # it reads no more, but has answered
                    continue
                return b"".join(answer)
