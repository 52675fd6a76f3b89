"""The API over HTTP. Everything about chat holds on the fast protocol and on plain ASGI alike."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from functools import cache
from itertools import product
from typing import Any

import httpx
import openai
import pytest

from gateway.app import IDLE_SECONDS
from gateway.errors import CATEGORIES, Category, GatewayError
from gateway.server.fast_protocol import MAX_HEAD
from tests.gateway.accumulator import from_stream, from_whole
from tests.gateway.backend import RUNTIME
from tests.gateway.client import chat, request
from tests.gateway.double import (
    STREAM_HEAD,
    Exchange,
    Script,
    answers,
    chunk,
    chunked,
    completion,
    endless,
    says,
    silence,
    streams,
)
from tests.gateway.running import Running, running
from tests.patience import PATIENCE

HELLO = streams(chunk("", role="assistant"), chunk("Hel"), chunk("lo"), chunk(reason="stop"))


async def test_a_whole_answer(http: str) -> None:
    async with running(answers(), http=http) as gateway:
        answer = await gateway.ask(chat(x_mine=[1, 2]))
        assert (answer.status, answer.version) == (200, "HTTP/1.1")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json == completion()
        [asked] = gateway.engine.requests
        assert asked.json == {**chat(x_mine=[1, 2]), "model": "m"}
        assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")


async def test_a_streamed_answer(http: str) -> None:
    async with running(HELLO, http=http) as gateway:
        answer = await gateway.ask(chat(stream=True))
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        *payloads, done = answer.events
        assert done == b"[DONE]"
        assert from_stream(payloads)[0].content == "Hello"


async def test_each_chunk_is_sent_as_it_comes(http: str) -> None:
    told = asyncio.Queue[str | None]()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        while text := await told.get():
            await exchange.event(chunk(text))
        await exchange.event(chunk(reason="stop"))
        await exchange.end()

    async with running(script, http=http) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        for text in ("one", "two", "three"):
            told.put_nowait(text)
            if text == "one":
                await client.head()
            assert json.loads((await client.part()).removeprefix(b"data: "))["choices"][0]["delta"]["content"] == text
        told.put_nowait(None)
        rest = b"".join([part async for part in client.parts()])
        assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("each", [False, True], ids=["in one part", "each in a part of its own"])
async def test_chunks_that_come_together_go_together(http: str, each: bool) -> None:
    seen = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        events = [b"data: %b\n\n" % json.dumps(chunk(str(at))).encode() for at in range(10)]
        await exchange.start()
        await exchange.event(chunk("first"))
        await seen.wait()  # so that the gateway waits for more
        await exchange.send(b"".join(map(chunked, events)) if each else chunked(b"".join(events)))
        await exchange.gone

    async with running(script, http=http) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        await client.head()
        assert (await client.part()).count(b"data: ") == 1
        seen.set()
        assert (await client.part()).count(b"data: ") == 10


async def test_the_connection_is_kept(http: str) -> None:
    async with running(answers(), HELLO, answers(), http=http) as gateway, await gateway.connect() as client:
        assert (await client.ask(chat())).status == 200
        assert (await client.ask(chat(stream=True))).events[-1] == b"[DONE]"
        assert (await client.ask(chat(), "/v1/nowhere")).status == 404
        assert (await client.ask(b"{")).status == 400
        assert (await client.ask(chat())).status == 200
        assert gateway.engine.connections == 1


async def test_a_connection_is_closed_that_nobody_uses(http: str) -> None:
    idle = 3

    async def longer(exchange: Exchange) -> None:
        await exchange.start()
        await asyncio.sleep(1.2 * idle)
        await exchange.event(chunk("late", reason="stop"))
        await exchange.end()

    scripts = answers(), longer, answers()
    async with running(*scripts, http=http, idle=idle) as gateway, await gateway.connect() as client:
        assert (await client.ask(chat())).status == 200
        assert (await client.ask(chat(stream=True))).events[-1] == b"[DONE]"
        assert (await client.ask(chat())).status == 200
        assert await client.closed()


def test_clients_close_unused_connections_first() -> None:
    """Else a request may cross with the close, and is lost."""
    for limits in (httpx.Limits(), openai.DEFAULT_CONNECTION_LIMITS):
        assert limits.keepalive_expiry is not None
        assert 2 * limits.keepalive_expiry < IDLE_SECONDS


# Errors

RETRY: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "plain": ({}, {}, None),
    "retry at once": ({"retry_after": 0.2}, {}, "1"),
    "retry later": ({"retry_after": 29.6}, {}, "30"),
    "in words of its own": (
        {"code": "mine", "param": "messages[0]", "status": 418, "details": {"n_ctx": 7}},
        {"code": "mine", "param": "messages[0]", "n_ctx": 7},
        None,
    ),
}


def shape(error: dict[str, Any], category: Category) -> None:
    row = CATEGORIES[category]
    assert list(error)[:5] == ["message", "type", "code", "param", "category"]
    assert error["category"] == category
    assert error["type"] == row.type


@pytest.mark.parametrize(("arguments", "fields", "retry"), RETRY.values(), ids=RETRY.keys())
async def test_every_row_of_the_error_table(
    http: str, arguments: dict[str, Any], fields: dict[str, Any], retry: str | None, subtests: pytest.Subtests
) -> None:
    async with running(http=http, runtime=RUNTIME, base_url=None) as gateway, await gateway.connect() as client:
        for (category, row), at, stream in product(CATEGORIES.items(), ("open", "first"), (False, True)):
            with subtests.test(category, at=at, stream=stream):
                answer = await client.ask(chat(stream=stream, fail={"with": category, "at": at, **arguments}))
                assert answer.status == arguments.get("status", row.default_status)
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers.get("retry-after") == retry
                shape(answer.error, category)
                expected = {"message": "told to fail", "code": row.default_code, "param": None, **fields}
                assert answer.error.items() >= expected.items()


async def test_an_error_after_the_first_chunk_is_a_frame_and_then_the_end(http: str, subtests: pytest.Subtests) -> None:
    async with running(http=http, runtime=RUNTIME, base_url=None) as gateway, await gateway.connect() as client:
        for category in CATEGORIES:
            with subtests.test(category):
                answer = await client.ask(chat(stream=True, fail={"with": category, "at": "later"}))
                assert answer.status == 200
                first, frame, done = answer.events
                assert json.loads(first) == chunk("Hello", role="assistant")
                shape(json.loads(frame)["error"], category)
                assert done == b"[DONE]"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("at", ["open", "first", "later"])
async def test_a_bug_is_a_500_that_tells_nothing(
    http: str, at: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if at == "later" and not stream:
        pytest.skip("a whole answer has no later")
    async with running(http=http, runtime=RUNTIME, base_url=None) as gateway, await gateway.connect() as client:
        answer = await client.ask(chat(stream=stream, fail={"with": "bug", "at": at}))
        if at == "later":
            assert answer.events[-1] == b"[DONE]"
            error = json.loads(answer.events[-2])["error"]
        else:
            assert answer.status == 500
            error = answer.error
        shape(error, "internal_error")
        assert b"secret" not in answer.body
        assert "secret: 42" in caplog.text
        assert (await client.ask(chat(), "/v1/models")).status == 405


ENGINE_SAYS: dict[str, tuple[int, Any, Category, int]] = {
    "400": (400, {"error": {"message": "bad", "code": "x"}}, "provider_invalid_request", 400),
    "401": (401, {"error": {"message": "key"}}, "provider_authentication", 401),
    "403": (403, {"detail": "no"}, "provider_authentication", 401),
    "404": (404, {"error": "model 'x' not found"}, "provider_invalid_model", 404),
    "413": (413, b"too large", "provider_invalid_request", 400),
    "422": (422, {"detail": [{"loc": ["body"]}]}, "provider_invalid_request", 400),
    "429": (429, {"error": {"message": "slow down"}}, "provider_rate_limit", 429),
    "500": (500, b"<html>oops</html>", "provider_unavailable", 502),
    "502": (502, b"", "provider_unavailable", 502),
    "503": (503, {"error": {"message": "busy"}}, "provider_unavailable", 502),
    "503 loading": (503, {"error": {"message": "Loading model"}}, "provider_model_not_loaded", 503),
    "redirect": (302, b"", "provider_invalid_response", 502),
    "204": (204, b"", "provider_invalid_response", 502),
    "200, no JSON": (200, b"<html>", "provider_invalid_response", 502),
    "200, empty": (200, b"", "provider_invalid_response", 502),
    "200, an error": (200, {"error": {"message": "slot failed"}}, "provider_unavailable", 502),
    "200, no choices": (200, {"choices": []}, "provider_invalid_response", 502),
}


def by_name(scripts: dict[str, Script]) -> Script:
    """A script: the one that the prompt names."""

    async def script(exchange: Exchange) -> None:
        await scripts[exchange.json["messages"][0]["content"]](exchange)

    return script


async def test_what_an_engine_refuses(http: str, subtests: pytest.Subtests) -> None:
    scripts = {name: answers(body, status) for name, (status, body, _, _) in ENGINE_SAYS.items()}
    async with running(by_name(scripts), http=http) as gateway, await gateway.connect() as client:
        for name, (status, _, category, expected) in ENGINE_SAYS.items():
            with subtests.test(name):
                answer = await client.ask(chat(name))
                assert answer.status == expected
                shape(answer.error, category)
                if status >= 300:
                    streamed = await client.ask(chat(name, stream=True))
                    assert (streamed.status, streamed.error) == (expected, answer.error)


async def test_the_engines_own_retry_after_reaches_the_client(http: str) -> None:
    scripts = {
        "429": answers({"error": {"message": "slow down"}}, 429, head=b"Retry-After: 17\r\n"),
        "503": answers({"error": {"message": "busy"}}, 503, head=b"Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n"),
        "400": answers({"error": {"message": "bad"}}, 400, head=b"Retry-After: 17\r\n"),
        "500": answers({"error": {"message": "oops"}}, 500, head=b"Retry-After: soon\r\n"),
    }
    async with running(by_name(scripts), http=http) as gateway, await gateway.connect() as client:
        for name, expected in {"429": "17", "503": "1", "400": None, "500": None}.items():
            assert (await client.ask(chat(name))).headers.get("retry-after") == expected


STREAM_SAYS: dict[str, tuple[Script, int, Category]] = {
    "nothing": (streams(done=False), 0, "provider_invalid_response"),
    "only [DONE]": (streams(), 0, "provider_invalid_response"),
    "no events": (says(STREAM_HEAD + chunked(b"hello\n\n") + b"0\r\n\r\n"), 0, "provider_invalid_response"),
    "a whole answer": (answers(), 0, "provider_invalid_response"),
    "an error first": (streams({"error": {"message": "no slot"}}), 0, "provider_unavailable"),
    "malformed first": (streams(b"{oops"), 0, "provider_invalid_response"),
    "an error later": (streams(chunk("Hello"), {"error": {"message": "no slot"}}), 1, "provider_unavailable"),
    "malformed later": (streams(chunk("Hello"), b"{oops"), 1, "provider_invalid_response"),
    "no finish_reason, no [DONE]": (streams(chunk("Hello"), done=False), 1, "provider_unavailable"),
    "a thought, no [DONE]": (streams(chunk(reasoning_content="hm"), done=False), 1, "provider_unavailable"),
    "the connection ends": (
        says(STREAM_HEAD + chunked(b"data: " + json.dumps(chunk("Hello")).encode() + b"\n\n"), close=True),
        1,
        "provider_unavailable",
    ),
    "broken HTTP": (
        says(STREAM_HEAD + chunked(b"data: " + json.dumps(chunk("Hello")).encode() + b"\n\n"), b"zzz\r\n"),
        1,
        "provider_invalid_response",
    ),
}


async def test_a_stream_that_goes_wrong(http: str, subtests: pytest.Subtests) -> None:
    """Before the first chunk a status, after it a frame; the connection serves on."""
    scripts = {name: script for name, (script, _, _) in STREAM_SAYS.items()} | {"Hi": answers()}
    async with running(by_name(scripts), http=http) as gateway, await gateway.connect() as client:
        for name, (_, before, category) in STREAM_SAYS.items():
            with subtests.test(name):
                answer = await client.ask(chat(name, stream=True))
                if before:
                    assert answer.status == 200
                    *chunks, frame, done = answer.events
                    assert len(chunks) == before
                    assert done == b"[DONE]"
                    shape(json.loads(frame)["error"], category)
                else:
                    assert answer.status == 502
                    shape(answer.error, category)
                assert (await client.ask(chat())).status == 200


async def test_chunks_that_came_with_an_error_are_sent_before_it(http: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("Hel"), chunk("lo"), {"error": {"message": "no slot"}})
        await exchange.gone  # it says nothing more, not even the end

    async with running(script, http=http) as gateway:
        *chunks, frame, done = (await gateway.ask(chat(stream=True))).events
        assert [json.loads(c)["choices"][0]["delta"]["content"] for c in chunks] == ["Hel", "lo"]
        assert b"no slot" in frame
        assert done == b"[DONE]"


async def test_a_second_done_is_nothing(http: str) -> None:
    said = chunk("Hi", role="assistant"), chunk(reason="stop")

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(*said, b"[DONE]", b"[DONE]")
        await exchange.end(done=False)

    async with running(script, http=http) as gateway, await gateway.connect() as client:
        for _ in range(2):
            answer = await client.ask(chat(stream=True))
            assert [json.loads(e) for e in answer.events[:-1]] == [*said]
            assert answer.events[-1] == b"[DONE]"


async def test_a_missing_finish_reason_is_added(http: str) -> None:
    async with running(streams(chunk("Hi")), http=http) as gateway:
        *payloads, done = (await gateway.ask(chat(stream=True))).events
        assert from_stream(payloads)[0].reason == "stop"
        assert done == b"[DONE]"


# Keys


KEYS = {
    "none": ("", 401),
    "wrong": ("Authorization: Bearer wrong\r\n", 401),
    "empty": ("Authorization: Bearer \r\n", 401),
    "no key": ("Authorization: Bearer\r\n", 401),
    "no scheme": ("Authorization: one\r\n", 401),
    "another scheme": ("Authorization: Basic one\r\n", 401),
    "longer": ("Authorization: Bearer onetwo\r\n", 401),
    "right": ("Authorization: Bearer one\r\n", 200),
    "small letters": ("authorization: bearer one\r\n", 200),
    "not ASCII": ("Authorization: Bearer zwei-ü\r\n", 200),
    "spaces": ("Authorization: Bearer  one \r\n", 200),
}


async def test_keys(http: str, subtests: pytest.Subtests) -> None:
    async with running(answers(), http=http, keys=("one", "zwei-ü")) as gateway, await gateway.connect() as client:
        for name, (header, status) in KEYS.items():
            with subtests.test(name):
                before = len(gateway.engine.requests)
                answer = await client.ask(chat(), head=header)
                assert answer.status == status
                assert len(gateway.engine.requests) - before == (status == 200)
                if status == 401:
                    shape(answer.error, "provider_authentication")
                    assert "one" not in answer.error["message"]
                await client.send(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
                assert (await client.answer()).status == status
                await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await client.answer()).status == 200


async def test_the_key_of_the_gateway_is_not_told_to_the_engine(http: str) -> None:
    async with running(answers(), http=http, keys=("one",)) as gateway:
        assert (await gateway.ask(chat(), head="Authorization: Bearer one\r\n")).status == 200
        assert "authorization" not in gateway.engine.requests[0].headers


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key by `hmac.compare_digest`, over digests of one length."""
    import hmac

    from pydantic import SecretStr

    from gateway.api.entry import API
    from gateway.config import Config, Model, Server
    from gateway.core import Gateway
    from gateway.services import Services

    seen: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        seen.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = tuple(map(SecretStr, ("a", "a-much-longer-key", "third")))
    from pathlib import Path

    config = Config(
        source=Path("x"), active_model="e", models={"e": Model(name="e", runtime="echo")}, server=Server(api_keys=keys)
    )
    api = API(Services(Gateway(config)))
    api.authenticate([(b"authorization", b"Bearer a")])
    assert seen == [(32, 32)] * 3
    with pytest.raises(GatewayError):
        api.authenticate([(b"authorization", b"Bearer b")])
    assert seen == [(32, 32)] * 3 + [(1, 1)] + [(32, 32)] * 3, "the key that was valid last is compared as it is"


