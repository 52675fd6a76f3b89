"""`ctxgate records`: writes models and filters that the tools of rooms find."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import config, ctxgate

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def test_models_and_filters(tmp_path: Path) -> None:
    config(tmp_path, f"active_model: m\nmodels: {{m: {{runtime: echo}}}}\nstate_dir: {tmp_path / 'state'}\n")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    done = ctxgate("records", "define", "person", "s.json", "--description", "People.", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "ctxgate: local has the model person\n")
    query = '{"where": {"name": "Ann"}}'
    done = ctxgate("records", "filter", "person", "ann", "-", cwd=tmp_path, stdin=query)
    assert (done.returncode, done.stderr) == (0, "ctxgate: person has the filter ann\n")
    first, *rest = ctxgate("records", "models", cwd=tmp_path).stdout.splitlines()
    assert (first, [line.split()[0] for line in rest]) == ("person  People.", ["room_events", "room_messages", "rooms"])
    listed = json.loads(ctxgate("records", "models", "--json", cwd=tmp_path).stdout)
    assert listed["models"][0] == {"name": "person", "description": "People.", "schema": SCHEMA}
    done = ctxgate("records", "models", "--tenant", "other", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (0, rest)
    assert "other has no model of its own yet" in done.stderr
    assert ctxgate("records", "find", "person", cwd=tmp_path).stdout == ""


def test_mistakes_are_reported(tmp_path: Path) -> None:
    config(tmp_path, f"active_model: m\nmodels: {{m: {{runtime: echo}}}}\nstate_dir: {tmp_path / 'state'}\n")
    cases = {
        ("define", "person", "none.json"): "none.json can't be read",
        ("define", "person", "-"): "- isn't JSON",
        ("find", "person", "--query", "[]"): "--query must be a JSON object",
        ("find", "person"): "no such model; there are: room_events, room_messages, rooms",
    }
    for arguments, message in cases.items():
        done = ctxgate("records", *arguments, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
