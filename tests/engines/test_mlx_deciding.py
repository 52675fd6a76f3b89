"""`call_threshold` on MLX: whether an answer calls is decided before it is written."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Model
from gateway.core import Gateway
from normalizers import registry
from tests.formats.asking import ASK, Json, Said, ask
from tests.formats.conftest import config
from tests.support.deciding import HELLO, RESULT, SHORT, TOOLS, both

FORMATS = ("pythonic", "hermes", "mistral")


def deciding(url: str, threshold: float | None, format: str = "pythonic") -> Gateway:
    model = Model(name="m", runtime="mlx", base_url=url, tool_call_format=format, call_threshold=threshold)
    return Gateway(config(model))


async def said(gateway: Gateway, *messages: Json, **fields: Any) -> Said:
    return await both(gateway, *messages, **{"max_tokens": 120, **fields})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("question", [ASK, HELLO], ids=["due", "needless"])
async def test_above_the_threshold_an_answer_is_calls(mlx: str, format: str, question: Json) -> None:
    async with deciding(mlx, 0.0, format) as gateway:
        answer = await said(gateway, question, tools=SHORT, parallel_tool_calls=False)
    assert answer.calls
    assert answer.finish_reason == "tool_calls"
    assert answer.content == ""


@pytest.mark.parametrize("format", FORMATS)
async def test_below_it_no_call_begins(mlx: str, format: str) -> None:
    async with deciding(mlx, 1.0, format) as gateway:
        answer = await said(gateway, ASK, tools=TOOLS, max_tokens=40)
    assert answer.calls == []
    assert answer.content
    assert not any(mark in answer.content for mark in registry.get(format).openers)


async def test_the_probability_tells_what_the_model_would_do(mlx: str) -> None:
    async with deciding(mlx, 0.5) as gateway:
        due, needless = await said(gateway, ASK, tools=TOOLS), await said(gateway, HELLO, tools=TOOLS)
    assert due.ctxgate["call_probability"] > 0.5 > needless.ctxgate["call_probability"]
    assert due.calls
    assert not needless.calls


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tool_choice": "none"}, {"tools": None}], ids=str)
async def test_a_request_that_says_how_it_is_answered_keeps_its_meaning(mlx: str, fields: Json) -> None:
    answers = []
    for threshold in (None, 0.0, 1.0):
        async with deciding(mlx, threshold) as gateway:
            answers.append(await ask(gateway, ASK, **{"tools": TOOLS, "max_tokens": 24, **fields}))
    assert [(each.content, each.parsed) for each in answers] == [(answers[0].content, answers[0].parsed)] * 3
    assert not any("call_probability" in each.ctxgate for each in answers)


async def test_after_a_result_the_model_decides(mlx: str) -> None:
    async with deciding(mlx, 0.0) as gateway:
        assert "call_probability" not in (await said(gateway, *RESULT, tools=TOOLS)).ctxgate
