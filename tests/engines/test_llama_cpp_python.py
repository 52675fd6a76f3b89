"""llama-cpp-python's real server, as the gateway starts it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends.llama_cpp_python import LlamaCppPythonBackend
from gateway.config import Model
from gateway.engines import Engine
from gateway.engines.machine import this_machine
from gateway.engines.recipe import Machine
from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import ChatRequest
from tests.engines.conftest import WINDOW

pytestmark = pytest.mark.slow


def asked(**more: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": [{"role": "user", "content": "Say hello."}], **more}).encode())


async def test_answers_in_flight_end_and_a_grammar_never_reaches_it(llama_cpp_python: str, test_model: Path) -> None:
    def machine() -> Machine:
        return replace(this_machine(), python=llama_cpp_python, has=lambda module: True)

    model = Model(name="tiny", runtime="llama-cpp-python", path=test_model, context_window=WINDOW)
    engine = Engine(model, machine=machine)
    backend = LlamaCppPythonBackend(model, await engine.requests.ensure())
    try:

        async def done() -> bool:
            request = asked(stream=True, max_tokens=32)
            reply = await backend.open(request, dict(request.fields))
            while await reply.payloads():
                pass
            reply.close()
            return reply.done

        assert all(await asyncio.gather(*(done() for _ in range(6))))
        pid = engine.pid
        request = asked(grammar="root ::= (((")
        with pytest.raises(ProviderInvalidRequest, match="grammar"):
            await backend.open(request, dict(request.fields))
        assert await done()
        assert engine.pid == pid
        assert await backend.takes_tools()
    finally:
        await backend.aclose()
        await engine.stop()
