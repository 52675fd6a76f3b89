"""The plan of a service for a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gateway.config import Config
from gateway.config.folders import USER
from gateway.features.service.base import ServicePlan

CARRIED = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONPATH", "CTX_ROOT", "HF_HOME"),
    *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
)
"""Variables of the installing shell that the service also gets: they locate engines and the gateway's folders."""


TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - compared, not written to
"""Folders that a private /tmp hides."""


def plan(
    config: Config,
    *,
    python: str,
    env_file: Path,
    listen: Sequence[str],
    environ: Mapping[str, str],
    sandbox: bool,
    linger: bool,
) -> ServicePlan:
    """python: the interpreter that has ctxgate. listen: addresses as systemd has them."""
    # -P: don't import from the working folder, a home folder.
    command = (python, "-P", "-m", "gateway", "serve", "--config", str(config.source), "--env-file", str(env_file))
    return ServicePlan(
        command=command,
        environment={name: environ[name] for name in CARRIED if environ.get(name)},
        listen=tuple(listen),
        writable=tuple(dict.fromkeys(_writable(config, environ))),
        sandbox=sandbox,
        private_tmp=not any(_in_tmp(path) for path in (Path(python), *_named(config))),
        linger=linger,
    )


def _named(config: Config) -> Iterator[Path]:
    yield config.source
    yield config.state_dir
    for model in config.models.values():
        yield from (path for path in (model.path, model.mmproj_path) if path is not None)


def _in_tmp(path: Path) -> bool:
    # A virtual environment's Python is a link to one elsewhere.
    return any(folder in (*path.absolute().parents, *path.resolve().parents) for folder in TEMPORARY)


def own_folders() -> tuple[Path, ...]:
    return (USER.user_state_path, USER.user_data_path, USER.user_cache_path)


def _writable(config: Config, environ: Mapping[str, str]) -> Iterator[Path]:
    yield config.state_dir
    # Ollama's API adds models to it.
    yield config.source.parent
    yield from own_folders()
    yield Path(environ.get("HF_HOME") or Path(USER.user_cache_dir).parent / "huggingface")
    if config.models_dir is not None:
        yield config.models_dir
    for model in config.models.values():
        if model.pull is not None and model.path is not None:
            yield model.path.parent
    if config.server.uds is not None:
        yield config.server.uds.parent
    if (ctx := config.sections.get("ctx")) is not None and ctx.enabled:
        runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        yield ctx.root or Path(environ.get("CTX_ROOT") or "/ctx")
        yield Path(runtime)
