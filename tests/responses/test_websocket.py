"""`/v1/responses` over WebSocket, by OpenAI's own client and by one that writes the messages itself."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.features.responses import websocket
from tests.api.asking import said
from tests.cli.commands import answering, config, serving
from tests.gateway.double import Double, Exchange, answers, chunk, endless, silence
from tests.gateway.running import running
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.responses.websocket import PATH, ask, opened, rest, turn


async def test_the_events_are_those_of_a_stream() -> None:
    script = said(chunk("Hel"), chunk("lo"))
    async with running(script, script) as gateway, opened(gateway) as client:
        events = await turn(client, store=False)
        streamed = await gateway.ask({"model": "m", "input": "Hi", "store": False, "stream": True}, PATH)
        lines = [line[6:] for line in streamed.body.decode().splitlines() if line.startswith("data: ")]
        assert [event["type"] for event in events] == [json.loads(line)["type"] for line in lines]
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"


async def test_openais_client() -> None:
    texts = []
    async with (
        running(said(chunk("Hello"))) as gateway,
        AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x") as client,
        client.responses.connect() as connection,
    ):
        for _ in range(2):
            await connection.response.create(model="m", input="Hi")
            async for event in connection:
                if event.type == "response.completed":
                    texts.append(event.response.output_text)
                    break
    assert texts == ["Hello", "Hello"]


async def test_turns_that_nobody_stores() -> None:
    """The connection remembers its last response alone; a failure forgets it."""
    script = said(chunk("Hello"))
    async with running(script) as gateway, opened(gateway) as client:
        first = (await turn(client, store=False))[-1]["response"]["id"]
        second = (await turn(client, store=False, input="And?", previous_response_id=first))[-1]["response"]["id"]
        shown = (await gateway.engine.asked(2)).json["messages"]
        assert [message["content"] for message in shown] == ["Hi", "Hello", "And?"]
        (error,) = await turn(client, store=False, previous_response_id=first)
        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 400, "previous_response_not_found")
        (error,) = await turn(client, previous_response_id=second, temperature="hot")
        assert error["error"]["param"] == "temperature"
        third = await turn(client, store=False, previous_response_id=second)
        assert third[-1]["type"] == "response.completed"


async def test_a_stored_response_is_the_stores() -> None:
    script = said(chunk("Hello"))
    async with running(script) as gateway, opened(gateway) as client:
        first = (await turn(client))[-1]["response"]["id"]
        async with opened(gateway) as other:
            await turn(other, input="And?", previous_response_id=first)
        assert len((await gateway.engine.asked(2)).json["messages"]) == 3


async def test_warming_up() -> None:
    """`generate: false` asks no engine; the next turn continues from it."""
    async with running(said(chunk("Hello"))) as gateway, opened(gateway) as client:
        events = await turn(client, store=False, input="Be kind.", generate=False)
        assert [event["type"] for event in events] == [
            "response.created", "response.in_progress", "response.completed",
        ]  # fmt: skip
        assert events[-1]["response"]["output"] == []
        await turn(client, store=False, previous_response_id=events[-1]["response"]["id"])
        shown = (await gateway.engine.asked(1)).json["messages"]
        assert shown[0]["content"] == "Be kind.\n\nHi" or len(shown) == 2


async def test_a_client_that_leaves_cancels() -> None:
    async with running(endless) as gateway:
        async with opened(gateway) as client:
            await ask(client)
            exchange = await gateway.engine.asked()
            await client.recv()
        await exchange.gone


async def test_a_connection_that_breaks_cancels() -> None:
    async with running(silence) as gateway, opened(gateway) as client:
        await ask(client)
        exchange = await gateway.engine.asked()
        client.transport.abort()
        await exchange.gone


async def test_requests_ahead() -> None:
    """They are answered in order; what is too many is refused at once."""
    async with running(said(chunk("Hello"))) as gateway, opened(gateway) as client:
        for number in range(3):
            await ask(client, input=f"{number}")
        for number in range(3):
            assert (await rest(client))[-1]["type"] == "response.completed"
            assert gateway.engine.requests[number].json["messages"][0]["content"] == f"{number}"
    async with running(silence) as gateway, opened(gateway) as client:
        await ask(client)
        await gateway.engine.asked()
        for _ in range(websocket.WAITING + 1):
            await ask(client)
        (error,) = await rest(client)
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", "type"),
        ("[]", "type"),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create"}', "input"),
        (b"\xff", "type"),
        ('{"type": "response.create", "input": ' + "[" * 5000, "type"),
    ],
)
async def test_messages_that_are_refused(message: str | bytes, param: str) -> None:
    async with running(said(chunk("Hello"))) as gateway, opened(gateway) as client:
        await client.send(message)
        (error,) = await rest(client)
        assert (error["status"], error["error"]["param"]) == (400, param)
        assert (await turn(client))[-1]["type"] == "response.completed"


async def test_a_model_that_is_not_there() -> None:
    async with running(answers()) as gateway, opened(gateway) as client:
        (error,) = await turn(client, model="nobody")
        assert (error["status"], error["error"]["code"]) == (404, "model_not_found")


async def test_a_message_that_is_too_large() -> None:
    async with running(said(chunk("Hello")), max_body=10_000) as gateway, opened(gateway) as client:
        assert (await turn(client, input="x" * 5000))[-1]["type"] == "response.completed"
        with pytest.raises(ConnectionClosed) as raised:
            await turn(client, input="x" * 20_000)
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.code == 1009


async def test_a_connection_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "LIFE_SECONDS", 0.0)
    async with running(said(chunk("Hello"))) as gateway, opened(gateway) as client:
        (error,) = await rest(client)
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            await client.recv()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (PATH, {"authorization": "Bearer wrong"}, 401),
        (PATH, {}, 401),
        (PATH, {"authorization": "Bearer right", "origin": "http://evil.example"}, 403),
        (PATH, {"authorization": "Bearer right", "sec-fetch-site": "cross-site"}, 403),
        (PATH, {"authorization": "Bearer right", "host": "evil.example"}, 403),
        ("/v1/chat/completions", {"authorization": "Bearer right"}, 405),
    ],
)
async def test_who_may_not(path: str, headers: dict[str, str], status: int) -> None:
    """A refusal is an answer over HTTP, with an error of OpenAI's shape. Nobody gets a WebSocket elsewhere."""
    async with running(answers(), keys=("right",)) as gateway:
        host = headers.pop("host", None)
        url = f"ws://{host or '127.0.0.1'}:{gateway.port}{path}"
        with pytest.raises(InvalidStatus) as raised:
            async with connect(url, host="127.0.0.1", port=gateway.port, proxy=None, additional_headers=headers):
                pass
        assert raised.value.response.status_code == status
        assert json.loads(raised.value.response.body)["error"]["message"]


