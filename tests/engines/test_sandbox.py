"""What an engine may do with files: a stand-in tries what a hijacked one would."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Model
from gateway.config.values import Adapter, Engines, Runtime
from gateway.engines import confine
from gateway.engines.process import Process
from gateway.engines.recipe import Recipe
from gateway.engines.sandbox import Sandbox, allowed, describe, interpreter, profile, written
from gateway.engines.spawn import spawn
from tests.prompts.conftest import Open, shop

__all__ = ["shop"]

LINUX = sys.platform.startswith("linux")
needs_landlock = pytest.mark.skipif(confine.version() == 0, reason="this kernel has no Landlock")

STAND_IN = """
import ctypes, json, os, socket, subprocess, sys

def tried(what):
    try:
        return what() or "done"
    except OSError as error:
        return type(error).__name__

def write(path):
    open(path, "w").write("x")

def read(path):
    open(path, "rb").read()

def listed(path):
    os.listdir(path)

def run(*argv):
    return "done" if subprocess.run(argv, capture_output=True, check=False).returncode == 0 else "failed"

def listen():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        socket.create_connection(one.getsockname()).close()

loader, attempts = sys.argv[1], json.loads(sys.argv[2])
found = {}
for name, (do, *given) in attempts.items():
    found[name] = tried(lambda: globals()[do](*given))
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
found["no new privileges"] = status["NoNewPrivs"].strip() == "1"
found["kill"] = tried(lambda: os.kill(int(sys.argv[3]), 0))
print(json.dumps({"ctxgate": {"found": found}}), flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with keys, and the gateway's own files in it."""
    for name in (".ssh/id_ed25519", ".config/ctxgate/config.yaml", "state/keys.json", "state/store.sqlite", "own/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    (tmp_path / "weights.gguf").write_text("weights")
    (tmp_path / "engine.py").write_text(STAND_IN)
    return tmp_path


def model(home: Path, **engine: Any) -> Model:
    return Model(name="m", runtime="llama.cpp", path=home / "weights.gguf", engine=Runtime(**engine))


async def attempted(home: Path, given: Model, sandbox: bool = True) -> dict[str, Any]:
    """What the stand-in could do, by name."""
    state = home / "state"
    prompts, loader = state / "prompts", interpreter(Path(sys.executable)) or ""
    prompts.mkdir(exist_ok=True)
    attempts = {
        "write the home": ("write", str(home / "new")),
        "write its script": ("write", str(home / "engine.py")),
        "write the weights": ("write", str(home / "weights.gguf")),
        "read a key": ("read", str(home / ".ssh/id_ed25519")),
        "list the home": ("listed", str(home)),
        "read the configuration": ("read", str(home / ".config/ctxgate/config.yaml")),
        "read the gateway's keys": ("read", str(state / "keys.json")),
        "read the store": ("read", str(state / "store.sqlite")),
        "read the gateway's variables": ("read", f"/proc/{os.getpid()}/environ"),
        "open a shell": ("run", "/bin/sh", "-c", "true"),
        "open a shell by its loader": ("run", loader, "/bin/sh", "-c", "true"),
        "read the weights": ("read", str(home / "weights.gguf")),
        "write its folder": ("write", str(state / "work/m/new")),
        "save a prompt": ("write", str(prompts / "new")),
        "use a device": ("write", "/dev/null"),
        "listen": ("listen",),
    }
    # `engine.py` is what an adapter would be: a file that the settings name.
    argv = (sys.executable, "-I", "-S", str(home / "engine.py"), loader, json.dumps(attempts), str(os.getpid()))
    recipe = Recipe("stand-in", argv, None, 5.0)
    process: Process = await spawn(
        "m", recipe, state_dir=state, pid_files=None, grace=1.0, sandbox=Sandbox(given, prompts) if sandbox else None
    )
    try:
        found: dict[str, Any] = await process.announced("found")
        return found
    except EOFError:
        pytest.fail(f"{process.ending()}: {[*process.tail]}")
    finally:
        await process.stop()


ALLOWED = ("read the weights", "write its folder", "save a prompt", "use a device", "listen", "no new privileges")


@needs_landlock
async def test_an_engine_reads_its_weights_and_writes_its_own_folder(home: Path) -> None:
    given = model(home, args=("--file", str(home / "engine.py")))
    found = await attempted(home, given)
    assert found.pop("kill") == ("PermissionError" if confine.version() >= confine.SIGNALS_SINCE else "done")
    assert {name: found.pop(name) for name in ALLOWED} == {**dict.fromkeys(ALLOWED, "done"), "no new privileges": True}
    assert found.pop("open a shell by its loader") != "done"
    assert {name: done for name, done in found.items() if done != "PermissionError"} == {}


@pytest.mark.skipif(not LINUX, reason="only Linux has this flag")
@pytest.mark.parametrize("sandbox", [True, False])
async def test_a_command_of_the_operators_own_gains_no_privileges(home: Path, sandbox: bool) -> None:
    found = await attempted(home, model(home, command=(sys.executable,)), sandbox)
    assert found.pop("no new privileges") is sandbox
    assert {found["write the home"], found["read a key"], found["open a shell"]} == {"done"}


@needs_landlock
async def test_the_embedded_engine_is_held(shop: Open) -> None:
    async with shop() as gateway:
        await gateway.ask()
        pid = gateway.engine().pid
        status = await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text)
        assert "NoNewPrivs:\t1" in status


def test_the_rules_of_an_engine(home: Path) -> None:
    folder = home / "state/work/m"
    program = home / "llama.cpp/build/bin/llama-server"
    program.parent.mkdir(parents=True)
    program.write_bytes(Path(sys.executable).resolve().read_bytes()[:4096])
    (home / "blobs").mkdir()
    (home / "blobs/1").touch()
    weights = home / "snapshot"
    weights.mkdir()
    (weights / "model.safetensors").symlink_to(home / "blobs/1")
    given = Model(
        name="m",
        runtime="mlx",
        path=weights,
        engine=Runtime(args=("--template", str(home / "engine.py")), adapters=(Adapter(path=home / "own"),)),
    )
    rules = allowed(given, Recipe("e", (str(program),), None, 1.0, {"LD_LIBRARY_PATH": "/cuda/lib"}), folder, None)
    assert rules is not None
    read = set(rules["read"])
    for expected in (
        weights,
        home / "blobs/1",
        home / "engine.py",
        home / "own",
        "/cuda/lib",
        home / "llama.cpp/build/lib",
    ):
        assert str(expected) in read, expected
    assert not read & {str(home), "/", "/usr", "/usr/bin", "/bin", "/etc", "/home", str(home / "state")}
    assert rules["write"] == ("/dev/shm", str(folder))
    assert str(program) in rules["execute"]
    assert json.loads(written(None)) == {}
    assert "*" not in "".join(json.loads(written(rules))["read"])


def test_the_rights_of_each_kind() -> None:
    assert {kind: bin(confine.of_kind(kind)) for kind in ("read", "execute", "use", "write")} == {
        "read": "0b1100",
        "execute": "0b101",
        "use": "0b1100000000001110",
        "write": "0b1111011110111110",
    }


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"#!/bin/sh\n" + b" " * 60, None),
        (b"", None),
        (b"\x7fELF\x01" + bytes(60), None),
        (b"\x7fELF\x02\x01" + bytes(58), "itself"),
    ],
)
def test_a_program_whose_loader_is_unknown_has_no_rules(tmp_path: Path, head: bytes, found: str | None) -> None:
    program = tmp_path / "program"
    program.write_bytes(head)
    assert interpreter(program) == (str(program) if found else None)
    assert interpreter(tmp_path / "none") is None


def test_the_profile_of_macos(tmp_path: Path) -> None:
    folder, home = tmp_path / "state/work/m", tmp_path
    lines = profile(folder, home, [str(home / "weights.gguf")], None).splitlines()
    own, state, root = (json.dumps(str(each)) for each in (folder, tmp_path / "state", home))
    assert lines[:3] == ["(version 1)", "(allow default)", f"(deny file-write* (subpath {root}) (subpath {state}))"]
    assert f'(subpath "{home}/.ssh")' in lines[3]
    assert lines[-2] == f"(allow file-read* file-write* (subpath {own}))"
    assert '(literal "/bin/sh")' in lines[-1]


def test_what_doctor_says() -> None:
    told = [
        describe(5, "linux"), describe(0, "linux"),
        describe(0, "darwin", lambda path: True), describe(0, "darwin", lambda path: False),
    ]  # fmt: skip
    assert [holds for holds, _ in told] == [True, False, True, False]
    for (_, text), word in zip(told, ("Landlock 5", "no Landlock", "sandbox-exec", "nothing"), strict=True):
        assert word in text
    assert Engines().sandbox == "auto"
