"""A tool_policy names tools that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rooms.running import house, speaks


async def test_a_misspelt_tool_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Under `deny` it would permit what it is to forbid."""
    async with house(tmp_path, speaks("Hi")) as rooms:
        right: dict[str, Any] = {"access": "edit", "allow": ["tool.*", "data.get", "*"], "deny": ["data.delete", "c*"]}
        room = await rooms.rent(tool_policy=right)
        for key in ("allow", "deny"):
            wrong = {"tool_policy": {"access": "edit", key: ["tool.*", "data.remove"]}}
            for method, path in (("POST", "/llm/room"), ("PATCH", f"/llm/room/{room}")):
                refused = await rooms.call(method, path, 400, wrong)
                assert refused["code"] == "invalid_request"
                assert refused["message"].startswith(f"tool_policy.{key}[1]: 'data.remove' names no tool")
        assert (await rooms.call("GET", f"/llm/room/{room}", 200))["tool_policy"] == right
        assert (await rooms.call("PATCH", f"/llm/room/{room}", 200, {"tool_policy": None}))["tool_policy"] is None
