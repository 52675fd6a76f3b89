"""A tree as its user meets it: `ctxgate serve` in a process of its own, and plain socket clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from tests.cli.commands import environment
from tests.patience import PATIENCE
from tests.ports import free_port

FORBIDDEN = {
    *("thread_id", "response_id", "conversation_id", "provider_thread_id", "provider_response_id", "native_thread"),
    *("native_state", "openai_response_id", "anthropic_message_id", "gemini_response_id"),
}
"""Names of a provider's own, which stand in no frame."""


@dataclass
class Tree:
    """A root, and the gateway that keeps it while `process` runs."""

    folder: Path
    config: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "ctx"

    @property
    def env(self) -> dict[str, str]:
        return environment(self.folder, CTX_ROOT=str(self.root), **self.extra)

    def object(self, name: str) -> Path:
        return self.root / "model" / name

    def sh(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A line of shell, in which /ctx is the root."""
        return subprocess.run(
            ["sh", "-c", command.replace("/ctx/", f"{self.root}/")],
            env=self.env | env, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def ctxgate(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", *map(str, args)],
            env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self) -> None:
        """Returns once every socket stands."""
        (self.root / "status").unlink(missing_ok=True)  # what a killed gateway has left there
        log = (self.folder / "gateway.log").open("ab")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self.config), "--port", str(self.port)]
        with log:
            self.process = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=log, stderr=log)
        self.wait(lambda: (self.root / "status").is_file() and (self.root / "status").read_text() == "ready\n")

    def wait(self, met: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not met():
            assert self.process is None or self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE)
        self.process = None

    def log(self) -> str:
        return (self.folder / "gateway.log").read_text()

    def resident(self) -> int:
        """Bytes of memory that the gateway holds."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def connect(self, name: str) -> Client:
        return Client(self.root / "model" / f"{name}.sock")


@contextmanager
def tree(folder: Path, config: Mapping[str, Any], *, start: bool = True, **extra: str) -> Iterator[Tree]:
    """config: of the file; `ctx.enabled` is added. folder: short enough for sockets."""
    file = folder / "config.yaml"
    whole = {**config, "ctx": {"enabled": True, **config.get("ctx", {})}}
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    port = config.get("server", {}).get("port") or free_port()
    made = Tree(folder, file, port, None, extra)
    try:
        if start:
            made.start()
        yield made
    finally:
        if made.process is not None:
            made.process.terminate()
            try:
                made.process.wait(PATIENCE)
            finally:
                made.process.kill()
                made.process.wait()


class Client:
    """A blocking client of an object's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        try:
            self._socket.connect(os.fspath(path))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, **request: Any) -> None:
        self.raw(json.dumps(request).encode() + b"\n")

    def end(self) -> None:
        """Says no more, and still listens."""
        self._socket.shutdown(socket.SHUT_WR)

    def line(self) -> bytes:
        """b"" where the gateway has closed the connection."""
        return self._file.readline()

    def frame(self) -> dict[str, Any]:
        line = self.line()
        assert line.endswith(b"\n"), line
        return dict(json.loads(line))

    def until(self, kind: str = "done") -> list[dict[str, Any]]:
        """The frames up to the first of that type, itself included."""
        frames = [self.frame()]
        while frames[-1]["type"] != kind:
            frames.append(self.frame())
        return frames

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def types(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in frames]


def text(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")
