"""kill -9 of the engine, and of the gateway, at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.config import Model
from gateway.engines import Engine, pidfile
from gateway.engines.pidfile import PidFiles
from tests.engines.conftest import alive, gone, stand_still
from tests.engines.served import served
from tests.gateway.client import Client, chat
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.support.real_engine import ask, needs_xllamacpp, real

pytestmark = needs_xllamacpp

AT_A_TIME = 8
TOLD = ("went away in the middle of its answer", "went away before it answered", "was killed by SIGKILL")


@pytest.mark.parametrize("streams", [30, pytest.param(100, marks=pytest.mark.slow)])
async def test_the_engine_under_streams(test_model: Path, streams: int) -> None:
    """Each stream ends in an answer, perhaps a second one, or in an error frame; and the engine is back."""
    rolls = random.Random(7)
    async with real(test_model, FAST) as (port, engine):
        gate = asyncio.Semaphore(AT_A_TIME)
        ended: list[str] = []

        async def stream() -> None:
            async with gate, await Client.connect(port) as client:
                await client.post(chat("Say hello.", stream=True, max_tokens=rolls.randint(1, 300), ignore_eos=True))
                ended.append(await how_it_ends(client))

        async def kill() -> int:
            kills = 0
            while len(ended) < streams:
                pid = engine.pid
                await asyncio.sleep(rolls.uniform(0, 0.4))
                answered = ended.count("answer")
                if pid is not None and pid == engine.pid:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                # However slow the machine is, it gets somewhere.
                while ended.count("answer") == answered and len(ended) < streams:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            return kills

        killing = asyncio.create_task(kill())
        await asyncio.gather(*(stream() for _ in range(streams)))
        kills = await killing
        assert kills >= streams / 20
        counts = {outcome: ended.count(outcome) for outcome in set(ended)}
        assert set(counts) <= {"answer", "error frame", "refused"}
        assert counts["answer"]
        # Only where it was killed twice for one request, or while it started.
        assert counts.get("refused", 0) < streams / 2, counts
        assert await asyncio.gather(*(ask(port, max_tokens=4) for _ in range(8))) == [(200, "chat.completion")] * 8
        assert engine.crashes
        assert not engine.in_flight


async def how_it_ends(client: Client) -> str:
    _, status, headers = await client.head()
    if status != 200:
        length = int(headers["content-length"])
        error = json.loads(await client.reader.readexactly(length))["error"]
        assert error["category"] in ("provider_unavailable", "provider_model_not_loaded"), error
        return "refused"
    body = b"".join([part async for part in client.parts()])
    frames = [frame for frame in body.split(b"\n\n") if frame and not frame.startswith(b":")]
    assert frames[-1] == b"data: [DONE]"
    last = json.loads(frames[-2].removeprefix(b"data: "))
    if "error" in last:
        assert any(words in last["error"]["message"] for words in TOLD), last
        return "error frame"
    finished = [json.loads(frame.removeprefix(b"data: "))["choices"] for frame in frames[:-1]]
    assert any(choice["finish_reason"] for choices in finished for choice in choices)
    return "answer"


def test_the_gateway_and_the_guard_killed_then_the_next_start_ends_the_engine(test_model: Path, tmp_path: Path) -> None:
    config = {
        "active_model": "tiny",
        "models": {"tiny": {"runtime": "llama.cpp", "path": str(test_model), "context_window": 512}},
        "state_dir": str(tmp_path / "state"),
    }
    folder = tmp_path / "state/engines"
    hello = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with served(config, tmp_path) as first:
        httpx.post(f"{first.url}/v1/chat/completions", json=hello, timeout=PATIENCE).raise_for_status()
        (entry,) = folder.glob("*.json")
        engine = int(entry.stem)
        guard = parent(engine)
        assert parent(guard) == first.process.pid
        stand_still(guard)
        first.process.kill()
        assert gone(first.process.pid)
        os.kill(guard, signal.SIGKILL)
        assert gone(guard)
        assert alive(engine)
    with served(config, tmp_path) as second:
        assert gone(engine)
        assert not list(folder.glob("*.json"))
        httpx.post(f"{second.url}/v1/chat/completions", json=hello, timeout=PATIENCE).raise_for_status()
        (entry,) = folder.glob("*.json")
        other = int(entry.stem)
    assert gone(other)
    assert not list(folder.iterdir())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_gateway_that_lives_keeps_its_engines(model: Model, tmp_path: Path) -> None:
    from gateway.engines import Residency

    engine = Engine(model, residency=Residency(state_dir=tmp_path))
    await engine.requests.ensure()
    assert engine.pid is not None
    try:
        assert PidFiles(tmp_path / "engines").reap() == []
        assert alive(engine.pid)
    finally:
        await engine.stop()


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', "[]"])
def test_an_invalid_pid_file(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "7.json").write_text(text)
    assert PidFiles(tmp_path).reap() == []
    assert not list(tmp_path.iterdir())
    assert "is not a valid pid file" in caplog.text


def test_another_process_with_the_pid_is_left_alone(tmp_path: Path) -> None:
    entry = {"model": "m", "pid": os.getpid(), "started": "then", "gateway_pid": 2**22 + 1, "gateway_started": "then"}
    (tmp_path / "7.json").write_text(json.dumps(entry))
    assert PidFiles(tmp_path).reap() == []
    assert not list(tmp_path.iterdir())


def left_behind(folder: Path) -> subprocess.Popen[bytes]:
    """An engine whose gateway is gone, and its pid file."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    entry = {"model": "m", "pid": process.pid, "started": pidfile.start_time(process.pid)}
    gone = {"gateway_pid": 2**22 + 1, "gateway_started": "then"}
    (folder / f"{process.pid}.json").write_text(json.dumps(entry | gone))
    return process


