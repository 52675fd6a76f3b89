"""`n` and `logprobs`: asked for and answered as they are, by the real engine and by any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from gateway.app import build
from gateway.config import Config, Model, Runtime
from tests.gateway.client import chat
from tests.gateway.double import Json, answers, chunk, completion, streams
from tests.gateway.running import FAST, running
from tests.patience import PATIENCE
from tests.provider.server import serve

HELLO: Any = [{"role": "user", "content": "Say hello."}]
ASKED: Json = {"n": 2, "logprobs": True, "top_logprobs": 1}


@pytest.fixture(scope="module")
def client(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """Of a gateway whose engine can give two choices, by the model's own text as any other."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    model = Model(
        name="tiny",
        runtime="llama.cpp",
        path=test_model,
        context_window=512,
        tool_call_format="pythonic",
        engine=Runtime(threads=1, parallel=2),
    )
    state = tmp_path_factory.mktemp("state")
    config = Config(source=state / "config.yaml", active_model="tiny", models={"tiny": model}, state_dir=state)
    with (
        serve(build(config), lifespan="on", http=FAST) as url,
        OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"n": 3},
            "n: the engine rejected it: Value must be between 1 <= value <= 2, but got 3; each answer takes a slot,",
        ),
        ({"repeat_last_n": -5}, "repeat_last_n: the engine rejected it: Value must be between 0"),
        ({"top_k": "many"}, "top_k: the engine rejected it: type must be number"),
    ],
)
def test_a_value_that_the_engine_refuses_is_named(client: OpenAI, fields: Json, message: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, extra_body=fields)
    assert refused.value.param == next(iter(fields))
    assert message in refused.value.message


def test_n_of_the_real_engine(client: OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "temperature": 0, "n": 2}
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert all(choice.message.content for choice in whole.choices)
    said, reasons = {0: "", 1: ""}, {}
    for part in client.chat.completions.create(**asked, stream=True):
        for choice in part.choices:
            said[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert said == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}


def test_choices_begin_in_order_with_the_real_engine(client: OpenAI) -> None:
    """As `stream` of the openai package counts on, whichever llama.cpp comes to first."""
    asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "temperature": 0, "n": 2}
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert [choice.index for choice in final.choices] == [0, 1]
    assert all(choice.message.content for choice in final.choices)


DIFFERENT: Any = {"temperature": 1.5, "seed": 5, "max_tokens": 12, "n": 2}
TOOL: Any = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}], ids=["chat", "raw text"])
def test_the_usage_adds_up(client: OpenAI, more: Any) -> None:
    """Over the choices: with the tokens that each has, as their log-probabilities tell. The prompt counts once."""
    asked: Any = {"model": "tiny", "messages": HELLO, **DIFFERENT, **more}
    measured = client.chat.completions.create(**asked, logprobs=True)
    written = sum(len(choice.logprobs.content or ()) for choice in measured.choices if choice.logprobs)
    if not more:
        # A stream, from which the gateway collects this answer, has none for the token that ends it.
        written += sum(choice.finish_reason == "stop" for choice in measured.choices)
    alone = client.chat.completions.create(**{**asked, "n": 1})
    whole = client.chat.completions.create(**asked)
    *_, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for usage in (measured.usage, whole.usage, last.usage):
        assert usage is not None
        assert usage.completion_tokens == written
        assert usage.prompt_tokens == alone.usage.prompt_tokens
        assert usage.total_tokens == usage.prompt_tokens + written
    assert last.choices == []


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}], ids=["chat", "raw text"])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_one_usage_and_the_log_has_it_too(client: OpenAI, more: Any, usage: bool) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, **DIFFERENT, **more}
    whole = client.chat.completions.create(**asked)
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = [*client.chat.completions.create(**asked, stream=True, **options)]
    assert len([chunk for chunk in chunks if not chunk.choices]) == int(usage)
    assert len([chunk for chunk in chunks if chunk.usage is not None]) == int(usage)
    base = str(client.base_url).removesuffix("v1/")
    logged = httpx.get(f"{base}-/requests", params={"limit": 1}, timeout=PATIENCE).json()["requests"][0]
    assert logged["completion_tokens"] == whole.usage.completion_tokens
    assert logged["prompt_tokens"] == whole.usage.prompt_tokens


