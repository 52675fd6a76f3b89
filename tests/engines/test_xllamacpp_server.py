"""llama-server's options, as the embedded server hands them to llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.engines.xllamacpp_server import parameters

xllamacpp = pytest.importorskip("xllamacpp")


FOLDER = f"{Path(__file__).parent}/"


def given(*options: str) -> Any:
    return parameters(["--model", "/m.gguf", *options])


def test_without_a_model() -> None:
    with pytest.raises(ValueError, match="--model is missing"):
        parameters([])


def test_a_model_with_a_window_is_not_fitted_where_no_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the command line asks for it."""
    monkeypatch.setattr("gateway.engines.xllamacpp_server.gpus", list)
    assert not given("-c", "4096").fit_params
    assert given("-c", "4096", "--fit", "on").fit_params
    assert given().fit_params
    monkeypatch.setattr("gateway.engines.xllamacpp_server.gpus", lambda: [{}])
    assert given("-c", "4096").fit_params


# By the attribute of llama.cpp's parameters.
OPTIONS: dict[str, tuple[list[str], Any]] = {
    "model.path": (["-m", "/other.gguf"], "/other.gguf"),
    "mmproj.path": (["--mmproj", "/p.gguf"], "/p.gguf"),
    "model_alias": (["--alias", "tiny"], {"tiny"}),
    "hostnames": (["--host", "::1"], ["::1"]),
    "port": (["--port", "8081"], 8081),
    "n_ctx": (["-c", "4096"], 4096),
    "n_parallel": (["-np", "3"], 3),
    "cpuparams.n_threads": (["-t", "5"], 5),
    "cpuparams_batch.n_threads": (["--threads", "5"], 5),
    "n_gpu_layers": (["-ngl", "0"], 0),
    "n_batch": (["-b", "64"], 64),
    "n_ubatch": (["-ub", "32"], 32),
    "slot_save_path": (["--slot-save-path", FOLDER], FOLDER),
    "cache_ram_mib": (["-cram", "7"], 7),
    "verbosity": (["--verbosity", "4"], 4),
    "pooling_type": (["--pooling", "mean"], "LLAMA_POOLING_TYPE_MEAN"),
}
ALONE: dict[str, Any] = {
    "model.path": "/m.gguf",
    "mmproj.path": "",
    "model_alias": set(),
    "hostnames": ["127.0.0.1"],
    "port": 0,
    "n_ctx": 0,
    "n_parallel": 1,
    "cpuparams.n_threads": 1,
    "cpuparams_batch.n_threads": 1,
    "n_gpu_layers": -1,
    "n_batch": 2048,
    "n_ubatch": 512,
    "slot_save_path": "",
    "cache_ram_mib": 8192,
    "verbosity": 2,
    "pooling_type": "LLAMA_POOLING_TYPE_UNSPECIFIED",
    "embedding": False,
    "chat_template": "",
    # No page of the web may use it, and no event comes without news of the answer.
    "use_jinja": True,
    "cache_idle_slots": False,
    "cors_origins": "localhost",
    "ui": False,
    "sse_ping_interval": -1,
}


def value(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = getattr(found, name)
    return found.name if path == "pooling_type" else found


@pytest.mark.parametrize("path", OPTIONS)
def test_an_option_reaches_llama_cpp(path: str) -> None:
    options, expected = OPTIONS[path]
    assert value(given(*options), path) == expected


def test_what_no_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_ARG_CACHE_RAM", raising=False)
    found = given()
    assert {path: value(found, path) for path in ALONE} == ALONE
    monkeypatch.setenv("LLAMA_ARG_CACHE_RAM", "9")
    assert given().cache_ram_mib == 9


@pytest.mark.parametrize(
    ("options", "pooling"),
    [
        (["--embedding"], "LLAMA_POOLING_TYPE_UNSPECIFIED"),
        (["--embeddings", "--pooling", "cls"], "LLAMA_POOLING_TYPE_CLS"),
        (["--rerank"], "LLAMA_POOLING_TYPE_RANK"),
        (["--reranking", "--pooling", "last"], "LLAMA_POOLING_TYPE_LAST"),
    ],
)
def test_models_that_answer_with_vectors(options: list[str], pooling: str) -> None:
    found = given(*options)
    assert (found.embedding, found.pooling_type.name) == (True, pooling)


def test_a_template_is_read_from_its_file(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }} ü", "utf-8")
    assert given("--chat-template-file", str(template), "--jinja").chat_template == "{{ messages }} ü"
