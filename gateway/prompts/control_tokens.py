"""The control tokens of models, kept on disk: reading them from an engine's vocabulary takes longer than restoring a
prompt. All functions block; call them in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from gateway.config.folders import whole

MAX_KEPT = 32
"""The most keys in the file; the oldest are dropped first."""

Tokens = Mapping[str, list[int]]
"""See `gateway.wire.control_tokens.ControlTokens`."""


def remembered(file: Path, key: str) -> Tokens | None:
    """The tokens that `remember` stored for the key; None if there are none, or the file can't be read."""
    return _all(file).get(key)


def remember(file: Path, key: str, tokens: Tokens) -> None:
    """Raises OSError."""
    kept = {**_all(file), key: tokens}
    body = msgspec.json.encode(dict([*kept.items()][-MAX_KEPT:]))
    whole(file, sha256(body).digest() + body)


def _all(file: Path) -> dict[str, Tokens]:
    try:
        written = file.read_bytes()
    except OSError:
        return {}
    digest, body = written[:32], written[32:]
    if digest != sha256(body).digest():
        return {}
    found: dict[str, Tokens] = msgspec.json.decode(body, type=dict[str, dict[str, list[int]]])
    return found
