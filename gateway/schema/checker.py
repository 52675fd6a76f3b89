"""The one checker of JSON Schemas, in bounded time whatever the schema and the value are.

Schemas come from clients and values from models. A small check runs here. One that may be large, or whose work we
can't tell beforehand (patterns, circles of references), runs in the worker process, which is ended if it takes long.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from gateway.schema import effort, evaluate, worker
from gateway.schema.fault import Fault

COMPILED_HERE = 16 * 1024
"""Characters of a schema; a longer one is compiled in the worker. A millisecond takes some 300."""
STEPS_HERE = 20_000
"""Keywords evaluated in one check; more are evaluated in the worker. A millisecond takes some 200."""


class Schema:
    """A valid JSON Schema; a `Checker`. text: as JSON."""

    __slots__ = ("_steps", "_validator", "text")

    def __init__(self, text: str) -> None:
        """Blocks for a bounded time. Raises InvalidSchema, Unchecked."""
        self.text = text
        self._validator = self._steps = None
        if len(text) <= COMPILED_HERE:
            self._validator = evaluate.validator(text)
            self._steps = effort.steps(json.loads(text))
        else:
            worker.compile(text)

    def fault(self, value: Any) -> Fault | None:
        """The most telling reason why the value breaks the schema; None if it conforms.

        Blocks for a bounded time. Raises Unchecked, ProviderRateLimit while too many checks are under way.
        """
        steps = self._steps
        if self._validator is not None and steps is not None and steps <= STEPS_HERE:
            most = STEPS_HERE // max(1, steps)
            if effort.size(value, most) <= most:
                return evaluate.fault(self._validator, value)
        return worker.fault(self.text, value)


compiled = lru_cache(maxsize=256)(Schema)
"""A `Compile` that remembers: agents send the same schemas with every call."""
