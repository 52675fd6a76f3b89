"""The process that checks what may take long: a check that exceeds its time ends with the process.

Patterns come from clients and texts from models: `(a+)+$` keeps Python's engine busy for years, and nothing but the
end of its process stops it. `python -m gateway.schema.worker` is that process. It starts with the first such check.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.errors import ProviderRateLimit
from gateway.schema import evaluate
from gateway.schema.fault import Fault, InvalidSchema, Unchecked

if TYPE_CHECKING:
    pass

SECONDS = 0.5
"""Processor time for one check."""
COMPILE_SECONDS = 2.0
"""Processor time for compiling one schema."""
ANSWER_SECONDS = 10.0
"""Time on the clock for one answer, on a machine that has much else to do; the start is part of it."""
MEMORY = 2 * 1024**3
"""Bytes of address space, where the system bounds it."""
ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG")
"""The variables that the process inherits: none of them holds a secret."""


def compile(text: str) -> None:
    """Returns for a valid schema. Raises InvalidSchema, Unchecked, ProviderRateLimit."""
    _process.ask([text], COMPILE_SECONDS)


def fault(text: str, value: Any) -> Fault | None:
    """Checks a value against a schema that is valid. Raises Unchecked, ProviderRateLimit."""
    found = _process.ask([text, value], SECONDS)
    return None if found is None else Fault(*found)


class _Process:
    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._owner = 0
        """The id of the process that started it: a fork must not share its pipes."""

    def ask(self, question: list[Any], seconds: float) -> Any:
        """seconds: of processor time that the process gives the question."""
        try:
            line = json.dumps(question, default=_plain).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise Unchecked(f"the value is not JSON: {error}") from None
        except RecursionError:
            return Fault([], "the value is nested too deeply to be checked")
        if not self._one_at_a_time.acquire(timeout=ANSWER_SECONDS):
            raise ProviderRateLimit("too many JSON Schemas are being checked", retry_after=1)
        try:
            answer = self._answer(line, seconds)
        finally:
            self._one_at_a_time.release()
        kind, content = json.loads(answer)
        if kind == "invalid":
            raise InvalidSchema(content)
        if kind == "unchecked":
            raise Unchecked(content)
        return content

    def _answer(self, line: bytes, seconds: float) -> bytes:
        """Raises Unchecked if the process ends over the question, or doesn't answer and is ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
        answer = b""
        deadline = monotonic() + ANSWER_SECONDS
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, deadline - monotonic()))[0]:
                process.kill()
                raise Unchecked(f"it gave no result within {ANSWER_SECONDS:g} s")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                if process.wait(ANSWER_SECONDS) != -signal.SIGPROF:
                    raise RuntimeError(f"the process that checks schemas ended with {process.returncode}")
                raise Unchecked(f"it takes longer than {seconds:g} s of processor time")
            answer += part
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._popen is not None and self._owner == os.getpid():
            if self._popen.poll() is None:
                return self._popen
            self._popen.communicate()  # closes its pipes
        else:
            atexit.register(self._end)
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self._owner = os.getpid()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway.schema.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the gateway, which ends it by ending itself
        )
        return self._popen

    def _end(self) -> None:
        if self._popen is not None and self._owner == os.getpid():
            self._popen.kill()
            self._popen.communicate()


_process = _Process()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


# In the process


def main() -> None:
    """Answers each line of standard input with a line of standard output, until there are no more."""
    _bound_memory()
    while line := sys.stdin.buffer.readline():
        try:
            answer = _reply(json.loads(line))
        except MemoryError:
            answer = "unchecked", "it takes too much memory"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _reply(question: list[Any]) -> tuple[str, Any]:
    text, *values = question
    # The signal ends the process, whatever it is doing, and whether or not anybody waits for the answer.
    signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
    try:
        validator = _validator(text)
        if not values:
            return "checked", None
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        return "checked", evaluate.fault(validator, values[0])
    except InvalidSchema as error:
        return "invalid", str(error)
    except Unchecked as error:
        return "unchecked", str(error)


_validator: Any = lru_cache(maxsize=64)(evaluate.validator)


def _bound_memory() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):  # macOS bounds no address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    main()
