"""Calls that the model decides on, guarded by a grammar on real llama.cpp: each that begins can be read, or is cut."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core import Gateway
from normalizers import FormatSpec, registry
from tests.formats.asking import ASK, WEATHER, Json, Said, chat_request, from_stream, tool
from tests.formats.conftest import Serve, config, external
from tests.formats.schemas import random_tool

ANSWERS = int(os.environ.get("CTXGATE_GUARDED_ANSWERS", "60"))
"""Answers at temperature 1.5; the whole is 1000."""

QUESTIONS = (
    ASK,
    {"role": "user", "content": "What is the weather in Paris and in Rome?"},
    {"role": "user", "content": "Remind me to call Anna in three days."},
    {"role": "user", "content": "Say hello."},
)
MARKS = {"open": ["<|tool_call_start|>"], "close": ["<|tool_call_end|>"]}
FORMATS: tuple[FormatSpec, ...] = (
    registry.get("pythonic"),
    # What the model never learnt, behind the marks that it writes.
    registry.define({"like": "hermes", "name": "json", **MARKS}),
    registry.define({"like": "qwen3_coder", "name": "tags", **MARKS}),
    registry.define({"like": "mistral", "name": "named", **MARKS}),
)


async def streamed(gateway: Gateway, *messages: Json, **fields: Any) -> tuple[Said, int]:
    """The answer, and how many times more of a call came."""
    chunks: list[Json] = []
    times = 0
    with await gateway.chat(chat_request(*messages, stream=True, **fields)) as run:
        while payloads := await run.payloads():
            came = [json.loads(payload) for payload in payloads]
            times += any(choice["delta"].get("tool_calls") for chunk in came for choice in chunk["choices"])
            chunks += came
    return from_stream(chunks), times


@pytest.mark.timeout(1800)
async def test_every_call_that_begins_can_be_read(serve: Serve, test_model: Path, record_property: Any) -> None:
    counts: Counter[str] = Counter()
    url = serve("xllamacpp", test_model)
    gateways = [Gateway(config(replace(external(url, "auto"), custom_format=spec))) for spec in FORMATS]
    for seed in range(ANSWERS):
        random = Random(seed)
        gateway = gateways[seed % len(FORMATS)]
        tools = [tool(WEATHER), random_tool(random, "remind"), random_tool(random, "a.b-c")][: random.randint(1, 3)]
        said, times = await streamed(
            gateway, random.choice(QUESTIONS), tools=tools, temperature=1.5, seed=seed, max_tokens=200
        )
        codes = {warning["code"] for warning in said.ctxgate.get("warnings", ())} - {"stray_marker", "echo_dropped"}
        if said.finish_reason == "length":
            counts["cut"] += 1
        else:
            assert not codes, (seed, said)
            assert {name for name, _ in said.parsed} <= {each["function"]["name"] for each in tools}
            assert said.finish_reason == ("tool_calls" if said.calls else "stop")
        counts["with calls"] += bool(said.calls)
        counts["calls in pieces"] += times > 1
        counts["not UTF-8"] += "\ufffd" in repr(said)
    for gateway in gateways:
        await gateway.aclose()
    print(dict(counts))
    record_property("counts", dict(counts))
    assert counts["with calls"] > ANSWERS // 4
    assert counts["calls in pieces"] > counts["with calls"] // 2
