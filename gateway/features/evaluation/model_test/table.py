"""Results as text for a terminal. Pure."""

from __future__ import annotations

from gateway.features.evaluation.model_test.cases import Json
from gateway.features.evaluation.model_test.compare import Gate, Test
from gateway.features.evaluation.model_test.results import shown
from gateway.features.evaluation.model_test.stats import wilson


def table(result: Json, gate: Gate, baseline: Json | None) -> str:
    lines = [_head(result, baseline), ""]
    if not result["complete"]:
        return "\n".join([*lines, incomplete(result)])
    tests = {test.name: test for test in gate.tests}
    rows: list[tuple[str, ...]] = [("category", "pass", "", "95 % CI", "baseline", "Δ pts", "95 % CI", "p(worse)", "")]
    summary = result["summary"]
    for name in (*(name for name in summary if name != "overall"), "overall"):
        k, n = summary[name]["k"], summary[name]["n"]
        low, high = wilson(k, n)
        cells = [name.upper() if name == "overall" else name, f"{k}/{n}", f"{100 * k / n:.1f} %" if n else "-"]
        cells.append(f"[{100 * low:.0f}–{100 * high:.0f}]")
        rows.append((*cells, *_against(tests.get(name), baseline, name)))
    for name in ("format", "abstention"):
        if name in tests:
            test = tests[name]
            rows.append((name, "", f"{test.candidate:.1f} %", "", *_against(test, None, name)))
    if baseline is None and not tests:
        rows = [row[:4] for row in rows]  # nothing to compare with
    lines += _aligned(rows)
    lines += ["", *_figures(result), "", *_verdict(gate)]
    return "\n".join(lines)


def incomplete(result: Json) -> str:
    asked, errors = result["asked"], result["errors"]
    lines = [f"INCOMPLETE: {asked['k']} of {asked['n']} asked, {len(errors)} without a usable answer. No score."]
    lines += [f"  {error['case']} ({error['way']}): {error['kind']}: {error['detail']}" for error in errors[:5]]
    if len(errors) > 5:
        lines.append(f"  and {len(errors) - 5} more")
    return "\n".join(lines)


def _head(result: Json, baseline: Json | None) -> str:
    target, suite = result["target"], result["suite"]
    parts = [f"model {target['model']}"]
    if "tool_call_format" in target:
        parts.append(f"{target['runtime']}, {target['tool_call_format']}")
    parts.append(f"suite {suite['id']}@{suite['version']}, {suite['n']} cases, stream {result['request']['stream']}")
    if baseline is not None:
        name = baseline.get("name") or baseline["target"]["model"]
        parts.append(f"baseline {name} ({baseline.get('created', '')[:10]})")
    return "   ".join(parts)


def _against(test: Test | None, baseline: Json | None, name: str) -> tuple[str, str, str, str, str]:
    share = (baseline or {}).get("summary", {}).get(name)
    before = f"{share['k']}/{share['n']}" if share else f"{test.baseline:.1f} %" if test else ""
    if test is None:
        return before, "", "", "", ""
    interval = f"[{test.low:+.1f}, {test.high:+.1f}]"
    word = "REGRESSION" if test.regression else ""
    return before, f"{test.difference:+.1f}", interval, f"{test.p_worse:.3f}", word


def _figures(result: Json) -> list[str]:
    metrics = result["metrics"]
    arguments = metrics["arguments"]
    lines = [
        f"as BFCL compares strings {shown(metrics['folded'])} · mean of categories {shown(metrics['macro'])}",
        f"well-formed {shown(metrics['well_formed'])} · schema-valid {shown(metrics['schema_valid'])} · "
        f"right tools {shown(metrics['selection'])} · right number {shown(metrics['call_count'])}",
        f"to call or not: {shown(metrics['balanced'])} (quiet where due {shown(metrics['specificity'])}, "
        f"calls where due {shown(metrics['call_recall'])})",
        f"arguments: precision {shown(arguments['precision'])}, recall {shown(arguments['recall'])}, "
        f"invented {shown(arguments['invented'])}",
    ]
    ways = [f"{way} {shown(value)}" for way, value in metrics["ways"].items() if value["n"]]
    lines.append(f"asked {', '.join(ways)}; both agree {shown(metrics['parity'])}")
    if metrics["chains"]["n"]:
        progress = shown(metrics["chain_progress"])
        lines.append(f"chains completed {shown(metrics['chains'])}, steps of a chain {progress}")
    if metrics["kinds"]:
        kinds = " · ".join(f"{kind} {count}" for kind, count in metrics["kinds"].items())
        blame = ", ".join(f"{who} {count}" for who, count in metrics["blame"].items())
        lines += [f"failures: {kinds}", f"by fault of: {blame}"]
    if "flips" in metrics:
        lines.append(
            f"repeated: outcome differs {shown(metrics['flips'])}, words differ {shown(metrics['other_words'])}, "
            f"always passed {shown(metrics['always_passed'])}"
        )
    if latency := metrics.get("latency"):
        lines.append(f"time: {_times(latency)}")
    if result.get("errors"):
        lines.append(f"without an answer: {len(result['errors'])}")
    return lines


def _times(latency: Json) -> str:
    names = {"ms": "answer", "ttft_ms": "first token", "first_call_ms": "first whole call"}
    parts = [
        f"{label} p50 {latency[name]['p50'] / 1000:.2f} s, p95 {latency[name]['p95'] / 1000:.2f} s"
        for name, label in names.items()
        if name in latency
    ]
    if speed := latency.get("tokens_per_s"):
        parts.append(f"{speed['p50']:.0f} tokens/s")
    return " · ".join(parts)


def _verdict(gate: Gate) -> list[str]:
    lines = [gate.verdict.upper()]
    lines += [f"  {reason}" for reason in gate.reasons]
    if gate.tests:
        lines.append(f"  {gate.pairs} pairs, {len(gate.lost)} lost, {len(gate.won)} won, {gate.dropped} without a pair")
        lines.append(f"  {gate.sees}")
    if gate.lost:
        lines.append(f"  lost: {', '.join(gate.lost[:20])}{' …' if len(gate.lost) > 20 else ''}")
    if gate.latency:
        latency = gate.latency
        warning = ": SLOWER" if latency["slower"] else ""
        interval = f"[{latency['low']:.2f}, {latency['high']:.2f}]"
        lines.append(f"  time: {latency['ratio']:.2f} times the baseline's {interval}{warning}")
    lines += [f"  changed: {change}" for change in gate.changed]
    return lines


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 8) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
