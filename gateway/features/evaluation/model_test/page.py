"""The report as one self-contained HTML file: figures, SVG, and changed cases with both outputs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from gateway.features.evaluation.model_test.cases import Json
from gateway.features.evaluation.model_test.compare import Gate
from gateway.features.evaluation.model_test.judge import KINDS, blame
from gateway.features.evaluation.model_test.stats import wilson
from gateway.features.evaluation.model_test.table import table

Samples = Mapping[str, Sequence[Json]]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.verdict { display: inline-block; padding: .2rem .7rem; border-radius: .3rem; color: #fff; font-weight: 600; }
.good { background: #2e7d4f; } .bad { background: #b3382c; } .none { background: #5b6875; }
pre { background: #f4f6f8; padding: .8rem; overflow-x: auto; font-size: 12.5px; line-height: 1.4; }
table { border-collapse: collapse; width: 100%; } td, th { border-bottom: 1px solid #dde3e9; padding: .35rem .5rem;
text-align: left; vertical-align: top; }
td:first-child { white-space: nowrap; } td pre { margin: 0; padding: .4rem; white-space: pre-wrap; }
svg text { font: 12px system-ui, sans-serif; fill: #1d2733; } .muted { color: #5b6875; }
"""

PALETTE = (
    *("#c2554a", "#dd8452", "#e3b23c", "#7a9e5f", "#4c8c9b", "#5470a8", "#8a63a6", "#b05c8c", "#8c6d52", "#7b8794"),
    *("#9bb8c9", "#c9a69b"),
)
NOW, BEFORE = "#2f6fb0", "#a9b4bf"


def page(result: Json, gate: Gate, baseline: Json | None, now: Samples, before: Samples) -> str:
    """`now`, `before`: the samples of both runs by case, as far as they are at hand."""
    model = escape(result["target"]["model"])
    mark = "good" if gate.passed and baseline else "none" if gate.passed else "bad"
    parts = [
        f"<h1>{model}: calling tools</h1>",
        f'<p class="muted">suite {escape(result["suite"]["id"])}, {escape(result.get("created", ""))}</p>',
        f'<p><span class="verdict {mark}">{escape(gate.verdict)}</span></p>',
        "".join(f"<p>{escape(reason)}</p>" for reason in gate.reasons),
        "<h2>Accuracy, with 95 % intervals</h2>",
        accuracy(result["summary"], baseline["summary"] if baseline else None),
        "<h2>Why answers failed</h2>",
        failures(result["metrics"]["kinds"]),
        "<h2>Time of a case</h2>",
        times(result["cases"], baseline["cases"] if baseline else None),
        "<h2>All figures</h2>",
        f"<pre>{escape(table(result, gate, baseline))}</pre>",
    ]
    if baseline:
        parts += [_flips("Lost", gate.lost, now, before), _flips("Won", gate.won, now, before)]
    failed = [id for id, case in result["cases"].items() if case["s"] == "F" and id not in gate.lost]
    parts.append(_failed(failed, result["cases"], now))
    parts.append(f"<h2>How it was asked</h2><pre>{escape(_about(result))}</pre>")
    title = f"<title>model-test: {model}</title>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}<style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def accuracy(now: Json, before: Json | None) -> str:
    """A row for each category: a bar to the share, a whisker over its interval, the baseline below in grey."""
    names = [*(name for name in now if name != "overall"), "overall"]
    row, left, width = (30 if before else 22), 130, 620
    made = []
    for tick in range(0, 101, 20):
        x = left + width * tick / 100
        made.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{row * len(names)}" stroke="#e4e9ee"/>')
        made.append(f'<text x="{x}" y="{row * len(names) + 16}" text-anchor="middle">{tick} %</text>')
    for index, name in enumerate(names):
        y = index * row + 4
        bold = ' font-weight="700"' if name == "overall" else ""
        made.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end"{bold}>{escape(name)}</text>')
        made.append(_bar(now[name], left, width, y, 12, NOW))
        label = f"{now[name]['k']}/{now[name]['n']}"
        if before and name in before:
            made.append(_bar(before[name], left, width, y + 13, 7, BEFORE))
            label += f", was {before[name]['k']}/{before[name]['n']}"
        made.append(f'<text x="{left + width + 10}" y="{y + 11}">{label}</text>')
    return _svg(left + width + 150, row * len(names) + 24, made)


def _bar(share: Json, left: float, width: float, y: float, height: float, colour: str) -> str:
    low, high = wilson(share["k"], share["n"])
    rate = share["k"] / share["n"] if share["n"] else 0
    middle = y + height / 2
    ends = "".join(
        f'<line x1="{left + width * x:.1f}" x2="{left + width * x:.1f}" y1="{middle - 3}" y2="{middle + 3}"/>'
        for x in (low, high)
    )
    return (
        f'<rect x="{left}" y="{y}" width="{width * rate:.1f}" height="{height}" fill="{colour}"/>'
        f'<g stroke="#1d2733" stroke-width="1.2"><line x1="{left + width * low:.1f}" x2="{left + width * high:.1f}" '
        f'y1="{middle}" y2="{middle}"/>{ends}</g>'
    )


