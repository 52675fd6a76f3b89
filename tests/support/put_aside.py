"""Flex answers that are put aside in the middle."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from gateway.backends.llamacpp_flex import FlexReply
from gateway.config import Model
from gateway.core import Gateway, Run
from gateway.engines import Engine
from gateway.wire.chat import ChatRequest
from tests.support.shared_memory import engine_of, rest

TOKENS = 60


def places(model: Model, count: int = 1) -> Model:
    return replace(model, engine=replace(model.engine, parallel=count), tool_call_format="pythonic")


def asked(name: str, text: str = "Tell me of cats.", **more: Any) -> ChatRequest:
    messages = [{"role": "user", "content": text}]
    body = {"model": name, "messages": messages, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, **more}
    return ChatRequest.parse(json.dumps(body).encode())


def flex(name: str, text: str, **more: Any) -> ChatRequest:
    return asked(name, text, service_tier="flex", **more)


def said(body: bytes) -> tuple[str, str, Any]:
    (choice,), usage = json.loads(body)["choices"], json.loads(body)["usage"]
    return choice["message"]["content"], choice["finish_reason"], (usage["prompt_tokens"], usage["completion_tokens"])


async def whole(gateway: Gateway, request: ChatRequest) -> tuple[str, str, Any]:
    with await gateway.chat(request) as run:
        return said(await run.whole())


async def streamed(gateway: Gateway, request: ChatRequest) -> tuple[str, str]:
    """The words of a stream, and why it ended."""
    with await gateway.chat(request) as run:
        chunks = [json.loads(chunk) for chunk in await rest(run)]
    parts = [part for chunk in chunks for part in chunk["choices"]]
    (reason,) = [part["finish_reason"] for part in parts if part["finish_reason"]]
    return "".join(part["delta"].get("content") or "" for part in parts), reason


async def in_flight(engine: Engine, tokens: int, answer: asyncio.Task[Any]) -> FlexReply | None:
    """The flex answer in the engine, once it has so many tokens; None if it has ended.

    On a busy machine all of it may come before anybody looks. The tests then ask again.
    """
    while not answer.done():
        for reply in engine.requests.places.flexible:
            assert isinstance(reply, FlexReply)
            if reply.tokens >= tokens or not reply.gives_way:
                return reply
        await asyncio.sleep(0)
    return None


async def put_aside_by(
    gateway: Gateway, request: ChatRequest, text: str = "Hello.", *, stream: bool = False
) -> tuple[asyncio.Task[Any], Run]:
    """A flex answer that is put aside in the middle, and the run of the request that has its place.

    Where its last token comes before it is put aside, another one is asked for.
    """
    engine = engine_of(gateway, "a")
    while True:
        before = engine.requests.places.put_asides
        answer = streamed(gateway, flex("a", text, stream=True)) if stream else whole(gateway, flex("a", text))
        task: asyncio.Task[Any] = asyncio.create_task(answer)
        await in_flight(engine, 5, task)
        run = await gateway.chat(request)
        if engine.requests.places.put_asides > before:
            while not (task.done() or engine.requests.queue or engine.in_flight > 1):  # noqa: ASYNC110
                await asyncio.sleep(0)
            if not task.done():
                return task, run
        run.close()
        await task
