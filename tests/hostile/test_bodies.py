"""One valid body as large as the gateway takes, of each API, and of each shape that makes much work of few bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from gateway.wire.values import MAX_TOKENS, MAX_VALUES, MAX_WIDE
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway, Upstream, configuration, started, warm
from tests.hostile.suite import engine

SIZE = 30_000_000
ONE_TEXT = 12_000_000
"""Smaller, since so many endpoints take one."""
USER = '{"role":"user","content":"x"}'
CALL = (
    '{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},'
    '{"role":"tool","tool_call_id":"c","content":"x"}'
)
USE = (
    '{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]},'
    '{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}'
)
ITEM = (
    '{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
    '{"type":"function_call_output","call_id":"c","output":"x"}'
)
NAMELESS = '{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},{"role":"tool","content":"x"}'
TOOL = '{"type":"function","function":{"name":"f"}}'
PART = '{"type":"text","text":"x"}'

LISTS: dict[str, tuple[str, str, str, str]] = {
    "messages": ("/v1/chat/completions", '{"messages":[', USER, "]}"),
    "calls": ("/v1/chat/completions", '{"messages":[', CALL, "]}"),
    "parts": ("/v1/chat/completions", '{"messages":[{"role":"user","content":[', PART, "]}]}"),
    "tools": ("/v1/chat/completions", f'{{"messages":[{USER}],"tools":[', TOOL, "]}"),
    "a field that nobody knows": ("/v1/chat/completions", f'{{"messages":[{USER}],"x":[', "{}", "]}"),
    "Anthropic's messages": ("/v1/messages", '{"max_tokens":9,"messages":[', USER, "]}"),
    "blocks": ("/v1/messages", '{"max_tokens":9,"messages":[{"role":"user","content":[', PART, "]}]}"),
    "blocks of calls": ("/v1/messages", '{"max_tokens":9,"messages":[', USE, "]}"),
    "blocks to count": ("/v1/messages/count_tokens", '{"messages":[', USE, "]}"),
    "items": ("/v1/responses", '{"store":false,"input":[', USER, "]}"),
    "items of calls": ("/v1/responses", '{"store":false,"input":[', ITEM, "]}"),
    "items to drop": ("/v1/responses", '{"store":false,"model":"short","truncation":"auto","input":[', USER, "]}"),
    "items to count": ("/v1/responses/input_tokens", '{"input":[', USER, "]}"),
    "tokens to embed": ("/v1/embeddings", '{"input":[', "1", "]}"),
    "texts to embed": ("/v1/embeddings", '{"input":[', '"x"', "]}"),
    "texts to rank": ("/v1/rerank", '{"query":"x","documents":[', '"x"', "]}"),
    "tokens": ("/v1/completions", '{"prompt":[', "1", "]}"),
    "Ollama's messages": ("/api/chat", '{"model":"m","messages":[', USER, "]}"),
    "Ollama's calls": ("/api/chat", '{"model":"m","messages":[', NAMELESS, "]}"),
    "Ollama's texts to embed": ("/api/embed", '{"model":"e","input":[', '"x"', "]}"),
}
"""A path, and the beginning, an item and the end of a long list."""
TEXTS: dict[str, tuple[str, str]] = {
    "messages": ("/v1/messages", '{"max_tokens":9,"messages":[{"role":"user","content":"%s"}]}'),
    "responses": ("/v1/responses", '{"store":false,"input":"%s"}'),
    "completions": ("/v1/completions", '{"prompt":"%s"}'),
    "a list to complete": ("/v1/completions", '{"prompt":["%s"]}'),
    "chat": ("/v1/chat/completions", '{"messages":[{"role":"user","content":"%s"}]}'),
    "tokens to count": ("/v1/messages/count_tokens", '{"messages":[{"role":"user","content":"%s"}]}'),
    "Ollama's chat": ("/api/chat", '{"model":"m","messages":[{"role":"user","content":"%s"}],"stream":false}'),
    "Ollama's prompt": ("/api/generate", '{"model":"m","prompt":"%s","stream":false}'),
    "a text to embed": ("/v1/embeddings", '{"model":"e","input":"%s"}'),
    "texts to embed": ("/v1/embeddings", '{"model":"e","input":["%s"]}'),
    "Ollama's texts to embed": ("/api/embed", '{"model":"e","input":["%s"]}'),
    "Ollama's text to embed": ("/api/embeddings", '{"model":"e","prompt":"%s"}'),
    "a text to rank": ("/v1/rerank", '{"model":"r","query":"x","documents":["%s"]}'),
    "a text to speak": ("/v1/audio/speech", '{"model":"s","input":"%s"}'),
    "a text to draw": ("/v1/images/generations", '{"model":"s","prompt":"%s"}'),
    "code to fill in": ("/infill", '{"model":"s","input_prefix":"%s","input_suffix":""}'),
}


@pytest.fixture(scope="module")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    config = configuration(scripted, folder, test_model)
    m = config["models"]["m"]
    more = {"short": {**m, "context_window": 1000}, "e": {**m, "role": "embedding"}, "r": {**m, "role": "rerank"}}
    more["s"] = {**m, "role": ["speech", "image", "infill"]}
    with started(folder, {**config, "models": {**config["models"], **more}}) as running:
        warm(running)
        yield running


def filled(name: str, count: int) -> bytes:
    before, item, after = LISTS[name][1:]
    return f"{before}{','.join([item] * count)}{after}".encode()


def as_many_as_allowed(name: str) -> bytes:
    path, _, item, _ = LISTS[name]
    maximum = MAX_TOKENS if path in ("/v1/embeddings", "/v1/completions") else MAX_VALUES
    return filled(name, (maximum - 9) // (1 + sum(map(item.count, ",{["))))


def test_more_values_than_any_conversation_has(
    gateway: Gateway, upstream: Upstream, unharmed: Unharmed, subtests: pytest.Subtests
) -> None:
    asked = upstream.asked
    with unharmed(body=SIZE):
        for name in ("calls", "a field that nobody knows", "blocks to count", "items to drop", "tokens to embed"):
            with subtests.test(name):
                path, _, item, _ = LISTS[name]
                answer = gateway.ask("POST", path, filled(name, SIZE // (len(item) + 1)))
                assert answer.status == 413, answer
                assert b" JSON values: send fewer messages" in answer.body
    assert upstream.asked == asked


def test_as_many_values_as_a_request_may_have(gateway: Gateway, unharmed: Unharmed, subtests: pytest.Subtests) -> None:
    """Some are refused all the same, as they have more values once they are translated, or exceed OpenAI's limits."""
    for name in ("calls", "items", "texts to embed"):
        gateway.ask("POST", LISTS[name][0], as_many_as_allowed(name))  # what the first ones need is used again
    for api, names in groupby(LISTS, lambda name: LISTS[name][0].split("/")[2]):
        bodies = {name: as_many_as_allowed(name) for name in names}
        with unharmed(body=max(map(len, bodies.values()))):
            for name, body in bodies.items():
                with subtests.test(f"{api}: {name}"):
                    answer = gateway.ask("POST", LISTS[name][0], body)
                    assert answer.status in (200, 400, 413, 502), answer  # the scripted engine has no vectors
                    assert (b" JSON values" in answer.body) == (answer.status == 413), answer


