"""The checker of JSON Schemas for tools and the Python client, in bounded time whatever the schema and the value are.

A small check runs here. One that may be large, or whose cost can't be predicted (patterns, circular references), runs
in another process, which is killed if it takes too long. The gateway doesn't use this for its clients' schemas: it has
a `Pool`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from gateway.schema import effort, evaluate
from gateway.schema.fault import Checker, Fault
from gateway.schema.pool import Pool, Threads

COMPILED_HERE = 16 * 1024
"""Characters of a schema; a longer one is compiled in another process. About 300 take a millisecond."""
STEPS_HERE = 20_000
"""Keywords evaluated in one check; more are evaluated in another process. About 200 take a millisecond."""


pool = Pool(1)
threads = Threads(pool)
"""Threads in which checks of an event loop wait for their process, so that they don't take those of other work."""


class Schema:
    """A valid JSON Schema; a `Checker`. text: as JSON."""

    __slots__ = ("_remote", "_steps", "_validator", "text")

    def __init__(self, text: str) -> None:
        """Blocks for a bounded time. Raises InvalidSchema, Unchecked."""
        self.text = text
        self._steps = effort.steps(json.loads(text)) if len(text) <= COMPILED_HERE else None
        self._remote: Checker | None = None
        if self._steps is not None:
            self._validator = evaluate.validator(text)
        else:
            self._remote = pool.compile(text)

    def fault(self, value: Any) -> Fault | None:
        """The most telling reason why the value breaks the schema; None if it conforms.

        Blocks for a bounded time. Raises Unchecked, ProviderRateLimit while too many checks are under way.
        """
        if self._remote is not None:
            return self._remote.fault(value)
        maximum = STEPS_HERE // max(1, self._steps or 0)
        if maximum and effort.size(value, maximum) <= maximum:
            return evaluate.fault(self._validator, value)
        return pool.fault(self.text, value)


compiled = lru_cache(maxsize=256)(Schema)
"""A `Compile` with a cache: agents send the same schemas with every call."""
