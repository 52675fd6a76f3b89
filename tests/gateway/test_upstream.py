"""The hot path's HTTP client, against servers that do what real ones do and what broken ones do."""

from __future__ import annotations

import asyncio
import functools
import gc
import resource
import socket
import ssl
import subprocess
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends import Address
from gateway.engines.launch import listens
from gateway.errors import GatewayError, ProviderInvalidResponse, ProviderUnavailable
from gateway.upstream import (
    HIGH_WATER,
    LINGER_SECONDS,
    MAX_IDLE,
    SWEEP_SECONDS,
    NotConnected,
    Response,
    Upstream,
    reached_itself,
)
from tests.gateway.conftest import Clock
from tests.gateway.double import (
    STREAM_HEAD,
    Double,
    Exchange,
    Script,
    answers,
    chunked,
    endless,
    response,
    says,
    silence,
)
from tests.patience import PATIENCE
from tests.ports import reaching_themselves

OK = answers(b"{}")


@asynccontextmanager
async def engine(
    *scripts: Script, connect: float = 5.0, silence: float = 600.0
) -> AsyncIterator[tuple[Double, Upstream]]:
    async with asyncio.timeout(PATIENCE), Double(*scripts).serve() as double:
        upstream = Upstream(double.address, connect_timeout=connect, silence_timeout=silence)
        try:
            yield double, upstream
        finally:
            await upstream.aclose()


async def post(upstream: Upstream, body: bytes = b"{}") -> Response:
    return await upstream.request(upstream.head("POST", "/v1/chat/completions", []), body)


async def ask(upstream: Upstream, body: bytes = b"{}") -> bytes:
    return await (await post(upstream, body)).read()


async def test_a_request_as_it_is_sent() -> None:
    async with engine(OK) as (double, upstream):
        head = upstream.head("POST", "/v1/x?y=1", [("Authorization", "Bearer k"), ("X-Mine", "é")])
        answered = await upstream.request(head, b'{"a": 1}')
        assert (answered.status, await answered.read()) == (200, b"{}")
        assert answered.headers[b"content-type"] == b"application/json"
        [asked] = double.requests
        assert (asked.method, asked.path, asked.body) == ("POST", "/v1/x?y=1", b'{"a": 1}')
        assert asked.headers["host"] == f"127.0.0.1:{double.address.port}"
        assert asked.headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("address", "host", "shown"),
    [
        (Address("::1", 8080), b"Host: [::1]:8080", "http://[::1]:8080"),
        (Address.parse("http://[::1]/x"), b"Host: [::1]", "http://[::1]:80"),
        (Address("localhost", 80), b"Host: localhost", "http://localhost:80"),
        (Address(uds="/run/x"), b"Host: localhost", "unix:/run/x"),
    ],
    ids=["IPv6", "IPv6, the usual port", "the usual port", "a socket"],
)
async def test_the_host_as_it_is_named(address: Address, host: bytes, shown: str) -> None:
    assert Upstream(address).head("GET", "/", []).split(b"\r\n") == [b"GET / HTTP/1.1", host]
    assert str(address) == shown


@pytest.mark.parametrize("bad", ["a\nb", "a\r\nX-Injected: 1", "\r"])
async def test_a_header_that_would_be_two_is_refused(bad: str) -> None:
    upstream = Upstream(Address(port=1))
    with pytest.raises(ValueError, match="line break"):
        upstream.head("POST", "/", [("Authorization", bad)])
    with pytest.raises(ValueError, match="line break"):
        upstream.head("POST", f"/{bad}", [])


# Connections


async def test_a_connection_serves_many_requests() -> None:
    async with engine(OK) as (double, upstream):
        for _ in range(20):
            assert await ask(upstream) == b"{}"
        assert (len(double.requests), double.connections) == (20, 1)


