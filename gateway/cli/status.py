"""`ctxgate status`"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

from gateway.cli.running import Running, add_url

DESCRIPTION = "Shows what the running gateway does: its models, their engines, what is asked of them. Ends with Ctrl-C."
EXAMPLES = """\
examples:
  ctxgate status                   a live table
  ctxgate status --once            one, as a pipe gets it too
  ctxgate status --json | jq -r '.models[] | select(.state == "ready") | .name'
"""

HOME_AND_CLEAR = "\x1b[H\x1b[J"
BETWEEN = 0.5
"""Seconds between the two looks that tell how fast tokens come."""
HEAD = ("MODEL", "STATE", "PID", "MEMORY", "IN FLIGHT", "QUEUE", "TOKENS/S", "ANSWERED", "FAILED")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one table, and that's it")
    parser.add_argument("--json", action="store_true", help="once, for programs")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (default: 1)")
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    with Running(args) as running, contextlib.suppress(KeyboardInterrupt):
        if args.json:
            print(json.dumps(running.ask("GET", "/-/status"), indent=2))
            return 0
        before, now = None, running.ask("GET", "/-/status")
        began = time.monotonic()
        live = sys.stdout.isatty() and not args.once
        while True:
            if live:
                print(HOME_AND_CLEAR, end="")
            elif any(model["in_flight"] for model in now["models"]):
                time.sleep(BETWEEN)
                before, now = now, running.ask("GET", "/-/status")
            print("\n".join(table(now, before, time.monotonic() - began)), flush=True)
            if not live:
                return 0
            time.sleep(max(0.1, args.interval))
            before, now, began = now, running.ask("GET", "/-/status"), time.monotonic()
    return 0


def table(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> list[str]:
    """before: what the gateway said `seconds` earlier, for what comes in a second."""
    earlier = {model["name"]: model["generated"] for model in before["models"]} if before else {}
    rows = [HEAD]
    for model in now["models"]:
        engine = model["engine"] or {}
        rate = (model["generated"] - earlier[model["name"]]) / seconds if model["name"] in earlier else 0.0
        failed = model["requests"] - model["outcomes"].get("ok", 0) - model["outcomes"].get("client_left", 0)
        rows.append(
            (
                f"{'*' if model['active'] else ' '} {model['name']}",
                model["state"],
                str(engine.get("pid") or "-"),
                _size(engine.get("resident_bytes", 0)),
                str(model["in_flight"]),
                str(model["waiting"]),
                f"{rate:.0f}" if rate else "-",
                str(model["requests"] - failed),
                str(failed),
            )
        )
        for replica in model["replicas"]:
            state = "healthy" if replica["healthy"] else "left out"
            rows.append((f"    {replica['url']}", state, "-", "-", str(replica["in_flight"]), "-", "-", "-", "-"))
    for route in now["leaving"]:
        rows.append(
            (f"  {route['name']} (before)", "draining", str(route["pid"] or "-"), "-", str(route["in_flight"]))
            + ("-",) * 4
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) if at < 2 else cell.rjust(width) for at, (cell, width) in enumerate(cells)).rstrip()
        for row in rows
        for cells in [list(zip(row, widths, strict=True))]
    ]
    for model in now["models"]:
        for key in ("failure", "note"):
            if text := (model["engine"] or {}).get(key):
                lines += ["", f"{model['name']}: {text}"]
    config = now["config"]
    lines += ["", f"ctxgate {now['version']}, pid {now['pid']}, {_size(now['resident_bytes'])}, {config['file']}"]
    if config["needs_restart"]:
        lines.append(f"takes effect when the gateway is started again: {', '.join(config['needs_restart'])}")
    if config["problems"]:
        lines += ["the file has mistakes, so the last good one is served:", *config["problems"]]
    return lines


def _size(count: int) -> str:
    if not count:
        return "-"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
