"""A stream's comments while it has nothing to say, on the fast protocol and on plain ASGI."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from msgspec import Raw

from gateway.errors import ProviderUnavailable
from gateway.wire.chat import ChatRequest
from tests.gateway.backend import RUNTIME, FailingBackend, FailingReply
from tests.gateway.client import Client, chat
from tests.gateway.double import Exchange, answers, chunk, silence
from tests.gateway.running import running

QUICK = {"progress_after_seconds": 0.05, "keep_alive_seconds": 0.05}
FIRST = {"progress_after_seconds": 0.05}
KEEP_ALIVE = b": ctxgate keep-alive\n\n"


class Held:
    """An engine that answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.more = asyncio.Event()

    async def streams(self, exchange: Exchange) -> None:
        await self.go.wait()
        await exchange.start()
        await exchange.event(chunk("Hel", role="assistant"))
        await self.more.wait()
        await exchange.event(chunk("lo"), chunk(reason="stop"))
        await exchange.end()

    async def refuses(self, exchange: Exchange) -> None:
        await self.go.wait()
        await exchange.whole({"error": {"message": "Loading model"}}, 503)


async def until(client: Client, wanted: bytes) -> list[bytes]:
    """The parts of a stream up to the first that holds the wanted bytes."""
    seen = [await client.part()]
    while wanted not in seen[-1]:
        seen.append(await client.part())
    return seen


async def rest(client: Client) -> bytes:
    return b"".join([part async for part in client.parts()])


async def test_who_waits_is_told_so_before_the_answer_and_in_its_silence(http: str) -> None:
    held = Held()
    async with running(held.streams, http=http, progress=QUICK) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        _, status, headers = await client.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert await until(client, KEEP_ALIVE) == [b": ctxgate waiting\n\n", KEEP_ALIVE]
        held.go.set()
        *before, first = await until(client, b"Hel")
        assert set(before) <= {KEEP_ALIVE}
        assert first.startswith(b"data: ")
        assert await until(client, KEEP_ALIVE) == [KEEP_ALIVE]
        held.more.set()
        last = await rest(client)
        assert last.replace(KEEP_ALIVE, b"").startswith(b"data: ")
        assert last.endswith(b"data: [DONE]\n\n")


async def test_what_has_not_changed_is_said_once(http: str) -> None:
    held = Held()
    settings = {"progress_after_seconds": 0.05, "keep_alive_seconds": 60.0}
    async with running(held.streams, http=http, progress=settings) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        await client.head()
        assert await client.part() == b": ctxgate waiting\n\n"
        asyncio.get_running_loop().call_later(1.2, held.go.set)  # a second look lies between
        held.more.set()
        assert (await client.part()).startswith(b"data: ")


async def test_an_error_behind_a_comment_is_a_frame(http: str) -> None:
    held = Held()
    async with running(held.refuses, http=http, progress=FIRST) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        assert (await client.head())[1] == 200
        assert await client.part() == b": ctxgate waiting\n\n"
        held.go.set()
        frame, done, end = (await rest(client)).split(b"\n\n")
        error = json.loads(frame.removeprefix(b"data: "))["error"]
        assert (error["category"], error["code"]) == ("provider_model_not_loaded", "model_not_loaded")
        assert (done, end) == (b"data: [DONE]", b"")
        # The connection serves on.
        await client.post(chat())
        assert (await client.head())[1] == 503


async def test_a_bug_behind_a_comment_is_a_frame_that_tells_nothing(http: str, caplog: Any) -> None:
    async with (
        running(http=http, runtime=RUNTIME, base_url=None, progress=FIRST) as gateway,
        await gateway.connect() as client,
    ):
        await client.post(chat(stream=True, fail={"with": "bug", "at": "first", "after": 0.2}))
        assert (await client.head())[1] == 200
        assert await client.part() == b": ctxgate waiting\n\n"
        frame, *_ = (await rest(client)).split(b"\n\n")
        assert json.loads(frame.removeprefix(b"data: "))["error"]["category"] == "internal_error"
        assert "secret: 42" in caplog.text


class FailsAsItIsLookedAt(FailingBackend):
    """Its answer fails in the very moment in which a comment is about to be written."""

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> FailingReply:
        failed: asyncio.Future[FailingReply] = asyncio.get_running_loop().create_future()

        def standing() -> str:
            if not failed.done():
                failed.set_exception(ProviderUnavailable("just now"))
            return "looked at"

        request.serving.tell(standing)
        return await failed


async def test_an_error_in_the_moment_of_the_first_comment_sends_no_second_head(http: str) -> None:
    runtime = "tests.gateway.test_keepalive:FailsAsItIsLookedAt"
    async with (
        running(http=http, runtime=runtime, base_url=None, progress=FIRST) as gateway,
        await gateway.connect() as client,
    ):
        for _ in range(2):
            await client.post(chat(stream=True))
            assert (await client.head())[1] == 200
            comment, frame, done, end = (await rest(client)).split(b"\n\n")
            assert (comment, done, end) == (b": ctxgate looked at", b"data: [DONE]", b"")
            assert json.loads(frame.removeprefix(b"data: "))["error"]["message"] == "just now"


async def test_a_quick_failure_keeps_its_status(http: str) -> None:
    script = answers({"error": {"message": "Loading model"}}, 503)
    async with running(script, http=http) as gateway:
        answer = await gateway.ask(chat(stream=True))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_opted_out(http: str) -> None:
    held = Held()
    settings = {**QUICK, "progress_comments": False}
    async with running(held.streams, http=http, progress=settings) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True))
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, held.go.set)
        loop.call_later(0.6, held.more.set)
        await client.head()
        assert b": ctxgate" not in await rest(client)


async def test_who_leaves_while_waiting_frees_the_engine(http: str) -> None:
    async with running(silence, http=http, progress=QUICK) as gateway:
        client = await gateway.connect()
        await client.post(chat(stream=True))
        await client.head()
        await until(client, KEEP_ALIVE)
        exchange = await gateway.engine.asked()
        client.leave()
        await exchange.gone


async def test_openais_client_passes_over_them(http: str) -> None:
    held = Held()
    async with running(held.streams, http=http, progress=QUICK) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            loop = asyncio.get_running_loop()
            loop.call_later(0.3, held.go.set)
            loop.call_later(0.6, held.more.set)
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            said = [c.choices[0].delta.content or "" async for c in stream]
        assert "".join(said) == "Hello"
