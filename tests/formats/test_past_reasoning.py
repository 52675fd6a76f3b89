"""The reasoning that a client sends back reaches a template that can show it, as `keep_reasoning` says."""

from __future__ import annotations

import pytest

from gateway.config import Model
from gateway.config.values import KeepReasoning
from gateway.core import Gateway
from tests.formats.asking import ASK, WEATHER, Json, ask, tool
from tests.formats.conftest import config
from tests.gateway.double import Double, Exchange
from tests.support.past_turns import KEEPER, ONE, RESULT_ONE, called

SOURCE = "{# tools #}" + KEEPER.replace("CONDITION", "preserve_thinking")
NEXT: Json = {"role": "user", "content": "And now?"}
DONE: Json = {"role": "assistant", "content": "Done.", "reasoning_content": "So."}
AGENT = [ASK, called(ONE, reasoning_content="Hm."), RESULT_ONE, DONE, NEXT]
CHAT = [ASK, DONE, NEXT]
CASES: list[tuple[KeepReasoning, list[Json], bool, bool]] = [
    ("auto", AGENT, True, True),
    ("auto", CHAT, False, True),
    ("always", CHAT, True, True),
    ("never", AGENT, False, False),
    ("never", CHAT, False, False),
]


@pytest.mark.parametrize(("keep", "messages", "asked", "sent"), CASES)
async def test_keep_reasoning(keep: KeepReasoning, messages: list[Json], asked: bool, sent: bool) -> None:
    got: list[Json] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.path == "/props":
            await exchange.whole({"chat_template": SOURCE, "default_generation_settings": {"n_ctx": 4096}})
        elif exchange.path == "/apply-template":
            got.append(exchange.json)
            await exchange.whole({"prompt": "<|user|>And now?<|end|><|assistant|>"})
        elif exchange.path.endswith("/chat/completions"):
            got.append(exchange.json)
            message = {"role": "assistant", "content": "Done."}
            await exchange.whole({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        else:
            await exchange.whole({"choices": [{"index": 0, "text": "Done.", "finish_reason": "stop"}]})

    async with Double(serve).serve() as double:
        url = f"http://127.0.0.1:{double.address.port}"
        model = Model(name="m", runtime="llama.cpp", base_url=url, tool_call_format="auto", keep_reasoning=keep)
        async with Gateway(config(model)) as gateway:
            tools = {"tools": [tool(WEATHER)]} if messages is AGENT else {}
            said = await ask(gateway, *messages, **tools)
    assert said.content == "Done."
    (body,) = got
    assert body.get("chat_template_kwargs", {}).get("preserve_thinking", False) is asked
    assert any("reasoning_content" in message for message in body["messages"]) is sent
