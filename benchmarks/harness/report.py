"""From rounds of readings to medians, goals and the table. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Round = Mapping[str, float]
"""One reading of each column, by its key."""


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    digits: int


PACED = (8, 32, 128)
COLUMNS = (
    Column("request", "CPU µs a request", 1),
    *(Column(f"paced_{n}", f"CPU µs a chunk, {n} paced streams", 1) for n in PACED),
    Column("unpaced", "CPU µs a chunk, unpaced", 1),
    Column("ttft", "TTFT added, ms", 2),
    Column("start", "spawn → first 200, s", 3),
    Column("start_edited", "the same after an edit of the configuration, s", 3),
    Column("rss", "RSS after load, MB", 0),
)


@dataclass(frozen=True)
class Goal:
    """`value` must be at most, at least or below `limit`; None where it was not measured."""

    text: str
    value: float | None
    rule: Literal["<=", ">=", "<"]
    limit: float | None

    @property
    def met(self) -> bool | None:
        if self.value is None or self.limit is None:
            return None
        if self.rule == "<=":
            return self.value <= self.limit
        return self.value >= self.limit if self.rule == ">=" else self.value < self.limit

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        if self.value is None or self.limit is None:
            return f"- {verdict}: {self.text}"
        return f"- {verdict}: {self.text}: {self.value:.3g} (goal {self.rule} {self.limit:.3g})"


def medians(rounds: Sequence[Round]) -> dict[str, float]:
    """Median of each reading over the rounds."""
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def spread(values: Sequence[float]) -> float:
    """Distance between the quartiles relative to the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


def goals(results: Mapping[str, Round]) -> list[Goal]:
    """The gateway's goals, judged on the medians of each stack by name."""

    def of(stack: str, key: str) -> float | None:
        return results.get(stack, {}).get(key)

    found = [
        Goal("a request, x nginx", ratio(of("ctxgate", "request"), of("nginx", "request")), "<=", 4),
        Goal("a request, LiteLLM / ctxgate", ratio(of("litellm", "request"), of("ctxgate", "request")), ">=", 200),
    ]
    for key, streams in (("paced_32", 32), ("paced_128", 128)):
        ours, name = of("ctxgate", key), f"a chunk, {streams} paced streams"
        found.append(Goal(f"{name}, x nginx", ratio(ours, of("nginx", key)), "<=", 2))
        found += [Goal(f"{name}, µs, against {peer}", ours, "<", of(peer, key)) for peer in ("vllm-router", "smg")]
    found.append(Goal("spawn → first 200, s", of("ctxgate", "start"), "<=", 0.3))
    found.append(Goal("RSS after load, MB", of("ctxgate", "rss"), "<=", 60))
    return found


def table(labels: Mapping[str, str], results: Mapping[str, Round], failures: Mapping[str, str]) -> str:
    """Markdown, one row a stack in the order of `labels`; below it, why a stack has no figures."""
    nginx = results.get("nginx", {}).get("request")
    rows = [["stack", *(column.title for column in COLUMNS)]]
    for name, label in labels.items():
        if name not in results:
            rows.append([label, *["not measured"] * len(COLUMNS)])
            continue
        cells = [f"{results[name][c.key]:,.{c.digits}f}" if c.key in results[name] else "" for c in COLUMNS]
        times = ratio(results[name].get("request"), nginx)
        if times is not None:
            cells[0] += f" ({times:.1f}x)"
        rows.append([label, *cells])
    width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = ["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])]
    lines = [[row[0].ljust(width[0]), *(cell.rjust(w) for cell, w in zip(row[1:], width[1:], strict=True))]
             for row in (rows[0], rule, *rows[1:])]  # fmt: skip
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text + "".join(f"\n\n{labels[name]} was not measured: {why}" for name, why in failures.items())
