"""Finds and reads the file; returns the configuration or raises everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from gateway.config.folders import USER
from gateway.config.problems import ConfigError, Problem
from gateway.config.values import Config, Server


class NoConfig(ConfigError):
    """There is no configuration file anywhere."""


def find(start: Path | None = None) -> Path:
    """`_models/config.yaml` in `start` (the working folder) or a folder above it, else the user's own.

    Raises NoConfig, naming the places searched.
    """
    start = (start or Path.cwd()).resolve()
    own = USER.user_config_path / "config.yaml"
    for place in [folder / "_models" / "config.yaml" for folder in (start, *start.parents)] + [own]:
        if place.is_file():
            return place
    message = f"no configuration: no _models/config.yaml in {start} or a folder above it, and no {own}"
    raise NoConfig((Problem(message, "write the default one: ctxgate init; or name the file with --config FILE"),))


def load(path: Path | str, environ: Mapping[str, str] | None = None, text: str | None = None) -> Config:
    """The configuration in the file, with variables from `environ` (None: the process's own).

    text: read this instead of the file's content. Raises ConfigError with every problem.
    """
    seen = signature(Path(path))
    config, problems = _read(Path(path), os.environ if environ is None else environ, text)
    if config is None or problems:
        unique = dict.fromkeys(problems)
        raise ConfigError(tuple(sorted(unique, key=lambda problem: (problem.line, problem.column))))
    return replace(config, seen=seen)


def signature(file: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file behind links does; None if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def server_of(path: Path, environ: Mapping[str, str]) -> Server:
    """Where the gateway listens according to the file, even if it has mistakes. Raises what `_read` raises."""
    config, _ = _read(path, environ, None)
    return config.server if config is not None else Server()


def _read(path: Path, environ: Mapping[str, str], text: str | None) -> tuple[Config | None, list[Problem]]:
    """None if the file is too broken. Raises ConfigError if it can't be read at all."""
    # Imported here, so that code that only reads the values needs neither YAML nor pydantic.
    from gateway.config.build import build
    from gateway.config.source import read
    from gateway.config.spelling import normalise

    document = read(path.absolute(), environ, text)
    normalise(document)
    return build(document, USER.user_state_path), document.problems
