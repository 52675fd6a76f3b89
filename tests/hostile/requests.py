"""Generated hostile HTTP: raw bytes, and how to send them. The same seed makes the same requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

METHODS = (
    *(b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"SUBSCRIBE"),
    *(b"get", b"GE T", b"", b"\x00GET", b"G\xc3\x89T", b"A" * 5000),
)
PATHS = (
    *("/", "/health", "/ready", "/v1/", "/v1/models", "/v1/models/m", "/v1/models/m/ready", "/v1/chat/completions"),
    *("/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/x/input_items", "/v1/messages"),
    *("/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/api/chat", "/api/generate", "/api/show"),
    *("/api/tags", "/api/embed", "/metrics", "/openapi.json", "/-/status", "/-/requests", "/-/requests/1", "/-/plan"),
    *("/llm/room", "/llm/room/x", "/llm/room/x/messages", "/llm/room/x/history", "/api/user/secrets", "/nowhere"),
)
TARGETS = (
    *(b"*", b"", b"//", b"/../../etc/passwd", b"/%00", b"/%ff", b"/%", b"/%zz", b"/\xff\xfe", b"/a b", b"/?", b"/#x"),
    *(b"http://localhost/health", b"http://evil.example/v1/models", b"https://", b"http://[::1", b"localhost:4000"),
    *(b"/v1/models?limit=" + b"9" * 5000, b"/llm/room?limit=-1&offset=%ff", b"/" + b"x" * 20_000, b"/;/.//./health"),
    *(b"/v1/models/" + b"%2e%2e%2f" * 50, b"/\\", b"/v1/chat/completions?\x7f", b"?", b"/health\x00"),
)
BODIES = (
    *(
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b"\x00",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"1e999",
        b"[" * 20_000,
    ),
    *(b'{"messages":' + b'{"a":' * 3000, b'{"a":1,"a":2}', b'{"model":"\\ud800"}', b'{"messages":[{"role":"user"}]}'),
    *(b'{"model":null,"messages":[]}', b'{"messages":[{"role":"user","content":"Hi"}],"stream":"yes"}', b"9" * 5000),
    *(b'{"input":{}}', b'{"prompt":[[1]]}', b'{"model":"m","messages":"Hi"}', b'{"max_tokens":-1e400}'),
)
HEADERS = (
    *(b"Content-Type: text/plain", b"Content-Type: \xff", b"Content-Encoding: gzip", b"Expect: 100-continue"),
    *(b"Expect: 200-ok", b"Connection: close", b"Connection: upgrade", b"Connection: keep-alive, close"),
    *(b"Upgrade: h2c", b"Upgrade: websocket", b"Connection: Upgrade\r\nUpgrade: h2c", b"TE: trailers"),
    *(b"Origin: http://evil.example", b"Origin: null", b"Sec-Fetch-Site: cross-site", b"Origin: \xff", b"Host: evil"),
    *(b"Host: localhost", b"Authorization: Bearer x", b"Authorization: \x80", b"X-Api-Key: x", b"Accept: \x00"),
    *(b"Last-Event-ID: -1", b"Range: bytes=0-", b"X: " + b"y" * 9000, b"x" * 3000 + b": y", b": y", b"X", b" folded"),
    *(b"X : y", b"X\x00: y", b"X: a\nY: b", b"X: a\rY: b", b"Trailer: Host", b"Cookie: " + b"a=b; " * 1000),
    *(b"Access-Control-Request-Method: POST\r\nOrigin: http://evil.example", b"X-Forwarded-For: 127.0.0.1"),
)
LENGTHS = (
    *(b"-1", b"+2", b"0x2", b"2, 2", b"2,3", b" 2 ", b"", b"x", b"99999999999999999999", b"9223372036854775808"),
    *(b"1e3", b"2\r\nContent-Length: 3", b"2\r\nContent-Length: 2", b"2\r\nTransfer-Encoding: chunked", b"1000000"),
)
CODINGS = (
    *(b"chunked", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"identity", b"xchunked", b"chunked\x0b"),
    *(b"Chunked", b" chunked", b"chunked\r\nTransfer-Encoding: chunked", b"chunked\r\nContent-Length: 2"),
)
CHUNKS = (
    *(b"x\r\n", b"-1\r\n", b"2\r\n{}", b"2;a=b\r\n{}\r\n0\r\n\r\n", b"0\r\n", b"0\r\n\r\n", b"FFFFFFFFFFFFFFFFF\r\n"),
    *(
        b"2\n{}\n0\n\n",
        b"2\r\n{}X\r\n0\r\n\r\n",
        b"0\r\nHost: x\r\n\r\n",
        b"1;" + b"x" * 9000 + b"\r\n{\r\n",
        b"0 \r\n\r\n",
    ),
    *(b"0x2\r\n{}\r\n0\r\n\r\n", b"000000000002\r\n{}\r\n0\r\n\r\n", b"0\r\nX: " + b"y" * 9000 + b"\r\n\r\n", b""),
)
LINES = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b"HTTP/1.1 x", b"", b"HTTPS/1.1")
VALID = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Hostile:
    """pieces: what is sent, one after another. drip: with a moment between. end: what the client does then."""

    pieces: tuple[bytes, ...]
    drip: bool
    end: str


ENDS = ("read", "half-close", "close", "reset")


def generate(seed: int, count: int) -> Iterator[Hostile]:
    random = Random(seed)
    for _ in range(count):
        raw = b"".join(_request(random) for _ in range(random.choice((1, 1, 1, 2, 5, 40))))
        kind = random.random()
        if kind < 0.1:
            raw = _mutated(random, raw)
        elif kind < 0.15:
            raw = raw[: random.randrange(len(raw) + 1)]
        elif kind < 0.2:
            raw += random.choice((b"\x00", b"garbage\r\n\r\n", b"\r\n" * 500, random.randbytes(300), VALID * 30))
        elif kind < 0.22:
            raw = random.randbytes(random.randrange(1, 2000))
        drip = random.random() < 0.1
        cuts = sorted(random.randrange(len(raw) + 1) for _ in range(random.choice((0, 1, 3)) + 8 * drip))
        pieces = tuple(raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True))
        yield Hostile(pieces, drip, random.choice(ENDS))


def _request(random: Random) -> bytes:
    odd = random.random
    method = random.choice(METHODS if odd() < 0.3 else METHODS[:2])
    target = random.choice(TARGETS) if odd() < 0.3 else random.choice(PATHS).encode()
    line = random.choice(LINES) if odd() < 0.1 else b"HTTP/1.1"
    host = [] if odd() < 0.05 else [b"Host: localhost"]
    headers = [random.choice(HEADERS) for _ in range(random.choice((0, 0, 1, 2, 6)))]
    body = random.choice(BODIES) if odd() < 0.7 else _chat(random)
    how = odd()
    if how < 0.15:
        headers.append(b"Content-Length: " + random.choice(LENGTHS))
    elif how < 0.3:
        headers.append(b"Transfer-Encoding: " + random.choice(CODINGS))
        body = random.choice(CHUNKS)
    elif method != b"GET":
        headers.append(b"Content-Length: %d" % len(body))
    elif odd() < 0.9:
        body = b""
    if odd() < 0.02:
        headers += [b"X-%d: y" % at for at in range(random.choice((200, 5000)))]
    random.shuffle(headers)
    end = b"\n" if odd() < 0.03 else b"\r\n"
    return end.join((b" ".join((method, target, line)), *host, *headers, b"", b"")) + body


def _chat(random: Random) -> bytes:
    """What an API takes, nearly."""
    values: tuple[Any, ...] = (
        None,
        True,
        0,
        -1,
        1.5,
        1e308,
        "",
        "x",
        "\ud7ff",
        [],
        {},
        [None],
        {"a": {}},
        10**30,
        ["x"] * 100,
    )
    fields = ("model", "messages", "stream", "input", "prompt", "tools", "tool_choice", "max_tokens", "stop", "n", "id")
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "model": "m"}
    body |= {random.choice(fields): random.choice(values) for _ in range(random.choice((0, 1, 3)))}
    return json.dumps(body).encode()


def _mutated(random: Random, raw: bytes) -> bytes:
    found = bytearray(raw)
    for _ in range(random.choice((1, 3, 10))):
        if found:
            at = random.randrange(len(found))
            found[at : at + random.choice((0, 1, 1, 5))] = random.randbytes(random.choice((0, 1, 1, 3)))
    return bytes(found)
