"""A user guesses how another one's prompt begins: no figure of any API tells a right guess from a wrong one."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.server.keys import FILE, KeyFile
from tests.gateway.double import Exchange, chunk, completion
from tests.hostile.running import Gateway, Upstream, configuration, polite, started

Json = dict[str, Any]
Header = dict[str, str]

USERS = ("victim/x", "right/x", "wrong/x", "victim/y")
"""Tenants and their users: one of the victim's tenant guesses, too."""
LONG = " ".join(f"Shelf {number} holds {number * 7 % 13} parts." for number in range(24))
RIGHT, WRONG = (f"{LONG} The code is {code}" for code in ("4711", "4712"))


def messages(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4}


FOUR = {"options": {"num_predict": 4}}
APIS: dict[str, tuple[str, Any]] = {
    "chat": ("/v1/chat/completions", messages),
    "chat, streamed": (
        "/v1/chat/completions",
        lambda text: {**messages(text), "stream": True, "stream_options": {"include_usage": True}},
    ),
    "chat, with progress": (
        "/v1/chat/completions",
        lambda text: {**messages(text), "stream": True, "return_progress": True, "timings_per_token": True},
    ),
    "chat, two choices": ("/v1/chat/completions", lambda text: {**messages(text), "n": 2}),
    "chat, flex": ("/v1/chat/completions", lambda text: {**messages(text), "service_tier": "flex"}),
    "chat, a slot of the client's choice": ("/v1/chat/completions", lambda text: {**messages(text), "id_slot": 0}),
    "completions": ("/v1/completions", lambda text: {"prompt": text, "max_tokens": 4}),
    "completions, streamed": (
        "/v1/completions",
        lambda text: {"prompt": text, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "responses": ("/v1/responses", lambda text: {"input": text, "max_output_tokens": 16, "store": False}),
    "messages": ("/v1/messages", messages),
    "Ollama's chat": ("/api/chat", lambda text: {**messages(text), **FOUR, "stream": False}),
    "Ollama's generate": ("/api/generate", lambda text: {"prompt": text, **FOUR, "stream": False}),
    "infill": ("/infill", lambda text: infill(text)),
    "infill, streamed": ("/v1/infill", lambda text: {**infill(text), "stream": True}),
    "infill, a slot of the client's choice": ("/infill", lambda text: {**infill(text), "id_slot": 1}),
    "infill, from the cache": ("/infill", lambda text: {**infill(text), "cache_prompt": True, "n_cache_reuse": 8}),
}


def infill(text: str) -> Json:
    return {"input_prefix": text, "input_suffix": "\n", "n_predict": 4}


def filling_in(model: Path, to: Path) -> Path:
    """The model's file with three tokens for what is filled in, which the engine wants to know before it does that."""
    content = model.read_bytes()
    version, tensors, count = struct.unpack("<IQQ", content[4:24])

    def text(written: str) -> bytes:
        return struct.pack("<Q", len(written)) + written.encode()

    more = b"".join(
        text(f"tokenizer.ggml.fim_{name}_token_id") + struct.pack("<II", 4, token)
        for token, name in enumerate(("pre", "suf", "mid"), 5)
    )
    more += text("x.padding") + struct.pack("<I", 8)
    more += text("x" * (-(len(more) + 8) % 32))  # what follows stays where its alignment wants it
    to.write_bytes(content[:4] + struct.pack("<IQQ", version, tensors, count + 4) + more + content[24:])
    return to


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Header]:
    file = KeyFile(tmp_path / "state" / FILE)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    made = {}
    for name in USERS:
        tenant, user = name.split("/")
        made[name] = {"Authorization": f"Bearer {file.add(tenant=tenant, user=user, scopes=['models'])[1]}"}
    return made


@pytest.fixture
def gateway(keys: dict[str, Header], upstream: Upstream, tmp_path: Path, test_model: Path) -> Iterator[Gateway]:
    config = configuration(upstream, tmp_path, test_model)
    if "tiny" not in config["models"]:
        pytest.skip("xllamacpp is not installed")
    config["models"]["tiny"] |= {
        "parallel": 2, "role": ["chat", "infill"], "path": str(filling_in(test_model, tmp_path / "fim.gguf")),
    }  # fmt: skip
    config["prompts"] = {"min_tokens": 64, "save": "each_turn"}
    with started(tmp_path, config) as running:
        yield running


TIMES = re.compile(r"(_ms|_per_second|_at|_duration|seconds|created|_per_token_ms)$")


def figures(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """All counts in an answer: no times, which differ from one answer to the next."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from figures(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from figures(each, name)
    elif isinstance(value, int) and not TIMES.search(name):
        yield name, value


def counts(body: bytes) -> list[tuple[str, int]]:
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert found, body
    return sorted(figures(found))


def ask(gateway: Gateway, api: str, text: str, header: Header) -> tuple[list[tuple[str, int]], Header]:
    path, body = APIS[api]
    answer = gateway.ask("POST", path, {"model": "tiny", **body(text)}, header)
    assert answer.status == 200, answer
    told = {name: value for name, value in answer.headers.items() if name.startswith("x-ctxgate")}
    return counts(answer.body), told


def test_no_figure_tells_a_right_guess(gateway: Gateway, keys: dict[str, Header]) -> None:
    for api in APIS:
        # What each of them reads is their own; the victim's slot is any.
        text = {name: f"{api}. {prompt}" for name, prompt in (("right", RIGHT), ("wrong", WRONG))}
        gateway.ask("POST", "/v1/chat/completions", {"model": "tiny", **messages(text["right"])}, keys["victim/x"])
        gateway.ask("POST", "/infill", {"model": "tiny", **infill(text["right"])}, keys["victim/x"])
        ask(gateway, api, text["right"], keys["victim/x"])
        wrong = ask(gateway, api, text["wrong"], keys["wrong/x"])
        for guesser in ("right/x", "victim/y"):
            assert ask(gateway, api, text["right"], keys[guesser]) == wrong, api


def test_a_file_tells_nothing_after_a_restart(
    gateway: Gateway, keys: dict[str, Header], upstream: Upstream, tmp_path: Path, test_model: Path
) -> None:
    ask(gateway, "chat", RIGHT, keys["victim/x"])
    gateway.server.stop()
    assert [*(tmp_path / "state/prompts").glob("*.prompt")]
    config = json.loads((tmp_path / "config.yaml").read_text())
    with started(tmp_path, config) as again:
        wrong = ask(again, "chat", WRONG, keys["wrong/x"])
        assert dict(wrong[0])["cached_tokens"] == 0
        assert ask(again, "chat", RIGHT, keys["right/x"]) == wrong
        cached = dict(ask(again, "chat", RIGHT, keys["victim/x"])[0])["cached_tokens"]
        assert cached > 0


async def telling(exchange: Exchange) -> None:
    """An engine that tells its cache in every way that one does."""
    if not exchange.body:
        await polite(exchange)
        return
    usage = {
        "prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 7}, "prompt_cache_hit_tokens": 7,
    }  # fmt: skip
    timings = {"prompt_n": 2, "cache_n": 7, "prompt_ms": 1.0}
    if not exchange.json.get("stream"):
        await exchange.whole({**completion(), "usage": usage, "timings": timings})
        return
    await exchange.start()
    await exchange.event(chunk("Hello"))
    await exchange.event({**chunk(reason="stop"), "timings": timings})
    await exchange.event({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": usage})
    await exchange.end()


@pytest.mark.parametrize("sharing", ["never", "all"])
def test_a_server_that_reuses_for_everybody_is_not_quoted(
    keys: dict[str, Header], upstream: Upstream, tmp_path: Path, test_model: Path, sharing: str
) -> None:
    upstream.script = telling
    config = configuration(upstream, tmp_path, test_model)
    config["prompts"] = {"share_prefixes": sharing}
    told = sharing == "all"
    with started(tmp_path, config) as running:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            chat = path == "/v1/chat/completions"
            usage = {"stream_options": {"include_usage": True}} if chat else {}
            body = {"input": "Hi", "store": False} if path == "/v1/responses" else messages("Hi")
            for stream in ({}, {"stream": True, **usage}):
                answer = running.ask("POST", path, {"model": "m", **body, **stream}, keys["wrong/x"])
                assert answer.status == 200, answer
                found = {value for name, value in counts(answer.body) if "cache" in name and "write" not in name}
                assert (7 in found) == told, (path, answer)
                assert (b"timings" in answer.body) == (told and chat)


@pytest.mark.parametrize("sharing", ["never", "all"])
def test_a_server_that_reuses_for_everybody_fills_in_without(
    keys: dict[str, Header], upstream: Upstream, tmp_path: Path, test_model: Path, sharing: str
) -> None:
    upstream.script = telling
    config = configuration(upstream, tmp_path, test_model)
    config["models"]["m"]["role"] = ["chat", "infill"]
    config["prompts"] = {"share_prefixes": sharing}
    with started(tmp_path, config) as running:
        asked = {"id_slot": 0, "cache_prompt": True}
        for name in ("victim/x", "wrong/x"):
            assert running.ask("POST", "/infill", {"model": "m", **infill("Hi"), **asked}, keys[name]).status == 200
            got = {key: value for key, value in upstream.double.requests[-1].json.items() if key in asked}
            assert got == (asked if sharing == "all" else {"cache_prompt": False})
