"""The value of a file that hasn't changed, so that a start needs neither YAML nor pydantic.

What a compiled module is to its source: kept in the user's cache folder, for this user alone, and of no meaning to any
other version of this code. A configuration that holds a secret, or anything that comes out of a variable, is not kept.
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

SUFFIX, KEPT = ".config", 32
"""Files; the oldest ones go."""


def load(path: Path | str, environ: Mapping[str, str] | None = None) -> Config:
    """What `gateway.config.load` returns and raises, from the cache where it is there."""
    environ = os.environ if environ is None else environ
    source = Path(path).absolute()
    entry = USER.user_cache_path / f"{hashlib.sha256(os.fsencode(source)).hexdigest()[:32]}{SUFFIX}"
    key = _key(source)
    found = _read(entry, key, environ)
    if found is not None:
        return found
    config, document = read_config(source, environ)
    if document.variables is not None and _may_be_kept(config):
        _write(entry, key, document.variables, config)
    return config


def _key(source: Path) -> bytes:
    """Of everything that the configuration is made of, but for the variables that it names."""
    try:
        text = source.read_bytes()
    except OSError:
        text = b""  # `read_config` tells it better
    parts = [sys.version, str(source), os.path.expanduser("~"), USER.user_state_dir]
    package = Path(__file__).parents[2]
    for folder in (package / "gateway", package / "gateway/config", package / "normalizers"):
        with os.scandir(folder) as files:
            for file in sorted(files, key=lambda file: file.name):
                if file.name.endswith(".py"):
                    stat = file.stat()
                    parts.append(f"{file.name} {stat.st_mtime_ns} {stat.st_size}")
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + text).digest()


def _may_be_kept(config: Config) -> bool:
    models = config.models.values()
    secret = config.server.api_keys or any(model.api_key is not None for model in models)
    foreign = any(model.custom_format is not None or ":" in model.tool_call_format for model in models)
    kept_elsewhere = any(settings.credential is not None for settings in config.ctx.models.values())
    return not secret and not foreign and not kept_elsewhere


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
    variables, config = pickle.loads(body)  # noqa: S301 - written by `_write` for this user, who owns this code, too
    return None if any(environ.get(name) for name in variables) else config


def _write(entry: Path, key: bytes, variables: frozenset[str], config: Config) -> None:
    body = pickle.dumps((variables, config))
    # Without the folder the next start is as slow as this one; nothing else depends on it.
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=entry.parent)
        with open(descriptor, "wb") as file:
            file.write(key + hashlib.sha256(body).digest() + body)
        os.replace(name, entry)
        by_age = sorted(entry.parent.glob(f"*{SUFFIX}"), key=lambda kept: kept.stat().st_mtime_ns)
        for old in by_age[:-KEPT]:
            old.unlink(missing_ok=True)
