"""A server that isn't ours is stopped and started again at its address: with another model, or with the same."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderModelNotLoaded, ProviderUnavailable
from tests.gateway.double import Double, Exchange, Json, chunk, silence
from tests.support.doubles import asked, request

TEMPLATES = {"hermes": "{% for tool in tools %}<tool_call>{% endfor %}", "mistral": "[AVAILABLE_TOOLS][TOOL_CALLS]"}
CALLS = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
MARKED = "What does <|end|> mean?"
"""Its tokens are asked for, since it may hold one."""


class Server:
    """llama-server or Ollama with a model that writes calls in this format. asked: how often which path was."""

    def __init__(self, runtime: str, format: str, *, loading: bool = False) -> None:
        self.runtime = runtime
        self.format = format
        self.loading = loading
        self.asked: Counter[str] = Counter()

    async def __call__(self, exchange: Exchange) -> None:
        self.asked[exchange.path] += 1
        if self.loading:
            await exchange.whole({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)
        elif exchange.path in (told := self.told()):
            await exchange.whole(told[exchange.path])
        elif exchange.path == "/api/chat":
            calls = [{"function": {"name": "now", "arguments": {}}}]
            said = {"role": "assistant", "content": "", "tool_calls": calls}
            await exchange.whole({"model": "m", "message": said, "done": True, "done_reason": "stop"})
        else:
            await exchange.start()
            text = CALLS[self.format]
            if exchange.path == "/v1/completions":
                await exchange.event({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]})
            else:
                await exchange.event(chunk(text), chunk(reason="stop"))
            await exchange.end()

    def told(self) -> dict[str, Json]:
        template = TEMPLATES[self.format]
        if self.runtime == "ollama":
            return {"/api/show": {"template": template, "capabilities": ["completion", "tools"]}}
        settings = {"n_ctx": 4096, "id_task": sum(self.asked.values())}
        return {
            "/props": {"chat_template": template, "total_slots": 1, "default_generation_settings": settings},
            "/v1/models": {"data": [{"id": "m", "meta": {"n_vocab": 1}}]},
            "/apply-template": {"prompt": "x"},
            "/tokenize": {"tokens": [1]},
        }


async def restarts(double: Double) -> None:
    """Lets the gateway hear that the connections have ended."""
    await double.count_open(0)
    for _ in range(100):
        await asyncio.sleep(0)


def gateway(runtime: str, socket: Path) -> Gateway:
    model = Model(name="m", runtime=runtime, uds=socket, context_window=4096, tool_call_format="auto")
    return Gateway(Config(source=Path("config.yaml"), active_model="m", models={"m": model}))


async def called(running: Gateway, text: str = "Hi") -> tuple[str, str]:
    """The name of the function that the model called, and the format in which its answer was read."""
    (body,) = await asked(running, request(text, tools=TOOLS))
    message = json.loads(body)["choices"][0]["message"]
    name = message["tool_calls"][0]["function"]["name"] if message.get("tool_calls") else message["content"]
    return name, running.routes["m"].sender.capability.reader.name


@pytest.mark.parametrize("between", ["nothing", "a refused request", "a cut answer", "it loads"])
@pytest.mark.parametrize("runtime", ["llama.cpp", "ollama"])
async def test_another_model_s_calls_are_read(tmp_path: Path, runtime: str, between: str) -> None:
    socket = tmp_path / "s"
    first, second = Server(runtime, "hermes"), Server(runtime, "mistral")
    async with gateway(runtime, socket) as running:
        double = Double(first)
        async with double.serve(uds=socket):
            assert await called(running) == ("now", "hermes")
            if between == "a cut answer":
                count = len(double.requests)
                double.scripts = (silence,)
                answer = asyncio.create_task(asked(running, request(stream=True)))
                await double.asked(count + 1)
        await restarts(double)
        if between == "a cut answer":
            with pytest.raises(ProviderUnavailable):
                await answer
        if between == "a refused request":
            with pytest.raises(ProviderUnavailable, match="nothing answers"):
                await called(running)
        async with Double(second).serve(uds=socket):
            if between == "it loads":
                second.loading = True
                with pytest.raises((ProviderModelNotLoaded, ProviderUnavailable)):
                    await called(running)
                second.loading = False
            for _ in range(2):
                assert await called(running) == ("now", "mistral")
            assert sum(second.asked[path] for path in ("/props", "/api/show")) <= 2


@pytest.mark.parametrize(("runtime", "path"), [("llama.cpp", "/v1/models"), ("ollama", "/api/show")])
@pytest.mark.parametrize("format", ["hermes", "mistral"])
async def test_control_tokens_are_read_anew_for_another_model_alone(
    tmp_path: Path, runtime: str, path: str, format: str
) -> None:
    socket = tmp_path / "s"
    async with gateway(runtime, socket) as running:
        for server in (Server(runtime, "hermes"), Server(runtime, format)):
            async with (double := Double(server)).serve(uds=socket):
                await called(running, MARKED)
            await restarts(double)
            asked_again = server.asked[path]
        once = 1 if runtime == "ollama" else 0  # which says with one path what it has, and its tokens
        assert asked_again == once + (format != "hermes")


async def test_a_server_that_still_loads_is_asked_again(tmp_path: Path) -> None:
    server = Server("llama.cpp", "hermes", loading=True)
    async with gateway("llama.cpp", tmp_path / "s") as running, Double(server).serve(uds=tmp_path / "s"):
        with pytest.raises(GatewayError):
            await called(running)
        server.loading = False
        assert await called(running) == ("now", "hermes")


async def test_connections_that_stay_open_ask_nothing_again(tmp_path: Path) -> None:
    server = Server("llama.cpp", "hermes")
    async with gateway("llama.cpp", tmp_path / "s") as running, Double(server).serve(uds=tmp_path / "s"):
        for _ in range(3):
            await called(running)
        assert server.asked["/props"] == 1
