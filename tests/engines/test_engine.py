"""One engine from start to end, with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from msgspec.structs import replace

from gateway import backends, engines
from gateway.backends import Address
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.config import Model, PullSource, Rope, Runtime
from gateway.engines import Engine
from gateway.engines.launch import launched
from gateway.engines.logfile import last_lines, log_path
from gateway.engines.machine import this_machine
from gateway.engines.process import Process
from gateway.engines.recipe import Machine, Recipe
from gateway.engines.residency import Residency
from gateway.engines.spawn import spawn
from gateway.errors import ProviderModelNotLoaded, ProviderUnavailable, WeightsMissing
from gateway.wire.chat import DEFAULT, FLEX, ChatRequest
from tests.engines.conftest import WINDOW, alive, gone
from tests.engines.lone import answers, stopped
from tests.patience import PATIENCE
from tests.ports import free_port


@pytest.fixture(params=["xllamacpp", "on_path"])
def machine(request: pytest.FixtureRequest) -> Callable[[], Machine]:
    made: Callable[[], Machine] = request.getfixturevalue(request.param)
    return made


async def test_with_every_setting_of_llama_cpp(model: Model, machine: Callable[[], Machine]) -> None:
    """Either llama-server refuses one that it doesn't know, and then doesn't start."""
    tuned = Runtime(
        threads=1,
        gpu_layers=0,
        flash_attention=True,
        kv_cache_type="q8_0",
        batch=64,
        mmap=False,
        numa="distribute",
        rope=Rope(scaling="yarn", factor=2.0, base=10000.0, original_context=512),
    )
    async with stopped(Engine(replace(model, engine=tuned), machine=machine)) as engine:
        assert await answers(engine)
        assert engine.pid is not None
        line = " ".join(psutil.Process(engine.pid).cmdline())
        assert "--cache-type-k q8_0 --cache-type-v q8_0" in line
        assert "--load-mode none --numa distribute" in line


async def test_the_first_request_starts_it_and_stop_ends_it(model: Model, machine: Callable[[], Machine]) -> None:
    engine = Engine(model, machine=machine)
    assert (engine.state, engine.address, engine.pid) == ("stopped", None, None)
    address = await engine.requests.ensure()
    assert (engine.state, engine.address) == ("ready", address)
    assert await answers(engine)
    pid = engine.pid
    assert pid is not None
    await engine.stop()
    assert gone(pid)
    assert (engine.state, engine.address, engine.pid) == ("stopped", None, None)
    await engine.stop()
    assert await answers(engine)
    await engine.stop()


async def test_fifty_callers_get_one_process(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    starts = 0

    def counted() -> Machine:
        nonlocal starts
        starts += 1
        return xllamacpp()

    async with stopped(Engine(model, machine=counted)) as engine:
        addresses = await asyncio.gather(*(engine.requests.ensure() for _ in range(50)))
        assert len(set(addresses)) == 1
        assert starts == 1
        assert await answers(engine)


async def test_requests_side_by_side_have_a_whole_window_each(model: Model, machine: Callable[[], Machine]) -> None:
    """By default llama.cpp shares one window among all requests, and fails them all once it is full."""
    async with stopped(Engine(model, machine=machine)) as engine:
        backend = backends.load(model.runtime)(model, await engine.requests.ensure())

        async def answer(at: int) -> int:
            said = {"role": "user", "content": f"{at} {'word ' * 90}"}
            body = json.dumps({"messages": [said], "max_tokens": 180, "ignore_eos": True}).encode()
            request = ChatRequest.parse(body)
            reply = await backend.open(request, dict(request.fields))
            tokens: int = json.loads(await reply.whole())["usage"]["completion_tokens"]
            return tokens

        assert await asyncio.gather(*map(answer, range(6))) == [180] * 6
        await backend.aclose()


async def test_a_caller_that_gives_up_leaves_the_start_to_the_others(
    model: Model, xllamacpp: Callable[[], Machine]
) -> None:
    async with stopped(Engine(model, machine=xllamacpp)) as engine:
        callers = [asyncio.create_task(engine.requests.ensure()) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers[0]
        assert await callers[1] == await callers[2] == engine.address


async def test_a_start_whose_callers_all_left_still_ends_ready(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    async with stopped(Engine(model, machine=xllamacpp)) as engine:
        caller = asyncio.create_task(engine.requests.ensure())
        await engine.lifecycle.changed()
        assert engine.state == "starting"
        caller.cancel()
        await asyncio.wait({caller})
        assert await engine.requests.ensure() == engine.address


async def test_stop_in_the_middle_of_a_start(model: Model, tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    code = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"
    loading = Runtime(command=(sys.executable, "-c", code), args=(str(fifo), "{port}"))
    engine = Engine(replace(model, engine=loading))
    caller = asyncio.create_task(engine.requests.ensure())
    pid = int(await asyncio.to_thread(fifo.read_text))
    assert engine.state == "starting"
    await engine.stop()
    with pytest.raises(ProviderUnavailable, match="stopped while it started"):
        await caller
    assert gone(pid)
    assert (engine.state, engine.pid) == ("stopped", None)


async def test_ensure_while_it_stops_starts_it_again(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    async with stopped(Engine(model, machine=xllamacpp)) as engine:
        await engine.requests.ensure()
        first = engine.pid
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        assert (engine.state, engine.address) == ("stopping", None)
        address = await engine.requests.ensure()
        await stopping
        assert (engine.state, engine.address) == ("ready", address)
        assert engine.pid != first


async def test_after_a_crash_the_next_request_starts_it_again(model: Model, machine: Callable[[], Machine]) -> None:
    async with stopped(Engine(model, machine=machine)) as engine:
        await engine.requests.ensure()
        pid = engine.pid
        assert pid is not None
        assert engine.watching is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(asyncio.shield(engine.watching), PATIENCE)
        assert (engine.state, engine.address) == ("failed", None)
        assert "was killed by SIGKILL" in str(engine.failure)
        assert await answers(engine)
        assert engine.pid != pid


# Failures to start


async def refused(engine: Engine) -> str:
    with pytest.raises((WeightsMissing, ProviderModelNotLoaded, ProviderUnavailable)) as caught:
        await engine.requests.ensure()
    assert engine.state == "failed"
    assert engine.failure is caught.value
    assert engine.pid is None
    return str(caught.value)


PULL = PullSource(kind="hub", name="a/b")


@pytest.mark.parametrize(
    ("pull", "cure"),
    [
        (PULL, "`ctxgate pull tiny` fetches it"),
        (None, "correct its `path`"),
    ],
)
async def test_missing_weights(model: Model, pull: PullSource | None, cure: str) -> None:
    engine = Engine(replace(model, path=Path("/no/such.gguf"), pull=pull))
    message = await refused(engine)
    assert message == f"model 'tiny': there is no file /no/such.gguf; {cure}"
    assert str(await engine.missing()) == message


async def test_a_missing_projector(model: Model) -> None:
    message = await refused(Engine(replace(model, mmproj_path=Path("/no/eye.gguf"), pull=PULL)))
    assert message == "model 'tiny': there is no file /no/eye.gguf; correct its `mmproj_path`"


async def test_a_running_engine_needs_no_weights_any_more(
    model: Model, machine: Callable[[], Machine], tmp_path: Path
) -> None:
    assert model.path is not None
    own = tmp_path / "own.gguf"
    shutil.copyfile(model.path, own)
    async with stopped(Engine(replace(model, path=own), machine=machine)) as engine:
        assert await engine.missing() is None
        await engine.requests.ensure()
        own.unlink()
        assert await engine.missing() is None
        assert await answers(engine)
    assert isinstance(await engine.missing(), WeightsMissing)


async def test_broken_weights_and_the_engines_output(
    model: Model, machine: Callable[[], Machine], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    message = await refused(Engine(replace(model, path=broken), machine=machine))
    assert "while it started; its last lines:" in message
    assert "load" in message.partition("last lines:")[2]


async def test_weights_that_arrive_later(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    late = tmp_path / "late.gguf"
    async with stopped(Engine(replace(model, path=late), machine=xllamacpp)) as engine:
        await refused(engine)
        assert model.path is not None
        late.symlink_to(model.path)
        assert await answers(engine)


SILENT = Runtime(command=(sys.executable, "-c", "import signal; print('loading…'); signal.pause()"), args=("{port}",))


async def test_an_engine_that_never_gets_ready(model: Model) -> None:
    engine = Engine(replace(model, engine=replace(SILENT, startup_timeout_seconds=3.0)))
    message = await refused(engine)
    assert "was not ready within 3 s (startup_timeout_seconds); its last lines:\nloading…" in message


async def test_one_that_never_gets_ready_is_ended(model: Model, tmp_path: Path) -> None:
    began: list[Process] = []

    async def started(plan: Recipe) -> Process:
        began.append(process := await spawn("m", plan, state_dir=tmp_path, pid_files=None, grace=PATIENCE))
        return process

    silent = replace(model, engine=replace(SILENT, startup_timeout_seconds=0.5))
    with pytest.raises(ProviderModelNotLoaded, match=r"was not ready within 0\.5 s"):
        await launched(silent, this_machine, None, started)
    (process,) = began
    assert process.ending() == "was killed by SIGTERM"
    # Its log is closed, and says so.
    (last,) = last_lines(log_path(tmp_path, "m"), 1)
    assert last.endswith("was killed by SIGTERM")
    assert str(log_path(tmp_path, "m")) not in [file.path for file in psutil.Process().open_files()]


async def test_a_failure_reaches_every_caller(model: Model) -> None:
    engine = Engine(replace(model, path=Path("/no/such.gguf")))
    results = await asyncio.gather(*(engine.requests.ensure() for _ in range(10)), return_exceptions=True)
    assert {type(result) for result in results} == {WeightsMissing}


# The ADR's entry: a path and a port


async def test_a_server_already_on_the_port_is_used_and_left_alone(
    model: Model, xllamacpp: Callable[[], Machine]
) -> None:
    async with stopped(Engine(model, machine=xllamacpp)) as users_own:
        address = await users_own.requests.ensure()
        engine = Engine(replace(model, port=address.port), address)
        assert await engine.requests.ensure() == address
        assert engine.pid is None
        assert await answers(engine)
        await engine.stop()
        assert users_own.pid is not None
        assert alive(users_own.pid)


async def test_a_free_port_gets_our_engine(model: Model, machine: Callable[[], Machine]) -> None:
    fixed = Address(port=free_port())
    async with stopped(Engine(replace(model, port=fixed.port), fixed, machine=machine)) as engine:
        assert await engine.requests.ensure() == fixed
        assert engine.pid is not None
        assert await answers(engine)


async def test_the_users_server_ends_and_ours_takes_its_port(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    users_own = Engine(model, machine=xllamacpp)
    address = await users_own.requests.ensure()
    async with stopped(Engine(replace(model, port=address.port), address, machine=xllamacpp)) as engine:
        await engine.requests.ensure()
        await users_own.stop()
        engine.lost()
        assert engine.address is None
        assert await engine.requests.ensure() == address
        assert engine.pid is not None


async def test_a_failure_is_forgotten_once_the_users_server_answers(
    model: Model, xllamacpp: Callable[[], Machine]
) -> None:
    address = Address(port=free_port())
    engine = Engine(replace(model, path=Path("/no/such.gguf"), port=address.port), address)
    with pytest.raises(WeightsMissing):
        await engine.requests.ensure()
    assert "/no/such.gguf" in (engine.status().failure or "")
    async with stopped(Engine(replace(model, port=address.port), address, machine=xllamacpp)) as users_own:
        await users_own.requests.ensure()
        assert await engine.requests.ensure() == address
        assert (engine.state, engine.status().failure) == ("ready", None)
        await engine.stop()


async def test_something_else_on_the_port(model: Model) -> None:
    async def teapot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # of one who only connects
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(teapot, "127.0.0.1", 0) as server:
        address = Address(port=server.sockets[0].getsockname()[1])
        engine = Engine(replace(model, port=address.port), address)
        message = await refused(engine)
        assert f"the server at {address} does not answer as llama.cpp does" in message
        assert "give the model another port" in message


async def test_waits_for_a_server_on_the_port_that_is_loading(model: Model) -> None:
    loading = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
    answers = [(503, loading), (503, loading), (200, b'{"status":"ok"}')]

    async def llama_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            status, body = answers.pop(0)
            writer.write(
                b"HTTP/1.1 %d \r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
            )
        writer.close()

    async with await asyncio.start_server(llama_server, "127.0.0.1", 0) as server:
        address = Address(port=server.sockets[0].getsockname()[1])
        engine = Engine(replace(model, port=address.port), address)
        assert await engine.requests.ensure() == address
        assert not answers


async def test_two_models_with_one_port_answer_side_by_side(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    fixed = Address(port=free_port())
    residency = Residency()
    one = Engine(replace(model, name="one", port=fixed.port), fixed, residency=residency, machine=xllamacpp)
    two = Engine(replace(model, name="two", port=fixed.port), fixed, residency=residency, machine=xllamacpp)
    async with stopped(one), stopped(two):
        assert await one.requests.ensure() == fixed
        assert (await two.requests.ensure()).port != fixed.port
        assert await answers(one)
        assert await answers(two)


# The other engines


async def test_a_configured_command(model: Model, llama_server: Path) -> None:
    runtime = Runtime(
        command=(str(llama_server),),
        args=("-m", "{model_path}", "--host", "{host}", "--port", "{port}", "-c", "{context_window}"),
        health_check="http://localhost:1/v1/health",
    )
    async with stopped(Engine(replace(model, engine=runtime))) as engine:
        assert await answers(engine)


SCRIPT = Path(engines.__file__).with_name("xllamacpp_server.py")
BY_COMMAND = Runtime(
    command=(sys.executable, "-P", str(SCRIPT)),
    args=("--model", "{model_path}", "--port", "{port}", "--ctx-size", "{context_window}"),
    health_check="http://localhost:1/health",
)


class NotMade(LlamaCppBackend):
    """A user's own backend that can't be made, though the engine passes its health check."""

    def __init__(self, model: Model, address: Address | None) -> None:
        raise ProviderUnavailable("no key for it")


async def test_an_engine_whose_backend_can_t_be_made_is_ended(model: Model) -> None:
    own = replace(model, runtime="tests.engines.test_engine:NotMade", engine=BY_COMMAND)
    async with stopped(Engine(own)) as engine:
        with pytest.raises(ProviderUnavailable, match="no key for it"):
            await engine.requests.ensure()
        assert (engine.state, engine.pid, engine.launcher.starts) == ("failed", None, 1)


class Broken(LlamaCppBackend):
    """A user's own backend with a bug that the supervisor runs into."""

    asked: ClassVar[asyncio.Event]

    def heard(self) -> float | None:
        self.asked.set()
        raise ZeroDivisionError


