"""What reads the pieces of an answer: made once for each answer, from its request and the model's format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from msgspec import Struct

from gateway.answer.native_calls import NativeCalls
from gateway.wire.chat import ChatRequest, decode
from gateway.wire.nulls import MAX_KEPT_BYTES
from normalizers import FormatSpec, Normalizer
from normalizers.registry import normalizer
from normalizers.values.coerce import SchemaIndex

_NO_TOOLS = SchemaIndex(())


def _index(tools: bytes, answer: bytes) -> SchemaIndex:
    return SchemaIndex(decode(tools), decode(answer) if answer else None)


_kept_index = lru_cache(maxsize=8)(_index)


def _tools(tools: bytes, answer: bytes) -> SchemaIndex:
    """Cached, because agents send the same list with every turn."""
    return (_kept_index if len(tools) + len(answer) <= MAX_KEPT_BYTES else _index)(tools, answer)


@lru_cache(maxsize=64)
def refusing(spec: FormatSpec) -> FormatSpec:
    """The format without calls of undeclared tools. Cached, because `passes` keeps an entry for each format."""
    return spec if spec.unknown_tools == "refuse" else replace(spec, unknown_tools="refuse")


@lru_cache(maxsize=64)
def in_words(spec: FormatSpec) -> FormatSpec:
    """The format for an answer that was decided to call no tool: what looks like a call without marks is an example."""
    return replace(spec, unmarked="never", calls_in_reasoning="never")


@lru_cache(maxsize=64)
def _apart(spec: FormatSpec) -> FormatSpec:
    """The format for reasoning that the engine keeps apart: a mark in it doesn't end it."""
    return replace(spec, think=tuple((opening, _NO_MARK) for opening, _ in spec.think))


_NO_MARK = "\0" * 64
"""What no model writes."""


class Reading(Struct, frozen=True, eq=False):
    """request: the client's. spec: the format in which the model writes calls; see `refusing`. reasoning_open: the
    text starts within the model's reasoning.

    guarded, unmarked_guarded: every call that a mark begins is certain to be readable, so it can be sent piece by
    piece, and so is every call without marks that begins the answer. Any other is held back until it is complete.
    """

    request: ChatRequest
    spec: FormatSpec
    reasoning_open: bool = False
    guarded: bool = False
    unmarked_guarded: bool = False

    @property
    def tools(self) -> SchemaIndex:
        request, format = self.request, self.request.response_format
        answer = format.schema if format is not None and request.tool_choice in (None, "auto") else b""
        return _tools(request.tools, answer) if request.tools is not None else _NO_TOOLS

    def text(self) -> Normalizer:
        """Reads the text of a choice."""
        return self._normalizer(self.spec, self.reasoning_open, self.guarded)

    def thoughts(self) -> Normalizer:
        """Reads the reasoning that the engine keeps apart."""
        return self._normalizer(_apart(self.spec), True, False)

    def native(self, indices: Iterator[int], text: Normalizer) -> NativeCalls:
        """Reads the calls that the engine parsed. indices: numbers them. text: the reader of the same choice's text."""
        request, tools, forwards = self.request, self.tools, self.spec.unknown_tools == "forward"
        return NativeCalls(
            indices,
            lambda name: bool(name) and (forwards or name in tools),
            text,
            allow=request.tool_choice != "none",
            parallel=request.parallel_tool_calls,
            piecewise=self.guarded,
        )

    def calls_in_reasoning(self, text: str) -> bool:
        """Whether a call that counts, or a quote, may begin in this piece of reasoning that the engine keeps apart."""
        spec, request = self.spec, self.request
        if request.tools is None or request.tool_choice == "none" or spec.calls_in_reasoning == "never":
            return False
        # White space before a call is layout, so it waits for what follows.
        return bool(spec.think) and (text[-1].isspace() or any(sign[0] in text for sign in ("`", "~", *spec.openers)))

    def _normalizer(self, spec: FormatSpec, reasoning_open: bool, guarded: bool) -> Normalizer:
        return normalizer(
            spec,
            self.tools,
            reasoning_open=reasoning_open,
            allow_calls=self.request.tool_choice != "none",
            parallel=self.request.parallel_tool_calls,
            guarded=guarded,
            unmarked_guarded=guarded and self.unmarked_guarded,
        )
