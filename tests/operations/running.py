"""A gateway as a process of its own, whose config.yaml a test rewrites, and a question for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.cli.commands import config as written
from tests.cli.commands import environment
from tests.patience import PATIENCE
from tests.ports import free_port

WEATHER = {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}
PARAMETERS = {"type": "object", "properties": WEATHER, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Current weather in a city.", "parameters": PARAMETERS}
QUESTION: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is the weather in Paris in celsius?"}],
    "tools": [{"type": "function", "function": FUNCTION}],
    "temperature": 0,
}


class Gateway:
    def __init__(self, process: subprocess.Popen[str], port: int, file: Path, log: Path) -> None:
        self.process = process
        self.file = file
        self.log = log
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status once it is as wanted."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                status: dict[str, Any] = self.http.get("/-/status").json()
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
            else:
                if holds(status):
                    return status
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def save(self, text: str) -> None:
        """As editors do: nobody sees half of it."""
        new = self.file.with_name("new.yaml")
        new.write_text(text, "utf-8")
        new.replace(self.file)

    def names(self) -> list[str]:
        return [model["id"] for model in self.http.get("/v1/models").json()["data"]]


@contextmanager
def gateway(folder: Path, text: str, *args: str, **environ: str) -> Iterator[Gateway]:
    file, port, log = written(folder, text), free_port(), folder / "log"
    command = [sys.executable, "-m", "gateway", "serve", "--port", str(port), *args]
    state = os.environ["XDG_STATE_HOME"]
    with (
        log.open("w") as err,
        subprocess.Popen(
            command, cwd=folder, env=environment(folder, XDG_STATE_HOME=state, **environ), stderr=err, text=True
        ) as process,
    ):
        running = Gateway(process, port, file, log)
        try:
            running.until(lambda status: True)
            yield running
        finally:
            running.http.close()
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
