"""Ollama's API, by the unpatched `ollama` package, with the real engine; and its lines before a scripted one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.api.asking import USAGE, WEATHER, call, said
from tests.gateway.double import Json, Script, answers, chunk, completion, streams
from tests.gateway.running import running
from tests.patience import PATIENCE

TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER}}
]
NOW: Json = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
ASK = {"role": "user", "content": "What is the weather in Paris in celsius?"}


@pytest.fixture
def client(real: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=real, timeout=PATIENCE) as client:
        yield client


def test_a_tool_round_trip(client: ollama.Client) -> None:
    """The package's own types read every answer; its calls have no ids."""
    first = client.chat(model="tiny:latest", messages=[ASK], tools=TOOLS)
    assert first.message.tool_calls is not None
    (called,) = first.message.tool_calls
    assert called.function.name == "get_weather"
    assert called.function.arguments["city"] == "Paris"
    result = {"role": "tool", "tool_name": "get_weather", "content": '{"temp_c": 21}'}
    last = client.chat(model="tiny", messages=[ASK, first.message, result], tools=TOOLS)
    assert last.message.content == "The result is 21."
    assert (last.done, last.done_reason) == (True, "stop")
    assert last.eval_count
    assert last.prompt_eval_count
    assert last.eval_duration


def test_streamed(client: ollama.Client) -> None:
    parts = [*client.chat(model="tiny", messages=[ASK], tools=TOOLS, stream=True)]
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["get_weather"]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count


def test_generate(client: ollama.Client) -> None:
    whole = client.generate(model="echo", prompt="one two three")
    assert (whole.response, whole.done) == ("one two three", True)
    streamed = [*client.generate(model="echo", prompt="one two three", stream=True)]
    assert "".join(part.response or "" for part in streamed) == "one two three"
    assert client.generate(model="tiny", prompt="The result is", raw=True, options={"num_predict": 4}).response
    assert client.generate(model="tiny", prompt="").done_reason == "load"


def test_embed(client: ollama.Client) -> None:
    answer = client.embed(model="vectors", input=["one", "two"])
    assert len(answer.embeddings) == 2
    assert client.embeddings(model="vectors", prompt="one").embedding == pytest.approx(answer.embeddings[0])


