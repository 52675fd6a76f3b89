"""The same requests to every engine, alone and behind ctxgate: the table in `docs/engine-reference.md`, kept true."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.ollama_double import OllamaDouble
from tests.conftest import ROOT, found_llama_server
from tests.engines.served import served
from tests.engines.suite import CHECKS, Server, observe
from tests.llama_server import pinned
from tests.ports import free_port

DOCS = ROOT / "docs/engine-reference.md"
WINDOW = 1024
EXPECTED = {
    **dict.fromkeys(CHECKS, "ok"),
    **dict.fromkeys(["a wrong type", "a message without role", "no JSON"], "400"),
    "oversize prompt": "400 `context_length_exceeded`",
    "the same, streamed": "400 `context_length_exceeded`",
    "unknown model": "404 `model_not_found`",
}
"""What a client of ctxgate sees, whatever the engine."""

DIFFERS: Mapping[str, Mapping[str, str]] = {
    "xllamacpp": {"streamed tool call": "in pieces"},
    "llama-server": {"streamed tool call": "in pieces"},
    "llama_cpp.server": {"streamed tool call": "at once", "streamed usage": "never"},
    "mlx_lm.server": {"streamed tool call": "in pieces"},
    "Ollama (double)": {"streamed tool call": "at once"},
}
"""What remains of the engines' differences."""

Row = dict[str, str]


def row(alone: Row, behind: Row) -> Row:
    """One engine's cells: what it does alone, and what a client of ctxgate sees where that is something else."""
    return {name: told if told == behind[name] else f"{told} → {behind[name]}" for name, told in alone.items()}


def held_in_docs(engine: str, seen: Row) -> None:
    """The engine's row of the table in docs/engine-reference.md says just that."""
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n")) for line in DOCS.read_text("utf-8").splitlines() if line[:1] == "|"
    ]
    heads = next(cells for cells in rows if cells[0] == "engine")
    written = next((cells for cells in rows if cells[0] == engine), [engine])
    line = " | ".join(["", engine, *seen.values(), ""]).strip()
    assert dict(zip(heads[1:], written[1:], strict=False)) == seen, f"docs/engine-reference.md should say:\n{line}"


def check(engine: str, alone: Server, behind: Server) -> Row:
    told, seen = observe(alone), observe(behind)
    assert seen == {**EXPECTED, **DIFFERS[engine]}
    return row(told, seen)


@contextmanager
def two(
    config: Mapping[str, Any], folder: Path, port: int, alone: str = "tiny", **environment: str
) -> Iterator[tuple[Server, Server]]:
    """The engine itself and the gateway in front of it, which starts it on `port` where it has a `path`."""
    model = {"context_window": WINDOW, "tool_call_format": "pythonic", "port": port, **config}
    with served({"active_model": "tiny", "models": {"tiny": model}}, folder, **environment) as gateway:
        behind = Server(gateway.url, "tiny")
        itself = Server(f"http://127.0.0.1:{port}", alone)
        try:
            behind.ask({"role": "user", "content": "hi"}).raise_for_status()
            yield itself, behind
        finally:
            itself.close()
            behind.close()


def test_xllamacpp(test_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with two({"runtime": "llama.cpp", "path": str(test_model)}, tmp_path, free_port(), PATH=os.defpath) as servers:
        held_in_docs("xllamacpp", check("xllamacpp", *servers))


def test_llama_server(llama_server: Path, test_model: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = f"{llama_server.parent}{os.pathsep}{os.defpath}"
    with two({"runtime": "llama.cpp", "path": str(test_model)}, tmp_path, free_port(), PATH=path) as servers:
        seen = check("llama-server", *servers)
    found = found_llama_server(pytestconfig)
    if not found.stands_in and pinned() not in found.name:
        pytest.skip(f"only clients' answers are checked: the page speaks of {pinned()}, and this is {found.name}")
    held_in_docs("llama-server", seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_llama_cpp_python(llama_cpp_python: str, test_model: Path, tmp_path: Path) -> None:
    args = ["-m", "llama_cpp.server", "--model", "{model_path}", "--model_alias", "tiny", "--port", "{port}"]
    args += ["--n_ctx", "{context_window}", "--n_threads", "{threads}", "--interrupt_requests", "false"]
    config = {"runtime": "llama-cpp-python", "path": str(test_model), "command": llama_cpp_python, "args": args}
    with two(config, tmp_path, free_port()) as servers:
        held_in_docs("llama_cpp.server", check("llama_cpp.server", *servers))


def test_mlx(mlx_python: str, mlx_model: Path, tmp_path: Path) -> None:
    script = ROOT / "gateway/engines/mlx_server.py"
    args = ["-P", str(script), "--model", "{model_path}", "--port", "{port}"]
    args += ["--context-window", "{context_window}", "--max-tokens", "{context_window}"]
    config = {"runtime": "mlx", "path": str(mlx_model), "command": mlx_python, "args": args}
    # Its list is empty where there is no such folder, and the folder's contents where there is.
    cache = str(tmp_path / "no-cache")
    with two(config, tmp_path, free_port(), "default_model", HF_HUB_CACHE=cache) as servers:
        held_in_docs("mlx_lm.server", check("mlx_lm.server", *servers))


async def test_ollama(tmp_path: Path) -> None:
    double = OllamaDouble({"tiny": ["completion", "tools"]})
    config = {"runtime": "ollama", "tool_call_format": "native_json"}

    def asked(port: int) -> Row:
        with two(config, tmp_path, port) as servers:
            return check("Ollama (double)", *servers)

    async with double.serve() as address:
        held_in_docs("Ollama (double)", await asyncio.to_thread(asked, address.port))
