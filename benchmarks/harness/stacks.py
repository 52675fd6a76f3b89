"""The proxies to compare, each in front of one OpenAI upstream: where they come from, how they start."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from benchmarks.harness.answers import MODEL
from benchmarks.harness.proc import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = "state"
"""The gateway's state folder, in that of its `Place`."""


class Unavailable(Exception):
    """This stack can't run on this machine; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where one run of a stack lives: its ports, a scratch folder, its virtual environment."""

    upstream: int
    port: int
    folder: Path
    venv: Path

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True)
class Stack:
    """One row of the comparison. `packages` are installed into a venv of its own; `overrides` are
    requirements of theirs whose pins are lifted. `effort` scales the work of one round."""

    name: str
    command: Callable[[Place], list[str]]
    packages: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    start_timeout: float = 60.0
    effort: float = 1.0

    @property
    def label(self) -> str:
        """Name and version for the table."""
        version = _nginx_version() if self.name == "nginx" else "".join(self.packages[:1]).partition("==")[2]
        return f"{self.name} {version}".strip()

    def prepare(self, cache: Path) -> Path:
        """Installs the packages if need be; returns the venv. Raises `Unavailable`."""
        if self.name == "nginx":
            _nginx_version()
        venv = cache / self.name
        if self.packages:
            install(venv, self.packages, overrides=self.overrides)
        if self.name == "ctxgate":
            compile_gateway()
        return venv


def compile_gateway() -> None:
    """Writes the bytecode that an installed gateway has. Where PYTHONDONTWRITEBYTECODE is set, each start would compile
    the source anew."""
    folders = [REPOSITORY / "gateway", REPOSITORY / "normalizers"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=True)


def _nginx(place: Place) -> list[str]:
    config = f"""
daemon off;
worker_processes 1;
pid {place.folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    client_body_temp_path {place.folder}/body;
    proxy_temp_path {place.folder}/proxy;
    fastcgi_temp_path {place.folder}/fastcgi;
    uwsgi_temp_path {place.folder}/uwsgi;
    scgi_temp_path {place.folder}/scgi;
    upstream engine {{
        server 127.0.0.1:{place.upstream};
        keepalive 256;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{place.port};
        keepalive_requests 100000000;
        location = /health {{ return 200; }}
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""
    return [_nginx_path(), "-p", str(place.folder), "-e", "stderr", "-c", place.write("nginx.conf", config)]


def _ctxgate(place: Place) -> list[str]:
    # The usage would go to the user's own store, and once a minute: not what a request costs.
    config = f"""
active_model: {MODEL}
log: {{usage_days: 0}}
state_dir: {place.folder / STATE}
models:
  {MODEL}:
    runtime: openai
    base_url: "http://127.0.0.1:{place.upstream}"
    tool_call_format: pythonic
    model_name: {MODEL}
"""
    # fmt: off
    return [sys.executable, "-m", "gateway", "serve",
            "--config", place.write("config.yaml", config), "--port", str(place.port)]
    # fmt: on


def _rust_router(command: str, *arguments: str) -> Callable[[Place], list[str]]:
    def build(place: Place) -> list[str]:
        # fmt: off
        return [str(place.venv / "bin" / command), *arguments,
                "--host", "127.0.0.1", "--port", str(place.port),
                "--worker-urls", f"http://127.0.0.1:{place.upstream}",
                "--policy", "round_robin", "--log-level", "error",
                "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        # fmt: on

    return build


def _litellm(place: Place) -> list[str]:
    config = f"""
model_list:
  - model_name: {MODEL}
    litellm_params:
      model: openai/{MODEL}
      api_base: http://127.0.0.1:{place.upstream}/v1
      api_key: bench
litellm_settings:
  telemetry: false
"""
    # fmt: off
    return [str(place.venv / "bin/litellm"), "--config", place.write("litellm.yaml", config),
            "--host", "127.0.0.1", "--port", str(place.port)]
    # fmt: on


STACKS = {
    stack.name: stack
    for stack in (
        Stack("nginx", _nginx),
        Stack("ctxgate", _ctxgate, env={"PYTHONPATH": str(REPOSITORY)}),
        Stack("vllm-router", _rust_router("vllm-router"), ("vllm-router==0.1.17",), ready="/readiness"),
        Stack("smg", _rust_router("smg", "launch", "--backend", "openai"), ("smg==1.13.0",), ready="/readiness"),
        Stack(
            "litellm",
            _litellm,
            ("litellm[proxy]==1.109.1",),
            # Pinned to releases of the same week that a registry mirror may not hold yet: a bundle
            # of certificates and database migrations, neither on the path of a request.
            overrides=("certifi", "litellm-proxy-extras"),
            env={
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no price list from the network
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # no key check, as the others
                "LITELLM_LOG": "ERROR",
            },
            ready="/health/liveliness",
            start_timeout=90.0,
            effort=0.2,
        ),
    )
}


def _nginx_path() -> str:
    path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise Unavailable("nginx is not installed: apt-get install nginx-light")
    return path


def _nginx_version() -> str:
    run = subprocess.run([_nginx_path(), "-v"], capture_output=True, text=True, check=True)
    match = re.search(r"nginx/(\S+)", run.stderr)
    return match[1] if match else ""


def install(venv: Path, packages: tuple[str, ...], *, overrides: tuple[str, ...] = (), alone: str = "") -> None:
    """A venv with exactly these packages, kept until the list changes; `alone` comes without what it requires."""
    wanted = "\n".join((*packages, *overrides, *([alone] if alone else [])))
    done = venv / "installed"
    if done.exists() and done.read_text() == wanted:
        return
    name = alone or packages[0]

    def run(*command: str | Path) -> str:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if ran.returncode:
            raise Unavailable(f"{name} can't be installed: {ran.stderr.strip()[-400:]}")
        return ran.stdout

    python = venv / "bin/python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "venv", "--clear", venv)
    if overrides:
        # pip lifts no pins by itself: the packages come alone, and then what they require.
        run(*pip, "--no-deps", *packages)
        named = [(package, run(python, "-c", REQUIRES, Requirement(package).name)) for package in packages]
        packages = tuple(need for package, told in named for need in lifted(json.loads(told), package, overrides))
    run(*pip, *packages)
    if alone:
        run(*pip, "--no-deps", alone)
    done.write_text(wanted)


REQUIRES = "import importlib.metadata, json, sys; print(json.dumps(importlib.metadata.requires(sys.argv[1]) or []))"


def lifted(requires: Iterable[str], package: str, overrides: tuple[str, ...]) -> list[str]:
    """What `package`, with its extras, requires on this machine: of the `overrides` any version."""
    extras = ("", *Requirement(package).extras)
    found = []
    for line in requires:
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            if requirement.name in overrides:
                requirement.specifier = SpecifierSet()
            found.append(str(requirement))
    return found
