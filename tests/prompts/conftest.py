"""A gateway in this process, with real engines on the test model, and its saved prompts."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, Engines, Model, Prompts
from gateway.config.values import Group, Residence, Runtime
from gateway.core import Gateway, Run
from gateway.engines import Engine
from gateway.wire.chat import Caller, ChatRequest

WINDOW = 2048
LONG = "You are a shop. " + " ".join(f"Item {number} costs {number * 7 % 13} coins." for number in range(30))
LEAST_CACHED = 0.99


@dataclass(frozen=True)
class Said:
    """What a model said, and the engine's counts."""

    words: str
    prompt: int
    cached: int

    @property
    def share(self) -> float:
        return self.cached / self.prompt


def talk(*more: str, system: str = LONG) -> list[dict[str, str]]:
    """A conversation with a long beginning: the user's and the model's messages in turn."""
    roles = ("user", "assistant")
    said = [{"role": roles[index % 2], "content": text} for index, text in enumerate(more or ("What is item 3?",))]
    return [{"role": "system", "content": system}, *said]


@dataclass
class Shop:
    """model names: a and b exclude each other, unless they were given no group."""

    gateway: Gateway

    async def ask(
        self, model: str = "a", messages: list[dict[str, str]] | None = None, *, owner: str = "", **fields: Any
    ) -> Said:
        with await self.open(model, messages, owner=owner, **fields) as run:
            body = json.loads(await run.whole())
        usage = body["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Said(body["choices"][0]["message"]["content"] or "", usage["prompt_tokens"], cached)

    async def open(
        self, model: str = "a", messages: list[dict[str, str]] | None = None, *, owner: str = "", **fields: Any
    ) -> Run:
        asked = {"model": model, "messages": messages or talk(), "max_tokens": 8, "temperature": 0, **fields}
        request = ChatRequest.parse(json.dumps(asked).encode(), caller=Caller(owner=owner))
        return await self.gateway.chat(request)

    def engine(self, model: str = "a") -> Engine:
        engine = self.gateway.routes[model].engine
        assert engine is not None
        return engine

    async def settled(self, model: str = "a") -> None:
        """Waits for what answers leave to do after them, such as saving."""
        prompts = self.engine(model).launcher.prompts
        assert prompts is not None
        await prompts.settled()


def modes(folder: Path) -> tuple[int, set[int]]:
    """The permissions of a folder, and those of its files."""
    return stat.S_IMODE(folder.stat().st_mode), {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(file.name for file in folder.glob(pattern))


def copied(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target


Open = Callable[..., AbstractAsyncContextManager[Shop]]


@pytest.fixture
def shop(test_model: Path, tmp_path: Path) -> Open:
    """Opens a gateway on one state folder; opened again, it is a gateway that was restarted."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")

    @asynccontextmanager
    async def opened(
        *,
        models: Mapping[str, Mapping[str, Any]] | None = None,
        parallel: int = 1,
        group: str | None = "one",
        idle: float | None = None,
        path: Path = test_model,
        **prompts: Any,
    ) -> AsyncIterator[Shop]:
        def model(name: str, **more: Any) -> Model:
            residence = Residence(group=group, idle_ttl_seconds=idle)
            engine = Runtime(threads=1, parallel=parallel)
            settings = {"path": path, "context_window": WINDOW, "tool_call_format": "pythonic", **more}
            return Model(name=name, runtime="llama.cpp", residence=residence, engine=engine, **settings)

        config = Config(
            source=tmp_path / "config.yaml",
            active_model="a",
            models={name: model(name, **more) for name, more in (models or {"a": {}, "b": {}}).items()},
            engines=Engines(groups={"one": Group(excludes=("one",))}),
            prompts=Prompts(min_tokens=64, **prompts),
            state_dir=tmp_path / "state",
        )
        async with Gateway(config) as gateway:
            yield Shop(gateway)

    return opened


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of the saved prompts."""
    return tmp_path / "state/prompts"
