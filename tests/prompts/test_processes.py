"""Saved prompts with a llama-server, with kill -9 of the gateway, and with SmolLM2 where it is at hand."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.prompts.folder import Folder
from tests.cli.commands import ctxgate
from tests.conftest import ROOT
from tests.engines.conftest import mlx_model, mlx_python
from tests.engines.served import Served, served
from tests.patience import PATIENCE
from tests.prompts.conftest import LEAST_CACHED, LONG, WINDOW, Open, modes, names, talk

__all__ = ["mlx_model", "mlx_python"]

SMOLLM2 = ROOT / "_models/smollm2-135m-instruct.gguf"


async def test_a_llama_server_on_the_path(shop: Open, llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(llama_server.parent), prepend=os.pathsep)
    async with shop() as gateway:
        await gateway.ask()
        warm = await gateway.ask()
        await gateway.ask("b", talk("Hi", system="Short."))
        again = await gateway.ask()
        assert again.share >= LEAST_CACHED
        assert again.words == warm.words


def config(folder: Path, weights: Path, **prompts: Any) -> dict[str, Any]:
    model = {"runtime": "llama.cpp", "path": str(weights), "context_window": WINDOW, "threads": 1, "group": "one"}
    return {
        "active_model": "a",
        "models": {"a": model, "b": {**model, "max_tokens": 4}},
        "engines": {"groups": {"one": {"excludes": ["one"]}}},
        "prompts": {"min_tokens": 64, **prompts},
        "state_dir": str(folder / "state"),
    }


def ask(
    gateway: Served, model: str = "a", messages: list[dict[str, str]] | None = None, **fields: Any
) -> tuple[str, float]:
    """The words, and the cached share of the prompt."""
    asked = {"model": model, "messages": messages or talk(), "max_tokens": 8, "temperature": 0, **fields}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=asked, timeout=PATIENCE).raise_for_status().json()
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return answer["choices"][0]["message"]["content"], cached


def test_kill_9_of_the_gateway(test_model: Path, tmp_path: Path) -> None:
    settings = config(tmp_path, test_model, save="each_turn")
    tries = int(os.environ.get("CTXGATE_TEST_KILLS", "1"))
    with served(settings, tmp_path) as gateway:
        ask(gateway)
        words, _ = ask(gateway)
        wait_for_files(tmp_path)
        gateway.process.kill()
        gateway.process.wait()
    for number in range(tries):
        with served(settings, tmp_path) as gateway:
            again, cached = ask(gateway)
            assert (again, cached >= LEAST_CACHED) == (words, True), number
            gateway.process.kill()
            gateway.process.wait()


def test_why_a_prompt_was_read_again(test_model: Path, tmp_path: Path) -> None:
    with served(config(tmp_path, test_model), tmp_path) as gateway:
        ask(gateway)
        ask(gateway, messages=talk(system=LONG.replace("Item 3 ", "Item three ")))
        running = ("--url", gateway.url, "--config", tmp_path / "config.yaml")
        found = ctxgate("prompts", "why", *running, cwd=tmp_path)
        one = ctxgate("prompts", "why", "1", *running, cwd=tmp_path)
    assert found.stdout.startswith("request 2: a, ")
    at = LONG.index("Item 3 ") + len("Item ")
    assert f'  messages[0].content characters {at}-{at + 5}: "3" became "three"\n' in found.stdout
    assert "continues" in one.stdout


def wait_for_files(folder: Path) -> None:
    """An answer is saved after it has ended."""
    deadline = time.monotonic() + PATIENCE
    while not names(folder / "state/prompts", "*.json"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"no {SMOLLM2.name}: `ctxgate pull` fetches it")
def test_smollm2(tmp_path: Path) -> None:
    """The first token after a swap comes within 5 % of the cold time plus a second. Here: the whole short answer."""
    settings = config(tmp_path, SMOLLM2)
    with served(settings, tmp_path) as gateway:
        ask(gateway, "b", talk("Hi", system="Short."))
        started = time.monotonic()
        ask(gateway, "a", talk("Hi", system="Short."))
        start = time.monotonic() - started
        before = time.monotonic()
        ask(gateway)
        cold = time.monotonic() - before
        words, _ = ask(gateway)
        ask(gateway, "b", talk("Hi", system="Short."))
        before = time.monotonic()
        again, cached = ask(gateway)
        swapped = time.monotonic() - before
    sys.stderr.write(f"cold {cold:.2f} s, start {start:.2f} s, after a swap {swapped:.2f} s, cached {cached:.4f}\n")
    assert cached >= LEAST_CACHED
    assert again == words


@pytest.mark.slow
@pytest.mark.parametrize("save", ["on_stop", pytest.param("each_turn", marks=pytest.mark.slow)])
def test_mlx(mlx_model: Path, tmp_path: Path, save: str) -> None:
    """A restart of the gateway; with `each_turn` a kill -9 of all."""
    settings = config(tmp_path, mlx_model, save=save)
    settings["models"] = {"a": {"runtime": "mlx", "path": str(mlx_model), "context_window": WINDOW}}
    with served(settings, tmp_path) as gateway:
        ask(gateway)
        words, warm = ask(gateway)
        assert warm >= LEAST_CACHED
        if save == "each_turn":
            wait_for_files(tmp_path)
            gateway.process.kill()
            gateway.process.wait()
    with served(settings, tmp_path) as gateway:
        again, cached = ask(gateway)
        assert cached >= LEAST_CACHED
        assert again == words
        ask(gateway, messages=talk(system=LONG.replace("Item 3 ", "Item three ")))
        (changed, restored) = httpx.get(f"{gateway.url}/-/requests", timeout=PATIENCE).json()["requests"][:2]
        assert restored["restored_tokens"] == restored["cached_tokens"] > 0
        assert restored["prefix"] == []
        assert [place.partition(" ")[0] for place in changed["prefix"]] == ["messages[0].content"]
        assert changed["restored_tokens"] == 0
        ask(gateway, messages=talk(system="A secret. " + LONG), cache_prompt=False)
    assert modes(tmp_path / "state/prompts") == (0o700, {0o600})
    # The first conversation, the changed one, and none for the one that shall leave nothing.
    saved = Folder(tmp_path / "state/prompts").list().values()
    assert [each.model for each in saved] == ["a", "a"]
