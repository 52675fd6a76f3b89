"""When known models should call: what `ctxgate tune --calls` found for them, with date and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gateway.features.models.inventory.entry import Line
from gateway.features.models.inventory.facts import Facts


class CallSettings(Struct, frozen=True):
    """threshold, examples: the keys `call_threshold` and `tool_examples`. one: an answer has one call at most. why: the
    figures, for the comment."""

    threshold: float
    examples: Sequence[str]
    one: bool
    why: str


KNOWN: Mapping[tuple[str, str], CallSettings] = {
    ("Qwen2.5-Coder", "0.5B"): CallSettings(
        0.2, ("ask", "chain", "hello"), True, "186 of core's 314 pass, with bare llama.cpp 79; measured 2026-11-29"
    ),
    ("Qwen2.5-Coder", "1.5B"): CallSettings(
        0.135, ("ask", "chain", "hello"), True, "204 of core's 314 pass, with bare llama.cpp 71; measured 2026-11-29"
    ),
}
"""By `general.basename` and `general.size_label` of the GGUF file of an instruct model. core is model-test's suite."""


def lines(found: Facts) -> list[Line]:
    """Of the entry of a model that llama.cpp runs; none if it isn't known, or if the engine reads its calls."""
    choice = KNOWN.get((found.basename, found.parameters)) if found.dialect is not None else None
    if choice is None or "instruct" not in found.finetune.lower():
        return []
    made = [Line("call_threshold", choice.threshold, choice.why)]
    if choice.examples:
        made.append(Line("tool_examples", [*choice.examples]))
    return [*made, Line("parallel_tool_calls", False)] if choice.one else made
