"""`ctxgate status`"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.client import RunningGateway, foreign
from gateway.cli.options import Command, Finite, config_option, json_option, port_option, url_option
from gateway.cli.text import say
from gateway.config import find
from gateway.config.loader import NoConfig
from gateway.wire.text import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    Row = tuple[str, ...]

EXAMPLES = """\
examples:
  ctxgate status                   a live table
  ctxgate status --once            one table, as in a pipe
  ctxgate status --json | jq -r '.models[] | select(.state == "ready") | .name'
"""

RATE_SECONDS = 0.5
"""Between the two samples from which a single table computes tokens per second."""
SHORTEST_INTERVAL = 0.1
HEAD = ("MODEL", "STATE", "PID", "MEMORY", "IN FLIGHT", "QUEUE", "TOKENS/S", "ANSWERED", "FAILED")
GPU = "GPU MEMORY"
NODES = ("NODE", "ADDRESS", "STATE", "CPUS", "MEMORY FREE", "GPU MEMORY FREE", "ENGINES", "LABELS")


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@url_option
@port_option
@click.option("--once", is_flag=True, help="Print one table and exit.")
@json_option
@click.option(
    "--interval", type=Finite(0, 86_400), default=1.0, metavar="SECONDS", help="Time between updates (default: 1)."
)
def status(config: Path | None, url: str | None, port: int | None, once: bool, as_json: bool, interval: float) -> None:
    """Shows what the running gateway does: its models, their engines and requests. Ctrl-C ends it.

    Finds a gateway that was started with another --port or --uds by itself.
    """
    with RunningGateway(config, url, port, find=True) as gateway, contextlib.suppress(KeyboardInterrupt):
        if url is None and config is None and not as_json:
            _tell_whose(gateway)
        if as_json:
            say(json.dumps(gateway.ask("GET", "/-/status"), indent=2))
        elif once or not sys.stdout.isatty():
            _once(gateway)
        else:
            _live(gateway, max(SHORTEST_INTERVAL, interval))


def _tell_whose(gateway: RunningGateway) -> None:
    """Where it isn't that of the configuration here."""
    with contextlib.suppress(NoConfig):
        if (other := foreign(gateway.ask("GET", "/-/status"), find())) is not None:
            say(f"ctxgate: the gateway at {gateway.url} has another configuration: {other}", file=sys.stderr)


def _once(gateway: RunningGateway) -> None:
    from gateway.cli.table import show

    before, now, began = None, gateway.ask("GET", "/-/status"), time.monotonic()
    if any(model["in_flight"] for model in now["models"]):
        time.sleep(RATE_SECONDS)
        before, now = now, gateway.ask("GET", "/-/status")
    show(_page(now, before, time.monotonic() - began))