async def test_requests_at_once_have_connections_of_their_own_which_are_kept_up_to_a_bound() -> None:
    count = MAX_IDLE + 8
    together = asyncio.Barrier(count)

    async def all_at_once(exchange: Exchange) -> None:
        await together.wait()
        await exchange.whole(b"{}")

    async with engine(all_at_once) as (double, upstream):
        await asyncio.gather(*(ask(upstream) for _ in range(count)))
        assert double.connections == count
        await double.count_open(MAX_IDLE)


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_kept_connection_that_the_engine_closed_is_replaced_unnoticed(ending: str) -> None:
    async with engine(OK) as (double, upstream):
        for count in range(1, 6):
            assert await ask(upstream) == b"{}"
            # The engine's end is closed; whether the gateway has seen that yet is up to the race.
            getattr(double.requests[-1], ending)()
            if count % 2:
                await double.requests[-1].gone
        assert double.connections == 5


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_request_on_a_kept_connection_that_closes_unanswered_is_sent_again(ending: str) -> None:
    async def hangs_up(exchange: Exchange) -> None:
        getattr(exchange, ending)()

    async with engine(OK, hangs_up, OK) as (double, upstream):
        await ask(upstream)
        assert await ask(upstream, b'{"n": 2}') == b"{}"
        assert [asked.body for asked in double.requests] == [b"{}", b'{"n": 2}', b'{"n": 2}']
        assert double.connections == 2


@pytest.mark.parametrize(
    "said", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", response(b"{}")[:-1]],
    ids=["one byte", "status line", "100 continue", "all but a byte"],
)  # fmt: skip
async def test_after_a_single_byte_nothing_is_sent_again(said: bytes) -> None:
    async with engine(OK, says(said, close=True), OK) as (double, upstream):
        await ask(upstream)
        with pytest.raises(ProviderUnavailable, match="went away in the middle of its answer") as lost:
            await ask(upstream)
        assert lost.value.status == 502
        assert len(double.requests) == 2
        assert await ask(upstream) == b"{}"


async def test_a_fresh_connection_that_closes_unanswered_is_an_error() -> None:
    async with engine(says(close=True)) as (double, upstream):
        with pytest.raises(ProviderUnavailable, match="went away before it answered") as lost:
            await ask(upstream)
        assert lost.value.status == 502
        assert len(double.requests) == 1


async def test_all_of_many_stale_connections_are_passed_over() -> None:
    together = asyncio.Barrier(8)

    async def all_at_once(exchange: Exchange) -> None:
        await together.wait()
        await exchange.whole(b"{}")

    async def hangs_up(exchange: Exchange) -> None:
        exchange.close()

    async with engine(*[all_at_once] * 8, *[hangs_up] * 8, OK) as (double, upstream):
        await asyncio.gather(*(ask(upstream) for _ in range(8)))
        assert await ask(upstream) == b"{}"
        assert (len(double.requests), double.connections) == (17, 9)


@pytest.mark.parametrize("header", [b"Connection: close\r\n", b"connection: Close\r\n"])
async def test_a_connection_that_is_to_be_closed_is_not_kept(header: bytes) -> None:
    async with engine(answers(b"{}", head=header)) as (double, upstream):
        assert await ask(upstream) == await ask(upstream) == b"{}"
        assert double.connections == 2


