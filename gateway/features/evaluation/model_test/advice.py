"""What to do about a model whose calls came out as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gateway.features.evaluation.model_test.cases import Case, Json
from normalizers import registry
from normalizers.unread import unread_call

KIND = "text_tool_call"
"""The judge's word for such an answer."""

DOCS = "docs/unread-calls.md"

_MAX_TRIED = 50
"""Texts that are tried with each format."""
_PASSING = ("native_json", "auto")
"""Formats that name no way to write calls."""


def unread(samples: Iterable[Json]) -> list[Json]:
    """The samples that end with a call as text, also at a later step of a chain."""
    return [sample for sample in samples if KIND in (sample.get("kind"), _inner(sample))]


def advice(result: Json, samples: Sequence[Json], cases: Mapping[str, Case]) -> list[str]:
    """Lines about the calls that came out as text; none if there is none. result: of the run."""
    found = unread(samples)
    if not found:
        return []
    first, now = found[0], result["target"].get("tool_call_format")
    call = unread_call(_text(first), _names(cases[first["case"]])) or _text(first)[:80]
    return [
        f"CALLS AS TEXT: {len(found)} of {len(samples)} answers hold a call that no client can run.",
        f"  such as {first['case']}: {' '.join(call.split())}",
        f"  What to try in config.yaml, under models: {result['target']['model']}:",
        *(f"    {line:<54} {why}" for line, why in _cures(found, cases, now)),
        f"  {DOCS} lists the causes.",
    ]


def _cures(found: Sequence[Json], cases: Mapping[str, Case], now: str | None) -> list[tuple[str, str]]:
    """Lines of config.yaml, each with its reason."""
    tried = found[:_MAX_TRIED]
    reads = Counter(
        format
        for sample in tried
        for format in registry.names()
        if format not in _PASSING and _calls(format, _text(sample), cases[sample["case"]].tools)
    )
    best = [(format, count) for format, count in reads.most_common(3) if format != now]
    like = best[0][0] if best else "auto" if now in (None, *_PASSING) else now
    instead = f", instead of {now}" if now else ""
    return [
        *(
            (f"tool_call_format: {each}", f"reads {count} of {len(tried)} of these texts{instead}")
            for each, count in best
        ),
        (
            f"tool_call_format: {{like: {like}, unmarked: last}}",
            "if yours says alone or never: reads calls without marks",
        ),
        ("tool_prompt: system", "ctxgate lists the tools itself, and says how to call them"),
    ]


def _calls(format: str, text: str, tools: Sequence[Json]) -> bool:
    """Whether the format reads a call in the text. Tools' names may have gone out with underscores for dots."""
    sent = [{"type": "function", "function": {**each, "name": name}} for each, name in _sent(tools)]
    reader = registry.normalizer(format, sent)
    reader.feed(text)
    reader.finish("stop")
    # Every format reads calls without marks; only marks tell them apart.
    return reader.called and not reader.unmarked


def _sent(tools: Sequence[Json]) -> Iterable[tuple[Json, str]]:
    for tool in tools:
        function = tool["function"]
        for name in {function["name"], function["name"].replace(".", "_")}:
            yield function, name


def _names(case: Case) -> list[str]:
    return [name for _, name in _sent(case.tools)]


def _inner(sample: Json) -> str:
    """The kind behind a broken chain."""
    return str(sample.get("detail")).partition(":")[0] if str(sample.get("kind")).startswith("chain_broken") else ""


def _text(sample: Json) -> str:
    return str(sample["answers"][-1].get("content", "")) if sample["answers"] else ""
