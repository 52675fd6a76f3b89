"""Prompts and the context window, on real llama.cpp: counted by its own tokenizer, before they wait for a slot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.context import SPARE_TOKENS, context_length_exceeded, exceeded, may_exceed
from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import ChatRequest
from tests.conftest import ROOT
from tests.formats.asking import ASK, WEATHER, Json, ask, chat_request, tool
from tests.formats.conftest import WINDOW, Serve, config, external
from tests.gateway.double import Double, Exchange, completion

TOOLS = [tool(WEATHER)]
LONG: Json = {"role": "user", "content": "What is the weather? " * 400}
FORMATS = ["native_json", "pythonic"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("format", FORMATS)
async def test_an_oversize_prompt_is_refused_with_both_numbers(
    llama_cpp: str, format: str, tools: list[Json] | None, stream: bool
) -> None:
    fields = {} if tools is None else {"tools": tools}
    async with Gateway(config(external(llama_cpp, format))) as gateway:
        with pytest.raises(ProviderInvalidRequest) as caught:
            await ask(gateway, LONG, stream=stream, **fields)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert caught.value.details["context_window"] == WINDOW
    assert caught.value.details["prompt_tokens"] > 2000


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("format", FORMATS)
async def test_what_is_counted_is_what_the_engine_counts(llama_cpp: str, format: str, tools: list[Json] | None) -> None:
    """The longest prompt that is answered has one token less than the window."""
    fields = {} if tools is None else {"tools": tools}

    async def size(words: int) -> tuple[bool, int]:
        message = {"role": "user", "content": "hello" + " a" * words}
        try:
            said = await ask(gateway, message, max_tokens=1, **fields)
        except ProviderInvalidRequest as error:
            return False, error.details["prompt_tokens"]
        assert said.usage is not None
        return True, said.usage["prompt_tokens"]

    async with Gateway(config(external(llama_cpp, format))) as gateway:
        _, few = await size(0)
        _, more = await size(100)
        each = (more - few) / 100
        words = int((WINDOW - few) / each) - 3
        fitted, before = await size(words)
        assert fitted
        assert before < WINDOW
        while True:
            words += 1
            fits, count = await size(words)
            assert 0 <= count - before <= 4
            assert fits is (count < WINDOW)
            if not fits:
                break
            before = count


async def test_it_is_refused_at_once_though_every_slot_is_busy(serve: Serve, test_model: Path) -> None:
    url = serve("xllamacpp", test_model)
    async with Gateway(config(external(url, "native_json"))) as gateway:
        endless = chat_request({"role": "user", "content": "Say hello."}, stream=True, max_tokens=-1, ignore_eos=True)
        with await gateway.chat(endless) as run:
            assert await run.payloads()
            waiting = asyncio.ensure_future(ask(gateway, ASK))
            with pytest.raises(ProviderInvalidRequest) as caught:
                await ask(gateway, LONG)
            assert caught.value.code == "context_length_exceeded"
            assert not waiting.done()
            run.close()
            assert (await waiting).finish_reason in ("stop", "length"), "it got its turn, and answered"


async def test_a_prompt_that_surely_fits_costs_no_further_request() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.path == "/props":
            await exchange.whole({"default_generation_settings": {"n_ctx": 2000}, "chat_template": "{{ messages }}"})
        elif exchange.path == "/apply-template":
            await exchange.whole({"prompt": exchange.json["messages"][0]["content"]})
        elif exchange.path == "/tokenize":
            await exchange.whole({"tokens": [0] * (len(exchange.json["content"]) // 3)})
        else:
            await exchange.whole(completion())

    async with (
        Double(script).serve() as double,
        Gateway(config(external(f"http://127.0.0.1:{double.address.port}", "native_json"))) as gateway,
    ):
        for size, paths in (
            (400, ["/v1/chat/completions"]),
            (3200, ["/props", "/v1/chat/completions"]),
            (3200, ["/v1/chat/completions"]),
            (4400, ["/apply-template", "/tokenize", "/v1/chat/completions"]),
        ):
            double.requests.clear()
            await ask(gateway, {"role": "user", "content": "x" * size})
            assert [exchange.path for exchange in double.requests] == paths
        double.requests.clear()
        with pytest.raises(
            ProviderInvalidRequest,
            match=r"is 2000 tokens\. However, your messages resulted in 2001",
        ):
            await ask(gateway, {"role": "user", "content": "x" * 6003})
        assert [exchange.path for exchange in double.requests] == ["/apply-template", "/tokenize"]


SAID: dict[str, tuple[str, int | None, int | None]] = {
    "llama.cpp": ("request (6031 tokens) exceeds the available context size (2048 tokens)", 6031, 2048),
    "vLLM": ("This model's maximum context length is 2048 tokens. However, you requested 6055 tokens (6031 in the "
             "messages, 24 in the completion).", 6031, 2048),
    "vLLM, newer": ("This model's maximum context length is 2048 tokens. However, your request has 6031 input tokens. "
                    "Please reduce the length of the input messages.", 6031, 2048),
    "a quoted request": (f"request ({'1' * 5000} tokens) exceeds the available context size (2048 tokens)", None, None),
    "about something else": ("the maximum context length is a matter of taste", None, None),
    "OpenAI": ("This model's maximum context length is 2048 tokens. However, your messages resulted in 6031 tokens.",
               6031, 2048),
    "LM Studio": ("Trying to keep the first 6031 tokens when context the overflows. However, the model is loaded with "
                  "context length of only 2048 tokens, which is not enough.", 6031, 2048),
    "Ollama, by llama.cpp": (json.dumps({"error": {"code": 400, "type": "exceed_context_size_error",
                                                   "n_prompt_tokens": 6031, "n_ctx": 2048}}), 6031, 2048),
    "Ollama, its own engine": ("prompt too long; exceeded max context length by 31 tokens", 1055, 1024),
    "Ollama, without numbers": ("the prompt is longer than the context length currently available", None, 1024),
    "older Ollama": ("the input length exceeds the context length", None, 1024),
}  # fmt: skip


@pytest.mark.parametrize(("message", "prompt", "window"), SAID.values(), ids=SAID)
def test_what_engines_say(message: str, prompt: int | None, window: int | None) -> None:
    error = exceeded(message, 1024)
    if window is None:
        assert error is None
        return
    assert error is not None
    assert error.details == {"prompt_tokens": prompt, "context_window": window}
    assert str(window) in str(error)


def test_the_example_in_the_docs() -> None:
    text = (ROOT / "docs/guarantees.md").read_text("utf-8")
    (example,) = (json.loads(line) for line in text.splitlines() if line.startswith('{"error": '))
    made = context_length_exceeded(2417, 1024).body()["error"]
    assert example["error"] == {name: made[name] for name in example["error"]}


def test_the_bound() -> None:
    def fields(size: int, **more: Any) -> Any:
        return ChatRequest.parse(
            json.dumps({"messages": [{"role": "user", "content": "x" * size}], **more}).encode()
        ).fields

    around = len(json.dumps([{"role": "user", "content": ""}])) + SPARE_TOKENS
    assert not may_exceed(fields(999 - around), 1000)
    assert may_exceed(fields(1000 - around), 1000)
    assert may_exceed(fields(999 - around, tools=TOOLS), 1000)


@pytest.mark.parametrize("words", ["maximum context length is 5 ", '"n_prompt_tokens": 1 ', "request (1 tokens) "])
def test_a_message_that_repeats_such_words_is_read_quickly(words: str) -> None:
    """An engine may quote the request, which is anybody's: this took minutes."""
    assert exceeded(words * 200_000) is None