def test_an_engine_left_behind_is_gone_when_its_entry_is_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with left_behind(tmp_path) as process:
        (ended,) = PidFiles(tmp_path).reap()
        assert (ended.model, ended.pid) == ("m", process.pid)
        assert pidfile.start_time(process.pid) is None
    assert process.returncode == -signal.SIGKILL
    assert f"ends the engine of m (pid {process.pid}), left behind by a killed gateway" in caplog.text
    assert not [*tmp_path.iterdir()]


def test_an_engine_that_survives_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(group: int, number: int) -> None:
        raise PermissionError

    with left_behind(tmp_path) as process:
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", refused)
            patch.setattr(pidfile, "KILLED_WITHIN", 0.05)
            PidFiles(tmp_path).reap()
        assert f"process {process.pid} does not end after SIGKILL" in caplog.text
        assert process.poll() is None
        process.kill()


def test_the_entries_of_living_gateways_stay_while_others_go(tmp_path: Path) -> None:
    mine = PidFiles(tmp_path).write("m", os.getpid())
    assert mine is not None
    (tmp_path / "0.json").write_text("{")
    (tmp_path / "zz.json").write_text("{")
    assert PidFiles(tmp_path).reap() == []
    assert [*tmp_path.iterdir()] == [mine]
    assert mine.stat().st_mode & 0o077 == 0 or tmp_path.stat().st_mode & 0o077 == 0
    assert PidFiles(tmp_path).write("m", 2**22 + 1) is None


def test_start_times_tell_processes_apart() -> None:
    """Also on systems without /proc."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for start_time in (pidfile.start_time, pidfile.portable_start_time):
            mine = start_time(os.getpid())
            assert mine is not None
            assert start_time(os.getpid()) == mine
            assert start_time(other.pid) not in (None, mine)
        os.kill(other.pid, signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie, until it is waited for
        assert pidfile.start_time(other.pid) is None
        assert pidfile.portable_start_time(other.pid) is None
    assert pidfile.start_time(other.pid) is None
    assert pidfile.portable_start_time(other.pid) is None
