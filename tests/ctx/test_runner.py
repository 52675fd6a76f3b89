"""Executing an object: exit codes, texts, interrupts, terminals."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gateway.features.ctx import client, runner
from gateway.features.ctx import terminal as terminal_module
from tests.conftest import ROOT
from tests.ctx.engine import Words, with_engine
from tests.ctx.screen import until
from tests.ctx.served import Tree, tree
from tests.engines.conftest import stand_still
from tests.gateway.double import Double, answers, chunk, streams
from tests.patience import PATIENCE

MODELS: dict[str, Any] = {
    "echo": {"runtime": "echo"},
    "gone": {"runtime": "openai", "port": 1},
    "keyless": {"runtime": "openai", "base_url": "https://far.example"},
}
CONFIG: dict[str, Any] = {
    "server": {"max_body_bytes": 4_000_000},
    "active_model": "echo",
    "models": MODELS,
    "ctx": {"models": {"keyless": {"credential": "far-off"}, "gone": {"object": "acme/gone"}}},
}


EMPTY = "no input: give it as arguments or on standard input"
FULL = "echo: the answer can't be written: No space left on device\n"


@pytest.fixture(scope="module", params=["compiled", "python"])
def echo(request: pytest.FixtureRequest, module_short: Path) -> Iterator[Tree]:
    """With each of the two runners."""
    compile = request.param == "compiled"
    if compile and shutil.which("cc") is None:
        pytest.skip("no C compiler: objects run by Python alone")
    folder = module_short / request.param[0]
    folder.mkdir()
    with tree(folder, {**CONFIG, "ctx": {**CONFIG["ctx"], "compile": compile}}) as made:
        assert (made.root / "bin/cortexfs-object-runner").read_bytes().startswith(b"#!") is not compile
        yield made


def last(printed: str) -> list[dict[str, Any]]:
    """The error and what follows it."""
    frames = [json.loads(line) for line in printed.splitlines()]
    return [frame for frame in frames if frame["type"] in ("error", "done")]


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        ("/ctx/model/debug/echo ''", "EINVAL", 2),
        ("/ctx/model/debug/echo < /dev/null", "EINVAL", 2),
        ("/ctx/model/debug/echo <&-", "EINVAL", 2),
        ("printf '\\377' | /ctx/model/debug/echo", "EINVAL", 2),
        ("/ctx/model/debug/echo $(printf '\\377')", "EINVAL", 2),
        ("CTX_RUN_ID='r 1' /ctx/model/debug/echo hello", "EINVAL", 2),
        ("head -c 4000001 /dev/zero | tr '\\0' x | /ctx/model/debug/echo", "EMSGSIZE", 2),
        ("printf 'a\\000b' | /ctx/model/debug/echo", "EINVAL", 2),
        ("/ctx/model/debug/echo '{\"a\": [1, 2'", "EINVAL", 2),
        ("/ctx/model/debug/echo --schema", "EINVAL", 2),
        ("/ctx/model/debug/echo --colour red", "EINVAL", 2),
        ("/ctx/model/debug/echo -f nothing hello", "EINVAL", 2),
        ("""/ctx/model/debug/echo '{"messages": []}'""", "EINVAL", 2),
        ("""/ctx/model/debug/echo '{"messages": 7}'""", "EINVAL", 2),
        ("""/ctx/model/debug/echo '{"messages": [{"role": "user", "content": "a"}], "n": 2}'""", "EINVAL", 2),
        ("/ctx/model/far.example/keyless hello", "EACCES", 13),
        ("/ctx/model/acme/gone hello", "EHOSTDOWN", 69),
        ("cp /ctx/model/debug/echo /tmp/$$ && /tmp/$$ hello; a=$?; rm /tmp/$$; exit $a", "ENOENT", 1),
        ("cd /ctx/model/ && cp debug/echo debug/bare && debug/bare hello; a=$?; rm debug/bare; exit $a", "EINVAL", 2),
    ],
)
def test_exit_codes(command: str, code: str, exit_code: int, echo: Tree) -> None:
    done = echo.sh(command)
    assert (done.returncode, done.stderr) == (exit_code, ""), done.stdout
    error, end = last(done.stdout)
    assert (error["code"], end["status"]) == (code, "error")
    assert error["message"]


def test_more_than_a_frame(echo: Tree) -> None:
    """Only frames of sockets are limited to 1 MiB."""
    done = echo.sh("head -c 1500000 /dev/zero | tr '\\0' x | /ctx/model/debug/echo | tail -3 | wc -c")
    assert int(done.stdout) > 1_500_000
    done = echo.sh("head -c 1500000 /dev/zero | tr '\\0' x | /ctx/model/debug/echo -t | wc -c")
    assert int(done.stdout) == 1_500_001


def test_control_characters_are_part_of_the_input(echo: Tree) -> None:
    done = echo.sh("printf 'a\\001\\033b' | /ctx/model/debug/echo")
    assert json.loads(done.stdout.splitlines()[1])["text"] == "a\x01\x1bb"
    done = echo.sh("printf 'a\\001\\033b' | /ctx/model/debug/echo --text")
    assert done.stdout == "a\ufffd\ufffdb\n"


@pytest.mark.parametrize(
    ("command", "stdout", "stderr", "exit_code"),
    [
        ("/ctx/model/debug/echo --text hello   there", "hello there\n", "", 0),
        ("echo hello | /ctx/model/debug/echo --text", "hello\n", "", 0),
        ("/ctx/model/debug/echo --text -- --text", "--text\n", "", 0),
        ("/ctx/model/debug/echo -t hello", "hello\n", "", 0),
        ("CTX_FORMAT=text /ctx/model/debug/echo hello", "hello\n", "", 0),
        ("echo b > f; echo c | /ctx/model/debug/echo -t a -f f - d", "a\n\nb\n\nc\n\nd\n", "", 0),
        ("echo a | /ctx/model/debug/echo -t -", "a\n", "", 0),
        ("/ctx/model/debug/echo -t -5 + 3", "-5 + 3\n", "", 0),
        ("/ctx/model/debug/echo -t tar -x", "tar -x\n", "", 0),
        ("""/ctx/model/debug/echo -t '{ int x; }'""", "{ int x; }\n", "", 0),
        ("""/ctx/model/debug/echo -t '{"a": 1}'""", '{"a": 1}\n', "", 0),
        ("/ctx/model/debug/echo --text ''", "", f"EINVAL: {EMPTY}\n", 2),
        ("/ctx/model/debug/echo hello >&-", "", "echo: standard output is closed\n", 1),
        ("/ctx/model/debug/echo -t hello 2>&-", "hello\n", "", 0),
        ("/ctx/model/debug/echo -t hello <&- 2>&-", "hello\n", "", 0),
        ("/ctx/model/debug/echo hello | true", "", "", 0),
        ("/ctx/model/debug/echo hello > /dev/full", "", FULL, 1),
        ("/ctx/model/debug/echo --text hello > /dev/full", "", FULL, 1),
        ("/ctx/model/debug/echo '' > /dev/full", "", FULL, 1),
    ],
)
def test_text(command: str, stdout: str, stderr: str, exit_code: int, echo: Tree) -> None:
    done = echo.sh(command)
    assert (done.stdout, done.stderr, done.returncode) == (stdout, stderr, exit_code)


@pytest.mark.parametrize("form", ["--text", "--jsonl"])
def test_nobody_reads_the_answer(form: str, echo: Tree) -> None:
    """Quietly, as behind `| head`, but not as a success."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [echo.object("debug/echo"), form, "hello"],
            env=echo.env, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, timeout=PATIENCE,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (client.GENERIC, b"")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(option: str, echo: Tree) -> None:
    done = echo.sh(f"/ctx/model/debug/echo {option}")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: echo [OPTION ...] [INPUT ...]\n")
    assert all(word in done.stdout for word in ("--schema", "--system", "-f FILE", "--version", "-t, --text"))


