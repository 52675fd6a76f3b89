"""Processes under their guard: no engine outlives the gateway, whatever happens."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from gateway.engines.process import GUARD, LINE_CHARS, TAIL_LINES, PipeEnd, Process, pipe
from tests.conftest import ROOT
from tests.engines.conftest import alive, gone, stand_still
from tests.patience import PATIENCE

PYTHON = (sys.executable, "-I", "-S", "-c")


async def started(code: str, *, grace: float = 5.0) -> Process:
    """A process that runs `code`."""
    return await Process.start([*PYTHON, textwrap.dedent(code)], {}, grace=grace)


UP = """print('{"ctxgate": {"up": 1}}', flush=True)"""


def guard_of(pid: int) -> int:
    guard = psutil.Process(pid).parent()
    assert guard is not None
    assert str(GUARD) in guard.cmdline()
    return guard.pid


async def test_stop_ends_the_process() -> None:
    process = await started(f"import signal\n{UP}\nsignal.pause()")
    assert await process.announced("up") == 1
    assert process.pid is not None
    assert alive(process.pid)
    await process.stop()
    assert gone(process.pid)
    assert process.returncode == -signal.SIGTERM
    assert process.ending() == "was killed by SIGTERM"
    await process.stop()


@pytest.mark.parametrize("given", [True, False])
async def test_where_it_works(given: bool, tmp_path: Path) -> None:
    code = 'import os, json; print(json.dumps({"ctxgate": {"cwd": os.getcwd()}}), flush=True)'
    process = await Process.start([*PYTHON, code], {}, cwd=tmp_path if given else None, grace=5.0)
    assert await process.announced("cwd") == (str(tmp_path) if given else "/")
    await process.stop()


async def test_its_environment_is_what_it_was_given_alone() -> None:
    code = 'import os, json; print(json.dumps({"ctxgate": {"env": dict(os.environ)}}), flush=True)'
    process = await Process.start([*PYTHON, code], {"A": "b"}, grace=5.0)
    found = await process.announced("env")
    await process.stop()
    assert found.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python itself sets it
    assert found == {"A": "b"}


async def test_a_stop_at_once_is_not_swallowed_by_the_start() -> None:
    for _ in range(5):
        process = await started("import time; time.sleep(60)")
        await process.stop()
        assert process.ending() == "was killed by SIGTERM"


async def test_one_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    process = await started(
        f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{UP}\nwhile True: signal.pause()", grace=0.3
    )
    await process.announced("up")
    before = time.monotonic()
    await process.stop()
    assert time.monotonic() - before >= 0.3
    assert process.returncode == -signal.SIGKILL


async def test_its_own_children_go_too() -> None:
    process = await started(
        """
        import os, signal
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True: signal.pause()
        print('{"ctxgate": {"child": %d}}' % pid, flush=True)
        signal.pause()
        """
    )
    child = await process.announced("child")
    await process.stop()
    assert gone(child)


async def test_a_child_of_a_process_that_ended_by_itself_goes_too() -> None:
    process = await started(
        """
        import os, signal
        pid = os.fork()
        if pid == 0:
            while True: signal.pause()
        print('{"ctxgate": {"child": %d}}' % pid, flush=True)
        os._exit(3)
        """
    )
    child = await process.announced("child")
    assert await process.wait(PATIENCE)
    assert process.ending() == "exited with code 3"
    assert gone(child)


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("raise SystemExit(0)", "exited with code 0"),
        ("raise SystemExit(7)", "exited with code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    ],
)
async def test_how_it_ended(code: str, ending: str) -> None:
    process = await started(code)
    assert await process.wait(PATIENCE)
    assert process.ending() == ending
    assert process.pid is not None
    with pytest.raises(EOFError):
        await process.announced("never")


async def test_a_program_that_is_not_there() -> None:
    process = await Process.start(["/nowhere/llama-server"], {})
    assert await process.wait(PATIENCE)
    assert process.returncode == 127
    assert list(process.tail) == ["/nowhere/llama-server: No such file or directory"]


@pytest.fixture
def few_descriptors() -> Iterator[Callable[[int], None]]:
    """A function of a number: how many more files this process can open."""
    taken: list[int] = []
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(count: int) -> None:
        while taken:
            os.close(taken.pop())
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())

    highest = max(int(name) for name in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        yield leave
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_start_without_descriptors_keeps_none(few_descriptors: Callable[[int], None]) -> None:
    for count in range(8):
        few_descriptors(count)
        with pytest.raises(OSError, match="Too many open files"):
            await Process.start(["true"], {})
        left = []
        with suppress(OSError):
            while True:
                left.append(os.open(os.devnull, os.O_RDONLY))
        for each in left:
            os.close(each)
        assert len(left) == count


@pytest.mark.parametrize("turns", range(7))
async def test_a_start_that_is_cancelled_leaves_nothing(turns: int) -> None:
    """Not even a transport: its warning would fail the test."""
    pids: list[int] = []
    starting = asyncio.create_task(Process.start([*PYTHON, "import time; time.sleep(60)"], {}, began=pids.append))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    if starting.cancelled():
        assert all(gone(pid) for pid in pids)
    else:
        await starting.result().stop()


async def test_output_is_kept_bounded_and_whole_at_its_end() -> None:
    process = await started(
        f"""
        import sys
        sys.stderr.write("x" * 1_000_000 + "\\n")
        for n in range({TAIL_LINES} * 2): print("line", n)
        print("no newline at the end", end="")
        """
    )
    assert await process.wait(PATIENCE)
    assert len(process.tail) == TAIL_LINES
    assert process.tail[-1] == "no newline at the end"
    assert process.tail[-2] == f"line {TAIL_LINES * 2 - 1}"
    assert max(map(len, process.tail)) <= LINE_CHARS


async def test_a_line_that_only_looks_like_an_announcement_is_output() -> None:
    process = await started("""print('{"ctxgate": 5}'); print('{"ctxgate"')""")
    assert await process.wait(PATIENCE)
    assert list(process.tail) == ['{"ctxgate": 5}', '{"ctxgate"']


async def test_a_grandchild_that_left_and_holds_the_output_open() -> None:
    await (await started("pass")).wait(PATIENCE)
    before = os.listdir("/proc/self/fd")
    process = await started(
        """
        import os, signal, time
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(30)
            os._exit(0)
        print('{"ctxgate": {"child": %d}}' % pid, flush=True)
        os._exit(0)
        """
    )
    child = await process.announced("child")
    assert await process.wait(PATIENCE)
    assert process.ending() == "exited with code 0"
    async with asyncio.timeout(PATIENCE):  # transports close their files in a later turn of the loop
        while os.listdir("/proc/self/fd") != before:  # noqa: ASYNC110
            await asyncio.sleep(0)
    os.kill(child, signal.SIGKILL)


async def test_many_stops_at_once() -> None:
    process = await started(f"import signal\n{UP}\nsignal.pause()")
    await process.announced("up")
    await asyncio.gather(*(process.stop() for _ in range(10)))
    assert process.returncode == -signal.SIGTERM


async def test_no_engine_outlives_its_guard() -> None:
    process = await started(f"import signal\n{UP}\nsignal.pause()")
    await process.announced("up")
    assert process.pid is not None
    os.kill(guard_of(process.pid), signal.SIGKILL)
    assert await process.wait(PATIENCE)
    assert gone(process.pid)
    assert process.ending() == "was killed by SIGKILL"


GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.config import Model
from gateway.engines import for_model

async def main():
    engine = for_model(Model(name="tiny", runtime="llama.cpp", path=Path(sys.argv[1]), context_window=512))
    await engine.requests.ensure()
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_engine_outlives_the_gateway(number: signal.Signals, test_model: Path) -> None:
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(test_model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    try:
        assert gateway.stdout is not None
        engine = int(gateway.stdout.readline())
        assert alive(engine)
        guard = guard_of(engine)
        before = time.monotonic()
        gateway.send_signal(number)
        gateway.wait(PATIENCE)
        assert gone(engine)
        assert gone(guard)
        print(f"{number.name}: engine gone {time.monotonic() - before:.3f} s after the signal")
    finally:
        gateway.kill()
        gateway.communicate(timeout=PATIENCE)


async def test_a_signal_without_a_name() -> None:
    process = await started(f"import os, signal\n{UP}\nos.kill(os.getpid(), 40)")
    assert process.ending() == "is running"
    assert await process.wait(PATIENCE)
    assert process.ending() == "was killed by signal 40"


async def test_a_guard_that_hangs_is_killed_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.process.REAP_SECONDS", 0.1)
    process = await started(f"import signal\n{UP}\nsignal.pause()", grace=0.1)
    await process.announced("up")
    assert process.pid is not None
    guard = guard_of(process.pid)
    stand_still(guard)
    await process.stop()
    assert gone(process.pid)
    assert gone(guard)


async def _ends_while_another_thread_opens_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread's files are opened where it could do so at the latest: just before an end is closed."""
    opened: list[int] = []
    close = PipeEnd.close

    def close_late(end: PipeEnd) -> None:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(8))
        close(end)

    ends: list[tuple[PipeEnd, tuple[int, int]]] = []
    make = PipeEnd.__init__

    def made(end: PipeEnd, descriptor: int) -> None:
        make(end, descriptor)
        ends.append((end, (descriptor, os.fstat(descriptor).st_ino)))

    monkeypatch.setattr(PipeEnd, "close", close_late)
    monkeypatch.setattr(PipeEnd, "__init__", made)
    async with asyncio.timeout(PATIENCE):
        process = await started(UP)
        assert await process.announced("up") == 1
        await process.wait()
    assert len(ends) == 4
    null = os.stat(os.devnull)
    while any(end.fileno() != -1 for end, _ in ends):  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _, (descriptor, inode) in ends:
        with suppress(OSError):
            assert os.fstat(descriptor).st_ino != inode, "it is still open"
    assert len(opened) == 8 * 4
    for descriptor in opened:
        assert os.path.samestat(os.fstat(descriptor), null)
        os.close(descriptor)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_end_of_its_output_closes_no_file_of_another_thread(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner(loop_factory=import_module(loop).new_event_loop) as runner:
        runner.run(_ends_while_another_thread_opens_files(monkeypatch))


def test_an_end_of_a_pipe_is_closed_once() -> None:
    read, write = pipe()
    number = read.fileno()
    read.close()
    with pytest.raises(BrokenPipeError):
        os.write(write.fileno(), b"nobody reads")
    with open(os.devnull, "rb") as other:
        assert other.fileno() == number
        read.close()
        assert os.path.samestat(os.fstat(number), os.stat(os.devnull))
    write.close()
