"""The examples of docs/provider.md, run as they stand against a real server."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import gateway.provider
from gateway.errors import CATEGORIES
from gateway.provider import OpenAIProvider

from .server import Receive, Scope, Send, answer, completion, read_json, serve

PAGE = (Path(__file__).parents[2] / "docs/provider.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BASE_URL = "http://127.0.0.1:4000"


async def server(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers each example with what it is written for."""
    if scope["method"] == "GET":
        await answer(send, 200, {"data": [{"id": "default"}]})
        return
    body = await read_json(receive)
    if "tools" in body:
        function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
        call = {"id": "c1", "type": "function", "function": function}
        await answer(send, 200, completion("", tool_calls=[call]))
    elif "response_format" in body:
        await answer(send, 200, completion('{"name": "Ada", "age": 36}'))
    elif "stream" in body:
        deltas = [({"content": "Hello"}, None), ({"content": "!"}, "stop")]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        await answer(send, 200, events.encode(), b"text/event-stream")
    else:
        await answer(send, 200, completion("Hello!"))


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/provider.md", "exec"), names)


def test_the_first_example_is_ten_lines_that_stand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in EXAMPLES[0].splitlines() if line]) == 10
    with serve(server) as url:
        run(EXAMPLES[0].replace(BASE_URL, url), {})
    assert capsys.readouterr().out == "get_weather {'city': 'Paris'}\n"


def test_the_other_examples(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {name: getattr(gateway.provider, name) for name in gateway.provider.__all__}

    async def patient(url: str) -> None:
        async with OpenAIProvider(url, "default") as provider:
            await names["patient"](provider)

    with serve(server) as url:
        for example in EXAMPLES[1:]:
            run(example.replace(BASE_URL, url), names)
        asyncio.run(names["tell"]())
        asyncio.run(patient(url))
    assert capsys.readouterr().out == "name='Ada' age=36\nHello! stop\nHello!\n"


def test_the_page_knows_every_category() -> None:
    assert [name for name in CATEGORIES if f"`{name}`" not in PAGE] == []


def test_the_page_shows_the_constructor_as_it_is() -> None:
    shown = re.search(r"`OpenAIProvider\((.*?)\)`", PAGE)
    assert shown is not None
    parameters = inspect.signature(OpenAIProvider).parameters.values()
    assert shown[1] == ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters)


def test_what_is_exported_exists_and_is_sorted() -> None:
    assert sorted(gateway.provider.__all__) == gateway.provider.__all__
    assert all(hasattr(gateway.provider, name) for name in gateway.provider.__all__)
