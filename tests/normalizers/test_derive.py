"""Formats derived from chat templates alone, as if nobody knew them, judged by probes that the derivation has not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pytest

from gateway.detection.jinja import compiled
from normalizers import FormatSpec, ToolCall, coalesce, detect, fold, normalizer
from normalizers.derive import NotRendered, RoundTrip, derive, round_trip
from normalizers.registry import define
from normalizers.write.grammar import grammar
from normalizers.write.render import render_calls
from tests.normalizers.conformance import AS_IT_STANDS, EXCEPTIONS, TABLES, Row, judge, needs_tables, rows
from tests.normalizers.conformance_sources import SOURCES
from tests.normalizers.gbnf import Machine
from tests.normalizers.splits import tool
from tests.support.chat_templates import (
    BROKEN,
    OWN,
    SHARED,
    TOOLS,
    UNKNOWN,
    difference,
    needs_templates,
    rendered,
    renderer,
    templates,
)

HEADERS = "headers name the tool: such formats have a reader, but aren't derived"
NOT_DERIVED = {
    "functionary_v32": HEADERS,
    "inkling": HEADERS,
    "muse_glimmer": HEADERS,
    "minimax_m3": "it writes null and an empty text alike, and lets tags of other names be arguments",
    "lcpp-meetkai-functionary-medium-v3.2": HEADERS,
    "lcpp-muse-glimmer": HEADERS,
    "lcpp-openai-gpt-oss-120b": HEADERS,
    "xinf-gpt-oss": HEADERS,
}
"""Besides those that can't be read back, `BROKEN`."""


def spec_of(found: RoundTrip) -> FormatSpec:
    assert found.fields is not None, found.reason
    # It comes from another process, and may stand in config.yaml.
    return define(json.loads(json.dumps(found.fields)))


def misread(spec: FormatSpec, source: str) -> dict[str, str]:
    """By probe of the other tests, how what is read differs, whole and in pieces."""
    wrong = {name: difference(spec, *pair) for name, pair in rendered(source).items()}
    return {name: said for name, said in wrong.items() if said}


@pytest.mark.parametrize("path", templates(UNKNOWN), ids=lambda path: path.stem)
def test_a_template_that_nobody_knows(path: Path) -> None:
    source = path.read_text("utf-8")
    assert detect(chat_template=source) is None
    found = round_trip(renderer(source))
    assert not found.format
    assert found.probes >= 14
    assert misread(spec_of(found), source) == {}


@pytest.mark.parametrize("path", templates(UNKNOWN), ids=lambda path: path.stem)
def test_what_a_derived_format_writes_it_reads_and_forces(path: Path) -> None:
    spec = spec_of(derive(compiled(path.read_text("utf-8"))))
    calls = [ToolCall("", "wxSearch", '{"wxText": "a \\"b\\"", "wxCount": 3}'), ToolCall("", "wxPing", "{}")]
    written = render_calls(spec, calls)
    reader = normalizer(spec, TOOLS)
    message = fold(coalesce([*reader.feed(written), *reader.finish("stop")]))
    read = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert read == [(call.name, json.loads(call.arguments)) for call in calls]
    forced = grammar(spec, TOOLS)
    assert forced is not None
    # One call each: a grammar can't count calls.
    assert all(Machine(forced.text).accepts(render_calls(spec, [call])) for call in calls)
    guarded = grammar(spec, TOOLS, free=True)
    assert guarded is not None
    assert Machine(guarded.text).accepts(f"Yes.\n{written}")


@pytest.mark.parametrize("path", templates(OWN), ids=lambda path: path.stem)
def test_a_built_in_format_that_reads_its_template_wins(path: Path) -> None:
    found = round_trip(compiled(path.read_text("utf-8")), detected=path.stem)
    assert (found.format, found.fields) == (path.stem, None)


@pytest.mark.parametrize("path", templates(OWN), ids=lambda path: path.stem)
def test_our_own_templates_as_if_nobody_knew_them(path: Path) -> None:
    source = path.read_text("utf-8")
    found = derive(renderer(source))
    if path.stem in NOT_DERIVED:
        assert (found.format, found.fields) == ("", None)
        assert found.reason
    else:
        assert misread(spec_of(found), source) == {}


def test_another_built_in_format_replaces_one_that_misreads() -> None:
    source = (OWN / "qwen3_coder.jinja").read_text("utf-8")
    assert round_trip(renderer(source), detected="hermes").format == "qwen3_coder"


SHY: dict[str, tuple[str, str]] = {
    "no calls": ("{% for m in messages %}{{ m.content }}{% endfor %}", "the template shows no past calls"),
    "refused": ("{{ raise_exception('no tools here') }}", "no tools here"),
    "a mistake in it": ("{{ messages.nothing.at_all }}", "the template shows no past calls"),
    "the order": (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<c>{% for k, v in c.function.arguments | items %}{{ v }}={{ k }};{% endfor %}{{ c.function.name }}</c>"
        "{% endfor %}{% endfor %}",
        "don't stand in a known order",
    ),
    "a mark that both begins and ends calls": (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        '<%>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}<%>'
        "{% endfor %}{% endfor %}",
        "no reader takes calls of this shape",
    ),
}


