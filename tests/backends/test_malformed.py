"""Every place of what an engine says, with a value of another kind in it: no answer, or an error that is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from gateway import backends
from gateway.answer.errors import EngineError
from gateway.answer.normalize import Answer
from gateway.backends import Address, Backend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.openai import MAX_MESSAGE, OpenAIBackend
from gateway.config import Model
from gateway.errors import GatewayError, ProviderInvalidResponse, ProviderUnavailable
from gateway.wire.chat import ChatRequest
from gateway.wire.engine import RawText
from normalizers import registry
from tests.gateway.client import chat
from tests.gateway.double import DONE, Double, Exchange, Json, chunk, chunked, completion
from tests.gateway.mutations import mutations
from tests.patience import PATIENCE

CALL: Json = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
LINE: Json = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "done": False}
COUNTS: Json = {"done": True, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 2}
OLLAMA_CALL: Json = {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}
PROPS: Json = {
    "chat_template": "{{ tools }}",
    "chat_template_caps": {"supports_tools": True},
    "default_generation_settings": {"n_ctx": 64},
}
SLOT: Json = {"id_task": 1, "n_prompt_tokens_processed": 2, "next_token": [{"n_decoded": 3}]}
ERROR: Json = {"error": {"message": "no", "type": "exceed_context_size_error", "code": 500, "n_prompt_tokens": 9}}

WHOLE = completion("Hi", tool_calls=[CALL], reasoning_content="So")
STREAM: list[Json] = [
    {**chunk(None), "prompt_progress": {"processed": 1, "total": 2}},
    chunk("Hi", role="assistant"),
    chunk(tool_calls=[CALL], reasoning_content="So"),
    {**chunk(reason="stop"), "timings": {"prompt_n": 1}, "usage": {"prompt_tokens": 1}},
]
TEXT: list[Json] = [{"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}]
LINES: list[Json] = [
    {**LINE, "message": {"role": "assistant", "content": "Hi", "thinking": "So"}},
    {**LINE, "message": {"role": "assistant", "tool_calls": [OLLAMA_CALL]}, **COUNTS},
]


class Engine:
    """A server that says `said` to requests for `path`, as JSON, events or lines, and to all others nothing much."""

    def __init__(self) -> None:
        self.path, self.kind, self.status = "", "json", 200
        self.said: Any = None
        self.address: Address

    async def answer(self, exchange: Exchange) -> None:
        if exchange.path != self.path:
            await exchange.whole({"prompt": "Hi", "tokens": [], "version": "0.12.6"})
        elif self.kind == "json":
            await exchange.whole(json.dumps(self.said).encode(), self.status)
        else:
            await exchange.start()
            said = self.said if isinstance(self.said, list) else [self.said]
            form = b"data: %b\n\n" if self.kind == "events" else b"%b\n"
            parts = b"".join(form % json.dumps(each).encode() for each in said)
            await exchange.send(chunked(parts + (DONE if self.kind == "events" else b"")) + b"0\r\n\r\n")


@asynccontextmanager
async def served(runtime: str) -> AsyncIterator[tuple[Engine, Backend]]:
    engine = Engine()
    async with asyncio.timeout(PATIENCE), Double(engine.answer).serve() as double:
        engine.address = double.address
        async with asking(runtime, engine.address) as backend:
            yield engine, backend


@asynccontextmanager
async def asking(runtime: str, address: Address) -> AsyncIterator[Backend]:
    backend = backends.load(runtime)(Model(name="m", runtime=runtime), address)
    try:
        yield backend
    finally:
        await backend.aclose()


async def answered(backend: Backend, *, stream: bool, raw: bool = False) -> None:
    request = ChatRequest.parse(json.dumps(chat("long " * 300, stream=stream)).encode())
    fields = dict(request.fields)
    if raw:
        assert isinstance(backend, LlamaCppBackend)
        reply: Any = await backend.open_raw(request, fields, RawText())
    else:
        reply = await backend.open(request, fields)
    answer = Answer(request, registry.get("native_json"), reply.fixup)
    try:
        if not stream:
            answer.whole(await reply.whole())
            return
        clean: list[bytes] = []
        while payloads := await reply.payloads():
            answer.feed(payloads, clean)
        answer.finish(done=reply.done)
    except EngineError as error:
        raise backend.error(500, error.payload) from None
    finally:
        reply.close()


async def whole(backend: Backend) -> None:
    await answered(backend, stream=False)


async def streamed(backend: Backend) -> None:
    await answered(backend, stream=True)


async def raw(backend: Backend) -> None:
    await answered(backend, stream=True, raw=True)


async def known(backend: Backend) -> None:
    await backend.about()
    await backend.takes_tools()
    await backend.keeps_calls()


async def progress(backend: Backend) -> None:
    assert isinstance(backend, LlamaCppBackend)
    await backend.progress()


async def counted(backend: Backend) -> None:
    assert isinstance(backend, LlamaCppBackend)
    await backend.count_tokens({"messages": Raw(b'[{"role":"user","content":"Hi"}]')})


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CASES: dict[str, tuple[str, str, str, Any, Callable[[Backend], Any]]] = {
    **{f"{name}, whole": (name, CHAT, "json", WHOLE, whole) for name in ("openai", "llama-cpp-python", "mlx")},
    **{
        f"{name}, streamed": (name, CHAT, "events", STREAM, streamed)
        for name in ("openai", "llama-cpp-python", "mlx", "llama.cpp")
    },
    "llama.cpp, collected": ("llama.cpp", CHAT, "events", STREAM, whole),
    "llama.cpp, its text": ("llama.cpp", COMPLETIONS, "events", TEXT, raw),
    "llama.cpp, a prompt": ("llama.cpp", "/apply-template", "json", {"prompt": "Hi"}, raw),
    "llama.cpp, its model": ("llama.cpp", "/props", "json", PROPS, known),
    "llama.cpp, a window": ("llama.cpp", "/props", "json", PROPS, whole),
    "llama.cpp, tokens": ("llama.cpp", "/tokenize", "json", {"tokens": [1, 2]}, counted),
    "llama.cpp, slots": ("llama.cpp", "/slots", "json", [SLOT], progress),
    "Ollama, whole": ("ollama", "/api/chat", "json", {**LINES[0], **LINES[1]}, whole),
    "Ollama, streamed": ("ollama", "/api/chat", "lines", LINES, streamed),
    "Ollama, its model": (
        *("ollama", "/api/show", "json"),
        {"capabilities": ["tools"], "template": ".Tools", "model_info": {"general.architecture": "a"}},
        known,
    ),
    "Ollama, its version": ("ollama", "/api/version", "json", {"version": "0.1.2"}, whole),
    "an error in a stream": ("openai", CHAT, "events", [ERROR], streamed),
    "llama.cpp, an error in a stream": ("llama.cpp", CHAT, "events", [ERROR], streamed),
}


@pytest.mark.parametrize("name", CASES)
async def test_whatever_an_engine_says_is_an_answer_or_an_error(name: str) -> None:
    runtime, path, kind, said, ask = CASES[name]
    async with served(runtime) as (engine, backend):
        engine.path, engine.kind = path, kind
        for place, engine.said in mutations(said):
            try:
                if path == "/props":  # of which a backend keeps the first that it gets
                    async with asking(runtime, engine.address) as another:
                        await ask(another)
                else:
                    await ask(backend)
            except GatewayError:
                continue
            except Exception as error:
                raise AssertionError(f"{place}: {engine.said!r}") from error


@pytest.mark.parametrize("runtime", ["openai", "llama.cpp", "llama-cpp-python", "mlx", "ollama"])
async def test_whatever_an_engine_refuses_with_is_an_error(runtime: str) -> None:
    async with served(runtime) as (engine, backend):
        engine.path = "/api/chat" if runtime == "ollama" else CHAT
        for engine.status in (400, 404, 500, 503):
            for place, engine.said in mutations(ERROR):
                try:
                    await streamed(backend)
                except GatewayError as error:
                    json.dumps(error.body())
                except Exception as error:
                    raise AssertionError(f"{place}: {engine.said!r}") from error


DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize("runtime", ["openai", "llama.cpp", "ollama"])
async def test_an_error_that_quotes_much_is_read_in_no_time(runtime: str) -> None:
    async with served(runtime) as (_, backend):
        quoted = '"n_prompt_tokens": 1, maximum context length is 1 ' * 20_000
        error = backend.error(400, json.dumps({"error": {"message": quoted}}).encode())
        assert len(str(error)) < MAX_MESSAGE + 100
        assert isinstance(backend.error(500, b'{"error":' + DEEP + b"}"), ProviderUnavailable)


async def test_a_body_nested_too_deeply() -> None:
    async with served("llama.cpp") as (_, backend):
        assert isinstance(backend, OpenAIBackend)

        async def deep(exchange: Exchange) -> None:
            await exchange.whole(DEEP)

        async with Double(deep).serve() as double:
            other = LlamaCppBackend(Model(name="m", runtime="llama.cpp"), double.address)
            with pytest.raises(ProviderInvalidResponse, match="malformed"):
                await other.about()
            with pytest.raises(ProviderInvalidResponse, match="malformed"):
                await other.progress()
            await other.aclose()