def test_listings(client: ollama.Client, real: str) -> None:
    client.generate(model="tiny", prompt="")
    assert [model.model for model in client.list().models] == ["tiny", "vectors", "echo"]
    shown = client.show("tiny")
    assert shown.capabilities == ["completion", "tools"]
    assert client.show("vectors").capabilities == ["embedding"]
    assert client.show("echo").capabilities == ["completion"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.cpp.context_length"] == 1024
    assert client.ps().models[0].model == "tiny"
    assert httpx.get(f"{real}/api/version", timeout=PATIENCE).json()["version"].count(".") == 2
    with pytest.raises(ollama.ResponseError, match="there is no model"):
        client.show("nobody")


def called(id: str, index: int, name: str, **arguments: str) -> Json:
    return {"tool_calls": [{"id": id, "function": {"index": index, "name": name, "arguments": arguments}}]}


LINES: dict[str, tuple[Script, list[Json]]] = {
    "a text": (said(chunk("Hel"), chunk("lo")), [{"content": "Hel"}, {"content": "lo"}]),
    "nothing": (said(), []),
    "thinking": (said(chunk(reasoning_content="Hm."), chunk("Yes.")), [{"thinking": "Hm."}, {"content": "Yes."}]),
    "a call in pieces": (
        said(*call(0, "c", "get_weather", '{"city":', '"Paris"}'), reason="tool_calls"),
        [
            {
                "tool_calls": [
                    {"id": "c", "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}}
                ]
            }
        ],
    ),
    "two calls, then a text": (
        said(*call(0, "a", "now", "{}"), *call(1, "b", "now"), chunk("Done."), reason="tool_calls"),
        [{"content": "Done."}, called("a", 0, "now"), called("b", 1, "now")],
    ),
}


@pytest.mark.parametrize("name", LINES)
async def test_lines(name: str) -> None:
    script, expected = LINES[name]
    async with running(script) as gateway:
        answer = await gateway.ask({"model": "m", "messages": [ASK], "tools": [*TOOLS, NOW]}, "/api/chat")
    assert answer.headers["content-type"] == "application/x-ndjson"
    *lines, last = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["message"] for line in lines] == [{"role": "assistant", "content": "", **one} for one in expected]
    assert not any(line["done"] for line in lines)
    assert last.items() >= {"done": True, "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 7}.items()
    assert last["message"] == {"role": "assistant", "content": ""}


async def test_whole() -> None:
    made = {**completion("Yes.", reasoning_content="Hm."), "usage": USAGE}
    async with running(answers(made)) as gateway:
        body = {"model": "m", "messages": [ASK], "stream": False, "think": True, "options": {"num_predict": 5}}
        answer = (await gateway.ask(body, "/api/chat")).json
        sent = (await gateway.engine.asked()).json
    assert answer["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
    assert (answer["done"], answer["eval_count"]) == (True, 7)
    assert (sent["max_tokens"], sent["chat_template_kwargs"]) == (5, {"enable_thinking": True})


@pytest.mark.parametrize(
    ("told", "durations"),
    [
        ({"prompt_ms": 20.5, "predicted_ms": 300}, {"prompt_eval_duration": 20_500_000, "eval_duration": 300_000_000}),
        ({}, {}),
        ("none", {}),
    ],
    ids=["by the engine", "not at all", "as something else"],
)
async def test_durations_of_a_whole_answer_come_from_the_engine(told: Any, durations: Json) -> None:
    """Measured here it would be nothing for writing: all of it comes at once."""
    async with running(answers({**completion("Yes."), "usage": USAGE, "timings": told})) as gateway:
        answer = (await gateway.ask({"model": "m", "messages": [ASK], "stream": False}, "/api/chat")).json
    assert {name: answer[name] for name in answer if name.endswith("eval_duration")} == durations


async def test_the_answer_names_the_model_that_the_request_left_out() -> None:
    async with running(answers({**completion("Yes."), "usage": USAGE})) as gateway:
        answer = (await gateway.ask({"messages": [ASK], "stream": False}, "/api/chat")).json
    assert answer["model"] == "m"


async def test_errors_are_strings() -> None:
    """Ollama's clients show `error` as it stands; after a 200 it is a line."""
    async with running(streams(chunk("Hel"), done=False)) as gateway:
        missing = await gateway.ask({"model": "nobody", "messages": [ASK]}, "/api/chat")
        assert missing.status == 404
        assert "there is no model 'nobody'" in missing.json["error"]
        wrong = await gateway.ask({"model": "m", "prompt": "x", "template": "y"}, "/api/generate")
        assert (wrong.status, wrong.json) == (400, {"error": "template: not supported; the model's own applies"})
        typed = await gateway.ask({"model": "m", "messages": [ASK], "options": {"num_predict": "5"}}, "/api/chat")
        assert (typed.status, typed.json) == (400, {"error": "max_tokens: expected `int | null`, got `str`"})
        for path in ("/api/copy", "/api/chat/x", "/api"):
            unknown = await gateway.ask({"model": "m"}, path)
            assert (unknown.status, unknown.json) == (404, {"error": f"POST {path}: no such endpoint"})
        elsewhere = await gateway.ask({}, "/apis")
        assert (elsewhere.status, elsewhere.error["code"]) == (404, "not_found")
        broken = await gateway.ask({"model": "m", "messages": [ASK]}, "/api/chat")
        lines: list[Any] = [json.loads(line) for line in broken.body.splitlines()]
    assert broken.status == 200
    assert lines[-1] == {"error": "the engine's answer ended in the middle"}


@pytest.mark.parametrize("deltas", ["guarded", "always"])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages"])
async def test_arguments_nested_too_deeply(path: str, deltas: str) -> None:
    """An engine that reads calls itself hands on what its model has written; both APIs want it as a value."""
    deep = '{"city": ' + "[" * 5000 + "]" * 5000 + "}"
    tools = TOOLS if path == "/api/chat" else [{"name": "get_weather", "input_schema": WEATHER}]
    script = said(*call(0, "c", "get_weather", deep), reason="tool_calls")
    async with running(script, call_deltas=deltas) as gateway:
        answer = await gateway.ask(
            {"model": "m", "messages": [ASK], "tools": tools, "max_tokens": 5, "stream": True}, path
        )
    assert answer.status == 200
    assert (b"arguments that are not valid JSON" in answer.body) == (deltas == "always")
    assert (b'\\"arguments\\": {\\"city\\": [[[' in answer.body) == (deltas == "guarded")
