"""The ways to the same weights that `benchmarks.accuracy` compares: a server of each, for as long as it is asked.

Every server gets the same file, context window and number of threads. It must answer at `/v1/models` with the model's
name, as model-test expects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.harness import proc
from gateway.config import load
from gateway.engines.machine import runs
from gateway.errors import GatewayError
from gateway.features.evaluation.model_test import target
from gateway.features.models.inventory import add as inventory
from gateway.features.models.inventory.servers import ollama_url

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "gateway/engines/xllamacpp_server.py"
START_SECONDS = 300.0
BLOB_SECONDS = 600.0
ADDED = "added.yaml"
"""The configuration that `ctxgate add` wrote, in a model's folder."""

Json = dict[str, Any]


class NotMeasured(Exception):
    """This way can't be measured here; says why."""


@dataclass(frozen=True)
class Loaded:
    """One model to serve. name: for clients. folder: for logs and configurations, kept between runs."""

    name: str
    weights: Path
    folder: Path
    threads: int
    smoke: bool = True
    """Whether `ctxgate add` asks its 20 questions, from which it may choose settings."""


@dataclass(frozen=True)
class Served:
    """Where the model answers. facts: how it is served, which a resumed run must have in common. ours: by ctxgate."""

    base_url: str
    model: str
    facts: Json
    ours: bool = False


Way = Callable[[Loaded], AbstractContextManager[Served]]
"""Serves the model while the context lasts. Raises NotMeasured."""


@contextmanager
def bare(model: Loaded) -> Iterator[Served]:
    """llama.cpp with its own parser of calls: a llama-server on the PATH that runs here, else the embedded engine."""
    program = shutil.which("llama-server")
    own = program is not None and runs(program)
    start = [program, "--jinja"] if program is not None and own else [sys.executable, "-P", str(EMBEDDED)]
    window, port = window_of(model), proc.free_port()
    options = {"--model": model.weights, "--alias": model.name, "--ctx-size": window, "--parallel": 1}
    options |= {"--threads": model.threads, "--port": port}
    command = [*start, *(str(word) for option in options.items() for word in option)]
    with server(command, port, model.folder / "engine.log", "/health"):
        facts = {"engine": "llama-server" if own else "embedded", "context_window": window}
        yield Served(f"http://127.0.0.1:{port}/v1", model.name, facts)


@contextmanager
def added(model: Loaded) -> Iterator[Served]:
    """ctxgate, with the entry that `ctxgate add` writes."""
    with gateway(model, entry_of(model)) as served:
        yield served


@contextmanager
def reading(model: Loaded) -> Iterator[Served]:
    """The same, but the model alone decides whether to call: no example turns, no threshold."""
    deciding = ("call_threshold", "tool_examples")
    with gateway(model, {key: value for key, value in entry_of(model).items() if key not in deciding}) as served:
        yield served


@contextmanager
def native_json(model: Loaded) -> Iterator[Served]:
    """As `added`, but the engine reads the calls, and its template shows the tools."""
    entry = {key: value for key, value in entry_of(model).items() if key != "tool_prompt"}
    with gateway(model, {**entry, "tool_call_format": "native_json"}) as served:
        yield served


@contextmanager
def ollama(model: Loaded) -> Iterator[Served]:
    """The running Ollama, else one that is started for this. It gets the weights under a name of their own."""
    name = f"ctxgate-accuracy-{model.name}:latest"
    with ExitStack() as stack:
        base = stack.enter_context(_ollama_server(model.folder))
        http = stack.enter_context(httpx.Client(base_url=base, timeout=BLOB_SECONDS, trust_env=False))
        window = window_of(model)
        create_in_ollama(http, name, model.weights, {"num_ctx": window, "num_thread": model.threads})
        stack.callback(lambda: http.request("DELETE", "/api/delete", json={"model": name}))
        version = str(http.get("/api/version").json().get("version"))
        yield Served(f"{base}/v1", name, {"engine": f"Ollama {version}", "context_window": window})


WAYS: Mapping[str, Way] = {
    "bare": bare,
    "ctxgate": added,
    "reading": reading,
    "native_json": native_json,
    "ollama": ollama,
}


