"""Both ways a chat request goes: the lane that `ctxgate serve` uses, and plain ASGI."""

from __future__ import annotations

import pytest

from tests.gateway.running import LANE


@pytest.fixture(params=[LANE, "httptools"], ids=["lane", "asgi"])
def http(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind
