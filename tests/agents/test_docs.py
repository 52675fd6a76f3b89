"""docs/room-tools.md says what the code does."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.features.agents.tools.addresses import is_allowed
from gateway.features.agents.tools.files import CODES
from gateway.features.agents.tools.query import FUNCTIONS, OPERATORS, Builder
from gateway.features.rooms import schemas
from tests.agents.conftest import Room
from tests.cli.commands import config, ctxgate

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/room-tools.md").read_text("utf-8")
JSON: list[dict[str, Any]] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]


async def test_the_table_of_tools(room: Room) -> None:
    shown = re.findall(r"^\| `([a-z]+\.\w+)` \| (\w+) \| (.*?) \|", TEXT, re.MULTILINE)
    rows = (await room.toolbox()).tools.values()
    assert [(name, access) for name, access, _ in shown] == [(row.name, row.access) for row in rows]
    for row, (_, _, arguments) in zip(rows, shown, strict=True):
        required = row.parameters.get("required", ())
        names = {f"**{name}**" if name in required else name for name in row.parameters["properties"]}
        assert set(arguments.split(", ")) == names


def test_its_examples_are_valid() -> None:
    policy, query, aggregate = JSON
    assert msgspec.convert(policy, schemas.ToolPolicy).access == "edit"
    for dialect in ("sqlite", "postgresql"):
        assert Builder(dialect).query(query).limit == 20
        assert Builder(dialect).aggregates(aggregate).group_by == ["address.city"]


def test_files_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    config(tmp_path, f"active_model: m\nmodels: {{m: {{runtime: echo}}}}\nstate_dir: {tmp_path / 'state'}\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)  # the example is ours
    assert names["files"].cat_file("notes/plan.md") == b"# Plan"


def test_records_from_the_shell(tmp_path: Path) -> None:
    (example,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    config(tmp_path, f"active_model: m\nmodels: {{m: {{runtime: echo}}}}\nstate_dir: {tmp_path / 'state'}\n")
    (tmp_path / "person.schema.json").write_text('{"type": "object"}')
    (tmp_path / "adults.json").write_text('{"where": {"age": {"$gte": 18}}}')
    for line in example.splitlines():
        assert ctxgate(*shlex.split(line)[1:], cwd=tmp_path).returncode == 0


def test_it_names_every_operator_function_and_code() -> None:
    named = set(re.findall(r"`(\$\w+)`", TEXT))
    assert named == {*OPERATORS, *FUNCTIONS, "$and", "$or", "$not"}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "gateway/features/agents/tools").glob("*.py"))
    raised = set(re.findall(r'ToolError\(\s*"(\w+)"', sources)) | {code for code, _ in CODES.values()}
    operators_alone = {"invalid_model", "invalid_filter"}  # told to who defines, not to a room's model
    assert {code for code in raised if f"`{code}`" not in TEXT} == operators_alone


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("wiki.lan", 443, True),
        ("wiki.lan", 8000, False),
        ("127.0.0.1", 8000, True),
        ("::1", 5, True),
        ("x.lan", 80, True),
    ],
)
def test_the_table_of_allowed_hosts(host: str, port: int, allowed: bool) -> None:
    entries = re.findall(r"^\| `([^`]+)` \| (?:that|any|every)", TEXT, re.MULTILINE)
    assert entries == ["wiki.lan", "127.0.0.1:8000", "[::1]:*", "*.lan"]
    assert is_allowed(host, port, entries) is allowed
