"""What a flex answer of llama.cpp does in cases that a real engine brings about only by chance."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import Raw

from gateway.backends import Backend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.llamacpp_flex import FlexReply, LlamaCppFlex
from gateway.backends.resumable import GrammarWatch, Tokens
from gateway.config import Model, Prompts
from gateway.prompts.live import LivePrompts
from gateway.prompts.saved import SavedPrompts
from gateway.wire.chat import ChatRequest
from tests.gateway.double import Double as Engine
from tests.gateway.double import Exchange
from tests.support.prompt_double import Double as Slots

MODEL = Model(name="m", runtime="llama.cpp")
MARK = "<tool_call>"


class Place:
    """Where an answer is at its engine."""

    def __init__(self) -> None:
        self.left = False

    def leave(self) -> None:
        self.left = True

    async def join(self) -> Backend:
        raise NotImplementedError

    def taken(self, reply: object) -> None:
        raise NotImplementedError

    def count_in(self) -> None:
        raise NotImplementedError

    def describe(self) -> str:
        return ""


async def silent(exchange: Exchange) -> None:
    """The test writes the answer."""
    await exchange.start()


def prompts_in(folder: Path) -> LivePrompts:
    return LivePrompts(SavedPrompts(Prompts(min_tokens=64), folder), "m", lambda: ["weights"], ["weights"])


def flexible(origin: LlamaCppBackend, prompts: LivePrompts) -> LlamaCppFlex:
    origin.keep_prompts(prompts)
    found = origin.flexible()
    assert isinstance(found, LlamaCppFlex)
    return found


async def test_a_call_that_begins_while_the_answer_waits_to_be_saved_is_finished_first(tmp_path: Path) -> None:
    prompts = prompts_in(tmp_path)
    asked = {"grammar_triggers": Raw(b'[{"type":1,"value":"<tool_call>"}]'), "grammar_lazy": Raw(b"true")}
    request = ChatRequest.parse(b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}')
    async with Engine(silent).serve() as engine:
        origin = LlamaCppBackend(MODEL, engine.address)
        backend = flexible(origin, prompts)
        watch, place = GrammarWatch([MARK], unmarked=False), Place()
        reply = FlexReply(backend, request, Tokens(asked, [1, 2]), watch, reasoning_open=False, by_grammar=True)
        turn = await prompts.take(Slots(tmp_path))
        with turn:
            await reply.ask(turn)
            reply.seated(place)
            exchange = await engine.asked()

            async def say(text: str, number: int) -> None:
                await exchange.event({"content": text, "tokens": [number], "timings": {"predicted_n": number}})
                assert await reply.payloads()

            await say("I call ", 1)
            async with prompts.saver.lock:  # another answer is being saved
                assert reply.gives_way
                saving = reply.put_aside()
                await asyncio.sleep(0)
                await say(MARK, 2)
                assert not reply.gives_way
            await saving
            assert (place.left, reply.history) == (False, [])
            await say('{"name": "f"}', 3)
            reply.close()
        await origin.aclose()
