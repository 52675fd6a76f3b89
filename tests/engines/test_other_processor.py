"""A llama-server that was built for another processor: SIGILL kills it, and the embedded engine answers instead."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from msgspec.structs import replace

from gateway.config import Model, Runtime
from gateway.engines import Engine, Residency
from gateway.engines.machine import runs, this_machine
from gateway.engines.recipe import Machine
from gateway.errors import ProviderModelNotLoaded
from tests.cli.commands import ctxgate
from tests.conftest import ROOT, found_llama_server
from tests.engines.lone import answers, stopped
from tests.engines.served import served
from tests.llama_server import CURE, NAMED, CantRun, built, built_for_another_processor, find, launcher, pinned, probe
from tests.patience import PATIENCE
from tests.ports import free_port


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return built_for_another_processor(tmp_path / "foreign")


@pytest.fixture
def machine(foreign: Path, xllamacpp: Callable[[], Machine]) -> Callable[[], Machine]:
    """With that llama-server on its PATH, and the embedded engine."""
    return lambda: replace(xllamacpp(), which=lambda name: str(foreign))


def note(program: Path) -> str:
    return f"the embedded engine runs instead of {program}, which was built for another processor (SIGILL)"


# Engines


async def test_the_embedded_engine_answers_and_it_is_told_once(
    model: Model, machine: Callable[[], Machine], foreign: Path, caplog: pytest.LogCaptureFixture
) -> None:
    residency = Residency()
    one = Engine(model, residency=residency, machine=machine)
    two = Engine(replace(model, name="two"), residency=residency, machine=machine)
    async with stopped(one), stopped(two):
        assert one.status().note is None
        assert await answers(one)
        assert await answers(two)
        assert (one.status().note, two.status().note) == (note(foreign), note(foreign))
        # No other start tries what can't run.
        assert (one.launcher.starts, two.launcher.starts) == (2, 1)
        assert one.status().failure is None
    said = "was killed by SIGILL: it was built for another processor; the embedded engine runs instead"
    assert [record.message for record in caplog.records] == [f"{foreign} {said}"]


async def test_callers_at_once_share_the_second_start(model: Model, machine: Callable[[], Machine]) -> None:
    async with stopped(Engine(model, machine=machine)) as engine:
        await asyncio.gather(*(engine.requests.ensure() for _ in range(5)))
        assert (engine.launcher.starts, engine.state) == (2, "ready")


async def test_on_a_port_that_is_given(model: Model, machine: Callable[[], Machine]) -> None:
    from gateway.backends import Address

    fixed = Address(port=free_port())
    async with stopped(Engine(replace(model, port=fixed.port), fixed, machine=machine)) as engine:
        assert await engine.requests.ensure() == fixed
        assert await answers(engine)


async def test_one_that_dies_of_it_later_is_not_started_again(
    model: Model, on_path: Callable[[], Machine], xllamacpp: Callable[[], Machine]
) -> None:
    xllamacpp()
    async with stopped(Engine(model, machine=on_path)) as engine:
        await engine.requests.ensure()
        assert (engine.pid is None, engine.status().note) == (False, None)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGILL)
        while not engine.crashes:
            await engine.lifecycle.changed()
        assert "its engine was killed by SIGILL: it was built for another processor" in str(engine.failure)
        assert await answers(engine)
        assert "runs instead" in (engine.status().note or "")


async def failure(engine: Engine) -> str:
    with pytest.raises(ProviderModelNotLoaded) as caught:
        await engine.requests.ensure()
    assert engine.state == "failed"
    return caught.value.message


async def test_without_the_embedded_engine(model: Model, foreign: Path) -> None:
    """The error says what died, by which signal, and what helps; so does the next one."""
    bare = replace(this_machine(), which=lambda name: str(foreign), has=lambda module: False)
    engine = Engine(model, machine=lambda: bare)
    message = (
        "model 'tiny': llama-server was killed by SIGILL while it started: it was built for another processor;"
        " pip install 'ctxgate[llama]', or put a llama-server on the PATH that runs on this processor"
    )
    assert [await failure(engine) for _ in range(2)] == [message] * 2
    assert engine.launcher.starts == 2


async def test_a_command_of_the_users_own_is_not_replaced(model: Model, foreign: Path) -> None:
    own = replace(model, engine=Runtime(command=(str(foreign),), args=("--port", "{port}")))
    message = await failure(Engine(own))
    assert "was killed by SIGILL while it started: it was built for another processor; install one that runs" in message


async def test_options_that_only_llama_server_has(model: Model, machine: Callable[[], Machine]) -> None:
    """The error tells why it isn't llama-server that reads them."""
    engine = Engine(replace(model, engine=Runtime(args=("--rpc", "localhost:1"))), machine=machine)
    message = await failure(engine)
    assert "(the embedded engine runs instead of" in message
    assert "--rpc: xllamacpp has no field for it" in message


# What the user sees


