"""What engines answer to each API, long, wide, deep and slow: nobody else waits for it, and no memory grows with it.

Generated as `test_endpoints` is: from an example of each answer of each kind of engine, with each part grown, and from
the ways in which bytes may come. CI has about 1,000 answers; `--slow` has each part grown in every way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.double import DONE, STREAM_HEAD, Exchange, Json, Script, chunk, chunked, completion
from tests.hostile import grown
from tests.hostile.endpoints import CALL, CHECKED, MESSAGES, TOOL
from tests.hostile.grown import Grown
from tests.hostile.running import Upstream, configuration, keep_watching, started, warm
from tests.hostile.suite import Act, House, Sent, by_part
from tests.normalizers.degenerate import END, TRIES
from tests.normalizers.splits import tool

SIZE = 2_000_000
EVENT_SIZE = 1_000_000
"""Of a part of a stream: longer events are refused."""
HELD = 1_000
"""Events of a stream of many."""
TEXT_SIZE = 100_000
PIECE = 400
"""Characters of it in an event."""
PIECES = 30_000
"""Of a call."""

JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
NDJSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
TOKENS = {"tokens": ["a"], "top_logprobs": [{"a": -0.5}]}
LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5}]}

WHOLE: Json = {
    **completion("Hello", reasoning_content="Hm", tool_calls=[CALL]),
    "system_fingerprint": "f",
    "timings": {"prompt_n": 1},
    "usage": USAGE,
}
CHUNK: Json = {
    **chunk("Hello", reasoning_content="Hm", tool_calls=[{"index": 0, **CALL}]),
    "usage": USAGE,
}
COMPLETION: Json = {
    "id": "c",
    "object": "text_completion",
    "model": "m",
    "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": TOKENS}],
    "usage": USAGE,
}
VECTORS: Json = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "usage": USAGE}
SCORES: Json = {"results": [{"index": 0, "relevance_score": 0.5}], "usage": USAGE}
ERROR: Json = {"error": {"message": "no", "type": "t", "code": "c", "param": "p"}}
SAID: Json = {
    "model": "m",
    "created_at": "2026-01-01T00:00:00Z",
    "message": {
        "role": "assistant",
        "content": "Hello",
        "thinking": "Hm",
        "tool_calls": [{"function": {"name": "f", "arguments": {"city": "Rome"}}}],
    },
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 1,
    "eval_count": 1,
}


@dataclass(frozen=True)
class Question:
    """A request, and an example of the engine's answer. lines: the answer is JSON lines, as Ollama's."""

    path: str
    body: Json
    answer: Json
    streamed: bool = False
    lines: bool = False


LOGPROBS: Json = {**WHOLE, "choices": [{**WHOLE["choices"][0], "logprobs": {"content": [LOGPROB]}}]}
HI = [{"role": "user", "content": "Hi"}]
PROMPT: Json = {"model": "m", "prompt": "Hi"}
BEHIND: Json = {"model": "ollama", "messages": HI}
QUESTIONS: dict[str, Question] = {}
for _name, _model in (("openai", "m"), ("llama.cpp", "llama"), ("hermes", "hermes")):
    _chat = {"model": _model, "messages": HI, "tools": [TOOL]}
    QUESTIONS |= {
        f"{_name} chat": Question("/v1/chat/completions", _chat, WHOLE),
        f"{_name} chat, streamed": Question("/v1/chat/completions", {**_chat, "stream": True}, CHUNK, True),
    }
QUESTIONS |= {
    "logprobs": Question("/v1/chat/completions", {"model": "m", "messages": HI, "logprobs": True}, LOGPROBS),
    "checked": Question("/v1/chat/completions", CHECKED, WHOLE),
    "checked, streamed": Question("/v1/chat/completions", {**CHECKED, "stream": True}, CHUNK, True),
    "completions": Question("/v1/completions", PROMPT, COMPLETION),
    "completions, streamed": Question(
        "/v1/completions", {"model": "m", "prompt": "Hi", "stream": True}, COMPLETION, True
    ),
    "responses": Question("/v1/responses", {"model": "m", "input": "Hi"}, WHOLE),
    "responses, streamed": Question("/v1/responses", {"model": "m", "input": "Hi", "stream": True}, CHUNK, True),
    "messages": Question("/v1/messages", {**MESSAGES, "max_tokens": 9}, WHOLE),
    "messages, streamed": Question("/v1/messages", {**MESSAGES, "max_tokens": 9, "stream": True}, CHUNK, True),
    "api/chat": Question("/api/chat", {"model": "m", "messages": HI, "stream": False}, WHOLE),
    "api/chat, streamed": Question("/api/chat", {"model": "m", "messages": HI}, CHUNK, True),
    "embeddings": Question("/v1/embeddings", {"model": "vectors", "input": "Hi"}, VECTORS),
    "api/embed": Question("/api/embed", {"model": "vectors", "input": "Hi"}, VECTORS),
    "rerank": Question("/v1/rerank", {"model": "ranks", "query": "Hi", "documents": ["Hi"]}, SCORES),
    "ollama chat": Question("/v1/chat/completions", BEHIND, SAID),
    "ollama chat, streamed": Question("/v1/chat/completions", {**BEHIND, "stream": True}, SAID, True, True),
}


def body_of(question: Question, content: bytes) -> bytes:
    """All bytes of an engine's answer that has this content."""
    if question.lines:
        return NDJSON_HEAD + chunked(content + b"\n") + b"0\r\n\r\n"
    if question.streamed:
        first = json.dumps(chunk("Hello")).encode()
        return STREAM_HEAD + chunked(b"data: %b\n\ndata: %b\n\n" % (first, content) + DONE) + b"0\r\n\r\n"
    return JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


