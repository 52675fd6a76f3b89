"""Caches the configuration of an unchanged file, so that a start imports neither YAML nor pydantic.

Like a compiled module, an entry is valid for one version of this code only. It is in the user's cache folder, readable
by that user alone. Configurations with a secret, or with a value from an environment variable, are never cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gateway.config.folders import USER
from gateway.config.loader import read_config
from gateway.config.values import Config

SUFFIX = ".config"
MAX_ENTRIES = 32
"""Beyond these, the oldest are deleted."""


def load(path: Path | str, environ: Mapping[str, str] | None = None) -> Config:
    """Returns and raises what `gateway.config.load` does, from the cache if possible."""
    environ = os.environ if environ is None else environ
    source = Path(path).absolute()
    entry = USER.user_cache_path / f"{hashlib.sha256(os.fsencode(source)).hexdigest()[:32]}{SUFFIX}"
    key = _key(source)
    found = _read(entry, key, environ)
    if found is not None:
        return found
    from gateway.config.sections import lacking_extras  # needs pydantic, as the file itself does

    config, document = read_config(source, environ)
    if document.variables is not None and _cacheable(config) and not any(lacking_extras(document)):
        _write(entry, key, document.variables, config)
    return config


def _key(source: Path) -> bytes:
    """Hash of everything that the configuration depends on, except its environment variables."""
    try:
        text = source.read_bytes() if source.is_file() else b""
    except OSError:
        text = b""  # `read_config` reports it
    parts = [sys.version, str(source), os.path.expanduser("~"), USER.user_state_dir]
    package = Path(__file__).parents[2]
    for folder in (package / "gateway", package / "gateway/config", package / "normalizers"):
        with os.scandir(folder) as files:
            for file in sorted(files, key=lambda file: file.name):
                if file.name.endswith(".py"):
                    stat = file.stat()
                    parts.append(f"{file.name} {stat.st_mtime_ns} {stat.st_size}")
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + text).digest()


def _cacheable(config: Config) -> bool:
    models = config.models.values()
    secret = bool(config.secrets)
    foreign = any(model.custom_format is not None or ":" in model.tool_call_format for model in models)
    credential = any(settings.credential is not None for settings in config.ctx.models.values())
    return not secret and not foreign and not credential and not config.sections


def _read(entry: Path, key: bytes, environ: Mapping[str, str]) -> Config | None:
    try:
        with open(os.open(entry, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                return None
            data = file.read()
    except OSError:
        return None
    body = data[64:]
    if data[:32] != key or data[32:64] != hashlib.sha256(body).digest():
        return None
    variables, config = pickle.loads(body)  # noqa: S301 - `_write` made it for this user, who owns this code too
    return None if any(environ.get(name) for name in variables) else config


def _write(entry: Path, key: bytes, variables: frozenset[str], config: Config) -> None:
    body = pickle.dumps((variables, config))
    # On failure the next start is as slow as this one; nothing else depends on it.
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=entry.parent)
        with open(descriptor, "wb") as file:
            file.write(key + hashlib.sha256(body).digest() + body)
        os.replace(name, entry)
        by_age = sorted(entry.parent.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
        for old in by_age[:-MAX_ENTRIES]:
            old.unlink(missing_ok=True)