def test_logprobs_of_the_real_engine(client: OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "temperature": 0, "seed": 1}
    asked |= {"logprobs": True, "top_logprobs": 2}
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert "".join(token.token for token in tokens) == choice.message.content
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    streamed: list[Any] = []
    for part in client.chat.completions.create(**asked, stream=True):
        for each in part.choices:
            streamed += (each.logprobs.content or []) if each.logprobs is not None else []
    assert [token.token for token in streamed] == [token.token for token in tokens]


def probable(word: str) -> Json:
    return {
        "content": [{"token": word, "logprob": -0.25, "bytes": [*word.encode()], "top_logprobs": []}],
        "refusal": None,
    }


@pytest.mark.parametrize("http", [FAST, "httptools"], ids=["fast", "asgi"])
async def test_whole_choices_of_any_engine(http: str) -> None:
    body = completion()
    (choice,) = body["choices"]
    body["choices"] = [{**choice, "index": index, "logprobs": probable("Hello")} for index in range(2)]
    async with running(answers(body), http=http) as gateway:
        answer = await gateway.ask(chat(**ASKED))
        assert answer.json == body
        assert gateway.engine.requests[0].json.items() >= ASKED.items()


@pytest.mark.parametrize("http", [FAST, "httptools"], ids=["fast", "asgi"])
async def test_streamed_choices_of_any_engine(http: str) -> None:
    chunks = []
    for word in ("Hel", "lo"):
        for index in range(2):
            made = chunk(word, index=index, role="assistant") if word == "Hel" else chunk(word, index=index)
            made["choices"][0]["logprobs"] = probable(word)
            chunks.append(made)
    chunks += [chunk(reason="stop", index=index) for index in (1, 0)]
    async with running(streams(*chunks), http=http) as gateway:
        answer = await gateway.ask(chat(stream=True, **ASKED))
        assert [json.loads(event) for event in answer.events[:-1]] == chunks
        assert answer.events[-1] == b"[DONE]"
        assert gateway.engine.requests[0].json.items() >= ASKED.items()


FIRST_SEEN: dict[str, tuple[list[int], Json, list[int]]] = {
    "in order": ([0, 1, 2], {"n": 3}, [0, 1, 2]),
    "from the last on": ([2, 1, 0], {"n": 3}, [0, 1, 2]),
    "one in between": ([1, 0, 2], {"n": 3}, [0, 1, 2]),
    "one that was not asked for": ([1], {}, [1]),
}


@pytest.mark.parametrize(("came", "asked", "begun"), FIRST_SEEN.values(), ids=FIRST_SEEN)
@pytest.mark.parametrize("last", [False, True], ids=["words", "only the end"])
async def test_choices_begin_in_order(came: list[int], asked: Json, begun: list[int], last: bool) -> None:
    chunks = [chunk(None if last else "Hello", reason="stop" if last else None, index=index) for index in came]
    chunks += [chunk(reason="stop", index=index) for index in came if not last]
    async with running(streams(*chunks), http=FAST) as gateway:
        answer = await gateway.ask(chat(stream=True, **asked))
    got = [json.loads(event)["choices"][0] for event in answer.events[:-1]]
    assert list(dict.fromkeys(choice["index"] for choice in got)) == begun
    assert sorted(choice["index"] for choice in got if choice["finish_reason"]) == sorted(came)
    said = "" if last else "Hello"
    for index in came:
        assert "".join(choice["delta"].get("content") or "" for choice in got if choice["index"] == index) == said


async def test_choices_of_one_chunk_begin_in_order() -> None:
    together = chunk("Hello", index=2)
    together["choices"] += chunk("Hello", index=0)["choices"] + chunk("Hello", index=1)["choices"]
    ends = [chunk(reason="stop", index=index) for index in range(3)]
    async with running(streams(together, *ends), http=FAST) as gateway:
        answer = await gateway.ask(chat(stream=True, n=3))
    got = [json.loads(event)["choices"] for event in answer.events[:-1]]
    assert list(dict.fromkeys(choice["index"] for choices in got for choice in choices)) == [0, 1, 2]
    said = [choice["index"] for choices in got for choice in choices if choice["delta"].get("content") == "Hello"]
    assert sorted(said) == [0, 1, 2]
