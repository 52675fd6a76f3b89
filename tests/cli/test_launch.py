"""`ctxgate launch` with stand-ins for the programs, which write down how they were started.

tests/clients/test_launch.py starts the real ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import yaml

from gateway.cli.main import main
from gateway.features.clients.commands.launch import PROGRAMS
from gateway.features.clients.contracts import CONTRACTS
from tests.cli.commands import answering, config, ctxgate, environment, serving
from tests.ports import free_port

STAND_IN = """\
#!{python} -IS
import json, os, pathlib, sys, urllib.request
given = [*sys.argv[1:], *os.environ.values()]
places = [path for path in given if os.path.isfile(path) and path != os.environ["SAYS"]]
files = {{path: pathlib.Path(path).read_text() for path in places}}
report = {{"argv": sys.argv[1:], "environ": {{**os.environ}}, "files": files}}
if address := os.environ.get("ASKS"):
    key = os.environ.get("CTXGATE_KEY", "")
    asked = urllib.request.Request(address + "/v1/models", headers={{"authorization": "Bearer " + key}})
    report["models"] = json.load(urllib.request.urlopen(asked))["data"]
with open(os.environ["SAYS"], "w") as out:
    json.dump(report, out)
if "WAITS" in os.environ:
    open(os.environ["WAITS"], "w").close()
    open(os.environ["WAITS"]).read()
