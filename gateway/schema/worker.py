"""The process for work that may take long: `python -m gateway.schema.worker`. See `gateway.schema.pool`.

Patterns come from clients and texts from models: `(a+)+$` keeps Python's engine busy for years, and nothing but the
end of its process stops it. This process has a limit of processor time for each question, and one of memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from base64 import b64decode
from functools import lru_cache
from typing import Any

from gateway.schema.fault import InvalidSchema, Unchecked

SECONDS = 0.5
"""Processor time for one check."""
COMPILE_SECONDS = 2.0
"""Processor time for compiling one schema, or for writing one grammar."""
MEMORY = 1024**3
"""Bytes of address space, where the system bounds it."""
NICE = 5
"""Niceness: a lower priority than the gateway and its engines."""
MAX_REASON = 1000
"""Characters of a reason. It may quote the schema or the value."""


def main() -> None:
    """Answers each line of standard input with a line of standard output, until there are no more."""
    bound_memory(MEMORY)
    os.nice(NICE)
    while line := sys.stdin.buffer.readline():
        try:
            answer = _reply(json.loads(line))
        except MemoryError:
            answer = "unchecked", "it takes too much memory"
        except RecursionError:
            answer = "unchecked", "it is nested too deeply"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _reply(question: list[Any]) -> tuple[str, Any]:
    kind, *arguments = question
    # The signal ends the process, whatever it is doing, and whether or not anybody waits for the answer.
    signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
    try:
        if kind == "grammar":
            return "done", _grammar(*arguments)
        if kind == "measure":
            from gateway.schema.ways import measure  # the gateway, which imports this module, never needs it

            measure(arguments[0])
            return "done", None
        validator = _validator(arguments[0])
        if kind == "compile":
            return "done", None
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        from gateway.schema.evaluate import fault

        found = fault(validator, arguments[1])
        return "done", found and (found.path, found.message[:MAX_REASON])
    except InvalidSchema as error:
        return "invalid", str(error)[:MAX_REASON]
    except Unchecked as error:
        return "unchecked", str(error)[:MAX_REASON]


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    from gateway.schema.evaluate import validator

    return validator(text)


def _grammar(spec: str, tools: Any, only: list[str] | None, *rest: Any) -> list[Any] | None:
    """spec: the pickled format; it comes from the gateway, not from a client. rest: calls, answer, free, decide,
    notation."""
    import pickle
    from dataclasses import fields

    from normalizers.write.grammar import TooLarge, grammar

    calls, answer, free, decide, notation = rest
    format = pickle.loads(b64decode(spec))  # noqa: S301
    try:
        found = grammar(
            format, tools, only=only, calls=calls, answer=answer, free=free, decide=decide, notation=notation
        )
    except TooLarge as error:
        raise Unchecked(str(error)) from None
    return None if found is None else [getattr(found, field.name) for field in fields(found)]


def bound_memory(size: int) -> None:
    """Limits this process's address space to so many bytes, for good."""
    import resource

    with contextlib.suppress(ValueError, OSError):  # macOS bounds no address space
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main()
