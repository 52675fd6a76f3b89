"""The examples of the provider's pages, run as they stand against a real server."""

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
from gateway.provider.mapping.anthropic import FINISH_REASONS as ANTHROPIC_REASONS
from gateway.provider.mapping.gemini import FINISH_REASONS as GEMINI_REASONS
from gateway.provider.names import EMBEDDERS, PROVIDERS, RERANKERS, Named

from .server import Receive, Scope, Send, answer, completion, read_json, serve

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "provider.md").read_text("utf-8")


def examples(page: str) -> list[str]:
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return found


EXAMPLES = examples(PAGE)
BASE_URL = "http://127.0.0.1:4000"


def anthropic(body: dict[str, Any]) -> dict[str, Any]:
    thought = {"type": "thinking", "thinking": "7 + 7 …", "signature": "sig"}
    content = [*([thought] if "thinking" in body else []), {"type": "text", "text": "Hello!"}]
    assert "thinking" not in body or len(body["messages"]) == 1 or body["messages"][1]["content"][0] == thought
    usage = {"input_tokens": 3, "output_tokens": 2}
    return {"role": "assistant", "content": content, "stop_reason": "end_turn", "usage": usage}


def gemini(body: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": "Hello!"}]}, "finishReason": "STOP"}]}


def embeddings(body: dict[str, Any]) -> dict[str, Any]:
    data = [{"index": index, "embedding": [float(len(text)), 1.0]} for index, text in enumerate(body["input"])]
    return {"data": data, "usage": {"prompt_tokens": len(body["input"][0].split())}}


def scores(body: dict[str, Any]) -> dict[str, Any]:
    return {"results": [{"index": body["documents"].index("second text"), "relevance_score": 0.9}]}


OTHERS = {
    "/v1/messages": anthropic,
    "/v1beta/models/gemini-2.5-flash:generateContent": gemini,
    "/v1/embeddings": embeddings,
    "/v1/rerank": scores,
}


async def server(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers each example with what it is written for."""
    if scope["method"] == "GET":
        await answer(send, 200, {"data": [{"id": "default"}]})
        return
    body = await read_json(receive)
    if (other := OTHERS.get(scope["path"])) is not None:
        await answer(send, 200, other(body))
    elif scope["path"].endswith(":streamGenerateContent"):
        await answer(send, 200, f"data: {json.dumps(gemini(body))}\n\n".encode(), b"text/event-stream")
    elif "tools" in body:
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
            await names["stubborn"](provider)
            await names["two_models"](provider, provider)

    with serve(server) as url:
        for example in EXAMPLES[1:]:
            run(example.replace(BASE_URL, url), names)
        asyncio.run(names["tell"]())
        asyncio.run(patient(url))
    printed = "complete default 0\nResponse\nHello! stop\nHello!\nname='Ada' age=36\n5 5\n"
    assert capsys.readouterr().out == f"name='Ada' age=36\n{printed}"
    assert [names[f"with_{name}"].base_url for name in ("gateway", "ollama", "claude")] == [
        "http://127.0.0.1:4000/v1",
        "http://127.0.0.1:11434/v1",
        "https://api.anthropic.com/v1",
    ]


GEMINI = 'provider("gemini", model="gemini-2.5-flash"'


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("anthropic", "Hello! 5\nthought: 7 + 7 …\nHello!\n"),
        ("gemini", "Hello! stop\nHello!\n"),
        ("retrieval", "2 2\n1\nEmbeddingUsage(input_tokens=5)\n"),
    ],
)
def test_the_pages_of_the_other_apis(name: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with serve(server) as url:
        for example in examples((DOCS / f"provider-{name}.md").read_text("utf-8")):
            here = example.replace(BASE_URL, url).replace(f"{GEMINI})", f'{GEMINI}, base_url="{url}")')
            run(here.replace('er("ctxgate"', f'er("ctxgate", base_url="{url}"'), names)
        for function in {"think", "stream", "search"} & names.keys():
            asyncio.run(names[function](url))
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("table", [PROVIDERS, EMBEDDERS, RERANKERS])
def test_the_pages_know_every_name(table: dict[str, Named]) -> None:
    page = PAGE if table is PROVIDERS else (DOCS / "provider-retrieval.md").read_text("utf-8")
    for name, named in table.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert (named.base_url if table is PROVIDERS else named.implementation.partition(":")[2]) in row


@pytest.mark.parametrize(("name", "reasons"), [("anthropic", ANTHROPIC_REASONS), ("gemini", GEMINI_REASONS)])
def test_the_pages_know_every_finish_reason(name: str, reasons: dict[str, str]) -> None:
    page = (DOCS / f"provider-{name}.md").read_text("utf-8")
    for theirs, ours in reasons.items():
        assert re.search(rf"^\|.*`{theirs}`.*\| `{ours}` \|$", page, re.MULTILINE)


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