def test_the_gateway_the_status_and_the_doctor(foreign: Path, test_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path = f"{foreign.parent}{os.pathsep}{os.environ['PATH']}"
    tiny = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 512}
    content = {"active_model": "tiny", "models": {"tiny": tiny}}
    hello = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with served(content, tmp_path, PATH=path) as gateway:
        httpx.post(f"{gateway.url}/v1/chat/completions", json=hello, timeout=PATIENCE).raise_for_status()
        (state,) = httpx.get(f"{gateway.url}/-/status").json()["models"]
        assert state["engine"]["note"] == note(foreign)
        file = tmp_path / "doctor.yaml"
        file.write_text(yaml.safe_dump({**content, "server": {"port": int(gateway.url.rpartition(":")[2])}}))
        shown = ctxgate("status", "--once", "--config", file, cwd=tmp_path)
        assert f"tiny: {note(foreign)}" in shown.stdout
        # By what the gateway says: on the doctor's own PATH there is none.
        found = ctxgate("doctor", "--config", file, cwd=tmp_path, PATH=os.defpath)
        assert (found.returncode, found.stderr) == (0, "")
        assert f"note   model tiny (active): {note(foreign)}\n       put a llama-server on the PATH" in found.stdout
    assert (tmp_path / "gateway.log").read_text().count("was killed by SIGILL") == 1
    # The gateway runs no more; the doctor sees it by itself.
    found = ctxgate("doctor", "--config", file, cwd=tmp_path, PATH=path)
    assert found.returncode == 0
    assert f"note   model tiny (active): {note(foreign)}" in found.stdout


def test_the_doctor_without_the_embedded_engine(foreign: Path, test_model: Path) -> None:
    from gateway.config import Config
    from gateway.features.checks.commands.doctor import model_finding

    model = Model(name="tiny", runtime="llama.cpp", path=test_model)
    config = Config(source=Path("config.yaml"), active_model="tiny", models={"tiny": model})
    bare = replace(this_machine(), which=lambda name: str(foreign), has=lambda module: False)
    found = model_finding(config, model, replace(bare, unfit=frozenset({str(foreign)})), None)
    assert (found.state, found.text) == ("wrong", f"{foreign} was built for another processor: SIGILL kills it")
    assert found.cure.startswith("pip install 'ctxgate[llama]', or put a llama-server on the PATH")


def test_a_program_is_only_unfit_if_sigill_kills_it(foreign: Path, tmp_path: Path) -> None:
    assert not runs(str(foreign))
    assert runs(sys.executable)
    assert runs("false")
    assert runs(str(tmp_path / "nowhere"))


# The tests' own llama-server


def test_the_rows_of_llama_server_are_run_by_a_real_one(pytestconfig: pytest.Config) -> None:
    assert f"llama-server {pinned()}" in (ROOT / "docs/engine-reference.md").read_text("utf-8")
    found = found_llama_server(pytestconfig)
    if found.refused:
        pytest.skip("; ".join(found.refused))
    if found.stands_in:
        pytest.skip(f"no llama-server is here, so the embedded engine stands in; {CURE}")


def test_one_that_can_t_run_is_refused(foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{foreign.parent}{os.pathsep}{os.defpath}")
    monkeypatch.setenv(NAMED, str(foreign))
    found = find()
    assert (found.name, found.stands_in) == ("embedded", True)
    assert found.refused == (
        f"{NAMED} {foreign} was killed by SIGILL; {CURE}",
        f"on the PATH {foreign} was killed by SIGILL; {CURE}",
    )


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama_server: Path) -> None:
    """The one that is named, the one that was built, the one on the PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{llama_server.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(NAMED, raising=False)
    monkeypatch.setattr("tests.llama_server.probe", lambda program: program)
    assert find().argv == (str(llama_server),)
    built().parent.mkdir(parents=True)
    built().write_text("")
    assert find().argv == (str(built()),)
    monkeypatch.setenv(NAMED, "named")
    assert find().argv == ("named",)


def test_one_that_dies_with_a_model_only(tmp_path: Path) -> None:
    """As a real one does that was built for AMX."""
    program = built_for_another_processor(tmp_path)
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\nkill -ILL $$\n')
    with pytest.raises(CantRun, match="was killed by SIGILL while it started"):
        probe(str(program))


def test_the_one_that_stands_in_starts_by_llama_servers_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.delenv(NAMED, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    program = launcher(find(), tmp_path)
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert {"-m", "-c", "-np", "-t", "--jinja"} <= set(done.stdout.replace(",", " ").split())


def test_a_run_of_the_suite_says_what_stands_in(foreign: Path, tmp_path: Path) -> None:
    """The rows are there, by the embedded engine; one skip says why, with the cure."""
    pytest.importorskip("xllamacpp")
    env = {name: value for name, value in os.environ.items() if name != NAMED and not name.startswith("PYTEST")}
    env |= {"PATH": f"{foreign.parent}{os.pathsep}{env['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    rows = "tests/engines/test_llama_cpp.py::test_embedding_by_a_model_for_chat"
    skip = "tests/engines/test_other_processor.py::test_the_rows_of_llama_server_are_run_by_a_real_one"
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", "-n", "2", rows, skip]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_embedding_by_a_model_for_chat[on_path=embedded]" in done.stdout
    assert f"on the PATH {foreign} was killed by SIGILL; {CURE}" in done.stdout.replace("\n", "")
    assert "2 passed, 1 skipped" in done.stdout