sys.exit(7)
"""
SMALL, LARGE = "small", "large"
Json = dict[str, Any]


def written(folder: Path, port: int, **more: Any) -> Path:
    """Two models, of which only the second one suffices for coding agents."""
    server = {"runtime": "openai", "base_url": "http://127.0.0.1:9"}
    models = {
        SMALL: {**server, "context_window": 1024},
        "mute": {**server, "context_window": 65536, "capabilities": ["text"]},
        LARGE: {**server, "context_window": 65536, "capabilities": ["text", "tool_calling"]},
    }
    content = {"active_model": SMALL, "models": models, "server": {"port": port}, "state_dir": str(folder / "state")}
    return config(folder, yaml.safe_dump({**content, **more}))


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Here:
    """A person's machine: a configuration, and stand-ins on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.bin = folder / "bin"
        self.bin.mkdir()
        for contract in PROGRAMS.values():
            assert contract.program is not None
            program = self.bin / contract.program.command
            program.write_text(STAND_IN.format(python=sys.executable))
            program.chmod(0o700)
        written(folder, self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environ(self, **more: str) -> dict[str, str]:
        """Such as have a PATH with the stand-ins."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "SAYS": str(self.folder / "said.json"), **more}

    def launch(self, *args: str, **more: str) -> Done:
        """In this process: it starts no gateway where one runs, and nothing where it refuses."""
        environ, out, errors = environment(self.folder, **self.environ(**more)), io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, environ, clear=True),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            return Done(main(["launch", *args]), out.getvalue(), errors.getvalue())

    def said(self, name: str = "said.json") -> Json:
        found: Json = json.loads((self.folder / name).read_text())
        return found

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A launched program that waits until the second one, a FIFO, is written to."""
        fifo = self.folder / name
        os.mkfifo(fifo)
        environ = self.environ(WAITS=str(fifo), SAYS=str(self.folder / f"{name}.json"), ASKS=self.url)
        command = [sys.executable, "-m", "gateway", "launch", "claude"]
        with subprocess.Popen(command, cwd=self.folder, env=environment(self.folder, **environ)) as process:
            # Opens once the program has opened it to write: it runs.
            fifo.open().close()
            yield process, fifo

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_it_starts_the_gateway_and_ends_with_the_programs_code(here: Here) -> None:
    environ = here.environ(ASKS=here.url, ANTHROPIC_API_KEY="mine")
    done = ctxgate("launch", "claude", "--", "-p", "Say hi.", cwd=here.folder, **environ)
    assert done.returncode == 7, done.stderr
    said = here.said()
    assert said["argv"][-2:] == ["-p", "Say hi."]
    assert {model["id"] for model in said["models"]} >= {SMALL, LARGE}
    assert said["environ"]["ANTHROPIC_BASE_URL"] == here.url
    assert said["environ"]["ANTHROPIC_MODEL"] == LARGE
    assert "ANTHROPIC_API_KEY" not in said["environ"]
    assert f"claude with {LARGE} (65,536 tokens); the gateway at {here.url} started for this" in done.stderr
    assert not here.listens()


def test_the_gateway_ends_with_the_last_program(here: Here) -> None:
    with here.waiting("one") as (one, first), here.waiting("two") as (two, second):
        first.write_text("")
        assert one.wait() == 7
        assert here.listens()
        second.write_text("")
        assert two.wait() == 7
    assert not here.listens()


def test_a_signal_reaches_the_program(here: Here) -> None:
    with here.waiting("one") as (one, _):
        one.send_signal(signal.SIGTERM)
        assert one.wait() == 128 + signal.SIGTERM
    assert not here.listens()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """With a gateway that runs, and asks for a key."""
    here = Here(tmp_path_factory.mktemp("launch"))
    written(here.folder, here.port, server={"port": here.port, "api_keys": ["${CTXGATE_KEY}"]})
    with serving(here.folder, CTXGATE_KEY="secret"), answering(here.port):
        yield here


def plain(said: Json) -> Json:
    """Without the folder, which is another one each time, and without what a shell adds."""
    text = json.dumps(said)
    for file in said["files"]:
        text = text.replace(str(Path(file).parent), "")
    found: Json = json.loads(text)
    for added in ("PWD", "OLDPWD", "SHLVL", "_", "__CF_USER_TEXT_ENCODING"):
        found["environ"].pop(added, None)
    return found


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_it_prints_does_the_same(name: str, shared: Here) -> None:
    """As a script of a shell. It, the command line and the files are without the key."""
    program = PROGRAMS[name].program
    assert program is not None
    words = (program.command, "--", "an argument", "--of=its own")
    done = shared.launch(*words, CTXGATE_KEY="secret", ASKS=shared.url)
    assert done.returncode == 7, done.stderr
    assert "runs already" in done.stderr
    launched = shared.said()
    printed = shared.launch("--print", *words, CTXGATE_KEY="secret").stdout
    assert "secret" not in printed
    environ = environment(shared.folder, **shared.environ(CTXGATE_KEY="secret", ASKS=shared.url))
    assert subprocess.run(["/bin/sh", "-c", printed], env=environ, cwd=shared.folder, check=False).returncode == 7
    scripted = shared.said()
    launched, scripted = plain(launched), plain(scripted)
    assert scripted == launched
    assert "secret" not in json.dumps([launched["argv"], launched["files"]])
    assert shared.url in json.dumps(launched)
    model = LARGE if PROGRAMS[name].window else ""
    assert model in json.dumps([launched["argv"], launched["files"], launched["environ"]])


def test_any_program(shared: Here) -> None:
    done = shared.launch("any", "--", "claude", "-x", CTXGATE_KEY="secret", HTTPS_PROXY="http://proxy:1")
    assert done.returncode == 7, done.stderr
    said = shared.said()
    assert said["argv"] == ["-x"]
    expected = {"OPENAI_BASE_URL": f"{shared.url}/v1", "OPENAI_API_KEY": "secret", "ANTHROPIC_AUTH_TOKEN": "secret"}
    assert expected.items() <= said["environ"].items()
    assert said["environ"]["NO_PROXY"] == "127.0.0.1,localhost"


def test_a_gateway_that_refuses_the_key(shared: Here) -> None:
    done = shared.launch("claude", CTXGATE_KEY="wrong")
    assert (done.returncode, f"the gateway at {shared.url} asks for a key: set CTXGATE_KEY" in done.stderr) == (
        13,
        True,
    )


def test_the_gateway_of_another_folder_is_left_alone(here: Here, shared: Here) -> None:
    written(here.folder, shared.port, server={"port": shared.port, "api_keys": ["${CTXGATE_KEY}"]})
    done = here.launch("claude", CTXGATE_KEY="secret")
    assert done.returncode == 7, done.stderr
    assert shared.url not in json.dumps(here.said())
    assert shared.listens()


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a wrong name": (("claud",), 2, "there is no client claud: did you mean claude?"),
    "no client": (("frobnicate",), 2, "for a program of your own: ctxgate launch any -- frobnicate"),
    "no program": (("langchain",), 2, "`ctxgate doctor --client langchain` shows how to configure it"),
    "any, without one": (("any",), 2, "name the program: ctxgate launch any -- PROGRAM"),
    "its own option": (("claude", "-p"), 2, "No such option: -p. The program's own options go behind --"),
    "a window that is too small": (
        ("claude", "--model", SMALL),
        1,
        "small has a window of 1,024 tokens, but claude-code's first request alone takes 39,126 or more; choose large",
    ),
    "an unknown model": (("claude", "--model", "nobody"), 1, "there is no model 'nobody'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(name: str, here: Here) -> None:
    words, code, message = REFUSED[name]
    done = here.launch(*words)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert not (here.folder / "state").exists()


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_that_is_absent(name: str, here: Here) -> None:
    program = PROGRAMS[name].program
    assert program is not None
    done = here.launch(program.command, PATH="/nowhere")
    assert (done.returncode, done.stderr) == (
        69,
        f"ctxgate: {program.command} isn't on the PATH; install it: {program.install}\n",
    )


def test_no_model_that_suffices(here: Here) -> None:
    """What would help is a command, from config.yaml or else from the default one."""
    written(here.folder, here.port, models={SMALL: {"runtime": "echo"}})
    done = here.launch("claude")
    assert "which needs a window of 65,536 tokens and tool calls: `ctxgate add hf:" in done.stderr
    assert "--window 65536` brings one" in done.stderr
    big = {"runtime": "llama.cpp", "path": "big.gguf", "context_window": 65536, "pull": {"hub": "org/big"}}
    written(here.folder, here.port, models={SMALL: {"runtime": "echo"}, "big": big})
    for given in ((), ("--model", "big")):
        done = here.launch("claude", *given)
        assert (done.returncode, "`ctxgate pull big` brings one" in done.stderr) == (69, True), done.stderr


def test_a_window_that_is_not_known(here: Here) -> None:
    """Is taken if no other model is known to suffice, and said."""
    written(here.folder, here.port, models={SMALL: {"runtime": "openai", "base_url": "http://127.0.0.1:9"}})
    assert "# model small\n" in here.launch("any", "--print", "--", "claude").stdout
    done = here.launch("claude", "--print")
    assert "# model small (its window isn't known; this needs a window of 65,536 tokens and tool calls)" in done.stdout


def test_printing_changes_nothing(here: Here) -> None:
    before = sorted(here.folder.rglob("*"))
    done = here.launch("opencode", "--print", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "# opencode isn't on the PATH; install it: npm install -g opencode-ai" in done.stdout
    assert "# no gateway runs; it would start one" in done.stdout
    assert sorted(here.folder.rglob("*")) == before


def test_every_program_has_a_page_that_says_so() -> None:
    from tests.conftest import ROOT

    for name, contract in CONTRACTS.items():
        text = (ROOT / f"docs/clients/{name}.md").read_text("utf-8")
        command = "any" if name == "any" else contract.program and contract.program.command
        assert (f"ctxgate launch {command}" in text) == bool(command), name


def test_a_window_that_is_not_known_is_no_variable(here: Here) -> None:
    """Claude Code would compact its first request if it were told the usual one of a snippet."""
    server = {"runtime": "openai", "base_url": "http://127.0.0.1:9"}
    for window in (None, 65536):
        written(here.folder, here.port, models={SMALL: {**server, **({"context_window": window} if window else {})}})
        printed = here.launch("claude", "--print").stdout
        assert ("CLAUDE_CODE_MAX_CONTEXT_TOKENS=65536" in printed) == (window is not None)
        assert "32768" not in printed
