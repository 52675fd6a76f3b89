"""Kills the gateway's process while its engine runs, on the event loop that it uses in production."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.engines.conftest import gone
from tests.engines.served import served
from tests.patience import PATIENCE
from tests.ports import free_port

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_gateway_leaves_no_engine(number: signal.Signals, test_model: Path, tmp_path: Path) -> None:
    port = free_port()
    model = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 512, "port": port}
    with served({"active_model": "tiny", "models": {"tiny": model}}, tmp_path) as gateway:
        httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, timeout=PATIENCE).raise_for_status()
        engine = _listener(port)
        gateway.process.send_signal(number)
        gateway.process.wait(PATIENCE)
        assert gone(engine)


def _listener(port: int) -> int:
    """The process whose command line names the port."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    found = [line for line in listed.splitlines() if f"--port {port}" in line and "guard.py" not in line]
    (line,) = [line for line in found if not re.search(r"-m gateway", line)]
    return int(line.split()[0])
