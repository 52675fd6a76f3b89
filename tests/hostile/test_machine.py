"""An unlucky machine: full disks, clocks that jump, engines for another processor, files that are wrong or gone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ctxgate, environment
from tests.gateway.double import Exchange, answers, completion
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Answer, Gateway, Upstream, configuration, started, warm
from tests.llama_server import built_for_another_processor
from tests.patience import PATIENCE

Json = dict[str, Any]


@pytest.fixture(scope="module")
def machine(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a small quota for stored responses, and a model `patient` that retries."""
    folder = tmp_path_factory.mktemp("machine")
    config = {**configuration(scripted, folder, test_model), "server": {"responses_max_bytes": 1_000_000}}
    config["models"]["patient"] = {**config["models"]["m"], "retries": 1}
    with started(folder, config) as running:
        warm(running)
        yield running


# Files


def test_a_reload_that_names_missing_weights_stops_no_engine(
    machine: Gateway, test_model: Path, unharmed: Unharmed
) -> None:
    pytest.importorskip("xllamacpp")
    assert machine.chat(model="tiny").status == 200
    file = machine.folder / "config.yaml"
    before = file.read_text("utf-8")
    with unharmed(machine):
        file.write_text(before.replace(str(test_model), "/nowhere/else.gguf"), "utf-8")
        refused = machine.ask("POST", "/-/reload")
        assert refused.status == 422
        assert b"there is no file /nowhere/else.gguf" in refused.body
        assert machine.chat(model="tiny").status == 200
    file.write_text(before, "utf-8")
    assert machine.ask("POST", "/-/reload").status == 200


def test_a_key_on_a_full_disk(upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed) -> None:
    """The command says so, and the gateway goes by the keys that it had."""

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    file = tmp_path / "config.yaml"
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        warm(gateway)
        made = ctxgate("keys", "add", "--config", file, cwd=tmp_path)
        auth = {"Authorization": f"Bearer {made.stdout.strip()}"}
        deadline = time.monotonic() + PATIENCE
        while gateway.chat().status != 401:  # it looks for the file from time to time
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with unharmed(gateway):
            failed = subprocess.run(
                [sys.executable, "-B", "-m", "gateway", "keys", "add", "--config", str(file)],
                cwd=tmp_path,
                env=environment(tmp_path),
                preexec_fn=no_room,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert failed.returncode not in (0, 1)
            assert "can't be written, no key has changed" in failed.stderr
            assert "Traceback" not in failed.stderr
            assert gateway.chat(headers=auth).status == 200
            assert (
                len(json.loads(ctxgate("keys", "list", "--json", "--config", file, cwd=tmp_path).stdout)["keys"]) == 1
            )


# The store


def store(gateway: Gateway, text: str) -> Answer:
    return gateway.ask("POST", "/v1/responses", {"input": text, "store": True})


def test_stored_responses_have_a_quota(machine: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    first = store(machine, "Hi").json["id"]
    with unharmed(machine):
        ids = [store(machine, "x" * 200_000).json["id"] for _ in range(20)]
    there = [machine.ask("GET", f"/v1/responses/{id}").status for id in (first, *ids)]
    assert there[0] == 404, "the oldest go first"
    assert there[-1] == 200
    assert 3 <= there.count(200) <= 5


JUMPS = """
import time
real = time.time
time.time = lambda: real() + float(open({offset!r}).read())
import gateway.store.retention as retention
retention.FIRST_SECONDS = retention.EVERY_SECONDS = 0.05
prune_all = retention.prune_all

async def counted(*arguments):
    deleted = await prune_all(*arguments)
    with open({pruned!r}, "a") as file:
        file.write("x")
    return deleted

retention.prune_all = counted
"""
"""Sets the gateway's wall clock by a file, and has it look for what has expired all the time."""


def test_a_clock_that_jumps_deletes_nothing(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    offset, pruned = tmp_path / "offset", tmp_path / "pruned"
    (tmp_path / "sitecustomize.py").write_text(JUMPS.format(offset=str(offset), pruned=str(pruned)))
    offset.write_text("0")
    pruned.write_text("")

    def pruned_again() -> None:
        """Twice: the first may have begun before."""
        wanted, deadline = len(pruned.read_text()) + 2, time.monotonic() + PATIENCE
        while len(pruned.read_text()) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    with started(tmp_path, configuration(upstream, tmp_path, test_model), **path) as gateway:
        warm(gateway)
        made = [store(gateway, "now").json["id"]]
        with unharmed(gateway):
            for years in (10, -10, 0):
                offset.write_text(str(years * 365 * 86400))
                pruned_again()
                made.append(store(gateway, "then").json["id"])
                pruned_again()
                assert [gateway.ask("GET", f"/v1/responses/{id}").status for id in made] == [200] * len(made), years


# Engines


def test_an_engine_for_another_processor_gives_way(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    """`tests/engines/test_other_processor.py` has all of it."""
    pytest.importorskip("xllamacpp")
    foreign = built_for_another_processor(tmp_path / "foreign")
    path = f"{foreign.parent}{os.pathsep}{os.environ['PATH']}"
    with started(tmp_path, configuration(upstream, tmp_path, test_model), PATH=path) as gateway:
        warm(gateway)
        with unharmed(gateway):
            assert gateway.chat(model="tiny").status == 200
            models = gateway.ask("GET", "/-/status").json["models"]
        note = f"the embedded engine runs instead of {foreign}, which was built for another processor (SIGILL)"
        assert next(model["engine"]["note"] for model in models if model["name"] == "tiny") == note
        assert gateway.log().count("was killed by SIGILL") == 1
        told = ctxgate("doctor", "--config", tmp_path / "config.yaml", cwd=tmp_path, PATH=path).stdout
        assert note in told


def test_what_an_engine_asks_for_is_waited_for(machine: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    """The chance in a retry's delay never shortens a Retry-After, but timers may be a millisecond early."""
    times: dict[str, list[float]] = {}

    async def busy(exchange: Exchange) -> None:
        who = exchange.json["messages"][0]["content"]
        times.setdefault(who, []).append(time.monotonic())
        if len(times[who]) == 1:
            await answers({"error": {"message": "slow down"}}, 429, head=b"Retry-After: 1\r\n")(exchange)
        else:
            await exchange.whole(completion())

    upstream.script = busy
    with unharmed(machine), ThreadPoolExecutor(20) as threads:
        assert {*threads.map(lambda n: machine.chat(f"row {n}", model="patient").status, range(20))} == {200}
    assert len(times) == 20
    assert all(second - first >= 0.99 for first, second in times.values())
