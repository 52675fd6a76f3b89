"""Our server for MLX says which stop word ended an answer, and Anthropic's API passes it on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.running import running
from tests.support.stopping import REPORTED, TOOL, asked, ended


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("format", ["pythonic", "native_json"])
async def test_the_stop_word_is_named(mlx: str, format: str, stream: bool) -> None:
    """pythonic: as unread text, under a grammar if there are tools."""
    more: dict[str, Any] = {"runtime": "mlx", "base_url": mlx, "tool_call_format": format}
    async with running(defaults={"temperature": 0}, **more) as gateway:
        for name, (fields, expected) in REPORTED.items():
            assert ended(await asked(gateway, stream=stream, **fields)) == expected, name
        assert ended(await asked(gateway, stream=stream, stop_sequences=["!"], tools=[TOOL]))[1:] == (
            "stop_sequence",
            "!",
        )
