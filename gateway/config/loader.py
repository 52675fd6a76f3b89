"""Finds the file, reads it and gives back the value, or everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config.folders import USER
from gateway.config.problems import ConfigError, Problem
from gateway.config.values import Config, Server

if TYPE_CHECKING:
    from gateway.config.source import Document


def find(start: Path | None = None) -> Path:
    """`_models/config.yaml` in `start` (the working folder) or a folder above it, else the user's own.

    Raises ConfigError, saying where it looked.
    """
    start = (start or Path.cwd()).resolve()
    own = USER.user_config_path / "config.yaml"
    for place in [folder / "_models" / "config.yaml" for folder in (start, *start.parents)] + [own]:
        if place.is_file():
            return place
    message = f"no configuration: no _models/config.yaml in {start} or a folder above it, and no {own}"
    raise ConfigError((Problem(message, "name the file with --config FILE"),))


def load(path: Path | str, environ: Mapping[str, str] | None = None, text: str | None = None) -> Config:
    """The configuration in the file; `environ` fills its variables (None: the process's own).

    text: read as if it stood in the file. Raises ConfigError with everything that is wrong with it.
    """
    return read_config(Path(path), os.environ if environ is None else environ, text)[0]


def read_config(path: Path, environ: Mapping[str, str], text: str | None = None) -> tuple[Config, Document]:
    """The configuration, and the document that it was made of: the file or, as if it stood there, `text`.

    Raises what `load` raises.
    """
    # YAML and pydantic are imported here: code that only reads the values does without them.
    from gateway.config.build import build
    from gateway.config.source import read
    from gateway.config.spelling import normalise

    document = read(path.absolute(), environ, text)
    normalise(document)
    config = build(document, USER.user_state_path, environ)
    if config is None or document.problems:
        unique = dict.fromkeys(document.problems)
        raise ConfigError(tuple(sorted(unique, key=lambda problem: (problem.line, problem.column))))
    return config, document


def server_of(path: Path, environ: Mapping[str, str]) -> Server:
    """Where the file says that the gateway listens, as far as it can be read: mistakes elsewhere don't count."""
    from gateway.config.build import build
    from gateway.config.source import read
    from gateway.config.spelling import normalise

    try:
        document = read(path.absolute(), environ)
    except ConfigError:
        return Server()
    normalise(document)
    config = build(document, USER.user_state_path, environ)
    return config.server if config is not None else Server()