def test_one_text_fills_the_body(
    gateway: Gateway, upstream: Upstream, unharmed: Unharmed, subtests: pytest.Subtests
) -> None:
    """What looks like structure in a text is none. Further ones take no more memory than the first."""
    upstream.script = engine
    text = json.dumps('x, [y] {z} "é" ').strip('"') * (ONE_TEXT // 22)
    for name, (path, body) in TEXTS.items():
        with subtests.test(name), unharmed(body=len(text)):
            assert gateway.ask("POST", path, (body % text).encode()).status == 200
    with unharmed(body=len(text)):
        for path, body in TEXTS.values():
            assert gateway.ask("POST", path, (body % text).encode()).status == 200


@pytest.mark.parametrize("emoji", ["😀", r"\ud83d\ude00"], ids=["UTF-8", "escape"])
def test_one_emoji_makes_no_text_too_large(
    gateway: Gateway, upstream: Upstream, unharmed: Unharmed, subtests: pytest.Subtests, emoji: str
) -> None:
    """It takes four bytes for each character of its text."""
    upstream.script = engine
    few = {name: TEXTS[name] for name in ("messages", "responses", "completions")}
    for size, statuses, texts in ((MAX_WIDE - 1000, (200,), TEXTS), (SIZE, (200, 413), few)):
        text = "x" * size + emoji
        with unharmed(body=size):
            for name, (path, body) in texts.items():
                with subtests.test(f"{name}: {size}"):
                    assert gateway.ask("POST", path, (body % text).encode()).status in statuses
