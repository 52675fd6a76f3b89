"""docs/tools.md says what the code does."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

import yaml

from gateway.config import load
from gateway.features.agents.settings import MCP
from gateway.features.agents.tools import Access, Cost, Effect
from gateway.features.agents.tools.mcp import http, results, server, stdio
from gateway.features.responses.wire.request import NOT_OURS, CreateResponse, ToolTable
from tests.cli.commands import config, ctxgate
from tests.support.mcp_servers import TIME

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/tools.md").read_text("utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL))
ECHO = {"active_model": "m", "models": {"m": {"runtime": "echo"}}}


def test_the_configuration_loads(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**ECHO, **yaml.safe_load(BLOCKS["yaml"])}))
    servers = load(tmp_path / "config.yaml", {"DOCS_TOKEN": "a-secret-token"}).section(MCP).servers
    assert {*servers} == {"time", "files", "docs"}
    assert servers["docs"].headers["Authorization"].get_secret_value() == "Bearer a-secret-token"
    assert "a-secret-token" not in repr(servers)


def test_the_commands(tmp_path: Path) -> None:
    mcp = {"servers": {"time": {"command": shlex.join(TIME)}}}
    config(tmp_path, yaml.safe_dump({**ECHO, "state_dir": str(tmp_path / "state"), "mcp": mcp}))
    listing, call = BLOCKS["console"].removeprefix("$ ").split("\n$ ")
    line, _, shown = listing.partition("\n")
    assert ctxgate(*shlex.split(line)[1:], cwd=tmp_path).stdout == f"{shown}\n"
    done = ctxgate(*shlex.split(call)[1:], cwd=tmp_path)
    assert (done.returncode, "T21:00:00+09:00" in done.stdout) == (0, True), done.stderr


def test_the_request_is_valid() -> None:
    wanted: Any = CreateResponse.parse(json.dumps(json.loads(BLOCKS["json"])).encode())
    (found,) = ToolTable(wanted.tools).servers
    assert (found.label, found.allowed) == ("time", frozenset(("get_current_time",)))


def test_it_names_every_code_choice_and_bound() -> None:
    for word in (*get_args(Access), *get_args(Effect), *get_args(Cost)):
        assert f"`{word}`" in TEXT
    for name in set(NOT_OURS) - {"tunnel_id"}:
        assert f"`{name}`" in TEXT
    sources = "".join(Path(module.__file__ or "").read_text("utf-8") for module in (server, results))
    codes = set(re.findall(r'ToolError\("(\w+)"', sources))
    assert codes == set(re.findall(r"`(mcp_(?!list_tools|call)\w+)`", TEXT))
    mib = 1024 * 1024
    assert (*(4 * mib, 16 * mib, 20_000, 4 * mib),) == (
        stdio.LONGEST_LINE,
        stdio.MAX_BYTES,
        stdio.MAX_LINES,
        http.MAX_BYTES,
    )
    assert (*(16, 128, 32 * 1024, 16, 5.0),) == (
        server.PAGES,
        results.MAX_TOOLS,
        results.LONGEST_SCHEMA,
        server.WAITING,
        server.PROBE_SECONDS,
    )
    assert (server.BACK_OFF.first, server.BACK_OFF.longest) == (1.0, 60.0)
    assert sys.executable in TIME
