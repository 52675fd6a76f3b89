"""Calls that the model decides on, guarded by a grammar on real engines: each that begins can be read, or is cut."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from msgspec.structs import replace

from gateway.answer.capture import RecordedAnswer
from gateway.backends.llamacpp_guard import MAY_BE_CALLS, TRIGGER_WHOLE
from gateway.config import Model
from gateway.config.values import Log
from gateway.core import Gateway
from gateway.request import grammars
from normalizers import FormatSpec, registry
from normalizers.write.grammar import guarded
from tests.backends.ollama_double import OllamaDouble
from tests.conftest import ROOT
from tests.engines.served import bare
from tests.formats import asking
from tests.formats.asking import ASK, WEATHER, Json, Said, chat_request, from_stream, tool
from tests.formats.conftest import config
from tests.formats.schemas import random_tool
from tests.gateway.double import Double, Exchange, answers, chunk, completion, streams
from tests.patience import PATIENCE
from tests.support.bare_objects import objects

ANSWERS = int(os.environ.get("CTXGATE_GUARDED_ANSWERS", "24"))
"""Answers at temperature 1.5 of each engine; the whole is 1000."""

TOGETHER = 4
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
GUARDED = (registry.define({"like": "pythonic", "bare": []}), *FORMATS[1:])
"""No grammar sees a call begin that has no mark, so what only looks like one may stay unfinished."""


@pytest.fixture
def llama_cpp(test_model: Path) -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    script = str(ROOT / "gateway/engines/xllamacpp_server.py")
    slots = ("--ctx-size", "4096", "--parallel", str(TOGETHER), "--threads", "1")
    with bare(sys.executable, "-P", script, "--model", str(test_model), "--alias", "m", *slots) as url:
        yield url


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


def asked(seed: int) -> tuple[Json, Json]:
    """A question, and the fields of a request with random tools."""
    random = Random(seed)
    tools = [tool(WEATHER), random_tool(random, "remind"), random_tool(random, "a.b-c")][: random.randint(1, 3)]
    return random.choice(QUESTIONS), {"tools": tools, "temperature": 1.5, "max_tokens": 200}


async def ask(gateways: list[Gateway], seed: int, *, seeded: bool) -> Counter[str]:
    """One answer to random tools, and what is to count of it."""
    question, fields = asked(seed)
    tools = fields["tools"]
    if seeded:
        fields["seed"] = seed
    said, times = await streamed(gateways[seed % len(gateways)], question, **fields)
    cut = said.finish_reason == "length"
    if not cut:
        codes = {warning["code"] for warning in said.ctxgate.get("warnings", ())} - {"stray_marker", "echo_dropped"}
        assert not codes, (seed, said)
        assert {name for name, _ in said.parsed} <= {each["function"]["name"] for each in tools}, (seed, said)
        assert said.finish_reason == ("tool_calls" if said.calls else "stop")
    return Counter({"cut": cut, "with calls": bool(said.calls), "in pieces": times > 1, "not UTF-8": "�" in repr(said)})


async def every_call_is_read(runtime: str, url: str, record_property: Any, *, seeded: bool) -> None:
    models = [
        Model(name="m", runtime=runtime, base_url=url, tool_call_format="auto", custom_format=spec) for spec in GUARDED
    ]
    gateways = [Gateway(config(model)) for model in models]
    counts: Counter[str] = Counter()
    for first in range(0, ANSWERS, TOGETHER):
        for one in await asyncio.gather(*(ask(gateways, first + at, seeded=seeded) for at in range(TOGETHER))):
            counts.update(one)
    for gateway in gateways:
        await gateway.aclose()
    print(runtime, dict(counts))
    record_property("counts", dict(counts))
    assert counts["with calls"] > ANSWERS // 4
    assert counts["in pieces"] > counts["with calls"] // 2


@pytest.mark.timeout(3600)
async def test_every_call_that_llama_cpp_begins_can_be_read(llama_cpp: str, record_property: Any) -> None:
    await every_call_is_read("llama.cpp", llama_cpp, record_property, seeded=True)


@pytest.mark.timeout(3600)
async def test_every_call_that_mlx_begins_can_be_read(mlx: str, record_property: Any) -> None:
    """In batches, which mlx_lm.server makes of requests without a seed."""
    await every_call_is_read("mlx", mlx, record_property, seeded=False)


def calls_alone(guard: str) -> str:
    """The grammar of a guard without the way from a call's beginning to free text, and without results."""
    lines = guard.replace("(ws? x-result)?", "").splitlines(keepends=True)
    leave = re.compile(r"\[\^(?:\\.|[^\]\\])*\]f(\|f0)?\|?")
    return "".join(leave.sub("", line).replace("()?", "") if line.startswith("start") else line for line in lines)


NO_TEXT: list[Json] = [
    tool({"name": "now", "parameters": {"type": "object", "properties": {"utc": {"type": "boolean"}}}}),
    tool(
        {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "how": {"enum": ["up", "down"]}},
                "required": ["a", "b"],
            },
        }
    ),
]
"""Tools whose arguments end soon."""


