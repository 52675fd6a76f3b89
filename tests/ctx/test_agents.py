"""Agents: executed, over their socket, on a terminal, and from the side of their rooms; on the real small model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.features.ctx.temporary import MAX_SESSIONS
from tests.ctx.screen import until
from tests.ctx.served import Client, Tree, tree, types
from tests.patience import PATIENCE
from tests.ports import free_port

LIST, READ = "List the files in /", "Read the file notes.txt"


@pytest.fixture(scope="module")
def made(module_short: Path, test_model: Path) -> Iterator[Tree]:
    tiny = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 2048, "temperature": 0.0, "threads": 1}
    agents = {
        "reader": {
            "description": "Reads files.",
            "tools": {"access": "read", "allow": ["fs.list", "fs.read"]},
            "turn_output_tokens": 60,
        },
        "mute": {"model": "openai/gpt-4o", "tools": {"access": "edit", "allow": ["*"], "deny": ["*"]}},
    }
    config = {
        "active_model": "tiny",
        "models": {"tiny": tiny},
        "server": {"port": free_port()},
        "ctx": {"agents": agents, "models": {"tiny": {"object": "openai/gpt-4o"}}},
    }
    with tree(module_short, config) as made:
        yield made


@pytest.fixture
def work(made: Tree, request: pytest.FixtureRequest) -> Path:
    """A caller's folder of its own."""
    folder = made.folder / f"w{abs(hash(request.node.name)) % 10**8}"
    folder.mkdir()
    (folder / "notes.txt").write_text("blue penguin\n")
    return folder


