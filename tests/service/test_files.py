"""What systemd and launchd read: judged by systemd's own tools, parsed, installed and removed without a trace."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gateway.config import load
from gateway.features.service.base import ServicePlan
from gateway.features.service.launchd import LABEL, Launchd
from gateway.features.service.plan import plan
from gateway.features.service.systemd import SERVICE, SOCKET, Systemd, service
from tests.cli.commands import answering, config, ctxgate, serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.service.trees import tree

WORST_EXPOSURE = 3.0
"""Of 10, as `systemd-analyze security` rates a service that has a user and no capabilities; docs/service.md says so."""
ODD = Path("/srv/with space/100% \"$HOME\" 'x'/back\\slash")
ANALYZE = shutil.which("systemd-analyze")

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze isn't installed; apt-get install systemd")


def written(folder: Path, plan: ServicePlan) -> Path:
    """The files in a home. Returns systemd's folder."""
    manager = Systemd(folder)
    manager.write(plan)
    return manager.folder


def analyze(home: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    runtime = home / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
    command = [str(ANALYZE), *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture(autouse=True)
def no_folders_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)


def ordinary(tmp_path: Path, **more: object) -> ServicePlan:
    """As `ctxgate service install` plans it, but for a program that is on every machine."""
    file = config(tmp_path, "active_model: e\nmodels: {e: {runtime: echo}}\n")
    made = plan(
        load(file, {}),
        python="/bin/true",
        env_file=tmp_path / "environment",
        listen=["127.0.0.1:4000", "[::1]:4000"],
        environ={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(ODD)},
        sandbox=True,
        linger=False,
    )
    return ServicePlan(**{name: getattr(made, name) for name in made.__struct_fields__} | more)


@needs_systemd
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        pytest.param({"sandbox": False}, id="no sandbox"),
        pytest.param({"private_tmp": False, "linger": True}, id="shared tmp"),
        pytest.param({"command": ("/bin/true", str(ODD), "$HOME", "%h"), "writable": (ODD,)}, id="odd names"),
        pytest.param({"listen": (str(ODD / "socket"),)}, id="socket"),
    ],
)
def test_systemd_verifies_the_units(more: dict[str, object], tmp_path: Path) -> None:
    folder = written(tmp_path, ordinary(tmp_path, **more))
    done = analyze(tmp_path, "--user", "verify", folder / SERVICE, folder / SOCKET)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
def test_verify_notices_a_mistake(tmp_path: Path) -> None:
    folder = written(tmp_path, ordinary(tmp_path))
    unit = folder / SERVICE
    unit.write_text(unit.read_text().replace("RestartSec=2", "RestartSec=soon"))
    assert "ignoring: soon" in analyze(tmp_path, "--user", "verify", unit, folder / SOCKET).stderr


