"""A widened model is larger and says the same."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("gguf")

from benchmarks.engine_defaults import EMBEDDED
from benchmarks.harness import proc
from benchmarks.harness.widen import Shape, widen
from tests.patience import PATIENCE

WIDE = Shape(width=256, heads=12, inner=768)


def answer(model: Path, folder: Path) -> str:
    port = proc.free_port()
    command = [sys.executable, "-P", str(EMBEDDED), "--model", str(model), "--port", str(port), "--ctx-size", "512"]
    server = proc.Server.start(command, port, folder / f"{model.stem}.log")
    try:
        server.wait_ready("/health", PATIENCE)
        body = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 24}
        reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=PATIENCE)
        said: str = reply.raise_for_status().json()["choices"][0]["message"]["content"]
        return said
    finally:
        server.stop()


def test_says_the_same(test_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    wide = tmp_path / "wide.gguf"
    widen(test_model, wide, WIDE)
    assert wide.stat().st_size > 2 * test_model.stat().st_size
    said = answer(wide, tmp_path)
    assert said
    assert said == answer(test_model, tmp_path)


@pytest.mark.parametrize("shape", [Shape(width=8), Shape(heads=1), Shape(inner=8)])
def test_a_shape_that_cannot_hold_the_model(test_model: Path, tmp_path: Path, shape: Shape) -> None:
    with pytest.raises(ValueError, match="wider than"):
        widen(test_model, tmp_path / "wide.gguf", shape)
