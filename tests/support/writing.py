"""Where the gateway writes its answers: the event loop, or a thread beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.server.http import JSON


def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each JSON answer from now on, whether the event loop wrote it."""
    places: list[bool] = []
    init = JSON.__init__

    def seen(answer: JSON, *arguments: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            places.append(False)
        else:
            places.append(True)
        init(answer, *arguments)

    monkeypatch.setattr(JSON, "__init__", seen)
    return places
