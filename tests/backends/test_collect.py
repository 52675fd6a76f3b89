"""Whole answers that are asked for as streams are those that the engine would have given whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import backends
from gateway.backends.collect import Collector
from gateway.backends.openai import HTTPReply
from gateway.config import Model
from gateway.engines import Engine
from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse, ProviderUnavailable
from gateway.wire.chat import ChatRequest
from tests.engines.suite import ASK, HELLO, WEATHER
from tests.patience import PATIENCE

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")

REQUESTS: dict[str, dict[str, Any]] = {
    "text": {"messages": [HELLO]},
    "cut": {"messages": [HELLO], "max_tokens": 2},
    "one token": {"messages": [HELLO], "max_tokens": 1},
    "a call": {"messages": [ASK], "tools": [WEATHER]},
    "a cut call": {"messages": [ASK], "tools": [WEATHER], "max_tokens": 6},
    "logprobs": {"messages": [HELLO], "logprobs": True, "top_logprobs": 2},
    "a call with logprobs": {"messages": [ASK], "tools": [WEATHER], "logprobs": True},
    "two answers": {"messages": [HELLO], "n": 2},
    "a schema": {
        "messages": [HELLO],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {"enum": [1]}}}},
        },
    },
    "a bad request": {"messages": [HELLO], "mirostat": "x"},
    "a bad grammar": {"messages": [HELLO], "grammar": "root ::= ((("},
}
DIFFER = ("id", "created", "timings")


def shape(body: dict[str, Any]) -> dict[str, Any]:
    """What must be the same: all but what each answer has of its own."""
    body = {key: value for key, value in body.items() if key not in DIFFER}
    body["usage"] = {key: value for key, value in body["usage"].items() if not isinstance(value, dict)}
    for choice in body["choices"]:
        message = choice["message"]
        # llama.cpp writes "" beside a call, OpenAI null.
        message["content"] = message["content"] or ""
        if (logprobs := choice.get("logprobs")) is not None:
            # The end mark, whose text is none, is no token of a stream's, nor of an answer of OpenAI's.
            logprobs["content"] = [token for token in logprobs["content"] if token["token"]]
        for call in message.get("tool_calls", ()):
            del call["id"]
            call.pop("index", None)
    return body


@pytest.fixture(scope="module")
def engine(test_model: Path) -> Any:
    """The engine's address; it runs in a loop of its own, since the tests have one each."""
    with asyncio.Runner() as runner:
        engine = Engine(Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=512))
        yield runner.run(engine.requests.ensure()), engine.model
        runner.run(engine.stop())


@pytest.mark.parametrize("name", REQUESTS)
async def test_as_the_engine_says_it_whole(engine: Any, name: str) -> None:
    address, model = engine
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 30, **REQUESTS[name]}
    async with httpx.AsyncClient(base_url=str(address), timeout=PATIENCE) as client:
        direct = (await client.post("/v1/chat/completions", json=asked)).json()
    backend = backends.load("llama.cpp")(model, address)
    try:
        request = ChatRequest.parse(json.dumps(asked).encode())
        if "error" in direct:
            with pytest.raises(ProviderInvalidRequest) as caught:
                await backend.open(request, dict(request.fields))
            # The field's name comes first, and without the parser's own words.
            _, _, fault = direct["error"]["message"].rpartition("] ")
            assert fault in str(caught.value)
            return
        reply = await backend.open(request, dict(request.fields))
        assert isinstance(reply, HTTPReply)
        expected = shape(direct)
        if name == "two answers":
            # It counts one of them, and both are the same.
            usage = expected["usage"]
            expected["usage"] = {
                **usage,
                "completion_tokens": 2 * usage["completion_tokens"],
                "total_tokens": usage["total_tokens"] + usage["completion_tokens"],
            }
        assert shape(json.loads(await reply.whole())) == expected
        # Beside tools llama.cpp tells logprobs in a whole answer alone.
        assert reply.done is reply.collects is (name != "a call with logprobs")
        reply.close()
    finally:
        await backend.aclose()


# Chunks of no engine


def chunk(**delta: Any) -> bytes:
    return json.dumps({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode()


END = b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'


@given(st.lists(st.text(max_size=5), max_size=8), st.lists(st.text(max_size=5), max_size=8))
def test_all_text_is_there_in_its_order(said: list[str], thought: list[str]) -> None:
    collector = Collector()
    for payload in [*(chunk(reasoning_content=text) for text in thought), *(chunk(content=text) for text in said), END]:
        assert collector.feed(payload)
    message = json.loads(collector.body(done=True))["choices"][0]["message"]
    assert message["content"] == "".join(said)
    assert message.get("reasoning_content", "") == "".join(thought)


def test_an_error_is_all_of_the_answer() -> None:
    collector = Collector()
    assert collector.feed(chunk(content="a"))
    assert not collector.feed(b'{"error": {"message": "no"}}')


@pytest.mark.parametrize(
    "payload", [b"{", b"[]", b'{"choices": 5}', b'{"choices": [{"delta": 5}]}', b'{"choices": [5]}']
)
def test_what_is_no_chunk(payload: bytes) -> None:
    with pytest.raises(ProviderInvalidResponse, match="malformed chunk"):
        Collector().feed(payload)


def test_one_that_breaks_off() -> None:
    collector = Collector()
    collector.feed(chunk(content="a"))
    with pytest.raises(ProviderUnavailable, match="ended in the middle"):
        collector.body(done=False)
    collector.feed(END)
    assert json.loads(collector.body(done=False))["choices"][0]["finish_reason"] == "stop"
