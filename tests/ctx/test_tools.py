"""Tools, executed: arguments, folders, policies, exit codes, and those of a real MCP server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.features.ctx.tools.known import Described
from tests.ctx.screen import until
from tests.ctx.served import Tree, tree, types

SERVER = """
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # before version 2
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("counting")

@server.tool()
def add(one: int, other: int) -> int:
    "Adds two numbers."
    return one + other

server.run()
"""
CONFIG: dict[str, Any] = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}}


@pytest.fixture(scope="module")
def made(module_short: Path) -> Iterator[Tree]:
    config = {**CONFIG, "ctx": {"tools": {"access": "edit", "deny": ["fs.remove"]}}}
    with tree(module_short, config) as made:
        (made.folder / "README.md").write_text("# Hello\n")
        yield made


def frames(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize(
    "command",
    ["""/ctx/tool/fs.read '{"path":"README.md"}'""", """echo '{"path":"README.md"}' | /ctx/tool/fs.read"""],
)
def test_a_call(command: str, made: Tree) -> None:
    """As the ABI prints it."""
    done = made.sh(command)
    assert (done.returncode, done.stderr) == (0, "")
    start, result, end = frames(done.stdout)
    assert start == {"type": "start", "run": "r1", "tool": "fs.read"}
    assert (result["type"], result["name"], result["ok"]) == ("tool_result", "fs.read", True)
    assert result["result"]["content"] == "# Hello\n"
    assert end == {"type": "done", "run": "r1", "status": "ok"}


def test_text(made: Tree) -> None:
    assert made.sh("""/ctx/tool/fs.read -t '{"path":"README.md"}'""").stdout == "# Hello\n"
    listed = made.sh("/ctx/tool/fs.list -t < /dev/null").stdout
    assert {"path": "/README.md", "type": "file"} in json.loads(listed)["entries"]
    done = made.sh("""/ctx/tool/fs.read -t '{"path":"nothing"}'""")
    assert (done.stdout, done.stderr, done.returncode) == ("", "ENOENT: there is no such file or folder\n", 1)


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        ("""/ctx/tool/fs.read '{"path":"nothing"}'""", "ENOENT", 1),
        ("""/ctx/tool/fs.read '{"path":"../x"}'""", "EACCES", 13),
        ("""/ctx/tool/fs.read '{"path":"."}'""", "EACCES", 13),
        ("""/ctx/tool/fs.read '{"file":"x"}'""", "EINVAL", 2),
        ("""/ctx/tool/fs.read '{"path"'""", "EINVAL", 2),
        ("""/ctx/tool/fs.read '["README.md"]'""", "EINVAL", 2),
        ("""/ctx/tool/fs.mkdir '{"path":"/made"}' > /dev/null; /ctx/tool/fs.mkdir '{"path":"/made"}'""", "EEXIST", 1),
        ("""/ctx/tool/fs.remove '{"path":"README.md"}'""", "EACCES", 13),
        ("""/ctx/tool/curl.get '{"url":"http://127.0.0.1:1/"}'""", "EACCES", 13),
        ("""/ctx/tool/data.get '{"model":"nothing","id":"x"}'""", "ENOENT", 1),
        ("/ctx/tool/fs.read --schema x", "EINVAL", 2),
    ],
)
def test_exit_codes(command: str, code: str, exit_code: int, made: Tree) -> None:
    done = made.sh(command)
    error, end = [frame for frame in frames(done.stdout) if frame["type"] in ("error", "done")]
    assert (done.returncode, error["code"], end["status"]) == (exit_code, code, "error"), done


def test_it_runs_in_its_caller_s_folder(made: Tree) -> None:
    (made.folder / "below").mkdir()
    done = made.sh("""cd below && /ctx/tool/fs.write '{"path":"a.txt","content":"one"}'""")
    assert done.returncode == 0, done
    assert (made.folder / "below/a.txt").read_text() == "one"
    script = made.folder / "below/script"
    script.write_text("old")
    script.chmod(0o755)
    assert made.sh("""cd below && /ctx/tool/fs.write '{"path":"script","content":"new"}'""").returncode == 0
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new", 0o755)
    (made.folder / "below/link").symlink_to(made.folder / "README.md")
    done = made.sh("""cd below && /ctx/tool/fs.read '{"path":"link"}'""")
    assert (done.returncode, "links are not followed" in done.stdout) == (13, True)


def test_control_files(made: Tree) -> None:
    control = made.root / "tool/fs.read.d"
    assert sorted(path.name for path in control.iterdir()) == [
        *("cap", "description", "id", "log", "policy", "schema", "session", "status")
    ]
    assert (control / "policy").read_text() == "access=edit\nallow=*\ndeny=fs.remove\nfolder=caller\n"
    assert (control / "cap").read_text() == "read\nidempotent\nlocal\n"
    assert json.loads((control / "schema").read_text())["required"] == ["path"]
    assert (control / "status").read_text() == "ready\n"
    made.sh("""/ctx/tool/fs.read '{"path":"README.md"}'""")
    made.wait(lambda: '"type": "tool.call"' in (control / "log").read_text())
    entry = (made.root / "tool/fs.read").read_text()
    assert entry.startswith(f"#!{made.root}/bin/cortexfs-object-runner\n# cortexfs.id=fs.read\n")
    assert not (made.root / "tool/fs.read.sock").exists()
    listed = made.ctxgate("ctx", "ls", "--tools", "--config", made.config).stdout
    assert re.search(r"^fs\.read +read,idempotent,local +Read a file\.$", listed, re.MULTILINE)


def test_a_policy_that_a_person_changed_holds_at_once(made: Tree) -> None:
    policy = made.root / "tool/fs.find.d/policy"
    policy.write_text("access=none\n")
    done = made.sh("""/ctx/tool/fs.find '{"pattern":"*"}'""")
    assert (done.returncode, frames(done.stdout)[-2]["code"]) == (13, "EACCES")
    policy.write_text("acess=full\n")
    done = made.sh("""/ctx/tool/fs.find '{"pattern":"*"}'""")
    assert (done.returncode, frames(done.stdout)[0]["code"]) == (2, "EINVAL")
    told = made.ctxgate("ctx", "doctor", "--config", made.config).stdout
    assert "tool/fs.find: policy: line 1: not a key that can stand here" in told


def test_a_terminal_sees_the_usage(made: Tree) -> None:
    import pty

    process, descriptor = pty.fork()
    if process == 0:
        os.execve(made.root / "tool/fs.read", ["fs.read"], made.env)
    rest: list[bytes] = []
    try:
        assert b"path (string, required)" in until(descriptor, b"exit codes", rest)
    finally:
        os.close(descriptor)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert made.sh("/ctx/tool/fs.read --help").stdout.startswith(
        "usage: fs.read [OPTION ...] [ARGUMENTS]\n\nRead a file."
    )


def test_an_mcp_server_s_tools(short: Path) -> None:
    """They get objects once the server has been asked, and keep them while it doesn't run."""
    pytest.importorskip("mcp", reason="the MCP SDK isn't installed")
    program = short / "server.py"
    program.write_text(SERVER)
    servers = {"count": {"command": f"{sys.executable} {program}", "access": "read"}}
    with tree(short, {**CONFIG, "mcp": {"servers": servers}}) as made:
        entry = made.root / "tool/count.add"
        made.wait(entry.exists)
        done = made.sh("""/ctx/tool/count.add '{"one":2,"other":40}'""")
        assert done.returncode == 0, done
        assert types(frames(done.stdout)) == ["start", "tool_result", "done"]
        assert "42" in done.stdout
        assert json.loads((made.root / "tool/count.add.d/schema").read_text())["required"] == ["one", "other"]
        done = made.sh("""/ctx/tool/count.add '{"one":"x"}'""")
        assert (done.returncode, frames(done.stdout)[-2]["code"]) == (2, "EINVAL")
        made.kill(signal.SIGTERM)
        assert made.ctxgate("ctx", "sync", "--config", made.config).returncode == 0
        assert entry.exists()


def test_a_tool_is_described_as_it_is() -> None:
    from gateway.features.agents.settings import RoomTools
    from gateway.features.agents.tools.host import tools

    for tool in tools(RoomTools()):
        found = Described.of(tool)
        assert (found.name, found.access, found.idempotent) == (tool.name, tool.access, tool.idempotent)
    names = [tool.name for tool in tools(RoomTools())]
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.startswith(("tool.", "room."))]
