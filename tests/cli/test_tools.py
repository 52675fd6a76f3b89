"""`ctxgate tools`: lists tools and calls them, without a gateway."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main
from tests.cli.commands import config, ctxgate
from tests.support.mcp_servers import MISBEHAVING


def folder(path: Path) -> Path:
    it = f"{sys.executable} {MISBEHAVING}"
    config(
        path,
        f"active_model: m\nmodels: {{m: {{runtime: echo}}}}\nstate_dir: {path / 'state'}\n"
        f"mcp: {{servers: {{it: {{command: '{it}'}}, broken: {{command: '{it} dies'}}}}}}\n",
    )
    return path


def test_the_list(tmp_path: Path) -> None:
    done = ctxgate("tools", "ls", "data.*", "it.echo", "it.fails", cwd=folder(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(maxsplit=5) for line in done.stdout.splitlines()]
    assert lines[0] == ["NAME", "ACCESS", "EFFECT", "TWICE", "COST", "DESCRIPTION"]
    assert [line[:5] for line in lines[1:]] == [
        ["data.get", "read", "read", "yes", "local"],
        ["data.list", "read", "read", "yes", "local"],
        ["data.create", "edit", "write", "no", "local"],
        ["data.update", "edit", "write", "no", "local"],
        ["data.delete", "edit", "write", "no", "local"],
        ["it.echo", "read", "read", "yes", "local"],
        ["it.fails", "edit", "external", "no", "network"],
    ]
    listed = json.loads(ctxgate("tools", "ls", "curl.post", "--json", cwd=tmp_path).stdout)["tools"]
    assert [(tool["name"], tool["idempotent"]) for tool in listed] == [("curl.post", False)]
    assert "url" in listed[0]["parameters"]["properties"]


def test_what_isn_t_there(tmp_path: Path) -> None:
    done = ctxgate("tools", "ls", cwd=folder(tmp_path))
    assert (done.returncode, len(done.stdout.splitlines())) == (69, 38)
    assert "the MCP server broken: it ended: exit status 3" in done.stderr
    done = ctxgate("tools", "ls", "data.remove", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        *(2, "ctxgate: no tool is called data.remove; `ctxgate tools ls` lists them\n"),
    )


Capture = pytest.CaptureFixture[str]


def test_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(folder(tmp_path))
    (tmp_path / "a.txt").write_text("hello")
    done = ctxgate("tools", "call", "tool.cat", cwd=tmp_path, stdin='{"path": "a.txt"}')
    assert (done.returncode, json.loads(done.stdout)["content"]) == (0, "hello")
    assert main(["tools", "call", "it.echo", '{"text": "hello"}']) == 0
    assert json.loads(capsys.readouterr().out) == {"text": "hello", "truncated": False}
    (tmp_path / "s.json").write_text('{"type": "object"}')
    main(["records", "define", "person", "s.json"])
    assert main(["tools", "call", "data.create", '{"model": "person", "record": {"name": "Ann"}}']) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["id", "created_at"]
    main(["records", "find", "person"])
    assert '"Ann"' in capsys.readouterr().out


def test_calls_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(folder(tmp_path))
    cases = {
        ("tool.cat", "{}"): (2, "'path' is a required property"),
        ("tool.cat", "[]"): (2, "the arguments must be a JSON object"),
        ("tool.cat", "path"): (2, "the arguments aren't JSON"),
        ("tool.cta", "{}"): (2, "no tool is called tool.cta; `ctxgate tools ls` lists them"),
        ("nobody.echo", "{}"): (2, "no tool is called nobody.echo"),
        ("tool.cat", '{"path": "none"}'): (1, "not_found: there is no such file or folder"),
        ("curl.summarize", '{"url": "http://127.0.0.1:1/"}'): (1, "address_refused"),
        ("it.fails", "{}"): (1, "mcp_tool_failed: out of order"),
        ("it.dies", "{}"): (69, "it ended: exit status 3"),
        ("broken.echo", "{}"): (69, "it ended: exit status 3"),
    }
    for arguments, (code, message) in cases.items():
        ended = main(["tools", "call", *arguments])
        told = capsys.readouterr()
        assert (ended, message in told.err, told.out) == (code, True, ""), told.err