async def test_bytes_that_answer_nothing_end_the_connection() -> None:
    async with engine(says(response(b"{}") + response(b'{"second": 1}')), OK) as (double, upstream):
        assert await ask(upstream) == b"{}"
        assert await ask(upstream) == b"{}"
        assert double.connections == 2
    async with engine(OK) as (double, upstream):
        await ask(upstream)
        await double.requests[0].send(b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n")
        await double.requests[0].gone
        assert await ask(upstream) == b"{}"
        assert double.connections == 2


# What can't be reached


async def test_nobody_listens() -> None:
    async with engine(OK) as (double, _):
        address = double.address
    upstream = Upstream(address)
    with pytest.raises(ProviderUnavailable, match=r"nothing answers at http://127.0.0.1:\d+: Connect") as refused:
        await ask(upstream)
    assert refused.value.status == 503
    with pytest.raises(ProviderUnavailable, match="nothing answers at unix:/nowhere"):
        await ask(Upstream(Address(uds="/nowhere/ctxgate.sock")))
    with pytest.raises(ProviderUnavailable, match=r"nothing answers at http://no-such-host\.invalid"):
        await ask(Upstream(Address(host="no-such-host.invalid", port=80)))


async def unused(port: int) -> None:
    """Returns once a server may have the port. Fails if a connection ended in order, which keeps it for a minute."""
    async with asyncio.timeout(30):
        while True:
            with socket.socket() as server:
                try:
                    server.bind(("127.0.0.1", port))
                except OSError:
                    await asyncio.sleep(0)
                else:
                    return


async def test_a_connection_that_reached_itself_is_none() -> None:
    async with asyncio.timeout(PATIENCE), reaching_themselves() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1")
        assert await reader.readexactly(15) == b"POST / HTTP/1.1"
        assert reached_itself(writer.transport)
        await unused(port)
        with pytest.raises(NotConnected, match=r"nothing answers at .*: the connection reached itself"):
            await ask(Upstream(Address(port=port)))
        await unused(port)
        assert not await listens(Address(port=port))
        await unused(port)


async def test_a_server_that_takes_no_connection() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = []
        # Once its queue is full, Linux drops what else wants to connect.
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            waiting.append(one)
        upstream = Upstream(Address(port=address[1]), connect_timeout=0.2)
        with pytest.raises(ProviderUnavailable, match=r"accepted no connection within 0\.2 s"):
            await ask(upstream)
        for one in waiting:
            one.close()


async def test_after_aclose_nothing_is_asked() -> None:
    async with engine(OK) as (_, upstream):
        await ask(upstream)
        await upstream.aclose()
        with pytest.raises(ProviderUnavailable, match="closed"):
            await ask(upstream)


async def test_aclose_fails_what_only_connects() -> None:
    async with engine(OK) as (double, upstream):
        asking = asyncio.create_task(ask(upstream))
        await asyncio.sleep(0)
        await upstream.aclose()
        with pytest.raises(ProviderUnavailable, match="closed"):
            await asking
        await double.count_open(0)
        assert not double.requests


async def test_aclose_fails_what_is_in_flight() -> None:
    async with engine(endless) as (double, upstream):
        answered = await post(upstream)
        assert await answered.receive()
        reading = asyncio.create_task(answered.receive())
        await asyncio.sleep(0)
        await upstream.aclose()
        with pytest.raises(ProviderUnavailable):
            await reading
        await double.requests[0].gone


async def test_aclose_fails_what_a_slow_reader_has_not_read() -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.start()
        while not exchange.gone.done():
            await exchange.send(chunked(b"x" * 65536))

    async with engine(flood) as (double, upstream):
        answered = await post(upstream)
        asked = await double.asked()
        await unread(answered)
        await upstream.aclose()
        await asked.gone
        assert await answered.receive(), "what had come"
        with pytest.raises(ProviderUnavailable, match="in the middle"):
            await answered.receive()


# Bodies

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nContent-Length: 3\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HELLO = response(b"hello")

BODIES: dict[str, tuple[bytes, list[bytes], bool]] = {
    "with a length": (b"hello", [HELLO], False),
    "head and body apart": (b"hello", [HELLO[:-5], b"hello"], False),
    "head in pieces": (b"hello", [HELLO[i : i + 7] for i in range(0, len(HELLO), 7)], False),
    "chunked": (b"hello", [STREAM_HEAD, chunked(b"he"), chunked(b"llo"), b"0\r\n\r\n"], False),
    "chunked, all at once": (b"hello", [STREAM_HEAD + chunked(b"he") + chunked(b"llo") + b"0\r\n\r\n"], False),
    "chunked, extensions": (b"hello", [STREAM_HEAD, b"5;x=1\r\nhello\r\n0;y\r\n\r\n"], False),
    "chunked, trailers": (b"hello", [STREAM_HEAD, chunked(b"hello"), b"0\r\nX-Sum: 1\r\n\r\n"], False),
    "chunked, size in capitals and zeros": (b"0123456789", [STREAM_HEAD, b"00A\r\n0123456789\r\n0\r\n\r\n"], False),
    "to the end of the connection": (b"hello", [b"HTTP/1.0 200 OK\r\nContent-Type: x\r\n\r\nhe", b"llo"], True),
    "to the end of the connection, 1.1": (b"hello", [b"HTTP/1.1 200 OK\r\n\r\nhe", b"llo"], True),
    "1.0 with a length": (b"hello", [b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"], False),
    "empty, with a length": (b"", [response(b"")], False),
    "empty, chunked": (b"", [STREAM_HEAD + b"0\r\n\r\n"], False),
    "empty, to the end of the connection": (b"", [b"HTTP/1.0 200 OK\r\n\r\n"], True),
    "after 100 continue": (b"hello", [CONTINUE, HELLO], False),
    "after 100 continue, at once": (b"hello", [CONTINUE + HELLO], False),
    "after early hints": (b"hello", [HINTS, HELLO], False),
    "after two of them": (b"hello", [CONTINUE + HINTS, HELLO], False),
    "after early hints, to the end of the connection": (b"hello", [HINTS, b"HTTP/1.1 200 OK\r\n\r\nhello"], True),
}


@pytest.mark.parametrize(("body", "pieces", "close"), BODIES.values(), ids=BODIES.keys())
async def test_bodies(body: bytes, pieces: list[bytes], close: bool) -> None:
    async with engine(says(*pieces, close=close), OK) as (_, upstream):
        answered = await post(upstream)
        assert (answered.status, await answered.read()) == (200, body)
        assert answered.ended
        assert b"link" not in answered.headers
        assert await answered.receive() == b""
        assert await ask(upstream) == b"{}"


@settings(max_examples=40)
@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=5),
    st.lists(st.integers(0, 300), max_size=10),
    st.booleans(),
)
def test_a_chunked_body_in_any_split(parts: list[bytes], cuts: list[int], interim: bool) -> None:
    raw = (b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b"") + STREAM_HEAD
    raw += b"".join(map(chunked, parts)) + b"0\r\n\r\n"
    places = sorted({0, *(cut % len(raw) for cut in cuts), len(raw)})
    pieces = [raw[a:b] for a, b in pairwise(places)]

    async def run() -> None:
        async with engine(says(*pieces), OK) as (double, upstream):
            assert await ask(upstream) == b"".join(parts)
            assert await ask(upstream) == b"{}"
            assert double.connections == 1

    asyncio.run(run())


async def test_bytes_are_handed_out_as_they_come() -> None:
    told = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(chunked(b"one"))
        await told.wait()
        await exchange.send(chunked(b"two") + chunked(b"three"))
        await exchange.end(done=False)

    async with engine(script) as (_, upstream):
        answered = await post(upstream)
        assert await answered.receive() == b"one"
        told.set()
        assert await answered.read() == b"twothree"


BROKEN = {
    "no HTTP": b"hello there\r\n\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "a chunk size that is none": STREAM_HEAD + b"xyz\r\nhello\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a head with a bare line break in a value": b"HTTP/1.1 200 OK\r\nA: b\x00c\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nxx",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * 20_000,
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN.keys())
async def test_a_server_that_breaks_http(said: bytes) -> None:
    async with engine(says(said), OK) as (double, upstream):
        with pytest.raises(ProviderInvalidResponse, match="violated HTTP"):
            await ask(upstream)
        await double.requests[0].gone
        assert await ask(upstream) == b"{}"


@pytest.mark.parametrize(
    "said", [response(b"hello")[:-1], STREAM_HEAD + b"5\r\nhel", STREAM_HEAD + chunked(b"hello")],
    ids=["short of its length", "within a chunk", "before the last chunk"],
)  # fmt: skip
async def test_a_body_that_was_cut(said: bytes) -> None:
    """What had come is handed out first."""
    async with engine(says(said, close=True)) as (_, upstream):
        answered = await post(upstream)
        assert (await answered.receive()).startswith(b"hel")
        with pytest.raises(ProviderUnavailable, match="in the middle of its answer"):
            await answered.receive()
        with pytest.raises(ProviderUnavailable):
            await answered.receive()


async def test_a_body_above_the_limit() -> None:
    async with engine(answers(b"x" * 100_000), OK) as (_, upstream):
        answered = await post(upstream)
        with pytest.raises(ProviderInvalidResponse, match="exceeds 1000 bytes"):
            await answered.read(1000)
        assert await ask(upstream) == b"{}"


# Silence


async def test_an_engine_that_never_answers() -> None:
    async with engine(silence, silence=0.2) as (double, upstream):
        with pytest.raises(ProviderUnavailable, match=r"sent nothing for 0\.2 s") as silent:
            await ask(upstream)
        assert silent.value.status == 503
        await double.requests[0].gone


async def test_a_silent_engine_is_asked_once_on_a_kept_connection_too() -> None:
    async with engine(OK, silence, silence=0.2) as (double, upstream):
        await ask(upstream)
        with pytest.raises(ProviderUnavailable, match=r"sent nothing for 0\.2 s"):
            await ask(upstream)
        assert len(double.requests) == 2
        assert double.connections == 1


TRAILERS = {"many lines": b"X-More: and more\r\n", "a line without end": b"x" * 1000}


@pytest.mark.parametrize("piece", TRAILERS.values(), ids=TRAILERS.keys())
async def test_trailers_without_end(piece: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(chunked(b"hello") + b"0\r\nX-A: ")
        while not exchange.gone.done():
            await exchange.send(piece)
            await asyncio.sleep(0)

    async with engine(script, OK) as (_, upstream):
        answered = await post(upstream)
        with pytest.raises(ProviderInvalidResponse, match="the trailers exceed 65536 bytes"):
            await answered.read()
        assert b"x-more" not in answered.headers
        assert await ask(upstream) == b"{}"


async def test_chunk_sizes_that_come_alone_are_no_trailers() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for _ in range(20_000):
            await exchange.send(b"1\r\n")
            await asyncio.sleep(0)
            await exchange.send(b"x\r\n")
        await exchange.end(done=False)

    async with engine(script) as (_, upstream):
        assert await (await post(upstream)).read() == b"x" * 20_000


async def test_an_engine_that_falls_silent() -> None:
    async with engine(endless, silence=0.2) as (double, upstream):
        answered = await post(upstream)
        assert await answered.receive()
        with pytest.raises(ProviderUnavailable, match="sent nothing"):
            await answered.receive()
        await double.requests[0].gone


async def test_silence_that_begins_after_a_sweep_is_noticed_by_a_later_one(clock: Clock) -> None:
    async with engine(endless, silence=2.5) as (double, upstream):
        answered = await post(upstream)
        assert await answered.receive()
        reading = asyncio.ensure_future(answered.receive())
        for _ in range(2):
            await clock.goes_on(SWEEP_SECONDS)
            assert not reading.done()
        await clock.goes_on(SWEEP_SECONDS)
        with pytest.raises(ProviderUnavailable, match="sent nothing"):
            await reading
        await double.requests[0].gone


async def test_a_slow_engine_is_not_a_silent_one(clock: Clock) -> None:
    go = asyncio.Semaphore(0)

    async def slow(exchange: Exchange) -> None:
        await exchange.start()
        for _ in range(9):
            await go.acquire()
            await exchange.send(chunked(b"x"))
        await exchange.end(done=False)

    async with engine(slow, silence=1.0) as (_, upstream):
        answered = await post(upstream)
        for _ in range(9):
            await clock.goes_on(0.9)
            go.release()
            assert await answered.receive() == b"x"
        assert await answered.read() == b""


async def test_a_reader_that_lags_is_no_silence_of_the_engine(clock: Clock) -> None:
    async def much(exchange: Exchange) -> None:
        await exchange.start()
        for _ in range(64):
            await exchange.send(chunked(b"x" * 65536))
        await exchange.end(done=False)

    async with engine(much, silence=0.5) as (_, upstream):
        answered = await post(upstream)
        await unread(answered)
        for _ in range(3):
            await clock.goes_on(1.1)
        assert len(await answered.read()) == 64 * 65536


async def unread(answered: Response) -> None:
    """Returns once so much has come that no more is read."""
    while answered.buffered <= HIGH_WATER:  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0)


# Back-pressure


async def test_a_slow_reader_pauses_the_engine_and_memory_stays_bounded() -> None:
    sent = 0
    piece = chunked(b"x" * 65536)

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start()
        for _ in range(16 * 1024):  # 1 GB
            await exchange.send(piece)
            sent += 65536

    async with engine(flood) as (double, upstream):
        answered = await post(upstream)
        await answered.receive()
        stalled = -1
        while sent != stalled:
            stalled = sent
            await asyncio.sleep(0.2)
        # What the gateway holds, and what the kernel's two socket buffers do.
        assert answered.buffered <= HIGH_WATER + 256 * 1024, "the bound and one read"
        assert sent < 16 * 1024 * 1024
        # It goes on where it stopped.
        got = 0
        while got < 64 * 1024 * 1024:
            got += len(await answered.receive())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while got < 256 * 1024 * 1024:
            got += len(await answered.receive())
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
        answered.close()
        await double.requests[0].gone


async def test_the_connection_of_a_slow_reader_is_used_again() -> None:
    body = b"x" * (8 * HIGH_WATER)
    async with engine(answers(body)) as (double, upstream):
        for _ in range(3):
            answered = await post(upstream)
            got = 0
            while part := await answered.receive():
                got += len(part)
                await asyncio.sleep(0)
            assert got == len(body)
        assert double.connections == 1


# Ending


async def test_close_reaches_the_engine_at_once() -> None:
    async with engine(endless) as (double, upstream):
        for count in range(1, 51):
            answered = await post(upstream)
            await answered.receive()
            asked = await double.asked(count)
            answered.close()
            assert await asked.gone_at_once()
            answered.close()


async def test_cancel_before_the_answer_reaches_the_engine() -> None:
    async with engine(silence) as (double, upstream):
        asking = asyncio.create_task(post(upstream))
        asked = await double.asked()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await asked.gone_at_once()
        assert not upstream.busy


async def test_close_after_the_end_keeps_the_connection() -> None:
    async with engine(OK) as (double, upstream):
        for _ in range(3):
            answered = await post(upstream)
            await answered.read()
            answered.close()
        assert double.connections == 1


async def test_finish_waits_for_the_end_and_keeps_the_connection(clock: Clock) -> None:
    """The reader saw `[DONE]`; the last chunk comes after it."""
    released = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(chunked(b"data: [DONE]\n\n"))
        await released.wait()
        await exchange.send(b"0\r\n\r\n")

    async with engine(script, OK) as (double, upstream):
        answered = await post(upstream)
        await answered.receive()
        answered.finish()
        await clock.goes_on(LINGER_SECONDS - 0.1)
        released.set()
        while upstream.busy:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0)
        assert await ask(upstream) == b"{}"
        await clock.goes_on(1.0)
        assert await ask(upstream) == b"{}"
        assert double.connections == 1


