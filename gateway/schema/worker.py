"""JSON Schemas with patterns are checked in a process of their own, which ends where that takes too long.

Patterns come from clients and texts from models: `(a+)+$` keeps Python's engine busy for years, and nothing but the end
of its process stops it. `python -m gateway.schema.worker` is that process; it starts with the first such schema.
"""

from __future__ import annotations

import atexit
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
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

SECONDS = 0.5
"""Of the processor, for one check."""
ANSWER_SECONDS = 10.0
"""Of the clock, on a machine that has much else to do; the start is part of it."""
ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG")
"""What the process sees of the environment: no secrets."""


class Fault(NamedTuple):
    """Why a value breaks a schema. path: to the place, from the root."""

    path: list[str | int]
    json_path: str
    message: str


class Unchecked(Exception):
    """The schema can't be checked, or not in time; in words for its author."""


def violation(text: str, validator: Validator, value: Any) -> Fault | None:
    """What tells most of why a value breaks the schema; None: it doesn't.

    text: the schema as JSON, without needless escapes. Raises Unchecked, referencing's Unresolvable and RecursionError.
    """
    if '"pattern' not in text:
        return _violation(validator, value)
    return _process.ask(text, value)


def _violation(validator: Validator, value: Any) -> Fault | None:
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(value))
    return None if error is None else Fault([*error.absolute_path], error.json_path, error.message)


class _Process:
    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._of = 0

    def ask(self, text: str, value: Any) -> Fault | None:
        try:
            question = json.dumps([text, value], default=_plain).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise Unchecked(f"the value is not JSON: {error}") from None
        with self._one_at_a_time:
            answer = self._asked(question)
        kind, told = json.loads(answer)
        if kind == "unchecked":
            raise Unchecked(told)
        if kind == "too deep":
            raise RecursionError
        return None if told is None else Fault(*told)

    def _asked(self, question: bytes) -> bytes:
        """Raises Unchecked where the process ended over it, or is ended since it doesn't answer."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question)
        process.stdin.flush()
        answer = b""
        deadline = monotonic() + ANSWER_SECONDS
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, deadline - monotonic()))[0]:
                process.kill()
                raise Unchecked(f"nothing came of it within {ANSWER_SECONDS:g} s")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                if process.wait(ANSWER_SECONDS) != -signal.SIGPROF:
                    raise RuntimeError(f"the process that checks schemas has ended with {process.returncode}")
                raise Unchecked(f"its patterns take longer than {SECONDS:g} s to match")
            answer += part
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._popen is not None and self._of == os.getpid():
            if self._popen.poll() is None:
                return self._popen
            self._popen.communicate()  # closes its pipes
        else:
            atexit.register(self._end)
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self._of = os.getpid()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway.schema.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the gateway, which ends it by ending itself
        )
        return self._popen

    def _end(self) -> None:
        if self._popen is not None and self._of == os.getpid():
            self._popen.kill()
            self._popen.communicate()


_process = _Process()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


# In the process


def main() -> None:
    """Answers each line of standard input with one of standard output, until there are no more."""
    while line := sys.stdin.buffer.readline():
        text, value = json.loads(line)
        validator = _validator(text)
        # Its signal ends the process, whatever that is doing, and whether or not anybody waits for the answer.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = json.dumps(_answer(validator, value))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(validator: Validator, value: Any) -> tuple[str, Any]:
    import re

    from referencing.exceptions import Unresolvable

    try:
        return "checked", _violation(validator, value)
    except re.error as error:
        pattern = error.pattern if isinstance(error.pattern, str) else ""
        return "unchecked", f"its pattern {pattern[:100]!r} can't be read: {error.msg}"
    except (OverflowError, MemoryError):
        return "unchecked", "its patterns are too large"
    except Unresolvable as error:
        return "unchecked", f"its reference {error.ref!r} leads nowhere inside it"
    except RecursionError:
        return "too deep", None


@lru_cache(maxsize=64)
def _validator(text: str) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


if __name__ == "__main__":
    main()
