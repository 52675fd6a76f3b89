"""The results of checking a value against a JSON Schema: only values, so that pure modules can use them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from normalizers import FormatSpec
    from normalizers.write.grammar import Grammar, Notation


class Fault(NamedTuple):
    """Why a value breaks a schema. path: from the value's root to the place."""

    path: list[str | int]
    message: str

    @property
    def pointer(self) -> str:
        """The place as a JSON Pointer (RFC 6901); "" for the root."""
        return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in self.path)


TOO_DEEP = "it is nested too deeply"
"""What `InvalidSchema` says of a schema that is too deep for our checker, which an engine may take."""


class InvalidSchema(ValueError):
    """Not a valid JSON Schema; the message says why."""


class Unchecked(Exception):
    """The schema can't be checked within our bounds, or at all; the message is for the schema's author."""


class Checker(Protocol):
    """A valid JSON Schema."""

    def fault(self, value: Any) -> Fault | None:
        """The most telling reason why the JSON value breaks the schema; None if it conforms. Raises Unchecked."""
        ...


class Write(Protocol):
    """Writes the grammar of the tools' calls as `normalizers.write.grammar.grammar` does. Blocks for a bounded time.

    Raises Unchecked for tools or an `answer` that would take too long.
    """

    def __call__(
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
    ) -> Grammar | None: ...


Compile = Callable[[str], Checker]
"""Takes a schema as JSON text. Blocks for a bounded time. Raises InvalidSchema, Unchecked."""

Measure = Callable[[Sequence[Any]], None]
"""Takes schemas. Blocks for a bounded time. Raises Unchecked if an engine that makes grammars of them would serve
nobody else for long."""
