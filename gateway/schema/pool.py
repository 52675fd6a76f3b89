"""Worker processes, bounded in time, for clients' JSON Schemas.

A question that exceeds its time ends with its process. Processes start when they are first needed.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.errors import ProviderRateLimit, ProviderUnavailable
from gateway.observe.shares import Tally, Workers
from gateway.schema.effort import steps
from gateway.schema.fault import Fault, InvalidSchema, Unchecked
from gateway.schema.worker import COMPILE_SECONDS, SECONDS

if TYPE_CHECKING:
    from normalizers import FormatSpec
    from normalizers.write.grammar import Grammar, Notation

PROCESSES = 2
"""Processes of one gateway."""
THREADS = 3
"""Threads that wait for the processes' answers: a tenant has one of them, and so leaves a process to others."""
WAITING = 64
"""Pieces of work that may wait for a thread."""
ANSWER_SECONDS = 10.0
"""Wall-clock limit for one answer, on a busy machine; includes the start."""
ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG")
"""The variables that a process inherits: none of them holds a secret."""
STEPS_HERE = 300
"""Keywords of the tools' schemas, references followed, whose grammar is written at once: in a few milliseconds."""

Result = TypeVar("Result")


class Pool:
    """Compiles schemas, checks values and writes grammars in `processes` processes. Its methods block, from any thread.

    They raise Unchecked for what exceeds its bounds, and ProviderRateLimit if too much waits already.
    """

    def __init__(self, processes: int = PROCESSES) -> None:
        self._processes = [_Process() for _ in range(processes)]
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()
        for process in self._processes:
            self._free.put(process)

    def compile(self, text: str) -> Remote:
        """Checks that a schema, as JSON, is valid. Raises InvalidSchema, too."""
        self._ask(["compile", text], COMPILE_SECONDS)
        return Remote(self, text)

    def fault(self, text: str, value: Any) -> Fault | None:
        """The most telling reason why a value breaks a valid schema; None if it conforms."""
        found = self._ask(["check", text, value], SECONDS)
        return None if found is None else Fault(*found)

    def measure(self, schemas: Sequence[Any]) -> None:
        """A `Measure`: see `gateway.schema.ways`."""
        if not _is_small(schemas):
            self._ask(["measure", [*schemas]], COMPILE_SECONDS)

    def grammar(
        self,
        spec: FormatSpec,
        tools: Sequence[Mapping[str, Any]],
        *,
        only: Collection[str] | None = None,
        calls: int,
        answer: Mapping[str, Any] | None = None,
        free: bool = False,
        decide: bool = False,
        notation: Notation = "gbnf",
    ) -> Grammar | None:
        """`normalizers.write.grammar.grammar`; a small one is written here."""
        from normalizers.write.grammar import Grammar, TooLarge, grammar

        if _is_small([*map(_parameters, tools), answer or {}]):
            try:
                return grammar(
                    spec, tools, only=only, calls=calls, answer=answer, free=free, decide=decide, notation=notation
                )
            except TooLarge as error:
                raise Unchecked(str(error)) from None
        wanted = None if only is None else [*only]
        question = ["grammar", _pickled(spec), tools, wanted, calls, answer, free, decide, notation]
        found = self._ask(question, COMPILE_SECONDS)
        return None if found is None else Grammar(*found)

    def _ask(self, question: list[Any], seconds: float) -> Any:
        """seconds: of processor time that the process gives the question."""
        try:
            line = json.dumps(question, default=_plain).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise Unchecked(f"the value is not JSON: {error}") from None
        except RecursionError:
            raise Unchecked("the value is nested too deeply") from None
        try:
            process = self._free.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise ProviderRateLimit("too many JSON Schemas are being checked", retry_after=1) from None
        try:
            kind, content = json.loads(process.answer(line, seconds))
        finally:
            self._free.put(process)
        if kind == "invalid":
            raise InvalidSchema(content)
        if kind == "unchecked":
            raise Unchecked(content)
        return content

    def close(self) -> None:
        """Ends the processes; pending questions fail. No more questions are allowed."""
        for process in self._processes:
            process.close()