async def test_a_bug_in_a_backend_does_not_hide_the_end_of_its_engine(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    Broken.asked = asyncio.Event()
    own = replace(model, runtime="tests.engines.test_engine:Broken", engine=BY_COMMAND)
    async with stopped(Engine(own)) as engine, asyncio.timeout(PATIENCE):
        await engine.requests.join()
        await Broken.asked.wait()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        while not engine.crashes:
            await engine.lifecycle.changed()
        engine.requests.leave()
        assert "checking its engine failed" in caplog.text
        assert await answers(engine)


async def test_mlx(mlx_python: str, mlx_model: Path) -> None:
    async with stopped(mlx_engine(mlx_python, mlx_model)) as engine:
        assert await answers(engine)


async def test_mlx_that_cannot_load_its_model_ends(mlx_python: str, mlx_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((mlx_model / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    message = await refused(mlx_engine(mlx_python, tmp_path))
    assert "exited with code 1 while it started" in message


def mlx_engine(python: str, folder: Path) -> Engine:
    from gateway.engines.machine import this_machine

    def machine() -> Machine:
        return replace(this_machine(), python=python, has=lambda module: True)

    return Engine(Model(name="tiny", runtime="mlx", path=folder, context_window=WINDOW), machine=machine)


# What only goes wrong now and then


async def test_an_engine_that_a_request_did_not_reach_but_lives_serves_on(
    model: Model, xllamacpp: Callable[[], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.engines.engine.DEATH_SECONDS", 0.05)
    async with stopped(Engine(model, machine=xllamacpp)) as engine:
        address = await engine.requests.ensure()
        pid = engine.pid
        engine.lost()
        assert (engine.state, engine.address) == ("ready", None)
        assert await engine.requests.ensure() == address
        assert (engine.pid, engine.launcher.starts, engine.crashes) == (pid, 1, 0)
        assert engine.in_flight == 0


async def test_a_bug_during_a_start_is_a_failure_that_tells_nothing(model: Model) -> None:
    def bug() -> Machine:
        raise ZeroDivisionError("secret")

    engine = Engine(model, machine=bug)
    assert await refused(engine) == "model 'tiny': its start failed; see the gateway's log"
    assert engine.reconfigure(model) is None
    await engine.shutdown.retire()
    assert (engine.state, engine.failure) == ("stopped", None)


@pytest.mark.parametrize("ran", [False, True], ids=["stopped", "running"])
async def test_a_retired_engine_never_starts_again(
    model: Model, xllamacpp: Callable[[], Machine], *, ran: bool
) -> None:
    engine = Engine(model, machine=xllamacpp)
    if ran:
        assert await answers(engine)
    await engine.shutdown.retire()
    for rank in (FLEX, DEFAULT):
        with pytest.raises(ProviderModelNotLoaded, match="model 'tiny': its former engine has ended") as caught:
            await engine.requests.join(rank=rank)
        assert caught.value.transient
        assert caught.value.retry_after == 1
    with pytest.raises(ProviderModelNotLoaded):
        await engine.requests.join_again(object(), 0.0)
    assert (engine.state, engine.launcher.starts, engine.in_flight) == ("stopped", int(ran), 0)


async def test_an_engine_that_dies_while_it_retires_stays_dead(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    engine = Engine(model, machine=xllamacpp)
    await engine.requests.join()
    retiring = asyncio.create_task(engine.shutdown.retire())
    while engine.state != "draining":  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert engine.pid is not None
    begun = engine.startup.task
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await retiring
    engine.requests.leave()
    assert (engine.state, engine.crashes, engine.startup.task is begun) == ("failed", 1, True)
    await engine.stop()


async def test_a_failed_engine_has_no_progress_and_no_memory(model: Model) -> None:
    engine = Engine(replace(model, path=Path("/no/such.gguf")))
    await refused(engine)
    status = engine.status()
    assert (status.loaded, status.resident_bytes, status.expected_bytes, status.address) == (None, 0, None, None)
    assert engine.progress(object()) is None
