"""A real user manager of systemd, in a namespace of its own, runs what `ctxgate service install` wrote."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import config, ctxgate
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.service.trees import tree

SYSTEMD = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(path).exists()), None)
START = """
mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec setpriv --pdeathsig TERM "$0" --user --log-target=null
"""
"""/run/systemd/system is how systemd's programs see that they run under it."""
UP_SECONDS = 20.0
SHARED = Path("/dev/shm")
"""The service has a /tmp of its own, so the home must be elsewhere."""


def absent() -> str | None:
    """Why there is no user manager here."""
    if SYSTEMD is None or shutil.which("systemctl") is None or shutil.which("unshare") is None:
        return "systemd isn't installed; apt-get install systemd"
    if not SHARED.is_dir():
        return f"there is no {SHARED}"
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/run"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=PATIENCE)
    return f"no namespaces for systemd here: {done.stderr.strip()}" if done.returncode else None


ABSENT = absent()
pytestmark = pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))


class Home:
    """A home whose user manager runs."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return ctxgate(*args, cwd=self.folder, XDG_RUNTIME_DIR=str(self.folder / "run"))

    def systemctl(self, *args: str) -> str:
        env = os.environ | {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder / "run")}
        command = ["systemctl", "--user", "--no-pager", *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE).stdout.strip()

    def ask(self, **headers: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Still here?"}]}
        url = f"{self.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=PATIENCE, trust_env=False)


@pytest.fixture
def home() -> Iterator[Home]:
    """Skips, with the reason, where the manager doesn't come up."""
    with tempfile.TemporaryDirectory(dir=SHARED) as name:
        folder = Path(name)
        (folder / "run").mkdir(mode=0o700)
        made = Home(folder, free_port())
        keys = "['${CTXGATE_KEY:-}']"
        echo = f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {made.port}, api_keys: {keys}}}\n"
        config(folder, echo)
        command = ["unshare", "--mount", "sh", "-c", START]
        env = os.environ | {"HOME": name, "XDG_RUNTIME_DIR": str(folder / "run")}
        with subprocess.Popen(
            [*command, str(SYSTEMD)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as manager:
            try:
                until = time.monotonic() + UP_SECONDS
                while made.systemctl("is-active", "default.target") != "active":
                    if manager.poll() is not None or time.monotonic() > until:
                        manager.kill()
                        said = manager.communicate()[0].decode().strip()
                        pytest.skip(f"systemd's user manager doesn't start here: {said or 'it says nothing'}")
                    time.sleep(0.05)
                yield made
            finally:
                manager.terminate()
                try:
                    manager.wait(PATIENCE)
                finally:
                    manager.kill()


def test_a_service_from_installing_to_removing(home: Home) -> None:
    assert home.run("check").returncode == 0
    before = tree(home.folder / ".config") if (home.folder / ".config").exists() else {}
    done = home.run("service", "install")
    assert done.returncode == 0, done.stderr
    assert f"ctxgate: runs at {home.url}/v1" in done.stderr
    assert "it ends when you log out; `ctxgate service install --linger` keeps it" in done.stderr
    assert home.ask().json()["choices"][0]["message"]["content"] == "Still here?"
    status = json.loads(home.run("service", "status", "--json").stdout)
    assert (status["installed"], status["running"], status["answers"]) == (True, True, True)
    assert status["state"] == "active (running)"
    assert home.run("service", "status").returncode == 0
    assert home.systemctl("show", "ctxgate.service", "--property=NoNewPrivileges", "--value") == "yes"

    # Killed, it comes back; what asks meanwhile waits at the socket and is answered.
    home.systemctl("kill", "--signal=KILL", "ctxgate.service")
    assert home.ask().status_code == 200
    assert "restarted 1 times" in json.loads(home.run("service", "status", "--json").stdout)["state"]

    # Stopped, the next request starts it.
    home.systemctl("stop", "ctxgate.service")
    assert home.systemctl("is-active", "ctxgate.service") == "inactive"
    assert home.ask().status_code == 200

    # A key in the environment file holds from the next start on.
    (home.folder / ".config/ctxgate/environment").write_text("CTXGATE_KEY=of-a-caller\n")
    assert home.run("service", "install").returncode == 0
    assert home.ask().status_code == 401
    assert home.ask(authorization="Bearer of-a-caller").status_code == 200
    assert "of-a-caller" not in home.systemctl("show", "ctxgate.service")
    (home.folder / ".config/ctxgate/environment").unlink()

    gone = home.run("service", "uninstall")
    assert gone.returncode == 0, gone.stderr
    assert home.systemctl("show", "ctxgate.service", "--property=LoadState", "--value") == "not-found"
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", home.port), PATIENCE):
        pass
    assert (tree(home.folder / ".config") if (home.folder / ".config").exists() else {}) == before
    status = json.loads(home.run("service", "status", "--json").stdout)
    assert (status["installed"], status["running"], status["answers"]) == (False, False, False)


def test_a_configuration_with_a_mistake_is_not_started_over_and_over(home: Home) -> None:
    assert home.run("service", "install").returncode == 0
    home.systemctl("stop", "ctxgate.service")
    config(home.folder, "active_model: e\nmodels: {e: {runtim: echo}}\n")
    home.systemctl("start", "ctxgate.service")
    until = time.monotonic() + PATIENCE
    while home.systemctl("is-failed", "ctxgate.service") != "failed" and time.monotonic() < until:
        time.sleep(0.05)
    assert home.systemctl("show", "ctxgate.service", "--property=NRestarts", "--value") == "0"
    status = home.run("service", "status", "--manager", "systemd")
    assert status.returncode == 69
    assert "failed" in status.stdout
    assert "ctxgate service logs" in status.stdout