def test_version(echo: Tree) -> None:
    assert echo.sh("/ctx/model/debug/echo --version").stdout == f"ctxgate {version('ctxgate')}\n"


@pytest.mark.parametrize("compile", [True, False])
def test_no_gateway(compile: bool, short: Path) -> None:
    if compile and shutil.which("cc") is None:
        pytest.skip("no C compiler: objects run by Python alone")
    with tree(short, {**CONFIG, "ctx": {**CONFIG["ctx"], "compile": compile}}, start=False) as made:
        assert made.ctxgate("ctx", "sync", "--config", made.config).returncode == 0
        done = made.sh("/ctx/model/debug/echo hello")
        assert (done.returncode, done.stderr) == (69, "")
        assert last(done.stdout)[0]["code"] == "EHOSTDOWN"
        done = made.sh("/ctx/model/debug/echo --text hello")
        assert (done.returncode, done.stdout) == (69, "")
        assert "start it" in done.stderr
        for words in ("hello -t", "-t hello", "--jsonl -t hello", "--jsonl hello -t"):
            assert made.sh(f"/ctx/model/debug/echo {words}").stdout == "", words
        for words in ("-t -- hello", "-t hello --jsonl", "hello -t x", "-- hello -t"):
            as_text = made.sh(f"/ctx/model/debug/echo {words}").stdout == ""
            assert as_text is (words == "-t -- hello"), words
        done = made.sh("CTX_FORMAT=text CTX_RUN_ID='a\"b' /ctx/model/debug/echo --jsonl hello")
        assert [frame["run"] for frame in last(done.stdout)] == ['a"b', 'a"b']
        done = made.sh("/ctx/model/debug/echo --help")
        assert (done.returncode, done.stdout.partition(" ")[0]) == (0, "usage:")