async def test_a_key() -> None:
    async with running(said(chunk("Hello")), keys=("right",)) as gateway:
        async with opened(gateway, additional_headers={"authorization": "Bearer right"}) as client:
            assert (await turn(client))[-1]["type"] == "response.completed"
        async with opened(gateway, path="/responses", additional_headers={"x-api-key": "right"}) as client:
            assert (await turn(client))[-1]["type"] == "response.completed"


async def test_the_server_lets_an_answer_end(tmp_path: Path) -> None:
    """It closes the connection behind it, as it does with HTTP; one that waits for nothing ends at once."""
    release, port = asyncio.Event(), free_port()

    async def waits(exchange: Exchange) -> None:
        await release.wait()
        await said(chunk("Hello"))(exchange)

    async with asyncio.timeout(PATIENCE), Double(waits).serve() as engine:
        model = f'{{runtime: openai, base_url: "http://127.0.0.1:{engine.address.port}"}}'
        state = f"state_dir: {tmp_path}/state\nserver: {{port: {port}}}\n"
        config(tmp_path, f"active_model: m\nmodels: {{m: {model}}}\n{state}")
        with serving(tmp_path) as process, answering(port):
            url = f"ws://127.0.0.1:{port}{PATH}"
            async with connect(url, proxy=None) as idle, connect(url, proxy=None) as busy:
                await ask(busy)
                await engine.asked()
                process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed):
                    await idle.recv()
                release.set()
                assert (await rest(busy))[-1]["type"] == "response.completed"
                with pytest.raises(ConnectionClosed):
                    await busy.recv()