def manners(question: Question, size: int) -> Iterator[tuple[str, bytes]]:
    """The ways in which an answer may come, and end."""
    content = json.dumps(question.answer).encode()
    head = NDJSON_HEAD if question.lines else STREAM_HEAD
    for way in grown.WHOLE:
        yield way.__name__, body_of(question, way(size))
    event = content + b"\n" if question.lines else b"data: %b\n\n" % content
    end = chunked(DONE) + b"0\r\n\r\n"
    yield "wrong UTF-8", body_of(question, content.replace(b"Hello", b"\xff" * size))
    yield "an error", b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
    for grew in by_part(grown.grown(ERROR, size // 4)):
        error = grew.make()
        yield f"an error, {grew.name}", b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n" % len(error) + error
    yield "header lines", JSON_HEAD + b"X-Y: z\r\n" * 100_000
    yield "a long header", JSON_HEAD + b"X-Y: " + b"z" * size
    yield "interim answers", b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000
    if question.streamed:
        yield "many events", head + chunked(event * HELD) + end
        yield "many events, each a chunk", head + chunked(event) * HELD + end
        yield "pieces of a byte", head + b"".join(chunked(b"%c" % byte) for byte in event * 20) + end
        yield "one line without an end", head + chunked(b"data: " + b"x" * size)
        yield "comments", head + chunked(b": x\n\n" * (size // 5)) + end
        yield "empty lines", head + chunked(b"\n" * size) + end
        yield "fields without a name", head + chunked(b"x\n" * (size // 2)) + end


def sends(content: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        if not exchange.body:
            await exchange.whole({"object": "list", "data": [{"id": "m", "object": "model"}], "version": "1.0.0"})
            return
        await exchange.send(content)
        exchange.close()

    return script


def ask(house: House, question: Question, content: bytes) -> Sent:
    house.sent += 1
    house.upstream.script = sends(content)
    answer = house.gateway.ask("POST", question.path, question.body)
    house.upstream.double.requests.clear()
    return Sent(answer.status, answer.body, len(content))


@pytest.fixture(scope="module")
def house(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("engine-answers")
    config = configuration(scripted, folder, test_model)
    server = config["models"]["m"]
    config["models"] |= {
        "vectors": {**server, "role": "embedding"},
        "ranks": {**server, "role": "rerank"},
        "hermes": {**server, "tool_call_format": "hermes"},
        "llama": {**server, "runtime": "llama.cpp"},
        "ollama": {**server, "runtime": "ollama"},
    }
    with started(folder, config) as gateway:
        warm(gateway)
        with keep_watching(gateway) as watcher:
            yield House(gateway, scripted, watcher)


def acts(house: House, question: Question, *, all: bool) -> list[Act]:
    parts: list[Grown] = [*grown.grown(question.answer, EVENT_SIZE if question.streamed else SIZE)]
    found = [(each.name, partial(_made, question, each)) for each in (parts if all else by_part(parts))]
    ways = [(name, partial(bytes, content)) for name, content in manners(question, SIZE)]
    return [Act(name, partial(_ask, house, question, make)) for name, make in (*found, *ways)]


def _made(question: Question, grew: Grown) -> bytes:
    return body_of(question, grew.make())


def _ask(house: House, question: Question, make: Any) -> Sent:
    return ask(house, question, make())


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers(name: str, house: House) -> None:
    question = QUESTIONS[name]
    example = ask(house, question, body_of(question, json.dumps(question.answer).encode()))
    assert example.status in (200, 422), example
    house.tried(acts(house, question, all=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_all_answers(name: str, house: House) -> None:
    house.tried(acts(house, QUESTIONS[name], all=True))


def said(text: str, *, streamed: bool, field: str = "content", ends: bool = True) -> bytes:
    """An engine's answer of that text. ends: as a stream should."""

    def made(of: Any, piece: str) -> bytes:
        return json.dumps(of(**{field: piece})).encode()

    if not streamed:
        return body_of(QUESTIONS["openai chat"], made(completion, text))
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    events = b"".join(chunked(b"data: %b\n\n" % made(chunk, piece)) for piece in pieces)
    return STREAM_HEAD + events + (chunked(DONE) + b"0\r\n\r\n" if ends else b"")


@pytest.mark.some(2)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["m", "hermes", "llama"])
def test_texts_in_which_calls_are_looked_for(model: str, streamed: bool, house: House) -> None:
    """A model that is stuck. 2,000 fences in a row once held up everybody for ten seconds."""
    body = {"model": model, "messages": HI, "tools": [tool("ping")], "stream": streamed}
    question = Question("/v1/chat/completions", body, WHOLE, streamed)

    def sent(unit: str) -> Sent:
        return ask(house, question, said(unit * (TEXT_SIZE // len(unit)) + END, streamed=streamed))

    numbers = '<tool_call>{"name": "ping", "arguments": {"a": [' + "1, " * (TEXT_SIZE // 3) + "1]}}</tool_call>"
    whole = Act("a call of many numbers", lambda: ask(house, question, said(numbers, streamed=streamed)))
    acts = [*(Act(name, partial(sent, unit)) for name, unit in TRIES.items()), whole]
    for name in ("fences", "calls", "marks", "marks and words"):
        text = TRIES[name] * (TEXT_SIZE // len(TRIES[name]))
        content = said(text, streamed=streamed, field="reasoning_content")
        acts.append(Act(f"{name}, in the reasoning", partial(ask, house, question, content)))
        if streamed:
            content = said(text, streamed=True, ends=False)
            acts.append(Act(f"{name}, and the engine dies", partial(ask, house, question, content)))
    house.tried(acts)


FUNCTION = tool("ping")["function"]
TOOLS: dict[str, Json] = {
    "messages": {"name": "ping", "input_schema": FUNCTION["parameters"]},
    "responses": {"type": "function", **FUNCTION},
    "api/chat": tool("ping"),
}
"""In the words of each API."""


@pytest.mark.parametrize("name", TOOLS)
def test_texts_for_the_other_apis(name: str, house: House) -> None:
    question = QUESTIONS[f"{name}, streamed"]
    question = replace(question, body={**question.body, "tools": [TOOLS[name]]})

    def sent(unit: str) -> Sent:
        return ask(house, question, said(unit * (TEXT_SIZE // len(unit)) + END, streamed=True))

    house.tried([Act(unit, partial(sent, TRIES[unit])) for unit in TRIES])


@pytest.mark.parametrize("model", ["m", "llama"])
def test_calls_in_small_pieces(model: str, house: House) -> None:
    """That the engine reads itself. Held until they end, they must not be measured anew for each piece."""
    body = {"model": model, "messages": HI, "tools": [tool("ping")], "stream": True}
    question = Question("/v1/chat/completions", body, WHOLE, streamed=True)

    def pieces(*texts: str) -> bytes:
        first = chunk(tool_calls=[{"index": 0, **CALL, "function": {"name": "ping", "arguments": ""}}])
        deltas = [first, *(chunk(tool_calls=[{"index": 0, "function": {"arguments": text}}]) for text in texts)]
        events = (chunked(b"data: %b\n\n" % json.dumps(delta).encode()) for delta in deltas)
        return STREAM_HEAD + b"".join(events) + chunked(DONE) + b"0\r\n\r\n"

    texts = {"brackets": "[", "text": "a", "objects": '{"a": ', "escapes": "\\", "digits": "1"}
    contents = {name: pieces('{"a": "' * (name == "text"), *[text] * PIECES) for name, text in texts.items()}
    house.tried([Act(name, partial(ask, house, question, content)) for name, content in contents.items()])


async def _trickle(exchange: Exchange) -> None:
    await exchange.start()
    for byte in b"data: " + json.dumps(chunk("Hello")).encode():
        await exchange.send(chunked(b"%c" % byte))
        await asyncio.sleep(0.01)
    exchange.close()


def test_slow_answers(house: House) -> None:
    """To all APIs at once, a byte at a time."""
    house.upstream.script = _trickle
    asked = [question for question in QUESTIONS.values() if question.streamed and not question.lines]

    def all() -> Sent:
        with ThreadPoolExecutor(len(asked)) as threads:
            ask = house.gateway.ask
            answers = [*threads.map(lambda question: ask("POST", question.path, question.body), asked)]
        assert {answer.status for answer in answers} <= {200, 502}
        return Sent(200, b"", 0)

    house.tried([Act("all", all)])


def test_the_log_has_no_traceback(house: House) -> None:
    assert "Traceback" not in house.gateway.log(), house.gateway.log()[-5000:]