@contextmanager
def server(
    command: list[str], port: int, log: Path, ready: str, env: Mapping[str, str] | None = None
) -> Iterator[proc.Server]:
    """Raises NotMeasured if it doesn't come up."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        started = proc.Server.start(command, port, log, env=env)
    except OSError as error:
        raise NotMeasured(f"{command[0]} can't be started: {error.strerror}") from error
    try:
        try:
            started.wait_ready(ready, START_SECONDS)
        except proc.Failed as error:
            raise NotMeasured(f"{Path(command[0]).name}: {error}") from error
        yield started
    finally:
        started.stop()


def window_of(model: Loaded) -> int:
    """The context window that `ctxgate add` chooses. Raises NotMeasured."""
    try:
        window = inventory.identify(load(_config(model)), str(model.weights), name=f"{model.name}-again").window
    except GatewayError as error:
        raise NotMeasured(str(error)) from error
    assert window is not None, "a file's window is known"
    return window


def entry_of(model: Loaded) -> Json:
    """The entry that `ctxgate add` writes, which it does once for each folder. Raises NotMeasured."""
    file = model.folder / ADDED
    if not file.exists():
        draft = _config(model)
        command = [sys.executable, "-m", "gateway", "add", str(model.weights), "--name", model.name]
        command += [
            "--config",
            str(draft),
            "--out",
            str(model.folder / "add"),
            *([] if model.smoke else ["--no-smoke"]),
        ]
        with (model.folder / "add.log").open("wb") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False)
        # Its exit code also says what it thinks of the model's answers.
        if model.name not in _models(draft):
            raise NotMeasured(f"ctxgate add ended with {done.returncode}: see {log.name}")
        draft.rename(file)
    entry: Json = _models(file)[model.name]
    return entry


def _models(file: Path) -> Json:
    models: Json = yaml.safe_load(file.read_text("utf-8"))["models"]
    return models


def _config(model: Loaded) -> Path:
    """A config.yaml that doesn't have the model yet."""
    model.folder.mkdir(parents=True, exist_ok=True)
    file = model.folder / "config.yaml"
    made = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}, "state_dir": str(model.folder / "state")}
    file.write_text(yaml.safe_dump(made), "utf-8")
    return file


@contextmanager
def gateway(model: Loaded, entry: Json) -> Iterator[Served]:
    """A gateway that serves the model by this entry of config.yaml. Raises NotMeasured."""
    file, port = model.folder / "serving.yaml", proc.free_port()
    models = {model.name: {**entry, "threads": model.threads}}
    made = {"active_model": model.name, "models": models, "state_dir": str(model.folder / "state")}
    file.write_text(yaml.safe_dump(made, sort_keys=False), "utf-8")
    shown = {key: value for key, value in entry.items() if key != "path"}
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-tls"]
    with server(command, port, model.folder / "gateway.log", "/health"):
        yield Served(f"http://127.0.0.1:{port}/v1", model.name, shown, ours=True)


@contextmanager
def _ollama_server(folder: Path) -> Iterator[str]:
    """Its address. Raises NotMeasured."""
    base, program = ollama_url(), shutil.which("ollama")
    if _is_ollama(base):
        yield base
    elif os.environ.get("OLLAMA_HOST"):
        raise NotMeasured(f"no Ollama answers at {base}, which OLLAMA_HOST names")
    elif program is None:
        raise NotMeasured("Ollama isn't here: neither is it on the PATH, nor does OLLAMA_HOST name one")
    else:
        port = proc.free_port()
        own = {"OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_MODELS": str(folder / "ollama")}
        with server([program, "serve"], port, folder / "ollama.log", "/api/version", own):
            yield f"http://127.0.0.1:{port}"


def _is_ollama(base: str) -> bool:
    try:
        return "version" in httpx.get(f"{base}/api/version", timeout=5.0, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return False


def create_in_ollama(http: httpx.Client, name: str, weights: Path, parameters: Mapping[str, int]) -> None:
    """Hands a GGUF file to Ollama, which finds its template by itself. Raises NotMeasured."""
    digest = f"sha256:{target.file_sha256(weights)}"
    try:
        if http.head(f"/api/blobs/{digest}").is_error:
            with weights.open("rb") as content:
                http.post(f"/api/blobs/{digest}", content=content).raise_for_status()
        made = {"model": name, "files": {weights.name: digest}, "parameters": dict(parameters), "stream": False}
        http.post("/api/create", json=made).raise_for_status()
    except httpx.HTTPError as error:
        raise NotMeasured(f"Ollama didn't take the weights: {error}") from error