def run(made: Tree, folder: Path, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = command.replace("/ctx/", f"{made.root}/")
    return subprocess.run(
        ["sh", "-c", command], env=made.env | env, cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def frames(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def connect(made: Tree, name: str = "reader") -> Client:
    return Client(made.root / "agent" / f"{name}.sock")


def without_deltas(events: list[dict[str, Any]]) -> list[str]:
    return [kind for kind in types(events) if kind != "delta"]


# Executed


@pytest.mark.parametrize(
    "command", [f'/ctx/agent/reader "{LIST}"', f"""echo '{{"task":"{LIST}"}}' | /ctx/agent/reader"""]
)
def test_a_task(command: str, made: Tree, work: Path) -> None:
    done = run(made, work, command, CTX_RUN_ID="run-7")
    events = frames(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert without_deltas(events) == ["start", "tool_call", "tool_result", "message", "usage", "done"]
    assert {event["run"] for event in events} == {"run-7"}
    assert (events[0]["agent"], events[-1]["status"]) == ("reader", "ok")
    _, call, result, *_ = events
    assert (call["name"], call["arguments"]) == ("fs.list", {"path": "/"})
    assert result["result"]["entries"] == [{"path": "/notes.txt", "type": "file"}]
    assert (result["name"], result["ok"], result["call_id"]) == ("fs.list", True, call["call_id"])
    message = next(event for event in events if event["type"] == "message")
    assert "".join(event["text"] for event in events if event["type"] == "delta") == message["content"][0]["text"]


def test_text(made: Tree, work: Path) -> None:
    """The answer goes to standard output, what the tools do to standard error."""
    done = run(made, work, f'/ctx/agent/reader -t "{LIST}"')
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert '→ fs.list {"path":"/"}\n' in done.stderr
    assert '← fs.list {"path":"/","entries":[{"path":"/notes.txt"' in done.stderr
    assert "fs.list" not in done.stdout.partition("\n")[0][:10]


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        ("/ctx/agent/reader ''", "EINVAL", 2),
        ("/ctx/agent/reader < /dev/null", "EINVAL", 2),
        ("""/ctx/agent/reader '{"task": 7}'""", "EINVAL", 2),
        ("""/ctx/agent/reader '{"task"'""", "EINVAL", 2),
        ("/ctx/agent/reader --system x hello", "EINVAL", 2),
        ("CTX_RUN_ID='r 1' /ctx/agent/reader hello", "EINVAL", 2),
    ],
)
def test_what_is_no_task(command: str, code: str, exit_code: int, made: Tree, work: Path) -> None:
    done = run(made, work, command)
    assert (done.returncode, frames(done.stdout)[0]["code"]) == (exit_code, code), done


@pytest.mark.parametrize("name", ["model/main", "agent/reader"])
def test_an_overflow_is_the_same_on_a_model_and_on_an_agent(name: str, made: Tree, work: Path) -> None:
    (work / "long.txt").write_text("blue penguin " * 4000)
    done = run(made, work, f"/ctx/{name} < long.txt")
    (error,) = [event for event in frames(done.stdout) if event["type"] == "error"]
    assert (done.returncode, error["code"]) == (2, "EINVAL"), error
    assert "maximum context length" in error["message"]


def test_control_files(made: Tree) -> None:
    control = made.root / "agent/reader.d"
    assert (control / "policy").read_text() == "access=read\nallow=fs.list,fs.read\ndeny=\nfolder=caller\n"
    assert (control / "model").read_text() == "main\n"
    assert (control / "tools").read_text() == "fs.list\nfs.read\n"
    assert (control / "limits").read_text() == "wall_seconds=300\nmodel_calls=16\ntool_calls=32\noutput_tokens=60\n"
    assert (control / "status").read_text() == "ready\n"
    assert "# cortexfs.description=Reads files.\n" in (made.root / "agent/reader").read_text()
    assert made.ctxgate("ctx", "doctor", "--config", made.config).returncode == 0
    assert "agent/reader" in made.ctxgate("ctx", "ls", "--config", made.config).stdout


def test_a_policy_that_a_person_changed_holds_at_once(made: Tree, work: Path) -> None:
    policy = made.root / "agent/reader.d/policy"
    before = policy.read_text()
    try:
        policy.write_text("access=none\n")
        done = run(made, work, f'/ctx/agent/reader "{LIST}"')
        assert "tool_call" not in types(frames(done.stdout))
        policy.write_text("access=everything\n")
        done = run(made, work, f'/ctx/agent/reader "{LIST}"')
        assert (done.returncode, frames(done.stdout)[0]["code"]) == (2, "EINVAL")
        policy.write_text("access=read\nallow=fs.lost\n")
        done = run(made, work, f'/ctx/agent/reader "{LIST}"')
        assert "'fs.lost' names no tool" in frames(done.stdout)[0]["message"]
    finally:
        policy.write_text(before)


def test_a_limit_is_told(made: Tree, work: Path) -> None:
    done = run(made, work, '/ctx/agent/reader "Tell a long story."')
    last = frames(done.stdout)[-1]
    assert (last["status"], last.get("reason")) in (("ok", "output_tokens"), ("ok", None))
    if "reason" in last:
        done = run(made, work, '/ctx/agent/reader -t "Tell a long story."')
        assert "(the task reached its limit of output_tokens: see .d/limits)" in done.stderr


def test_an_interrupt_cancels_the_task(made: Tree, work: Path) -> None:
    process = subprocess.Popen(
        [made.root / "agent/reader", "Tell a long story."], env=made.env, cwd=work, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert json.loads(first)["type"] == "start"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=PATIENCE)
    end = json.loads(rest.splitlines()[-1])
    # It may have been done before the interrupt came.
    assert (end["status"], process.returncode) in (("cancelled", 1), ("ok", 0))


# Over the socket, and from the room's side


def test_a_session_is_a_room(made: Tree, work: Path) -> None:
    """It lists, reads and answers; both sides see the same and go on with it."""
    with connect(made) as client, connect(made) as other:
        client.ask(op="send", id="m1", session="s", cwd=str(work), input=LIST)
        first = client.until()
        assert without_deltas(first) == ["start", "tool_call", "tool_result", "message", "usage", "done"]
        assert first[0]["client_id"] == "m1"
        client.ask(op="send", id="m2", session="s", input="Say blue penguin")
        second = client.until()
        assert second[-1]["status"] == "ok", second

        # A retry isn't answered again.
        client.ask(op="send", id="m1", session="s", cwd=str(work), input=LIST)
        assert client.frame() == first[-1]
        client.ask(op="send", id="m1", session="s", input="something else")
        assert client.frame()["code"] == "EINVAL"

        # Another client sees the same, from any place.
        ids = [event["id"] for event in first + second]
        assert len(set(ids)) == len(ids)
        for at in (None, 0, 3, len(first) - 1, len(ids) - 2):
            resumed = {"op": "resume", "session": "s"} | ({} if at is None else {"after": ids[at]})
            other.ask(**resumed)
            other.ask(op="ping")
            recorded = other.until("pong")[:-1]
            assert [event["id"] for event in recorded] == ids[0 if at is None else at + 1 :]
        other.ask(op="resume", session="s", after="event-99999")
        assert other.frame()["code"] == "ENOENT"
        other.ask(op="resume", session="s", after=ids[-1])
        other.ask(op="ping")
        other.until("pong")

        # The room's side sees it and goes on; the follower of the socket sees that.
        said = made.ctxgate("room", "say", "reader-s", LIST, "--config", made.config)
        assert said.returncode == 0, said.stderr
        events = other.until()
        assert "fs.list" in [event.get("name") for event in events]
        history = made.ctxgate("room", "history", "reader-s", "--json", "--config", made.config)
        found = json.loads(history.stdout)
        assert [event["seq"] for event in found["events"]] == list(range(1, len(found["events"]) + 1))
        tasks = [message["content"] for message in found["messages"] if message["kind"] == "task"]
        assert tasks == [LIST, "Say blue penguin", LIST]

        # Released from the room's side, the session begins anew.
        assert made.ctxgate("room", "release", "reader-s", "--config", made.config).stdout == "released\n"
        client.ask(op="send", id="m1", session="s", cwd=str(work), input=READ)
        events = client.until()
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert (result["name"], result["result"]["content"]) == ("fs.read", "blue penguin\n")
        assert (events[-1]["status"], "message" in types(events)) == ("ok", True)


@pytest.mark.parametrize("scope", ["private", "temp"])
def test_a_session_answers_one_message_at_a_time(scope: str, made: Tree, work: Path) -> None:
    """A second one is refused and changes nothing, not even the folder; a retry of the first one isn't a second."""
    (elsewhere := work / "elsewhere").mkdir()
    with connect(made) as client:
        told: dict[str, Any] = {"op": "send", "session": "one", "scope": scope}
        client.ask(id="m1", cwd=str(work), input=LIST, **told)
        client.ask(id="m2", cwd=str(elsewhere), input=READ, **told)
        events = client.until()
        refused = [event for event in events if event["type"] == "error"]
        events += client.until() if len(events) == len(refused) else []
        assert [(event["code"], event["client_id"]) for event in refused] == [("EAGAIN", "m2")]
        assert "session one is busy" in refused[0]["message"]
        assert events[-1]["status"] == "ok"
        client.ask(id="m2", input=READ, **told)
        (result,) = [event for event in client.until() if event["type"] == "tool_result"]
        assert result["result"]["content"] == "blue penguin\n"


def test_a_temporary_session_ends_with_its_connection(made: Tree, work: Path) -> None:
    with connect(made) as client:
        client.ask(op="send", id="m1", session="t", scope="temp", cwd=str(work), input=LIST)
        assert client.until()[-1]["status"] == "ok"
    listed = made.ctxgate("room", "history", "reader-t", "--config", made.config)
    if listed.returncode == 0:  # the gateway may not have noticed yet
        made.wait(lambda: made.ctxgate("room", "history", "reader-t", "--config", made.config).returncode != 0)
    with connect(made) as client:
        client.ask(op="resume", session="t")
        assert client.frame()["code"] == "ENOENT"


def test_a_connection_has_few_temporary_sessions(made: Tree, work: Path) -> None:
    with connect(made) as client:
        for number in range(MAX_SESSIONS):
            client.ask(op="send", id=f"m{number}", session=f"t{number}", scope="temp", cwd=str(work), input="Hi")
            assert client.until()[-1]["status"] == "ok"
        client.ask(op="send", id="more", session="more", scope="temp", cwd=str(work), input="Hi")
        assert client.frame()["code"] == "EMSGSIZE"
        client.ask(op="send", id="again", session="t0", scope="temp", cwd=str(work), input="Hi")
        assert client.until()[-1]["status"] == "ok"


def test_a_run_is_cancelled_from_another_connection(made: Tree, work: Path) -> None:
    with connect(made) as client, connect(made) as other:
        client.ask(op="send", id="m1", session="c", cwd=str(work), input="Tell a long story.")
        start = client.frame()
        other.ask(op="cancel", id=start["run"])
        end = client.until()[-1]
        assert end["status"] in ("cancelled", "ok")
        other.frame()
        other.ask(op="cancel", id=start["run"])
        assert other.frame()["code"] == "ENOENT"
        other.ask(op="cancel", id="run-nothing")
        assert other.frame()["code"] == "ENOENT"


def test_a_run_is_logged_once_also_without_its_client(made: Tree, work: Path) -> None:
    log = made.root / "agent/reader.d/log"
    with connect(made) as client:
        client.ask(op="send", id="m1", session="logged", cwd=str(work), input=LIST)
        stays = client.until()[-1]["run"]
    with connect(made) as client:
        client.ask(op="send", id="m2", session="logged", cwd=str(work), input="Tell a long story.")
        leaves = client.frame()["run"]
    made.wait(lambda: leaves in log.read_text())
    entries = [entry for entry in frames(log.read_text()) if entry["session"] == "logged"]
    assert [(entry["run"], entry["status"]) for entry in entries] == [(stays, "ok"), (leaves, "ok")]


def test_nc_gets_the_whole_answer(made: Tree, work: Path) -> None:
    """A client that says all at once, and then only listens; afterwards the connection ends."""
    for request in (
        {"op": "send", "id": "m1", "session": "n", "cwd": str(work), "input": LIST},
        {"op": "resume", "session": "n"},
    ):
        with connect(made) as client:
            client.ask(**request)
            client.end()
            assert client.until()[-1]["status"] == "ok"
            assert client.line() == b""


def test_what_only_models_take(made: Tree) -> None:
    with connect(made) as client:
        client.ask(op="send", id="m1", tool_results=[{"id": "x", "content": "y"}])
        assert client.frame()["code"] == "EINVAL"
        client.ask(op="send", id="m1", input="x", cwd="../x")
        assert client.frame()["code"] == "EINVAL"


def test_an_agent_leaves_its_folder_alone(made: Tree, work: Path) -> None:
    """Without a folder, its tools see the room's own, which is empty."""
    with connect(made) as client:
        client.ask(op="send", id="m1", session="nowhere", input=LIST)
        (result,) = [event for event in client.until() if event["type"] == "tool_result"]
        assert result["result"]["entries"] == []


def test_a_terminal_has_a_session(made: Tree, work: Path) -> None:
    import pty

    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(work)
        agent = str(made.root / "agent/reader")
        os.execve(agent, [agent], made.env)
    rest: list[bytes] = []
    try:
        until(descriptor, b"> ", rest)
        os.write(descriptor, LIST.encode() + b"\r")
        until(descriptor, b"\xe2\x86\x92 fs.list", rest)
        until(descriptor, b"/notes.txt", rest)
        until(descriptor, b"> ", rest)
        os.write(descriptor, b"\x04")
        until(descriptor, b"\r\n", rest)
    finally:
        os.close(descriptor)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