def _live(gateway: RunningGateway, interval: float) -> None:
    from rich.live import Live

    from gateway.cli.table import console

    now, began = gateway.ask("GET", "/-/status"), time.monotonic()
    with Live(_page(now, None, 0), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            before, now = now, gateway.ask("GET", "/-/status")
            live.update(_page(now, before, time.monotonic() - began), refresh=True)
            began = time.monotonic()


def _page(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> Group:
    """The table and the lines below it. `before`: the answer `seconds` earlier, from which rates are computed."""
    from rich.console import Group

    from gateway.cli.table import table

    generated = {model["name"]: model["generated"] for model in before["models"]} if before else {}
    rows: list[Row] = []
    for model in now["models"]:
        name = model["name"]
        rate = (model["generated"] - generated[name]) / seconds if name in generated else 0.0
        rows.append(_row(model, rate))
        rows += [_replica_row(replica) for replica in model["replicas"]]
    rows += [_draining_row(route) for route in now["leaving"]]
    head: Row = HEAD
    if any((model["engine"] or {}).get("gpu_bytes") for model in now["models"]):
        head, rows = _with_gpu(now, rows)
    return Group(table(head, rows, right=head[2:]), *_nodes(now.get("cluster")), *notes(now))


def _with_gpu(now: dict[str, Any], rows: list[Row]) -> tuple[Row, list[Row]]:
    """A column for the memory on GPUs: what the driver says, of what the model's share of the budget is."""
    shown = {_marked(model): _gpu(model["engine"] or {}) for model in now["models"]}
    at = HEAD.index("MEMORY") + 1
    return (*HEAD[:at], GPU, *HEAD[at:]), [(*row[:at], shown.get(row[0], "-"), *row[at:]) for row in rows]


def _gpu(engine: dict[str, Any]) -> str:
    if not engine.get("gpu_bytes"):
        return "-"
    seen = engine["gpu_seen_bytes"]
    return f"{'?' if seen is None else _size(seen)} of {_size(engine['gpu_bytes'])}"


def _marked(model: dict[str, Any]) -> str:
    return f"{'*' if model['active'] else ' '} {model['name']}"


def _nodes(cluster: dict[str, Any] | None) -> list[Table | str]:
    """The machines of the cluster, and what is wrong with it."""
    from gateway.cli.table import table

    if cluster is None:
        return []
    rows = [
        (
            f"{node['host']} {node['id'][:8]}",
            node["address"],
            "alive" if node["alive"] else "gone",
            f"{node['cpus']:g}",
            _free(node["used"], node["memory"]) if node["alive"] else "-",
            _free(node["gpu_used"], node["gpu_memory"]) if node["alive"] and node["gpu_memory"] else "-",
            ", ".join(node["engines"]) or "-",
            ", ".join(f"{name}={value}" for name, value in node["labels"].items()) or "-",
        )
        for node in cluster["nodes"]
    ]
    lines: list[Table | str] = ["", table(NODES, rows, right=("CPUS", "MEMORY FREE", "GPU MEMORY FREE"))]
    lines += ["", printable(f"gateways: {', '.join(cluster['gateways'])}")]
    if not cluster["store"]:
        lines.append("PostgreSQL is down: chats continue, requests that need state get 503")
    if not cluster["ray"]:
        lines.append("Ray is down: running engines keep working, no others start")
    return lines


def _row(model: dict[str, Any], rate: float) -> Row:
    engine = model["engine"] or {}
    failed = model["requests"] - model["outcomes"].get("ok", 0) - model["outcomes"].get("client_left", 0)
    return (
        _marked(model),
        model["state"],
        str(engine.get("pid") or "-"),
        _size(engine.get("resident_bytes", 0)),
        str(model["in_flight"]),
        str(model["waiting"]),
        f"{rate:.0f}" if rate else "-",
        str(model["requests"] - failed),
        str(failed),
    )


def _replica_row(replica: dict[str, Any]) -> Row:
    state = "healthy" if replica["healthy"] else "left out"
    return (f"    {replica['url']}", state, "-", "-", str(replica["in_flight"]), "-", "-", "-", "-")


def _draining_row(route: dict[str, Any]) -> Row:
    in_flight = str(route["in_flight"])
    return (f"  {route['name']} (before)", "draining", str(route["pid"] or "-"), "-", in_flight, "-", "-", "-", "-")


def notes(now: dict[str, Any]) -> list[str]:
    lines = []
    for model in now["models"]:
        if model["waiting"]:
            lines += ["", f"{model['name']}: {waiting_text(model)}"]
        lines += [f"{model['name']}: {queued_text(told)}" for told in model.get("queued", ())]
        for key in ("failure", "note"):
            if text := (model["engine"] or {}).get(key):
                lines += ["", f"{model['name']}: {text}"]
    config = now["config"]
    lines += ["", f"ctxgate {now['version']}, pid {now['pid']}, {_size(now['resident_bytes'])}, {config['file']}"]
    if config["needs_restart"]:
        lines.append(f"takes effect when the gateway restarts: {', '.join(config['needs_restart'])}")
    if config["problems"]:
        lines += ["the file has mistakes, so the gateway keeps the last good version:", *config["problems"]]
    return [printable(line) for line in lines]


_WAITING = {
    "memory": "for memory",
    "drain": "for the engine's last answers to end",
    "back-off": "for the next try of an engine that failed",
    "load": "for the weights to load",
    "place": "for a free slot",
    "slot": "for a free slot",
    "prefix": "until what it shares with others is read",
}


def queued_text(told: str) -> str:
    """told: `queued for=slot reads=1912 left=8`."""
    values = dict(pair.split("=", 1) for pair in told.split()[1:])
    reads = f"reads {int(values['reads']):,} tokens, {values['left']} s left"
    return f"1 request waits {_WAITING.get(values['for'], '')}: {reads}"


def waiting_text(model: dict[str, Any]) -> str:
    count, holders = model["waiting"], model["held_by"]
    text = "1 request waits" if count == 1 else f"{count} requests wait"
    if model["waits_for"]:
        text += f" {_WAITING[model['waits_for']]}"
    if holders:
        text += f" that {' and '.join(holders)} hold{'s' if len(holders) == 1 else ''}"
    tiers = ", ".join(f"{number} {tier}" for tier, number in model["waiting_tiers"].items() if number)
    aside = f" ({model['put_aside']} put aside)" if model["put_aside"] else ""
    return f"{text}, the first for {model['waited']:.0f} s: {tiers}{aside}"


def _free(used: int, total: int) -> str:
    return f"{_size(max(0, total - used))} of {_size(total)}"


def _size(count: int) -> str:
    if not count:
        return "-"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
