"""Every example of the model ABI and the object ABI, on a real tree with a real model."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.ctx.served import Tree, text, types

ECHO = """\
{"type":"start","run":"r1","model":"debug/echo"}
{"type":"delta","run":"r1","text":"hello"}
{"type":"message","run":"r1","role":"assistant","content":[{"type":"text","text":"hello"}]}
{"type":"usage","run":"r1","input_tokens":1,"output_tokens":1}
{"type":"done","run":"r1","status":"ok"}
"""


def frames(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize(
    "command",
    [
        '/ctx/model/debug/echo "hello"',
        "/ctx/model/debug/echo hello",
        'echo "hello" | /ctx/model/debug/echo',
        """echo '{"messages":[{"role":"user","content":"hello"}]}' | /ctx/model/debug/echo""",
        """/ctx/model/debug/echo '{"messages":[{"role":"user","content":"hello"}]}'""",
        "CTX_RUN_ID=r1 /ctx/model/debug/echo -- hello",
        'printf hello | CTX_RUN_ID="" /ctx/model/debug/echo --jsonl',
    ],
)
def test_echo(command: str, served: Tree) -> None:
    """As printed, but for the count of input tokens: the echo counts one for a word."""
    done = served.sh(command)
    assert (done.returncode, done.stdout, done.stderr) == (0, ECHO, "")


@pytest.mark.parametrize(
    "command",
    [
        '/ctx/model/openai/gpt-4o "hello"',
        'echo "hello" | /ctx/model/openai/gpt-4o',
        """echo '{"messages":[{"role":"user","content":"hello"}]}' | /ctx/model/openai/gpt-4o""",
        '/ctx/model/main "hello"',
        '/ctx/model/helper "hello"',
        f'/ctx/home/{os.geteuid()}/model/main "hello"',
        'cd /ctx/model/ && ./main "hello"',
    ],
)
def test_a_real_model(command: str, served: Tree) -> None:
    done = served.sh(command, CTX_RUN_ID="run-7")
    assert (done.returncode, done.stderr) == (0, "")
    told = frames(done.stdout)
    assert told[0] == {"type": "start", "run": "run-7", "model": "openai/gpt-4o"}
    assert told[-1] == {"type": "done", "run": "run-7", "status": "ok"}
    assert types(told) == ["start", *["delta"] * (len(told) - 4), "message", "usage", "done"]
    said = text(told)
    assert len(said) > 5
    assert told[-3]["content"] == [{"type": "text", "text": said}]
    assert told[-2].keys() - {"cached_tokens"} == {"type", "run", "input_tokens", "output_tokens"}
    assert told[-2]["input_tokens"] > 5
    assert {frame["run"] for frame in told} == {"run-7"}


def test_a_model_s_tool_call(served: Tree) -> None:
    """It comes as an event. Nobody runs it."""
    request = {
        "messages": [{"role": "user", "content": "What is the weather in Paris in celsius?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
    }
    (served.folder / "request.json").write_text(json.dumps(request))
    done = served.sh("/ctx/model/openai/gpt-4o < request.json")
    assert (done.returncode, done.stderr) == (0, "")
    (call,) = [frame for frame in frames(done.stdout) if frame["type"] == "tool_call"]
    assert call == {
        "type": "tool_call",
        "id": "call-1",
        "run": "r1",
        "name": "get_weather",
        "arguments": {"city": "Paris", "unit": "celsius"},
    }


def test_one_invocation_mutates_no_session(served: Tree) -> None:
    served.sh('/ctx/model/openai/gpt-4o "hello"')
    with served.connect("openai/gpt-4o") as client:
        client.ask(op="resume", session="default")
        assert client.frame()["code"] == "ENOENT"


def test_the_tree(served: Tree) -> None:
    """The object ABI's triple for each model, and the model ABI's listing."""
    model = served.root / "model"
    controls = ["cap", "default", "driver", "id", "log", "native", "session", "status"]
    aliases = [f"{alias}{end}" for alias in ("helper", "main") for end in ("", ".d", ".sock")]
    assert sorted(path.name for path in model.iterdir()) == ["debug", *aliases, "openai"]
    for provider, name in (("debug", "echo"), ("openai", "gpt-4o")):
        assert sorted(path.name for path in (model / provider).iterdir()) == [name, f"{name}.d", f"{name}.sock"]
        assert sorted(path.name for path in (model / provider / f"{name}.d").iterdir()) == controls
    assert os.readlink(model / "main") == str(model / "openai/gpt-4o")
    assert os.readlink(model / "helper") == str(model / "openai/gpt-4o")
    assert os.readlink(served.root / f"home/{os.geteuid()}/model/main") == str(model / "openai/gpt-4o")


READS = {
    "/ctx/model/openai/gpt-4o.d/id": "openai/gpt-4o\n",
    "/ctx/model/openai/gpt-4o.d/driver": (
        "default=openai-chat\nexec=openai-chat\nsocket=openai-chat\nagent=openai-responses,openai-chat\n"
    ),
    "/ctx/model/openai/gpt-4o.d/cap": "chat\nstream\nsession\njson_schema\ntool_call_syntax\n",
    "/ctx/model/openai/gpt-4o.d/default": "temperature=0.0\nmax_tokens=64\n",
    "/ctx/model/openai/gpt-4o.d/session": "socket\n",
    "/ctx/model/debug/echo.d/id": "debug/echo\n",
    "/ctx/model/debug/echo.d/driver": "debug\n",
    "/ctx/model/debug/echo.d/cap": "chat\nstream\nsession\n",
    "/ctx/model/debug/echo.d/default": "",
    "/ctx/model/debug/echo.d/session": "socket\n",
    "/ctx/model/debug/echo.d/status": "ready\n",
}


@pytest.mark.parametrize("path", READS)
def test_control_files(path: str, served: Tree) -> None:
    assert served.sh(f"cat {path}").stdout == READS[path]


def test_reading_an_object_gives_metadata(served: Tree) -> None:
    shown = served.sh("cat /ctx/model/main").stdout.replace(str(served.root), "/ctx").splitlines()
    assert shown[0] == "#!/ctx/bin/cortexfs-object-runner"
    keys = [line.removeprefix("# cortexfs.").partition("=")[0] for line in shown[1:]]
    assert keys[:7] == ["id", "name", "description", "type", "created_at", "owned_by", "context_length"]
    assert keys[7:] == [
        *("object", "driver", "driver.default", "driver.exec", "driver.socket", "driver.agent"),
        *("session", "status", "cap"),
    ]
    values = dict(line.removeprefix("# cortexfs.").split("=", 1) for line in shown[1:])
    assert (values["id"], values["context_length"], values["owned_by"]) == ("openai/gpt-4o", "1024", "openai")
    assert "small.gguf" not in "\n".join(shown)


def test_everything_is_private_to_the_owner(served: Tree) -> None:
    wrong = []
    for path in served.root.rglob("*"):
        mode, kind = stat.S_IMODE(path.lstat().st_mode), stat.S_IFMT(path.lstat().st_mode)
        if kind != stat.S_IFLNK and mode & 0o077:
            wrong.append(f"{path} {mode:o}")
        if kind == stat.S_IFSOCK and mode != 0o600:
            wrong.append(f"{path} {mode:o}")
    assert wrong == []
    assert stat.S_IMODE(served.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(served.object("openai/gpt-4o").stat().st_mode) == 0o500


# The socket


def test_ping(served: Tree) -> None:
    with served.connect("openai/gpt-4o") as client:
        client.raw(b'{"op":"ping"}\n')
        assert client.line() == b'{"type":"pong"}\n'


def test_send_resume_and_retry(served: Tree) -> None:
    with served.connect("openai/gpt-4o") as client:
        client.raw(b'{"op":"send","id":"msg-1","session":"talk","cwd":"/work","input":"hello"}\n')
        told = client.until()
    run = told[0]["run"]
    assert types(told)[0] == "start"
    assert types(told)[-3:] == ["message", "usage", "done"]
    assert told[0] == {**told[0], "model": "openai/gpt-4o", "client_id": "msg-1", "id": "event-1"}
    assert told[-1] == {"type": "done", "id": told[-1]["id"], "run": run, "status": "ok"}
    assert [frame["id"] for frame in told] == [f"event-{number}" for number in range(1, len(told) + 1)]
    with served.connect("openai/gpt-4o") as client:
        client.ask(op="resume", session="talk", after=told[1]["id"])
        assert client.until() == told[2:]
        client.ask(op="resume", session="talk", after=told[-1]["id"])
        client.ask(op="ping")
        assert client.frame() == {"type": "pong"}
        client.raw(b'{"op":"send","id":"msg-1","session":"talk","cwd":"/work","input":"hello"}\n')
        assert client.frame() == told[-1]
        client.ask(op="send", id="msg-2", session="talk", input="hello again")
        again = client.until()
        assert again[0]["id"] == f"event-{len(told) + 1}"
        # The conversation so far is part of the prompt.
        assert again[-2]["input_tokens"] > told[-2]["input_tokens"]


def test_cancel(served: Tree) -> None:
    with served.connect("openai/gpt-4o") as client:
        client.ask(op="send", id="long-1", session="long", input="Tell me everything.")
        run = client.frame()["run"]
        client.ask(op="cancel", id=run)
        last = client.until()[-1]
        assert (last["run"], last["status"]) in ((run, "cancelled"), (run, "ok"))
        client.ask(op="cancel", id="run-1")
        assert client.until("error")[-1]["code"] == "ENOENT"


@pytest.mark.parametrize("alias", ["main", "helper"])
def test_an_alias_s_socket_is_its_object_s(alias: str, served: Tree) -> None:
    found = served.object(alias).resolve()
    assert Path(f"{found}.sock").is_socket()
    for end in (".d", ".sock"):
        assert (served.root / "model" / f"{alias}{end}").resolve() == Path(f"{found}{end}")


def test_an_object_of_one_s_own(served: Tree) -> None:
    """`coder` needs its own parameters: a real object, not an overlay of a symlink."""
    made = served.sh(
        "cp /ctx/model/openai/gpt-4o /ctx/model/openai/gpt-4o-coder && mkdir /ctx/model/openai/gpt-4o-coder.d"
        " && cd /ctx/model/openai/gpt-4o-coder.d && echo openai/gpt-4o > id && echo default=openai-chat > driver"
        " && echo max_tokens=2 > default"
    )
    assert made.returncode == 0, made.stderr
    done = served.sh('/ctx/model/openai/gpt-4o-coder "hello"')
    told = frames(done.stdout)
    assert (told[0]["model"], told[-1]["status"]) == ("openai/gpt-4o-coder", "ok")
    assert told[-2]["output_tokens"] == 2
    assert served.ctxgate("ctx", "sync", "--config", served.config).returncode == 0
    assert served.object("openai/gpt-4o-coder.d/default").read_text() == "max_tokens=2\n"
