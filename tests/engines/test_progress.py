"""Progress comments of a stream that waits for a real engine: queue, loading, reading the prompt."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backends.prompt_progress import PromptProgress
from gateway.server.keepalive import KEEP_ALIVE
from gateway.wire.progress import Progress, Waiting
from tests.conftest import ROOT
from tests.engines.served import served
from tests.patience import PATIENCE

DOCS = ROOT / "docs/guarantees.md"
PROMPT = "What is the weather? " * 190
"""Nearly fills the test model's context, and takes it a tenth of a second to read."""
SERVER = {"progress_after_seconds": 0.005, "keep_alive_seconds": 0.005}


def events(url: str, text: str, **fields: Any) -> tuple[int, list[str]]:
    """Status, comments and payloads of a stream, in order."""
    body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 4, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE)
    return response.status_code, [event for event in response.text.split("\n\n") if event]


@contextmanager
def engine(model: Mapping[str, Any], folder: Path, **environment: str) -> Iterator[str]:
    config = {"active_model": "tiny", "models": {"tiny": model}, "server": SERVER}
    with served(config, folder, **environment) as gateway:
        yield gateway.url


def read(comments: list[str]) -> list[tuple[int, int]]:
    found = (re.fullmatch(r": ctxgate reading processed=(\d+) total=(\d+)", comment) for comment in comments)
    return [(int(match[1]), int(match[2])) for match in found if match]


def the_prompt_is_seen_being_read(url: str, **fields: Any) -> None:
    events(url, "Say hello.")  # it is loaded
    for attempt in range(10):
        # Another one each time, as what has been read needn't be read again.
        status, came = events(url, f"{attempt} {PROMPT}", **fields)
        assert status == 200
        first = next(at for at, event in enumerate(came) if event.startswith("data: "))
        progress = read(came[:first])
        if progress:
            break
        # The gateway was given no time while the engine read.
    assert progress, came[:first]
    assert progress == sorted(progress)
    assert {total for _, total in progress} == {progress[0][1]}
    assert 900 < progress[0][1] < 1024
    assert not read(came[first:])
    chunks = [json.loads(event.removeprefix("data: ")) for event in came[first:] if event[:7] == "data: {"]
    assert not any("prompt_progress" in chunk for chunk in chunks)
    assert [c["choices"][0]["delta"].get("role") for c in chunks].count("assistant") == 1


def test_xllamacpp_loads_and_reads(test_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    model = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 1024}
    with engine(model, tmp_path, PATH=os.defpath) as url:
        _, came = events(url, "Say hello.")
        assert any(event.startswith(": ctxgate loading") for event in came), came
        the_prompt_is_seen_being_read(url)


def test_llama_server_reads_batch_by_batch(llama_server: Path, test_model: Path, tmp_path: Path) -> None:
    """On both endpoints: with tools, the gateway asks for raw text."""
    args = ["--batch-size", "64"]
    model = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 1024, "args": args}
    path = f"{llama_server.parent}{os.pathsep}{os.defpath}"
    with engine({**model, "tool_call_format": "pythonic"}, tmp_path, PATH=path) as url:
        the_prompt_is_seen_being_read(url)
        tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
        the_prompt_is_seen_being_read(url, tools=[tool])


def test_mlx_reads(mlx_python: str, mlx_model: Path, tmp_path: Path) -> None:
    args = ["-P", str(ROOT / "gateway/engines/mlx_server.py"), "--model", "{model_path}", "--port", "{port}"]
    args += ["--context-window", "{context_window}", "--max-tokens", "{context_window}"]
    model = {"runtime": "mlx", "path": str(mlx_model), "command": mlx_python, "args": args, "context_window": 1024}
    with engine(model, tmp_path) as url:
        the_prompt_is_seen_being_read(url)


def test_the_examples_in_the_docs() -> None:
    read = PromptProgress()
    read.comment(b": keepalive 2048/7210")
    said = (str(Progress("load", 1, 1, 0.4)), read.describe(), KEEP_ALIVE)
    assert "\n".join(f": ctxgate {text}" for text in said) in DOCS.read_text("utf-8")


@pytest.mark.parametrize(
    ("phase", "loaded", "text"),
    [
        ("load", None, "loading"),
        ("load", 0.404, "loading percent=40"),
        ("load", 1.2, "loading percent=99"),
        ("memory", None, "queued for=memory position=2 waiting=3"),
        ("drain", 0.5, "queued for=drain position=2 waiting=3"),
        ("back-off", None, "queued for=back-off position=2 waiting=3"),
    ],
)
def test_the_text_of_a_comment(phase: Waiting, loaded: float | None, text: str) -> None:
    assert str(Progress(phase, 2, 3, loaded)) == text