def failures(kinds: Mapping[str, int]) -> str:
    """One bar of all failures, in the order in which they are looked for, and whose fault each kind is."""
    total = sum(kinds.values())
    if not total:
        return "<p>None did.</p>"
    ordered = [kind for kind in KINDS if kind in kinds]
    made, x, width = [], 0.0, 780
    for index, kind in enumerate(ordered):
        part = width * kinds[kind] / total
        colour = PALETTE[index % len(PALETTE)]
        made.append(f'<rect x="{x:.1f}" y="0" width="{part:.1f}" height="26" fill="{colour}" stroke="#fff"/>')
        column, line = index % 3, index // 3
        at, y = column * 270, 48 + line * 20
        made.append(f'<rect x="{at}" y="{y - 10}" width="11" height="11" fill="{colour}"/>')
        made.append(f'<text x="{at + 17}" y="{y}">{escape(kind)} {kinds[kind]} ({blame(kind)})</text>')
        x += part
    return _svg(width + 30, 54 + 20 * ((len(ordered) + 2) // 3), made)


def times(now: Mapping[str, Json], before: Mapping[str, Json] | None) -> str:
    """The share of cases that were answered within a time."""
    curves = [("this run", NOW, _sorted_ms(now)), ("baseline", BEFORE, _sorted_ms(before or {}))]
    curves = [(name, colour, values) for name, colour, values in curves if len(values) > 1]
    if not curves:
        return "<p>Not measured: times are only told of runs that ask one case at a time.</p>"
    maximum = max(values[-1] for _, _, values in curves)
    left, width, height = 50, 700, 200
    made = []
    for tick in range(5):
        x, y = left + width * tick / 4, height - height * tick / 4
        made.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#e4e9ee"/>')
        made.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{25 * tick} %</text>')
        made.append(f'<text x="{x}" y="{height + 18}" text-anchor="middle">{maximum * tick / 4000:.2f} s</text>')
    for index, (name, colour, values) in enumerate(curves):
        points = [(float(left), float(height))]
        for rank, value in enumerate(values, 1):
            x = left + width * value / maximum
            points += [(x, points[-1][1]), (x, height - height * rank / len(values))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        made.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        place = f'x="{left + width - 8}" y="{height - 12 - 18 * index}" text-anchor="end"'
        made.append(f'<text {place} style="fill:{colour}">{name}</text>')
    return _svg(left + width + 40, height + 28, made)


def _sorted_ms(cases: Mapping[str, Json]) -> list[float]:
    return sorted(case["ms"] for case in cases.values() if case.get("ms"))


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 -6 {width} {height + 10}" width="100%" style="max-width:{width}px"'
    return f'<svg {box} xmlns="http://www.w3.org/2000/svg" role="img">{"".join(parts)}</svg>'


def _flips(title: str, ids: Sequence[str], now: Samples, before: Samples) -> str:
    if not ids:
        return ""
    rows = "".join(
        f"<tr><td>{escape(id)}</td><td>{_outputs(before.get(id, ()))}</td><td>{_outputs(now.get(id, ()))}</td></tr>"
        for id in ids
    )
    heads = "<tr><th>case</th><th>baseline</th><th>this run</th></tr>"
    return f"<h2>{title}: {len(ids)}</h2><table>{heads}{rows}</table>"


def _failed(ids: Sequence[str], cases: Mapping[str, Json], now: Samples) -> str:
    if not ids:
        return ""
    rows = "".join(
        f"<tr><td>{escape(id)}</td><td>{escape(cases[id]['k'])}</td><td>{_outputs(now.get(id, ()))}</td></tr>"
        for id in ids
    )
    heads = "<tr><th>case</th><th>kind</th><th>answer</th></tr>"
    return f"<h2>Failed: {len(ids)}</h2><details><summary>show</summary><table>{heads}{rows}</table></details>"


def _outputs(samples: Sequence[Json]) -> str:
    if not samples:
        return '<span class="muted">not at hand: a baseline keeps no outputs</span>'
    made = []
    for sample in samples:
        lines = [f"{sample['way']}: {sample['status']} {sample.get('kind') or ''} {sample.get('detail') or ''}".strip()]
        for answer in sample["answers"]:
            lines += [f"→ {call['name']}({call['arguments']})" for call in answer.get("calls", ())]
            if answer.get("content"):
                lines.append(answer["content"][:600])
        made.append(f"<pre>{escape(chr(10).join(lines))}</pre>")
    return "".join(made)


def _about(result: Json) -> str:
    kept = {key: result.get(key) for key in ("target", "request", "suite", "checker", "host", "tool", "created")}
    return json.dumps(kept, indent=1, ensure_ascii=False)