class Remote:
    """A valid JSON Schema; a `Checker` that does no work in this process."""

    __slots__ = ("_pool", "text")

    def __init__(self, pool: Pool, text: str) -> None:
        self._pool = pool
        self.text = text

    def fault(self, value: Any) -> Fault | None:
        return self._pool.fault(self.text, value)


class _Process:
    """One process, started again after it ended. Answers one question at a time."""

    def __init__(self) -> None:
        self.popen: subprocess.Popen[bytes] | None = None
        self._owner = 0
        """The id of the process that started it: a fork must not share its pipes."""
        self._lock = threading.Lock()
        self._closed = False

    def answer(self, line: bytes, seconds: float) -> bytes:
        """Raises Unchecked if the process ends over the question, or doesn't answer and is ended."""
        with self._lock:
            process = self._running()
            try:
                return self._exchange(process, line, seconds)
            except BaseException:
                process.kill()  # else the next question would get what is left of this one's answer
                process.wait()
                raise

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = monotonic() + ANSWER_SECONDS
        answer = b""
        rest = memoryview(line)
        pipe_in, pipe_out = process.stdin.fileno(), process.stdout.fileno()
        poll = select.poll()  # select.select knows no file beyond the 1,024th
        poll.register(pipe_in, select.POLLOUT)
        poll.register(pipe_out, select.POLLIN)
        while not answer.endswith(b"\n"):
            ready = dict(poll.poll(1000 * max(0.0, deadline - monotonic())))
            if not ready:
                raise Unchecked(f"it gave no result within {ANSWER_SECONDS:g} s")
            if pipe_in in ready:
                try:
                    rest = rest[os.write(pipe_in, rest) :]
                except BrokenPipeError:
                    rest = rest[len(rest) :]
                if not rest:
                    poll.unregister(pipe_in)
            if pipe_out in ready:
                part = os.read(pipe_out, 1 << 16)
                if not part:
                    raise self._ended(process.wait(), seconds)
                answer += part
        return answer

    def _ended(self, code: int, seconds: float) -> Exception:
        if self._closed:
            return ProviderUnavailable("the gateway is stopping")
        if code == -signal.SIGPROF:
            return Unchecked(f"it takes longer than {seconds:g} s of processor time")
        return Unchecked(f"the process that works on it ended with {code}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ProviderUnavailable("the gateway is stopping")
        if self.popen is not None and self._owner == os.getpid():
            if self.popen.poll() is None:
                return self.popen
            self.popen.communicate()  # closes its pipes
        else:
            atexit.register(self.close)
        self._owner = os.getpid()
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway.schema.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the gateway, which ends it by ending itself
        )
        assert self.popen.stdin is not None
        os.set_blocking(self.popen.stdin.fileno(), False)
        return self.popen

    def close(self) -> None:
        """Ends the process; its pending question fails."""
        self._closed = True
        atexit.unregister(self.close)
        if self.popen is not None and self._owner == os.getpid():
            self.popen.kill()
            with self._lock:
                self.popen.communicate()  # closes its pipes


class Threads:
    """Runs work on a pool in threads of its own, so that nothing else waits for it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._executor: Workers | None = None
        self._under_way = Tally()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns and raises what `work` does, and ProviderRateLimit if too much waits already."""
        if not self._under_way.has_room(THREADS + WAITING):
            raise ProviderRateLimit("too many JSON Schemas are being checked", retry_after=1)
        if self._executor is None:
            self._executor = Workers(THREADS, name="schemas")
        with self._under_way.one_more():
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    def close(self) -> None:
        """Ends the pool. Returns at once; work that has begun fails soon."""
        self.pool.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _is_small(schemas: Sequence[Any]) -> bool:
    left = STEPS_HERE
    for schema in schemas:
        count = steps(schema)
        if count is None or (left := left - count) < 0:
            return False
    return True


def _parameters(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function", tool)
    found = function.get("parameters") if isinstance(function, Mapping) else None
    return found if isinstance(found, Mapping) else {}


@lru_cache(maxsize=64)
def _pickled(spec: FormatSpec) -> str:
    import pickle

    return b64encode(pickle.dumps(spec)).decode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")
