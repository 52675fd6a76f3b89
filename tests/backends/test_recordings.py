"""Every recorded answer of a real engine, played back through its backend and the normaliser: the laws hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Model
from gateway.errors import GatewayError
from tests.backends.conftest import ask, folded
from tests.backends.recordings import WIRE, Exchange, chats, exchange, needed, played

EVERY = list(chats()) if WIRE.is_dir() else []


async def through(*of: Exchange, format: str = "native_json") -> list[dict[str, Any]]:
    async with played(*of) as address:
        return await ask(Model(name="mine", runtime=of[0].runtime), address, of[0].request, format)


def _hold(chunks: list[dict[str, Any]]) -> None:
    """The laws of the architecture."""
    roles = [c["delta"]["role"] for chunk in chunks for c in chunk["choices"] if "role" in c.get("delta", ())]
    assert len(roles) <= len(folded(chunks))
    for _, calls, reason in folded(chunks):
        assert reason in ("stop", "length", "tool_calls")
        if reason != "length":
            assert (reason == "tool_calls") == bool(calls)
            for call in calls:
                assert isinstance(json.loads(call["text"]), dict)
        ids = [call["id"] for call in calls]
        assert all(ids)
        assert len(set(ids)) == len(ids)
        assert all(call["type"] == "function" for call in calls)


AT_THE_DOOR = (
    "chat_max_tokens_0",
    "chat_max_tokens_neg",
    "err_bad_json",
    "err_bad_utf8",
    "err_empty_body",
    "err_empty_messages",
    "err_json_array",
    "err_json_string",
    "err_max_tokens_string",
    "err_message_no_role",
    "err_messages_string",
    "err_no_messages",
    "err_temperature_string",
    "tools_not_array",
)
"""Refused before any engine is asked."""


def expected(one: Exchange) -> int:
    """The status of the gateway's answer: what is wrong with a request is never the server's error."""
    empty_stream = one.runtime == "llama-cpp-python" and one.case == "err_oversize_ctx_stream"
    if one.case in AT_THE_DOOR or one.case in REFUSED_BY_US.get(one.runtime, ()) or empty_stream:
        return 400
    if "LOADING" in one.engine:
        return 503
    if one.status == 200:
        return 200
    return {"auth_no_key": 401, "auth_wrong_key": 401, "err_bad_model": 404}.get(one.case, 400)


REFUSED_BY_US = {
    # It would call some other tool, as if none had been named.
    "llama.cpp": ("tools_named_unknown",),
    # A grammar could end that engine.
    "llama-cpp-python": ("grammar", "tools_and_grammar"),
}


@needed
@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.engine}/{one.case}")
async def test_the_laws_hold_and_bad_input_is_no_server_error(one: Exchange) -> None:
    # An empty stream is asked for its reason: the same request, whole.
    more = [exchange(one.engine, "err_oversize_ctx")] if one.case == "err_oversize_ctx_stream" else []
    try:
        chunks = await through(one, *more)
        status = 200
    except GatewayError as error:
        chunks = []
        status = error.status
    assert status == expected(one)
    _hold(chunks)


MLX = "mlx_lm.server-0.32.2_tiny-tools"
PYTHON = "llama_cpp.server-0.3.36_tiny-tools"
LLAMA = "llama-server-b11434_tiny-tools"


@needed
@pytest.mark.parametrize("engine", [LLAMA, "xllamacpp-b11549_tiny-tools", MLX])
@pytest.mark.parametrize("case", ["tools_auto", "tools_auto_stream"])
async def test_structured_calls(engine: str, case: str) -> None:
    ((content, calls, reason),) = folded(await through(exchange(engine, case)))
    assert (content, reason) == ("", "tool_calls")
    assert [(call["name"], json.loads(call["text"])) for call in calls] == [
        ("get_weather", {"city": "Paris", "unit": "celsius"})
    ]


@needed
@pytest.mark.parametrize("case", ["tools_auto", "tools_auto_stream"])
async def test_calls_that_llama_cpp_python_leaves_as_text(case: str) -> None:
    one = exchange(PYTHON, case)
    ((raw, none, _),) = folded(await through(one))
    assert raw.startswith("[get_weather(")
    assert not none
    ((content, calls, reason),) = folded(await through(one, format="pythonic"))
    assert (content, reason) == ("", "tool_calls")
    assert [(call["name"], json.loads(call["text"])) for call in calls] == [
        ("get_weather", {"city": "Paris", "unit": "celsius"})
    ]


@needed
async def test_mlx_chunks_say_one_role_the_models_name_and_what_they_are() -> None:
    chunks = await through(exchange(MLX, "chat_stream_usage"))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"mine"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert [c["delta"].get("role") for chunk in chunks for c in chunk["choices"]][1:] == [None] * (len(chunks) - 2)
    (whole,) = await through(exchange(MLX, "chat_basic"))
    assert whole["model"] == "mine"


@needed
async def test_mlx_that_goes_away_in_its_answer_is_not_taken_for_its_end() -> None:
    """Its HTTP/1.0 bodies have no length: only `[DONE]` tells an end from a crash."""
    whole = exchange(MLX, "chat_stream")
    cut = Exchange(whole.engine, whole.case, whole.request, whole.pieces[:3])
    with pytest.raises(GatewayError, match="ended in the middle"):
        await through(cut)


@needed
@pytest.mark.parametrize(
    ("engine", "prompt", "window"),
    [(LLAMA, 9010, 512), ("xllamacpp-b11549_tiny-tools", 9010, 512), (PYTHON, 9010, 1024)],
)
@pytest.mark.parametrize("case", ["err_oversize_ctx", "err_oversize_ctx_stream"])
async def test_an_oversize_prompt_is_told_with_both_numbers(engine: str, case: str, prompt: int, window: int) -> None:
    answers = [exchange(engine, case)]
    if engine == PYTHON:
        # Its stream is empty: the backend asks once more, whole.
        answers.append(exchange(engine, "err_oversize_ctx"))
    with pytest.raises(GatewayError) as caught:
        await through(*answers)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert caught.value.details == {"prompt_tokens": prompt, "context_window": window}