@needs_systemd
def test_systemd_rates_the_service_as_safe(tmp_path: Path) -> None:
    """The tool rates system services. A user's own has that user and no capabilities: its manager can't give more."""
    unit = tmp_path / SERVICE
    mine = service(ordinary(tmp_path, private_tmp=True)).replace(
        "[Service]", "[Service]\nUser=somebody\nCapabilityBoundingSet="
    )
    unit.write_text(mine)
    done = analyze(tmp_path, "security", "--offline=yes", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= WORST_EXPOSURE
    unit.write_text(re.sub("(NoNewPrivileges|SystemCallFilter)=.*", "", mine))
    worse = analyze(tmp_path, "security", "--offline=yes", "--no-pager", unit)
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", worse.stdout)[1]) > float(found[1])  # type: ignore[index]


def test_the_sandbox_leaves_writable_what_the_gateway_writes(tmp_path: Path) -> None:
    file = config(
        tmp_path,
        f"active_model: m\nmodels_dir: {tmp_path}/weights\nstate_dir: {tmp_path}/state\n"
        "models: {m: {runtime: llama.cpp, path: /models/m.gguf, pull: {hub: a/b, file: m.gguf}}}\n"
        "server: {uds: /run/gate/s}\nctx: {enabled: true, root: /ctx}\n",
    )
    environ = {"HF_HOME": "/hub", "XDG_RUNTIME_DIR": "/run/user/7", "PATH": "/bin", "OPENAI_API_KEY": "sk-secret"}
    made = plan(load(file, {}), python="p", env_file=tmp_path, listen=[], environ=environ, sandbox=True, linger=False)
    wanted = {
        tmp_path / "weights",
        tmp_path / "state",
        file.parent,
        *map(Path, ("/hub", "/models", "/run/gate", "/ctx")),
    }
    assert wanted | {Path("/run/user/7")} <= {*made.writable}
    assert made.environment == {"PATH": "/bin", "HF_HOME": "/hub"}, "no other variables, and no keys"
    assert not made.private_tmp, "the configuration is in /tmp"
    text = service(made)
    assert 'ReadWritePaths="-/models"' in text
    assert "PrivateTmp" not in text


def test_launchd_reads_the_agent(tmp_path: Path) -> None:
    made = ordinary(tmp_path, command=("/opt/python", "-P", "-m", "gateway", str(ODD), "<&>"))
    ((file, content),) = Launchd(tmp_path).files(made).items()
    agent = plistlib.loads(content)
    assert file == tmp_path / "Library/LaunchAgents" / f"{agent['Label']}.plist"
    assert agent["Label"] == LABEL
    assert agent["ProgramArguments"] == [*made.command]
    assert agent["EnvironmentVariables"] == {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(ODD)}
    assert (agent["RunAtLoad"], agent["KeepAlive"], agent["Umask"]) == (True, {"SuccessfulExit": False}, 0o77)
    assert agent["ExitTimeOut"] > 30, "the gateway's own bound"


@pytest.mark.parametrize("manager", ["systemd", "launchd"])
def test_installed_into_a_home_and_removed_without_a_trace(manager: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    config(home, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {free_port()}}}\n")
    assert ctxgate("check", cwd=home).returncode == 0  # makes the caches that any command makes
    before = tree(home)
    done = ctxgate("service", "install", "--no-start", "--manager", manager, cwd=home)
    assert done.returncode == 0, done.stderr
    installed = tree(home)
    assert {name: content for name, content in installed.items() if name in before} == before
    keys = home / ".config/ctxgate/environment"
    assert keys.stat().st_mode & 0o777 == 0o600
    said = re.findall(r"wrote (\S+)", done.stderr)
    assert said
    assert all(Path(name).exists() for name in said)
    again = ctxgate("service", "install", "--no-start", "--manager", manager, cwd=home)
    assert (again.returncode, tree(home)) == (0, installed), "installing it again changes nothing"
    assert ctxgate("service", "uninstall", "--manager", manager, cwd=home).returncode == 0
    assert tree(home) == before
    assert "no service is installed" in ctxgate("service", "uninstall", "--manager", manager, cwd=home).stderr


def test_keys_and_drop_ins_of_the_user_stay(tmp_path: Path) -> None:
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {free_port()}}}\n")
    keys, units = tmp_path / ".config/ctxgate/environment", tmp_path / ".config/systemd/user"
    (units / "ctxgate.service.d").mkdir(parents=True)
    (units / "ctxgate.service.d/own.conf").write_text("[Service]\n")
    assert ctxgate("service", "install", "--no-start", "--manager", "systemd", cwd=tmp_path).returncode == 0
    keys.write_text("CTXGATE_KEY=k\n")
    assert ctxgate("service", "install", "--no-start", "--manager", "systemd", cwd=tmp_path).returncode == 0
    assert keys.read_text() == "CTXGATE_KEY=k\n"
    done = ctxgate("service", "uninstall", "--manager", "systemd", cwd=tmp_path)
    assert f"{keys} has your variables, so it stays" in done.stderr
    assert [path.name for path in units.rglob("*") if path.is_file()] == ["own.conf"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server: {port: 0}", "a service needs a fixed address: set server.port"),
        ("server: {host: 0.0.0.0}", "0.0.0.0 can be reached from other machines, and no key is asked for"),
        ("server: {tls: {cert: c, key: k}}", "server.tls.cert: there is no "),
        ("server: {host: 192.0.2.1, api_keys: ['${KEY}']}", "can't listen on 192.0.2.1"),
    ],
)
def test_what_could_not_serve_is_not_installed(text: str, says: str, tmp_path: Path) -> None:
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\n{text}\n")
    done = ctxgate("service", "install", "--no-start", "--manager", "systemd", cwd=tmp_path, KEY="k")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / ".config/systemd").exists()