@pytest.mark.parametrize("spec", FORMATS, ids=lambda spec: spec.name)
def test_llama_cpp_completes_calls_without_marks(llama_cpp: str, spec: FormatSpec) -> None:
    """From the first token on, and from where the engine starts a lazy grammar."""
    found = guarded(spec, NO_TEXT, calls=1)
    assert found is not None
    with httpx.Client(base_url=llama_cpp, timeout=PATIENCE) as engine:

        def token(text: str) -> int:
            asked = {"content": text, "add_special": False, "parse_special": True}
            (only,) = engine.post("/tokenize", json=asked).json()["tokens"]
            return int(only)

        end = token(engine.get("/props").json()["eos_token"])
        trigger = {"type": TRIGGER_WHOLE, "value": f"^({MAY_BE_CALLS.pattern})$"}
        lazy = {"grammar_lazy": True, "grammar_triggers": [trigger]}
        counts: Counter[Any] = Counter()
        for seed in range(ANSWERS):
            # The model never learnt to write such calls.
            bias = [[end, -40.0], [token("{"), 30.0], [token('"'), 25.0]]
            asked = {"prompt": "Add 1 and 2.", "grammar": calls_alone(found.text), "logit_bias": bias, "seed": seed}
            asked |= {"temperature": 1.5, "max_tokens": 200, **(lazy if seed % 2 else {})}
            (choice,) = engine.post("/v1/completions", json=asked).raise_for_status().json()["choices"]
            text = choice["text"]
            counts[choice["finish_reason"]] += 1
            if choice["finish_reason"] == "length" or not re.search(r'"(now|add)"', text):
                continue
            (value,) = objects(text)
            value = value.get("function", value)
            (name,) = (value[key] for key in value.keys() & {"name", "tool", "tool_name"})
            (arguments,) = (each for each in value.values() if isinstance(each, dict))
            required = {"add": {"a", "b"}, "now": set[str]()}[name]
            assert required <= arguments.keys() <= {"a", "b", "how", "utc"}, text
            counts["complete", seed % 2] += 1
        assert min(counts["complete", 0], counts["complete", 1]) > ANSWERS // 8, counts


@dataclass
class Writing:
    """What the doubles write now, in these pieces."""

    pieces: list[str]
    reason: str

    async def script(self, exchange: Exchange) -> None:
        if exchange.json.get("stream"):
            await streams(*map(chunk, self.pieces), chunk(reason=self.reason))(exchange)
        else:
            await answers(completion("".join(self.pieces), reason=self.reason))(exchange)


async def freely_written(url: str) -> list[Writing]:
    """What the model writes at temperature 1.5 where no grammar holds it."""
    found: list[Writing] = []
    model = Model(name="m", runtime="llama.cpp", base_url=url, tool_call_format="pythonic")
    with patch.object(grammars, "guarding", lambda *_, **__: None):
        async with Gateway(replace(config(model), log=Log(bodies=True))) as gateway:
            for seed in range(ANSWERS):
                question, fields = asked(seed)
                request = chat_request(question, stream=True, seed=seed, **fields)
                with await gateway.chat(request) as run:
                    while await run.payloads():
                        pass
                    assert isinstance(run.answer, RecordedAnswer)
                    choices = [json.loads(payload)["choices"] for payload in run.answer.recording.raw]
                frames = [choice for (choice,) in filter(None, choices)]
                pieces = [frame["delta"]["content"] for frame in frames if frame["delta"].get("content")]
                reason = next(frame["finish_reason"] for frame in frames if frame["finish_reason"])
                # The model ends its answers early; every fifth is cut in the middle.
                found.append(
                    Writing(pieces[: len(pieces) // 2], "length") if seed % 5 == 4 else Writing(pieces, reason)
                )
    return found


@pytest.mark.timeout(3600)
async def test_the_same_texts_without_a_grammar_are_the_same_whole_and_streamed(
    llama_cpp: str, record_property: Any
) -> None:
    """From an OpenAI-compatible server and from Ollama, whose calls are held."""
    counts: Counter[str] = Counter()
    texts = await freely_written(llama_cpp)
    ollama = OllamaDouble({"m": ["completion", "tools"]})
    now = Writing([], "stop")
    ollama.script = lambda _: (now.pieces, [])
    async with Double(lambda exchange: now.script(exchange)).serve() as openai, ollama.serve() as native:
        ports = {"openai": openai.address.port, "ollama": native.port}
        gateways = {
            (runtime, at): Gateway(
                config(
                    Model(
                        name="m",
                        runtime=runtime,
                        base_url=f"http://127.0.0.1:{port}",
                        tool_call_format="auto",
                        custom_format=spec,
                    )
                )
            )
            for runtime, port in ports.items()
            for at, spec in enumerate(FORMATS)
        }
        for seed, now in enumerate(texts):
            ollama.reason = now.reason
            question, fields = asked(seed)
            counts["texts"] += 1
            counts["cut"] += now.reason == "length"
            for at in {
                0,
                seed % len(FORMATS),
            }:  # in the model's own format, and in one that makes most of it unreadable
                seen: list[tuple[Any, ...]] = []
                for runtime in ports:
                    for stream in (False, True):
                        said = await asking.ask(gateways[runtime, at], question, stream=stream, **fields)
                        seen.append((said.content, said.reasoning, said.calls, said.finish_reason))
                assert seen == [seen[0]] * 4, (seed, now)
                calls = seen[0][2]
                complete = calls[: len(calls) - (now.reason == "length")]
                assert all(isinstance(json.loads(arguments), dict) for _, arguments in complete)
                counts["readings with calls"] += bool(calls)
                counts["marked, without a call"] += not calls and MARKS["open"][0] in "".join(now.pieces)
        for gateway in gateways.values():
            await gateway.aclose()
    print("held", dict(counts))
    record_property("counts", dict(counts))
    assert counts["readings with calls"] > ANSWERS // 4
    assert counts["marked, without a call"] > ANSWERS // 40
