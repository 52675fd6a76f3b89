"""Past calls reach the engine in the form in which the model's chat template shows them."""

from __future__ import annotations

import pytest

from gateway.core import Gateway
from tests.formats.asking import ASK, WEATHER, Json, ask, tool
from tests.formats.conftest import config, external
from tests.gateway.double import Double, Exchange
from tests.support.past_turns import ONE, RESULT_ONE, RESULT_TWO, SHY, TWO, called

SAID = "Let me look."
PAST = [ASK, called(ONE, TWO, content=SAID), RESULT_ONE, RESULT_TWO, {"role": "user", "content": "And now?"}]
SOURCE = "{# tools <tool_call> #}" + SHY.replace("ARGUMENTS", "| tojson").replace("call>", "tool_call>")


@pytest.mark.parametrize("format", ["auto", "hermes"])
async def test_a_template_that_shows_one_call_and_drops_text_beside_it(format: str) -> None:
    sent: list[Json] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.path == "/props":
            await exchange.whole({"chat_template": SOURCE, "default_generation_settings": {"n_ctx": 4096}})
        elif exchange.path == "/apply-template":
            sent.extend(exchange.json["messages"])
            await exchange.whole({"prompt": "<|user|>And now?<|end|><|assistant|>"})
        else:
            await exchange.whole({"choices": [{"index": 0, "text": "Done.", "finish_reason": "stop"}]})

    async with Double(serve).serve() as double:
        model = external(f"http://127.0.0.1:{double.address.port}", format)
        async with Gateway(config(model)) as gateway:
            said = await ask(gateway, *PAST, tools=[tool(WEATHER)])
    kinds = [(message["role"], len(message.get("tool_calls") or ())) for message in sent]
    told = ["user", "assistant", "assistant", "tool", "assistant", "tool", "user"]
    assert kinds == list(zip(told, (0, 0, 1, 0, 1, 0, 0), strict=True))
    assert sent[1]["content"] == SAID
    assert said.ctxgate["healed"] == {"texts_apart": 1, "split_messages": 1}