def program(folder: Path, name: str, text: str) -> Path:
    """Stands for a program of the system. Writes its arguments to `calls`."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/calls\n{text}\n')
    file.chmod(0o755)
    return folder / "calls"


def test_launchd_starts_what_the_agent_says(tmp_path: Path) -> None:
    """No launchd here: a program in its place keeps what it is told, and this test runs what the agent names."""
    port = free_port()
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {port}}}\n")
    agent = tmp_path / f"Library/LaunchAgents/{LABEL}.plist"
    start = (
        f'[ "$1" = bootstrap ] && "{shutil.which("python3")}" -c "'
        "import plistlib, subprocess, os;"
        f"a = plistlib.load(open('{agent}', 'rb'));"
        "p = subprocess.Popen(a['ProgramArguments'], env=os.environ | a['EnvironmentVariables'],"
        " stderr=open(a['StandardErrorPath'], 'ab'), stdout=subprocess.DEVNULL, start_new_session=True);"
        f"open('{tmp_path}/pid', 'w').write(str(p.pid))\"\n"
        f'[ "$1" = bootout ] && [ -f {tmp_path}/pid ] && kill "$(cat {tmp_path}/pid)" && rm {tmp_path}/pid\n'
        f'[ "$1" = print ] && [ -f {tmp_path}/pid ] && '
        f'printf "\\tstate = running\\n\\tpid = $(cat {tmp_path}/pid)\\n"\n'
        "exit 0"
    )
    calls = program(tmp_path / "bin", "launchctl", start)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    arguments = ("--manager", "launchd")
    done = ctxgate("service", "install", *arguments, cwd=tmp_path, PATH=path)
    try:
        assert done.returncode == 0, done.stderr
        assert f"ctxgate: runs at http://127.0.0.1:{port}/v1" in done.stderr
        assert "it ends when you log out" in done.stderr
        status = ctxgate("service", "status", *arguments, cwd=tmp_path, PATH=path)
        assert (status.returncode, status.stdout.splitlines()[1].split()) == (0, ["state", "running"])
        logs = ctxgate("service", "logs", "-n", "5", *arguments, cwd=tmp_path, PATH=path)
        assert f"ctxgate: http://127.0.0.1:{port}/v1  active model e (echo)" in logs.stdout
    finally:
        gone = ctxgate("service", "uninstall", *arguments, cwd=tmp_path, PATH=path)
    assert gone.returncode == 0, gone.stderr
    assert not agent.exists()
    domain = f"gui/{os.getuid()}"
    assert f"launchctl bootstrap {domain} {agent}\n" in calls.read_text()
    assert calls.read_text().endswith(f"launchctl bootout {domain}/{LABEL}\n")
    # Unlike launchctl, the program doesn't wait for the gateway's end.
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) != 0:
                break
        assert time.monotonic() < end
        time.sleep(0.05)
    linger = ctxgate("service", "install", "--linger", *arguments, cwd=tmp_path, PATH=path)
    assert linger.returncode == 2
    assert "launchd ends a user's agents at logout" in linger.stderr


def test_without_a_manager_nothing_is_written(tmp_path: Path) -> None:
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {free_port()}}}\n")
    program(tmp_path / "bin", "systemctl", 'echo "Failed to connect to bus: No medium found" >&2; exit 1')
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = ctxgate("service", "install", "--manager", "systemd", cwd=tmp_path, PATH=path)
    assert done.returncode == 69
    assert (
        "systemd runs no services of this user here (Failed to connect to bus: No medium found): log in" in done.stderr
    )
    assert not (tmp_path / ".config/systemd").exists()


def test_the_journal_is_asked_for_the_service(tmp_path: Path) -> None:
    calls = program(tmp_path / "bin", "journalctl", "exit 0")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    assert ctxgate("service", "logs", "-f", "-n", "7", "--manager", "systemd", cwd=tmp_path, PATH=path).returncode == 0
    assert calls.read_text() == f"journalctl --user-unit={SERVICE} --lines=7 --follow\n"
    done = ctxgate("service", "logs", "--manager", "systemd", cwd=tmp_path, PATH="/nowhere")
    assert (done.returncode, "journalctl isn't on this machine" in done.stderr) == (69, True)


def test_a_gateway_at_the_address_is_not_replaced(tmp_path: Path) -> None:
    port = free_port()
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {port}}}\n")
    program(tmp_path / "bin", "systemctl", "exit 0")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    with serving(tmp_path), answering(port):
        done = ctxgate("service", "install", "--manager", "systemd", cwd=tmp_path, PATH=path)
    assert done.returncode == 69
    assert f"something listens at http://127.0.0.1:{port} already" in done.stderr