async def test_finish_gives_up_on_an_end_that_does_not_come() -> None:
    async with engine(endless) as (double, upstream):
        answered = await post(upstream)
        await answered.receive()
        answered.finish()
        await double.requests[0].gone
        assert not upstream.busy


async def test_nothing_is_left_of_exchanges_that_ended() -> None:
    async with engine(OK, endless, says(b"H", close=True), OK) as (_, upstream):
        await ask(upstream)
        answered = await post(upstream)
        await answered.receive()
        answered.close()
        with pytest.raises(GatewayError):
            await ask(upstream)
        left = weakref.ref(answered) if hasattr(Response, "__weakref__") else None
        del answered
        gc.collect()
        assert not upstream.busy
        assert left is None or left() is None


# Other ways to reach one


async def test_a_unix_socket(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), Double(OK).serve(uds=tmp_path / "e.sock") as double:
        upstream = Upstream(double.address)
        assert await ask(upstream) == await ask(upstream) == b"{}"
        assert double.requests[0].headers["host"] == "localhost"
        assert double.connections == 1
        await upstream.aclose()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, with its key, in one file."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    # fmt: off
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
               "-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    # fmt: on
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    file.write_bytes(file.read_bytes() + file.with_suffix(".crt").read_bytes())
    return file


async def test_tls_is_verified(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    async with asyncio.timeout(PATIENCE), Double(OK).serve(ssl=server) as double:
        with pytest.raises(ProviderUnavailable, match="certificate"):
            await ask(Upstream(double.address))
        assert not double.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
        upstream = Upstream(double.address)
        assert await ask(upstream) == await ask(upstream) == b"{}"
        assert double.connections == 1
        await upstream.aclose()


# uvloop ends connections in its own way.

ON_UVLOOP: list[Callable[[], Coroutine[Any, Any, None]]] = [
    lambda: test_a_kept_connection_that_the_engine_closed_is_replaced_unnoticed("close"),
    lambda: test_a_kept_connection_that_the_engine_closed_is_replaced_unnoticed("reset"),
    lambda: test_a_request_on_a_kept_connection_that_closes_unanswered_is_sent_again("close"),
    lambda: test_a_request_on_a_kept_connection_that_closes_unanswered_is_sent_again("reset"),
    lambda: test_after_a_single_byte_nothing_is_sent_again(b"H"),
    test_a_fresh_connection_that_closes_unanswered_is_an_error,
    test_all_of_many_stale_connections_are_passed_over,
    test_bytes_that_answer_nothing_end_the_connection,
    test_nobody_listens,
    test_a_connection_that_reached_itself_is_none,
    test_a_server_that_takes_no_connection,
    test_aclose_fails_what_is_in_flight,
    test_aclose_fails_what_a_slow_reader_has_not_read,
    lambda: test_bodies(*BODIES["to the end of the connection"]),
    *(functools.partial(test_a_server_that_breaks_http, said) for said in BROKEN.values()),
    lambda: test_a_body_that_was_cut(STREAM_HEAD + b"5\r\nhel"),
    test_a_slow_reader_pauses_the_engine_and_memory_stays_bounded,
    test_the_connection_of_a_slow_reader_is_used_again,
    test_close_reaches_the_engine_at_once,
    test_cancel_before_the_answer_reaches_the_engine,
    test_finish_gives_up_on_an_end_that_does_not_come,
]


@pytest.mark.parametrize("test", ON_UVLOOP)
def test_on_uvloop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
