"""Finds the file and reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gateway.config.problems import ConfigError, Problem
from gateway.config.values import Config, Model, Runtime, Server

DEFAULTS = ("temperature", "max_tokens", "top_p", "top_k", "seed")


def find(start: Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """`_models/config.yaml` in `start` (the working folder) or a folder above it, else the user's own.

    Raises ConfigError, saying where it looked.
    """
    environ = os.environ if environ is None else environ
    start = (start or Path.cwd()).resolve()
    own = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ctxgate" / "config.yaml"
    for place in [folder / "_models" / "config.yaml" for folder in (start, *start.parents)] + [own]:
        if place.is_file():
            return place
    raise ConfigError(
        (
            Problem(
                f"no configuration: no _models/config.yaml in {start} or a folder above it, and no {own}",
                "name the file with --config FILE",
            ),
        )
    )


def load(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in the file. Raises ConfigError with everything that is wrong with it."""
    path = Path(path).absolute()
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    models = {}
    for name, entry in data["models"].items():
        entry = dict(entry)
        entry["defaults"] = {key: entry.pop(key) for key in DEFAULTS if key in entry}
        if weights := entry.pop("path", None) or entry.pop("model_path", None):
            entry["path"] = path.parent / Path(weights).expanduser()
        if entry["runtime"] == "llama_cpp":
            entry["runtime"] = "llama.cpp"
        if base_url := entry.get("base_url"):
            entry["base_url"] = base_url.removesuffix("/").removesuffix("/v1")
        elif port := entry.get("port"):
            entry["base_url"] = f"http://127.0.0.1:{port}"
        models[name] = Model(name=name, engine=Runtime(), **entry)
    return Config(
        source=path, active_model=data["active_model"], models=models, server=Server(**data.get("server", {}))
    )