async def executed(made: Tree, double: Double) -> tuple[subprocess.Popen[bytes], bytes]:
    """A process of the object acme/m, which has printed its first delta."""
    process = subprocess.Popen(  # noqa: ASYNC220 - its pipe is read in a thread
        [made.object("acme/m"), "hello"], env=made.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    lines = b""
    while b'"delta"' not in lines:
        lines += await asyncio.to_thread(process.stdout.readline)
    return process, lines


async def test_an_interrupt_cancels_and_the_second_one_ends(short: Path) -> None:
    engine = Words()
    engine.permits.release()
    async with Double(engine.script).serve() as double:
        with tree(short, with_engine(double), start=False) as made:
            async with asyncio.timeout(PATIENCE):
                await asyncio.to_thread(made.start)
                process, _ = await executed(made, double)
                process.send_signal(signal.SIGINT)
                rest, _ = await asyncio.to_thread(process.communicate)
                assert json.loads(rest.splitlines()[-1]) == {"type": "done", "run": "r1", "status": "cancelled"}
                assert process.returncode == 1
                # The engine is free again.
                await double.requests[0].gone

                # A gateway that doesn't answer: only the second interrupt ends the process.
                engine.permits.release()
                process, _ = await executed(made, double)
                assert made.process is not None
                stand_still(made.process.pid)
                try:
                    process.send_signal(signal.SIGINT)
                    with pytest.raises(subprocess.TimeoutExpired):
                        await asyncio.to_thread(process.wait, 0.3)
                    # On a slow machine the first one may not have been seen yet; two at once are one.
                    while process.poll() is None:
                        process.send_signal(signal.SIGINT)
                        await asyncio.sleep(0.3)
                    assert process.returncode == 1
                finally:
                    made.process.send_signal(signal.SIGCONT)
                assert process.stdout is not None
                process.stdout.close()
                # The client is gone, so the engine's work is cancelled.
                await double.requests[1].gone


async def test_an_engine_that_fails_after_the_first_frame(short: Path) -> None:
    """The error is a frame of the stream."""
    async with Double(streams(chunk("Hel"), {"error": {"message": "broken"}}), answers({}, 401)).serve() as double:
        with tree(short, with_engine(double), start=False) as made:
            await asyncio.to_thread(made.start)
            done = await asyncio.to_thread(made.sh, "/ctx/model/acme/m hello")
            frames = [json.loads(line) for line in done.stdout.splitlines()]
            assert [frame["type"] for frame in frames] == ["start", "delta", "error", "done"]
            assert (frames[2]["code"], done.returncode) == ("EHOSTDOWN", 69)
            done = await asyncio.to_thread(made.sh, "/ctx/model/acme/m hello")
            assert [frame.get("code", frame["type"]) for frame in map(json.loads, done.stdout.splitlines())] == [
                *("start", "EACCES", "done")
            ]
            assert done.returncode == 13


# A gateway that goes away


@contextmanager
def closes(path: Path, said: bytes) -> Iterator[None]:
    """A server that says something and closes without reading, which resets the connection."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            client, _ = listening.accept()
            select.select([client], [], [], PATIENCE)  # until there is something that it doesn't read
            client.sendall(said)
            client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(PATIENCE)


def test_a_reset_connection_is_the_gateway_s_end(short: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (short / "model/acme").mkdir(parents=True)
    (short / "model/acme/m").touch()
    with closes(short / client.SOCKET, b'o17\n{"type":"start"}\n'):
        assert runner.run(str(short), str(short / "model/acme/m"), ["hello"]) == client.UNAVAILABLE
    start, error, done = map(json.loads, capfd.readouterr().out.splitlines())
    assert (start["type"], error["code"], done["status"]) == ("start", "EHOSTDOWN", "error")
    assert "went away" in error["message"]


def test_a_conversation_says_that_the_gateway_has_gone(
    short: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "hello")
    start = b'{"type":"start","run":"r"}\n'
    with closes(short / "model/acme/m.sock", start):
        assert terminal_module.converse(str(short), "model/acme/m") == client.GENERIC
    assert capfd.readouterr().err.endswith("the gateway has gone\n")


def test_what_a_closed_connection_takes_is_no_error(short: Path) -> None:
    one, other = socket.socketpair()
    with one:
        other.close()
        assert client.send(one, b"hello") is False
        assert client.receive(one) == b""


# Terminals


@contextmanager
def terminal(made: Tree, *arguments: str) -> Iterator[int]:
    """An object executed on a terminal of its own; the other end's descriptor."""
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(made.folder)
        os.execve(made.object("debug/echo"), [str(made.object("debug/echo")), *arguments], made.env)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_a_terminal_sees_text(echo: Tree) -> None:
    rest: list[bytes] = []
    with terminal(echo, "hello there") as descriptor:
        assert b"{" not in until(descriptor, b"hello there\r\n", rest)


def test_a_conversation(echo: Tree) -> None:
    rest: list[bytes] = []
    with terminal(echo) as descriptor:
        until(descriptor, b"> ", rest)
        os.write(descriptor, b"one two\r")
        until(descriptor, b"one two\r\n", rest)
        assert b"one two" in until(descriptor, b"> ", rest)
        os.write(descriptor, b"three\r")
        until(descriptor, b"three\r\n", rest)
        assert b"three" in until(descriptor, b"> ", rest)
        os.write(descriptor, b"\x04")
        until(descriptor, b"\r\n", rest)


def test_a_terminal_is_told_of_input_that_is_not_read(echo: Tree) -> None:
    """As in `git diff | main "write a message"`."""
    process, descriptor = pty.fork()
    if process == 0:
        reading, writing = os.pipe()
        os.write(writing, b"diff")
        os.close(writing)
        os.dup2(reading, 0)
        os.execve(echo.object("debug/echo"), ["echo", "write"], echo.env)
    rest: list[bytes] = []
    try:
        said = until(descriptor, b"write\r\n", rest)
        assert b"standard input isn't part of the input: add - where it belongs" in said
    finally:
        os.close(descriptor)
        os.waitpid(process, 0)


# The runner itself


@pytest.mark.parametrize("form", ["--jsonl", "--text"])
def test_the_runner_imports_next_to_nothing(form: str, echo: Tree) -> None:
    script = (
        f"import sys; sys.path.append({str(ROOT)!r}); import gateway.features.ctx.runner as runner\n"
        f"code = runner.run({str(echo.root)!r}, {str(echo.object('debug/echo'))!r}, [{form!r}, 'hello'])\n"
        "sys.stderr.write(' '.join(sorted(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], env=echo.env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0
    assert not set(HEAVY) & set(done.stderr.split())
    assert len(done.stderr.split()) < 50


HEAVY = ("asyncio", "enum", "json", "msgspec", "re", "signal", "site", "socket", "typing")


def test_a_python_in_a_folder_with_a_space(short: Path) -> None:
    """A shebang can't name it."""
    folder = short / "a b"
    folder.mkdir()
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from gateway.features.ctx import launcher\n"
        "sys.executable = sys.argv[2]; sys.stdout.buffer.write(launcher.launcher())"
    )
    made = subprocess.run(
        [sys.executable, "-c", script, str(ROOT), str(folder / "python")],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    runner = short / "runner"
    runner.write_bytes(made.stdout)
    runner.chmod(0o500)
    done = subprocess.run([runner], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (2, f"usage: {runner} OBJECT [INPUT ...]\n")
