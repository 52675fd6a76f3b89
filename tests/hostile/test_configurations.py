"""Configurations and batches that cost more to read than to write."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from gateway.features.batches.objects import Line, LineReader, decode_kept
from gateway.wire.values import MAX_VALUES
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Upstream, configuration, started

NUMBERS = ("1" + ":1" * 30_000, "1" + ":59" * 300 + ".5", "1:59" * 30, "9" * 90, "-0b" + "1" * 80, "0x" + "f" * 50_000)


def test_numbers_and_pipes(upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed) -> None:
    config = configuration(upstream, tmp_path, test_model)
    with started(tmp_path, config) as gateway:
        assert gateway.ask("POST", "/-/plan", json.dumps(config).encode()).status == 200
        with unharmed(gateway, 100_000):
            for number in NUMBERS:
                for key in ("server: {port: %s}", "models: {echo: {runtime: echo, temperature: %s}}", "x: %s"):
                    answer = gateway.ask("POST", "/-/plan", (key % number).encode())
                    assert answer.status in (200, 400, 422), (key, number[:20], answer)
        file = tmp_path / "config.yaml"
        text = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        with unharmed(gateway):
            assert gateway.ask("POST", "/-/reload").status == 422
        file.unlink()
        file.write_bytes(text)
        assert gateway.ask("POST", "/-/reload").status == 200


@pytest.mark.parametrize("keys", [2 * MAX_VALUES - 10, 2_600_000])
def test_a_line_of_many_keys(keys: int) -> None:
    """The reader itself: a batch asks an endpoint with the line, which is that endpoint's matter."""
    body = b'{"model":"echo",' + b",".join(b'"%x":0' % number for number in range(keys)) + b"}"
    line = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":' + body + b"}\n"
    reader = LineReader("/v1/embeddings", 10)
    tracemalloc.start()
    try:
        [found] = reader.feed(line)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.model if isinstance(found, Line) else found.code) == (
        "echo" if keys < 2 * MAX_VALUES else "invalid_json_line"
    )
    assert peak < 8 * len(line)  # copies of it; as a dict it took fifteen times that


@pytest.mark.parametrize("body", ["{}", " { } ", '{"a":{"b":{}}}', '{"service_tier":"priority", "a":1 }'])
def test_a_line_s_body_is_kept_but_for_its_tier(body: str) -> None:
    line = f'{{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{body}}}\n'
    [found] = LineReader("/v1/embeddings", 10).feed(line.encode())
    assert isinstance(found, Line)
    assert json.loads(bytes(decode_kept(found.request).body)) == {**json.loads(body), "service_tier": "flex"}