@pytest.mark.parametrize("size", [200, 200_000, 4_000_000])
async def test_a_refusal_is_read_by_a_client_that_is_still_sending(http: str, size: int) -> None:
    """401, 413: the connection must not be reset under the answer."""
    body = json.dumps(chat("x" * size)).encode()
    async with running(answers(), http=http, keys=("one",)) as gateway:
        for _ in range(5):
            async with await gateway.connect() as client:
                client.writer.write(request(body))
                assert (await client.answer()).status == 401
    async with running(answers(), http=http, max_body=100) as gateway:
        for _ in range(5):
            async with await gateway.connect() as client:
                client.writer.write(request(body))
                assert (await client.answer()).status == 413


EARLY = [
    ("POST", "/v1/chat/completions", 401),
    ("POST", "/v1/responses", 401),
    ("POST", "/v1/messages", 401),
    ("POST", "/api/pull", 401),
    ("DELETE", "/api/delete", 401),
    ("POST", "/v1/files", 401),
    ("PUT", "/nothing", 401),
    ("GET", "/health", 200),
    ("POST", "/health", 405),
]


@pytest.mark.parametrize(("method", "path", "status"), EARLY)
async def test_an_answer_before_the_body_has_come_ends_the_connection(method: str, path: str, status: int) -> None:
    """And says so: a client that keeps the connection would lose its next request."""
    whole = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n{{}}  ".encode()
    async with running(answers(), keys=("one",)) as gateway:
        for cut in (4, 1):
            async with await gateway.connect() as client:
                await client.send(whole[:-cut])
                answer = await client.answer()
                assert (answer.status, answer.headers.get("connection")) == (status, "close")
                await client.send(whole[-cut:])
                assert await client.reader.read() == b""
        async with await gateway.connect() as client:
            for _ in range(2):
                await client.send(whole)
                answer = await client.answer()
                assert (answer.status, "connection" in answer.headers) == (status, False)