@pytest.mark.parametrize("name", SHY)
def test_a_template_without_a_format_says_why(name: str) -> None:
    source, reason = SHY[name]
    found = round_trip(renderer(source))
    assert (found.format, found.fields) == ("", None)
    assert reason in found.reason


def test_a_template_with_a_syntax_error_is_refused() -> None:
    with pytest.raises(NotRendered, match="its syntax"):
        compiled("{% if %}")


def test_a_head_that_ends_with_a_blank_is_read_alike_in_pieces() -> None:
    fields: dict[str, Any] = {"written": "<<call {name}\n{arguments}\n>>", "head": ["<<call {name} "], "tail": [">>"]}
    spec = define({"dialect": "named", "begins": ["<<call"], "syntax": fields})
    text = 'Yes.\n<<call look_up\n{"a": "b"}\n>>'
    reader = normalizer(spec, [tool("look_up", a="string")])
    events = [event for char in text for event in reader.feed(char)]
    message = fold([*events, *reader.finish("stop")])
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("look_up", '{"a": "b"}')]


@needs_templates
def test_the_templates_of_others_as_if_nobody_knew_them(capsys: pytest.CaptureFixture[str]) -> None:
    seconds: list[float] = []
    failed: dict[str, str] = {}
    shapes: dict[str, int] = {}
    for path in templates(SHARED):
        source = path.read_text("utf-8")
        began = process_time()
        try:
            found = derive(compiled(source))  # with the time to compile it
        except NotRendered:
            continue
        if found.reason.startswith("the template shows no past calls"):
            continue
        seconds.append(process_time() - began)
        if found.fields is None:
            failed[path.stem] = found.reason
            continue
        shapes[found.fields["dialect"]] = shapes.get(found.fields["dialect"], 0) + 1
        wrong = misread(spec_of(found), source)
        if unexplained := wrong.keys() - BROKEN.get(path.stem, {}).keys():
            failed[path.stem] = f"misreads {sorted(unexplained)}"
    with capsys.disabled():
        told = ", ".join(f"{dialect} {count}" for dialect, count in sorted(shapes.items()))
        print(f"\nderived without built-in formats: {len(seconds) - len(failed)} of {len(seconds)} ({told})")
        print(f"CPU for a template: median {1000 * median(seconds):.0f} ms, at most {1000 * max(seconds):.0f} ms")
        for name, reason in failed.items():
            print(f"  {name}: {NOT_DERIVED.get(name) or next(iter(BROKEN.get(name, {'': reason}).values()))}")
    assert failed.keys() <= NOT_DERIVED.keys() | BROKEN.keys(), failed


ROWS: dict[str, str] = {
    "apertus-llamacpp": "lcpp-Apertus-8B-Instruct",
    "apriel-": "lcpp-Apriel-1.6-15b-Thinker-fixed",
    "cohere2-": "lcpp-Cohere2MoE",
    "command_r7b-": "lcpp-CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "functionary_v31-": "lcpp-meetkai-functionary-medium-v3.1",
    "internlm2-": "vllm-internlm2_tool",
    "jamba-": "axolotl-jamba",
    "kimi_k3-": "lcpp-Kimi-K3",
}
"""By the beginning of the ids of rows, the template of the model."""
GIGACHAT = (OWN / "gigachat3.jinja").read_text("utf-8")
GIGACHAT_3 = GIGACHAT.replace("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n")


def source_of(row: Row) -> str | None:
    """The template of the model that wrote the row; None for families that had a format before."""
    if any("template:GigaChat3" in flag for flag in row["flags"]):
        return GIGACHAT if "<|function_call|>" in row["input_text"] else GIGACHAT_3
    name = next((name for begin, name in ROWS.items() if row["id"].startswith(begin)), None)
    return None if name is None else (SHARED / f"{name}.jinja").read_text("utf-8")


@needs_templates
@needs_tables
def test_rows_of_models_read_by_derived_formats_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows that no format read before these families had one: what their models write, and templates don't show."""
    wrong: dict[str, str] = {}
    count = 0
    for row in rows(TABLES / "messages.jsonl"):
        if (source := source_of(row)) is None:
            continue
        verdict = judge(row, derived(source), SOURCES.get(row["id"], AS_IT_STANDS), random_splits=3)
        assert not verdict.split
        count += 1
        if verdict.wrong:
            wrong[row["id"]] = EXCEPTIONS.get(row["id"], "") or verdict.wrong
    with capsys.disabled():
        print(f"\nrows read by derived formats alone: {count - len(wrong)} of {count}")
        print(*(f"  {row}: {said}" for row, said in wrong.items()), sep="\n")
    assert count == 49
    assert len(wrong) <= 5
    assert wrong.keys() <= EXCEPTIONS.keys()


@cache
def derived(source: str) -> FormatSpec:
    return spec_of(derive(renderer(source)))
