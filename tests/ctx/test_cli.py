"""`ctxgate ctx`, and what `ctxgate check` says of the tree."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ctx.served import Tree, text, tree
from tests.patience import PATIENCE

CONFIG = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}, "other": {"runtime": "echo"}}}


@pytest.fixture(scope="module")
def echo(module_short: Path) -> Iterator[Tree]:
    with tree(module_short, CONFIG) as made:
        yield made


def ctx(made: Tree, *args: str) -> tuple[int, str, str]:
    done = made.ctxgate("ctx", *args, "--config", made.config) if args[0] != "run" else made.ctxgate("ctx", *args)
    return done.returncode, done.stdout, done.stderr


def test_help(echo: Tree) -> None:
    done = echo.ctxgate("ctx", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for action in ("sync", "ls", "cat", "run", "send", "attach", "sessions", "rm", "export", "doctor"):
        assert f"\n  {action} " in done.stdout
        assert f"ctxgate ctx {action}" in done.stdout
        assert echo.ctxgate("ctx", action, "--help").returncode == 0


def test_sync(echo: Tree) -> None:
    assert ctx(echo, "sync") == (0, f"{echo.root}: 0 made, 0 changed, 0 removed\n", "")
    elsewhere = echo.folder / "e"
    code, said, _ = ctx(echo, "sync", "--root", str(elsewhere))
    assert code == 0
    assert said.startswith(f"{elsewhere}: ")
    (elsewhere / "model/debug/echo.d/cap").write_text("chat\n")
    code, _, told = ctx(echo, "sync", "--root", str(elsewhere))
    assert (code, told) == (0, f"kept, since it was changed by hand: {elsewhere}/model/debug/echo.d/cap\n")


def test_sync_warns_when_no_gateway_will_answer(echo: Tree) -> None:
    file = echo.folder / "disabled.yaml"
    file.write_text("active_model: echo\nmodels: {echo: {runtime: echo}}\n")
    done = echo.ctxgate("ctx", "sync", "--config", file, "--root", echo.folder / "d")
    assert done.returncode == 0
    assert "set ctx: {enabled: true}" in done.stderr


def test_ls(echo: Tree) -> None:
    assert ctx(echo, "ls") == (
        0,
        "OBJECT       STATUS  SESSION  DRIVER  ALIASES\n"
        "debug/echo   ready   socket   debug   helper main ~/main\n"
        "debug/other  ready   socket   debug\n",
        "",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("main.d/id", "debug/echo\n"),
        ("debug/other.d/id", "debug/other\n"),
        ("model/debug/other.d/driver", "debug\n"),
        ("main.d/status", "ready\n"),
    ],
)
def test_cat(name: str, expected: str, echo: Tree) -> None:
    assert ctx(echo, "cat", name) == (0, expected, "")


def test_cat_an_object(echo: Tree) -> None:
    assert ctx(echo, "cat", "main") == (0, echo.object("debug/echo").read_text(), "")


@pytest.mark.parametrize("name", ["nothing", "debug/echo.d/nothing", "../config.yaml", "debug/echo.d/../echo", "debug"])
def test_cat_what_isn_t_there(name: str, echo: Tree) -> None:
    code, printed, told = ctx(echo, "cat", name)
    assert (code, printed) == (1, "")
    assert told.startswith("ctxgate: ")


@pytest.mark.parametrize("name", ["main", "debug/echo", "model/debug/echo"])
def test_run(name: str, echo: Tree) -> None:
    code, printed, told = ctx(echo, "run", name, "hello", "there")
    assert (code, told) == (0, "")
    assert text([json.loads(line) for line in printed.splitlines()]) == "hello there"
    assert ctx(echo, "run", name, "--text", "hello") == (0, "hello\n", "")
    assert ctx(echo, "run", name, "--text", "--", "--help") == (0, "--help\n", "")


def test_run_fails_as_the_object_does(echo: Tree) -> None:
    code, printed, _ = ctx(echo, "run", "main", "")
    assert (code, json.loads(printed.splitlines()[0])["code"]) == (2, "EINVAL")


def test_export(echo: Tree) -> None:
    with echo.connect("debug/echo") as client:
        client.ask(op="send", id="m1", session="s", cwd="/work", input="one")
        first = client.until()
        client.ask(op="send", id="m2", session="s", input="zwei\u2028")
        second = client.until()
    place = echo.root / f"home/{os.geteuid()}/model/debug/echo.d/session/s"
    assert ctx(echo, "export", "main", "s") == (0, f"{place}\n", "")
    files = {path.name: path.read_text("utf-8") for path in place.iterdir() if path.is_file()}
    assert [json.loads(line) for line in files["events.jsonl"].split("\n")[:-1]] == first + second
    messages = [json.loads(line) for line in files["messages.jsonl"].split("\n")[:-1]]
    said = [(message["role"], message["content"][0]["text"], message["run"]) for message in messages]
    one, two = first[0]["run"], second[0]["run"]
    assert said == [
        *(("user", "one", one), ("assistant", "one", one)),
        *(("user", "zwei\u2028", two), ("assistant", "zwei\u2028", two)),
    ]
    assert (files["latest.md"], files["state"], files["cwd"], files["current_run"]) == (
        *("zwei\u2028\n", "idle\n", "/work\n"),
        "\n",
    )
    assert json.loads(files["meta.json"]) == {"client": "ctxgate", "model": "debug/echo", "scope": "private"}
    assert files["created_at"] <= files["updated_at"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir() if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (place, place.parent, place / "context")} == {0o700}
    # Again, and for what isn't there.
    assert ctx(echo, "export", "main", "s")[0] == 0
    code, _, told = ctx(echo, "export", "main", "nothing")
    assert (code, told) == (1, "ctxgate: model/debug/echo has no private session nothing\n")
    assert ctx(echo, "export", "main", "s", "--scope", "shared")[0] == 1
    # Into a folder that is named: one of its own, again, and never over other files.
    named, other = echo.folder / "named", echo.folder / "other"
    assert [ctx(echo, "export", "main", "s", str(named))[0] for _ in range(2)] == [0, 0]
    assert (named / "latest.md").read_text("utf-8") == files["latest.md"]
    other.mkdir(mode=0o755)
    (other / "state").write_text("mine")
    code, _, told = ctx(echo, "export", "main", "s", str(other))
    assert (code, told.startswith(f"ctxgate: {other} has other files: ")) == (2, True)
    assert ((other / "state").read_text(), stat.S_IMODE(other.stat().st_mode)) == ("mine", 0o755)


def test_doctor_finds_nothing_wrong(echo: Tree) -> None:
    code, printed, told = ctx(echo, "doctor")
    assert (code, told) == (0, "")
    assert printed.splitlines() == [
        f"ok: only the owner can use {echo.root}",
        "ok: the runner starts",
        f"ok: a gateway answers for {echo.root}",
        "ok: model/debug/echo",
        "ok: model/debug/other",
    ]


def test_doctor_finds_what_is_wrong(short: Path) -> None:
    with tree(short, CONFIG, start=False) as made:
        code, printed, _ = ctx(made, "doctor")
        assert (code, printed) == (1, f"problem: there is no tree at {made.root}\n    run: ctxgate ctx sync\n")
        assert ctx(made, "sync")[0] == 0
        made.root.chmod(0o755)
        control = made.object("debug/echo.d")
        (control / "driver").write_text("exec=mystery\n")
        (control / "cap").write_text("chat\nnative_thread\n")
        other = made.object("debug/other.d")
        (other / "id").write_text("debug/nobody\n")
        (other / "driver").write_text("mystery\n")
        (made.root / "model/lost").symlink_to(made.root / "model/debug/gone")
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(made.root / ".ctxgate/exec.sock"))
        code, printed, _ = ctx(made, "doctor")
        assert code == 1
        problems = [line for line in printed.splitlines() if line.startswith("problem: ")]
        assert problems == [
            f"problem: {made.root} can be read by others (drwxr-xr-x)",
            f"problem: no gateway answers for {made.root}",
            "problem: model/debug/echo: cap: line 2: unknown capability 'native_thread'. It holds one word per line, "
            "of chat, stream, session, vision, audio_input, audio_output, json_schema, tool_call_syntax, reasoning, "
            "embedding, rerank",
            "problem: model/debug/other: unknown driver mystery",
            "problem: model/debug/other: its id 'debug/nobody' is not a model of " + str(made.config),
            "problem: the alias lost leads to no object",
        ]
        # As `ls` has it without a gateway.
        assert "debug/other  offline" in ctx(made, "ls")[1]


def test_check_says_what_can_t_be_an_object(echo: Tree) -> None:
    file = echo.folder / "wrong.yaml"
    file.write_text(
        'active_model: "a:b"\nmodels: {"a:b": {runtime: echo}}\n'
        'ctx: {enabled: true, models: {"a:b": {object: "debug/a:b"}}}\n'
    )
    done = echo.ctxgate("check", "--config", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{file}:3:")
    assert "a:b can't be an object of /ctx as debug/a:b" in done.stderr
    assert "ctx.models.a:b.object" in done.stderr
    done = echo.ctxgate("ctx", "sync", "--config", file)
    assert done.returncode == 2


def test_no_place_for_a_tree(echo: Tree) -> None:
    if os.access("/ctx", os.W_OK):
        pytest.skip("this machine has a /ctx that can be written")
    env = {name: value for name, value in echo.env.items() if name != "CTX_ROOT"}

    done = subprocess.run(
        [sys.executable, "-m", "gateway", "ctx", "ls", "--config", str(echo.config)],
        env=env, cwd=echo.folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "set --root, $CTX_ROOT, ctx.root in config.yaml or $XDG_RUNTIME_DIR, or make /ctx writable" in done.stderr


def end(process: subprocess.Popen[bytes]) -> None:
    """By Ctrl-C. One that comes between the interpreter's look for signals and its wait for bytes is seen only with the
    next bytes, in any program in Python; a person presses it again."""
    ends = time.monotonic() + PATIENCE
    while True:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            assert time.monotonic() < ends
        else:
            return


def test_a_conversation_by_commands(echo: Tree) -> None:
    """send, attach, sessions and rm."""
    code, printed, told = ctx(echo, "send", "main", "--session", "talk", "--id", "m1", "hello", "there")
    assert (code, told) == (0, "")
    events = [json.loads(line) for line in printed.splitlines()]
    assert text(events) == "hello there"
    code, printed, _ = ctx(echo, "send", "main", "--session", "talk", "--id", "m1", "hello", "there")
    assert [json.loads(line)["type"] for line in printed.splitlines()] == ["done"]  # it isn't asked twice
    assert ctx(echo, "send", "main", "--session", "talk", "-t", "again")[1] == "again\n"

    attached = subprocess.Popen(
        [sys.executable, "-m", "gateway", "ctx", "attach", "main", "talk", "--after", events[0]["id"]],
        env=echo.env, cwd=echo.folder, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert attached.stdout is not None
    assert json.loads(attached.stdout.readline())["id"] == events[1]["id"]
    end(attached)

    code, listed, _ = ctx(echo, "sessions", "main", "--json")
    (row,) = [row for row in json.loads(listed) if row["session"] == "talk"]
    assert (row["object"], row["state"], row["messages"]) == ("model/debug/echo", "idle", 2)
    assert ctx(echo, "rm", "main", "talk") == (0, "deleted model/debug/echo talk\n", "")
    assert "talk" not in ctx(echo, "sessions")[1]
    code, _, told = ctx(echo, "rm", "main", "talk")
    assert (code, "has no private session talk" in told) == (1, True)