HOST = b" HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "half",
    [
        b"POST /v1/responses" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"POST /v1/files" + HOST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n",
        b"POST /v1/messages" + HOST + b"Connection: close\r\nContent-Length: 4\r\n\r\n",
        b"POST /v1/messages HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\n",
    ],
    ids=["chunked", "100-continue", "close", "HTTP/1.0"],
)
async def test_half_a_request_behind_whole_ones_ends_the_connection(half: bytes) -> None:
    async with running(answers(), keys=("one",)) as gateway, await gateway.connect() as client:
        await client.send(2 * (b"GET /health" + HOST + b"\r\n") + half)
        for _ in range(2):
            assert "connection" not in (await client.answer()).headers
        async with asyncio.timeout(PATIENCE):
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert b" 401 " in head
        assert head.lower().count(b"connection: close") == 1


async def test_a_body_that_never_comes_is_not_waited_for_for_ever(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.bodies.BODY_SECONDS", 0.2)
    body = json.dumps(chat()).encode()
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        client.writer.write(request(body)[:-5])
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert gateway.engine.requests == []


HALF_A_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


async def test_a_head_without_end_is_refused() -> None:
    async with running(answers()) as gateway, await gateway.connect() as client:
        await client.send(HALF_A_HEAD)
        head = asyncio.create_task(client.head())
        sent = 0
        # What comes in the first read isn't counted.
        while not head.done() and sent < 2**20:
            client.writer.write(b"X-More: " + b"x" * 4000 + b"\r\n")
            sent += 4000
            await asyncio.wait({head}, timeout=0.02)
        assert (await head)[1] == 431
        assert sent > MAX_HEAD


async def test_half_a_head_behind_a_large_body_is_none_that_is_too_large() -> None:
    body = json.dumps(chat("x" * 2 * MAX_HEAD)).encode()
    whole = request(body)
    async with running(answers()) as gateway, await gateway.connect() as client:
        await client.send(whole + whole[:9])
        await client.send(whole[9:])
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("said", [b"", HALF_A_HEAD], ids=["nothing", "half a head"])
async def test_a_head_that_never_comes_is_not_waited_for_for_ever(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.fast_protocol.HEAD_SECONDS", 0.1)

    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)  # several looks long
        await exchange.whole(completion())

    async with running(slow) as gateway, await gateway.connect() as client:
        assert (await gateway.ask(chat())).status == 200, "who has asked is let alone"
        await client.send(said)
        async with asyncio.timeout(PATIENCE):
            assert await client.reader.read() == b""


async def test_the_list_of_models_with_a_slash_behind_it(http: str) -> None:
    async with running(http=http) as gateway, await gateway.connect() as client:
        await client.send(b"GET /v1/models/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.answer()).json["object"] == "list"


# Paths and methods


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/v1/chat/completions?api-version=1"])
async def test_the_base_url_with_and_without_v1(http: str, path: str) -> None:
    async with running(answers(), HELLO, http=http) as gateway, await gateway.connect() as client:
        assert (await client.ask(chat(), path)).json == completion()
        assert (await client.ask(chat(stream=True), path)).events[-1] == b"[DONE]"


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_models_from_config_alone(http: str, prefix: str) -> None:
    async with running(silence, http=http, context_window=4096, tool_call_format="pythonic") as gateway:
        async with await gateway.connect() as client:
            await client.send(f"GET {prefix}/models HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            listed = (await client.answer()).json
            assert listed["object"] == "list"
            assert [model["id"] for model in listed["data"]] == ["m", "echo"]
            first = listed["data"][0]
            assert first.items() >= {"object": "model", "owned_by": "openai", "active": True}.items()
            assert first.items() >= {"context_window": 4096, "tool_call_format": "pythonic"}.items()
            assert isinstance(first["created"], int)
            for name, found in (("m", first), ("default", first), ("echo", listed["data"][1])):
                await client.send(f"GET {prefix}/models/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert (await client.answer()).json == found
            await client.send(f"GET {prefix}/models/nobody HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            missing = await client.answer()
            assert missing.status == 404
            shape(missing.error, "provider_invalid_model")
        assert not gateway.engine.connections, "no engine is asked"


NOT_THERE: dict[str, tuple[int, str, str | None]] = {
    "GET /v1/chat/completions": (405, "method_not_allowed", "POST"),
    "DELETE /chat/completions": (405, "method_not_allowed", "POST"),
    "POST /v1/models": (405, "method_not_allowed", "GET"),
    "POST /": (405, "method_not_allowed", "GET"),
    "GET /v1": (404, "not_found", None),
    "GET /v1/nowhere": (404, "not_found", None),
    "POST /v1/chat/completions/": (404, "not_found", None),
    "POST /v1/v1/chat/completions": (404, "not_found", None),
    "GET /v1/models/../../etc/passwd": (404, "model_not_found", None),
    "GET /%ff": (404, "not_found", None),
}


async def test_what_is_not_there(http: str, subtests: pytest.Subtests) -> None:
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        for line, (status, code, allow) in NOT_THERE.items():
            with subtests.test(line):
                await client.send(f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
                answer = await client.answer()
                assert (answer.status, answer.error["code"]) == (status, code)
                assert answer.error["type"] == "invalid_request_error"
                if allow:
                    assert allow in answer.headers["allow"].split(", ")


async def test_head(http: str) -> None:
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        for path, status in (("/health", 200), ("/v1/models", 200), ("/v1/chat/completions", 405), ("/x", 404)):
            await client.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = await client.answer(bodyless=True)
            assert answer.status == status
            assert int(answer.headers["content-length"]) > 0


async def test_health(http: str) -> None:
    async with running(silence, http=http) as gateway, await gateway.connect() as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.json["status"], answer.json["active_model"]) == (200, "ok", "m")


# Models


@pytest.mark.parametrize("name", [None, "", "default", "m"])
async def test_the_active_model(http: str, name: str | None) -> None:
    async with running(answers(), http=http, model_name="Upstream/Name") as gateway:
        assert (await gateway.ask(chat(model=name))).status == 200
        assert (await gateway.ask(chat())).status == 200
        assert [asked.json["model"] for asked in gateway.engine.requests] == ["Upstream/Name"] * 2


async def test_another_model_by_name(http: str) -> None:
    async with running(http=http) as gateway:
        answer = await gateway.ask(chat("say this", model="echo"))
        assert from_whole(answer.body)[0].content == "say this"
        assert not gateway.engine.connections


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model(http: str, stream: bool) -> None:
    async with running(answers(), http=http) as gateway:
        answer = await gateway.ask(chat(model="gpt-4o", stream=stream))
        assert answer.status == 404
        shape(answer.error, "provider_invalid_model")
        assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
        assert "gpt-4o" in answer.error["message"]
        assert "m, echo" in answer.error["message"]


async def test_defaults_of_the_model_fill_what_the_caller_left_out(http: str) -> None:
    defaults = {"temperature": 0.5, "max_tokens": 7}
    async with running(answers(), http=http, defaults=defaults) as gateway, await gateway.connect() as client:
        for fields in ({}, {"temperature": 0.1}, {"max_tokens": 3}, {"max_completion_tokens": 3}):
            assert (await client.ask(chat(**fields))).status == 200
        sent = [
            {k: v for k, v in asked.json.items() if k not in ("messages", "model")} for asked in gateway.engine.requests
        ]
        assert sent == [
            defaults,
            {"temperature": 0.1, "max_tokens": 7},
            {"temperature": 0.5, "max_tokens": 3},
            {"temperature": 0.5, "max_completion_tokens": 3},
        ]


# Bodies

BAD: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", None),
    "no JSON": (b"hello", None),
    "a list": (b"[]", None),
    "wrong type": (b'{"messages":[{"role":"user"}],"temperature":"hot"}', "temperature"),
    "no messages": (b"{}", "messages"),
    "too deep": (b'{"x":' + b"[" * 10_000, None),
    "a lone surrogate": (b'{"messages":[{"role":"user","content":"\\ud800"}]}', None),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD.keys())
async def test_a_bad_body(http: str, body: bytes, param: str | None) -> None:
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        for _ in range(2):
            answer = await client.ask(body)
            assert answer.status == 400
            shape(answer.error, "provider_invalid_request")
            assert answer.error["param"] == param
        assert not gateway.engine.requests


@cache
def plain_and_compressed(numbers: int) -> tuple[bytes, bytes]:
    plain = json.dumps(chat("".join(map(str, range(numbers))))).encode()
    return plain, gzip.compress(plain, 1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/llm/room"])
@pytest.mark.parametrize("numbers", [10, 300_000])
async def test_a_compressed_body_is_told_as_such(http: str, path: str, numbers: int) -> None:
    plain, compressed = plain_and_compressed(numbers)
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        answer = await client.ask(compressed, path, "Content-Encoding: gzip\r\n")
        assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
        assert b"Content-Encoding: gzip: send the body uncompressed" in answer.body
        if path.startswith("/v1/"):
            assert answer.error["type"] == "invalid_request_error"
        assert not gateway.engine.requests
    async with running(answers(), http=http) as gateway:
        assert (await gateway.ask(plain, head="Content-Encoding: identity\r\n")).status == 200


def in_chunks(body: bytes, size: int) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(chunked(body[i : i + size]) for i in range(0, len(body), size)) + b"0\r\n\r\n"


@pytest.mark.parametrize("form", ["length", "chunked"])
async def test_a_body_at_the_limit_and_above(http: str, form: str) -> None:
    body = json.dumps(chat("x" * 300_000)).encode()
    async with running(answers(), http=http, max_body=len(body)) as gateway:
        for content, status in ((body, 200), (body[:-1] + b" }", 413), (body + b" " * 500_000, 413), (body, 200)):
            async with await gateway.connect() as client:
                client.writer.write(request(content) if form == "length" else in_chunks(content, 9_000))
                answer = await client.answer()
                assert answer.status == status
                if status == 413:
                    shape(answer.error, "provider_invalid_request")
                    assert answer.error["code"] == "request_too_large"
                    assert f"{len(body)} bytes (server.max_body_bytes)" in answer.error["message"]
        assert [len(asked.json["messages"][0]["content"]) for asked in gateway.engine.requests] == [300_000] * 2


async def test_a_body_in_pieces(http: str) -> None:
    body = json.dumps(chat("é" * 50_000), ensure_ascii=False).encode()
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        for raw in (request(body), in_chunks(body, 777)):
            for at in range(0, len(raw), 20_011):
                await client.send(raw[at : at + 20_011])
            assert (await client.answer()).status == 200
        assert all(asked.json["messages"][0]["content"] == "é" * 50_000 for asked in gateway.engine.requests)


async def test_a_large_body_does_not_hold_up_others(http: str) -> None:
    """30 MB, as images come. What it costs must grow with its size, not with its square."""
    body = json.dumps(chat("x" * 30_000_000)).encode()
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        begun = time.process_time()
        client.writer.write(request(body))
        assert (await client.answer()).status == 200
        took = time.process_time() - begun
        assert len(gateway.engine.requests[0].body) > 30_000_000
        assert took < 5, "about 0.3 s of a core"


# HTTP


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_pipelined_requests_are_answered_in_order(http: str, stream: bool) -> None:
    async def script(exchange: Exchange) -> None:
        text = exchange.json["messages"][0]["content"]
        if exchange.json.get("stream"):
            await streams(chunk(text), chunk(reason="stop"))(exchange)
        else:
            await exchange.whole(completion(text))

    async with running(script, http=http) as gateway, await gateway.connect() as client:
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await client.send(
            b"".join(request(chat(f"n{at}", stream=stream)) for at in range(5)) + get + request(chat("last"))
        )
        for at in range(5):
            answer = await client.answer()
            if stream:
                assert from_stream(answer.events[:-1])[0].content == f"n{at}"
            else:
                assert answer.json == completion(f"n{at}")
        assert (await client.answer()).json["status"] == "ok"
        assert (await client.answer()).json == completion("last")


@pytest.mark.parametrize("header", ["", "Connection: keep-alive\r\n", "Connection: close\r\n"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_http_1_0_client(http: str, header: str, stream: bool) -> None:
    """Knows no chunked encoding; its answer ends with the connection, or it was told that it is kept."""
    async with running(HELLO if stream else answers(), http=http) as gateway, await gateway.connect() as client:
        if stream and http == "httptools":
            pytest.skip("on its own, uvicorn chunks whatever the client's version")
        raw = request(chat(stream=stream), head=header).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        await client.send(raw)
        answer = await client.answer()
        assert answer.status == 200
        if stream:
            assert "transfer-encoding" not in answer.headers
            assert answer.events[-1] == b"[DONE]"
        else:
            assert answer.json == completion()
        assert answer.headers["connection"] == "close"
        assert await client.closed()


async def test_connection_close(http: str) -> None:
    async with running(answers(), HELLO, http=http) as gateway:
        for stream in (False, True):
            async with await gateway.connect() as client:
                answer = await client.ask(chat(stream=stream), head="Connection: close\r\n")
                assert answer.status == 200
                assert answer.headers["connection"] == "close"
                assert await client.closed()


async def test_expect_100_continue(http: str) -> None:
    body = json.dumps(chat()).encode()
    head, _, _ = request(body, head="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        for _ in range(2):
            await client.send(head + b"\r\n\r\n")
            assert (await client.answer()).status == 100
            await client.send(body)
            assert (await client.answer()).status == 200
    async with running(answers(), http=http, keys=("one",)) as gateway, await gateway.connect() as client:
        await client.send(head + b"\r\n\r\n")
        assert (await client.answer()).status == 401, "no body is asked for that won't be read"


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("size", [2, 300_000])
async def test_an_upgrade_to_http_2_is_not_taken_and_its_request_is_answered(size: int) -> None:
    """Java's HTTP client and `curl --http2` offer one with their first request. (uvicorn alone loses the body.)"""
    async with running(answers(), HELLO, answers()) as gateway, await gateway.connect() as client:
        body = chat("x" * size)
        assert (await client.ask(body, head=UPGRADE)).status == 200
        assert (await client.ask({**body, "stream": True}, head=UPGRADE)).events[-1] == b"[DONE]"
        raw = request(body, head=UPGRADE)
        for at in range(0, len(raw), 50_021 if size > 2 else 33):
            await client.send(raw[at : at + (50_021 if size > 2 else 33)])
        assert (await client.answer()).status == 200
        await client.send(
            in_chunks(json.dumps(body).encode(), 999).replace(
                b"Host: localhost", b"Host: localhost\r\n" + UPGRADE.strip().encode(), 1
            )
        )
        assert (await client.answer()).status == 200
        await client.send(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n".encode())
        assert (await client.answer()).status == 200
        assert [asked.json["messages"] for asked in gateway.engine.requests] == [body["messages"]] * 4
        assert all("upgrade" not in asked.headers for asked in gateway.engine.requests)


async def test_what_is_no_http_is_refused(http: str) -> None:
    async with running(answers(), http=http) as gateway, await gateway.connect() as client:
        await client.send(b"hello\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.closed()


async def test_no_tunnels() -> None:
    async with running(answers()) as gateway, await gateway.connect() as client:
        await client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        assert (await client.answer()).status in (400, 404)


# Clients that leave


@pytest.mark.parametrize("state", ["whole", "before the stream", "within the stream"])
async def test_a_client_that_leaves_ends_the_engines_work(http: str, state: str, subtests: pytest.Subtests) -> None:
    script = endless if state == "within the stream" else silence
    async with running(script, http=http) as gateway:
        for how, size in product(("leave", "reset", "half-close"), (2, 100_000, 1_000_000)):
            with subtests.test(how, size=size):
                async with await gateway.connect() as client:
                    client.writer.write(request(chat("x" * size, stream=state != "whole")))
                    asked = await gateway.engine.asked(len(gateway.engine.requests) + 1)
                    if script is endless:
                        await client.head()
                        await client.part()
                    if how == "half-close":
                        client.writer.write_eof()
                    else:
                        getattr(client, how)()
                    assert await gone_at_once(gateway, asked)


async def gone_at_once(gateway: Running, asked: Exchange) -> bool:
    """Whether the engine's connection ends while the gateway answers some requests: nothing waited for any time."""
    async with await gateway.connect() as other:
        for _ in range(100):
            await other.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await other.answer()).status == 200
            if asked.gone.done():
                return True
    return False


@pytest.mark.parametrize("sent", [0.1, 0.9])
async def test_a_client_that_leaves_within_its_request(http: str, sent: float) -> None:
    raw = request(chat("x" * 200_000))
    async with running(answers(), http=http) as gateway:
        async with await gateway.connect() as client:
            await client.send(raw[: int(len(raw) * sent)])
            client.leave()
        assert (await gateway.ask(chat())).status == 200
        assert len(gateway.engine.requests) == 1


async def test_a_client_that_stalls_pauses_the_engine_and_goes_on(http: str) -> None:
    sent = 0
    payload = b"data: " + json.dumps(chunk("x" * 8000)).encode() + b"\n\n"

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start()
        while sent < 64_000_000 and not exchange.gone.done():
            await exchange.send(chunked(payload))
            sent += 8000
        await exchange.event(chunk(reason="stop"))
        await exchange.end()

    async with running(flood, http=http) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        stalled = 0
        while not sent or sent != stalled:
            stalled = sent
            await asyncio.sleep(0.3)
        assert sent < 32_000_000
        answer = await client.answer()
        assert len(answer.events) == 8000 + 2


async def test_a_stalled_client_that_leaves_is_noticed(http: str) -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.start()
        while not exchange.gone.done():
            await exchange.event(chunk("x" * 8000))

    async with running(flood, http=http) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        asked = await gateway.engine.asked()
        await client.head()
        await asyncio.sleep(0.5)
        client.leave()
        assert await gone_at_once(gateway, asked)
