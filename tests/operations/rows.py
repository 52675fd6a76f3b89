"""A row of the request log."""

from __future__ import annotations

from typing import Any

from gateway.observe.request_log import OK, Row
from gateway.wire.chat import NOBODY


def row(model: str = "m", outcome: str = OK, seconds: float = 0.2, **fields: Any) -> Row:
    found = {
        "stream": False,
        "first": 0.0,
        "usage": {},
        "chunks": 0,
        "repairs": None,
        "recording": None,
        "api": "chat",
        "caller": NOBODY,
        **fields,
    }
    return (
        model,
        found["stream"],
        outcome,
        100.0,
        100.0 + seconds,
        found["first"],
        found["usage"],
        found["chunks"],
        found["repairs"],
        found["recording"],
        found["api"],
        found["caller"],
    )
