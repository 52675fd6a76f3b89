"""What a new configuration changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.config import Adapter, Config, Draft, Engines, Model, Residence, Rope, Runtime, Server
from gateway.config.diff import Difference, difference
from gateway.config.values import Log
from gateway.core.reload import describe
from gateway.features.ctx.settings import Ctx

BASE = Model(name="m", runtime="llama.cpp", path=Path("/m.gguf"), context_window=512, defaults={"top_k": 40})
REMOTE = Model(name="r", runtime="openai", base_url="http://a:1", api_key=SecretStr("sesame"))
CONFIG = Config(source=Path("/config.yaml"), active_model="m", models={"m": BASE, "r": REMOTE})


def changed(**settings: Any) -> Config:
    return replace(CONFIG, models={**CONFIG.models, "m": replace(BASE, **settings)})


MODELS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"context_window": 1024}, "restarts", ["context_window: 512 → 1024"]),
    ({"path": Path("/other.gguf")}, "restarts", ["path"]),
    ({"runtime": "mlx"}, "restarts", ["runtime: llama.cpp → mlx"]),
    ({"model_name": "other"}, "restarts", ["model_name"]),
    ({"port": 8080}, "restarts", ["port: not given → 8080"]),
    ({"engine": Runtime(threads=2)}, "restarts", ["threads: not given → 2"]),
    ({"engine": Runtime(kv_cache_type="q8_0")}, "restarts", ["kv_cache_type: not given → q8_0"]),
    ({"engine": Runtime(rope=Rope(factor=2))}, "restarts", ["rope"]),
    ({"engine": Runtime(draft=Draft(ngram=True))}, "restarts", ["draft"]),
    ({"engine": Runtime(adapters=(Adapter(path=Path("/a.gguf")),))}, "restarts", ["adapters"]),
    ({"engine": Runtime(fit=True)}, "restarts", ["fit: not given → true"]),
    ({"engine": Runtime(args=("--key", "sesame"))}, "restarts", ["args"]),
    ({"engine": Runtime(startup_timeout_seconds=9.0)}, "settings", ["startup_timeout_seconds: 120.0 → 9.0"]),
    ({"residence": Residence(pinned=True)}, "settings", ["pinned: false → true"]),
    ({"defaults": {"top_k": 20}}, "settings", ["top_k: 40 → 20"]),
    ({"defaults": {"stop": ["sesame"]}}, "settings", ["top_k: 40 → not given", "stop"]),
    ({"tool_call_format": "hermes"}, "settings", ["tool_call_format: native_json → hermes"]),
    ({"aliases": ("sesame",)}, "settings", ["aliases"]),
    ({"api_key": SecretStr("sesame")}, "settings", ["api_key"]),
]


@pytest.mark.parametrize(("settings", "effect", "changes"), MODELS, ids=lambda value: str(value)[:40])
def test_a_model_that_changes(settings: dict[str, Any], effect: str, changes: list[str]) -> None:
    found = difference(CONFIG, changed(**settings))
    (model,) = found.models
    assert (model.name, model.effect, [*map(str, model.changes)]) == ("m", effect, changes)
    assert not found.others
    assert not found.at_start
    assert "sesame" not in str(describe(found)), "what may come out of a variable isn't told"


def test_an_external_server_has_no_engine_to_end() -> None:
    there = replace(REMOTE, base_url="http://b:2", context_window=9)
    (model,) = difference(CONFIG, replace(CONFIG, models={"m": BASE, "r": there})).models
    assert (model.effect, [*map(str, model.changes)]) == ("settings", ["base_url", "context_window: not given → 9"])


def test_models_that_come_and_go() -> None:
    found = difference(CONFIG, replace(CONFIG, models={"m": BASE, "n": replace(BASE, name="n")}))
    assert [(model.name, model.effect) for model in found.models] == [("r", "removed"), ("n", "added")]


OTHERS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"active_model": "r"}, ["active_model: m → r"], []),
    ({"server": Server(max_body_bytes=2048)}, ["server.max_body_bytes: 33554432 → 2048"], []),
    ({"server": Server(api_keys=(SecretStr("sesame"),))}, ["server.api_keys"], []),
    ({"server": Server(port=1)}, [], ["server.port: 4000 → 1"]),
    ({"server": Server(uds=Path("/s"))}, [], ["server.uds"]),
    ({"log": Log(format="json", bodies=True)}, ["log.format: text → json", "log.bodies: false → true"], []),
    ({"engines": Engines(queue_length=1)}, ["engines.queue_length: 256 → 1"], []),
    ({"sections": {"ctx": Ctx(enabled=True, aliases={"main": "r"})}}, ["ctx.aliases"], ["ctx.enabled: false → true"]),
    ({"store": "postgresql://u:sesame@h/d"}, [], ["store"]),
]


@pytest.mark.parametrize(("settings", "others", "at_start"), OTHERS, ids=lambda value: str(value)[:40])
def test_what_concerns_the_whole_gateway(settings: dict[str, Any], others: list[str], at_start: list[str]) -> None:
    found = difference(CONFIG, replace(CONFIG, **settings))
    assert ([*map(str, found.others)], [*map(str, found.at_start)]) == (others, at_start)
    assert not found.models
    assert "sesame" not in str(describe(found))


def test_no_difference_is_false_and_tells_nothing() -> None:
    found = difference(CONFIG, replace(CONFIG, source=Path("/elsewhere.yaml")))
    assert found == Difference()
    assert not found
    assert describe(found) == []
