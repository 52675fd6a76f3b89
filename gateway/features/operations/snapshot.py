"""The state of the gateway, as plain values, for `/-/status`."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec.structs import asdict

from gateway import __version__
from gateway.core import Gateway, Route
from gateway.core.reload import Reloader
from gateway.engines import EngineSnapshot
from gateway.wire.chat import TIERS


def snapshot(gateway: Gateway, reloader: Reloader | None) -> dict[str, Any]:
    """The state at one moment. Counts are since the start, sizes in bytes, durations in seconds."""
    return {
        "version": __version__,
        "pid": os.getpid(),
        "resident_bytes": _resident(),
        "config": {
            "file": str(gateway.config.source),
            "applied_at": reloader.applied_at if reloader is not None else None,
            "reloads": reloader.reloads if reloader is not None else 0,
            "problems": [str(problem) for problem in reloader.problems] if reloader is not None else [],
            "needs_restart": list(reloader.pending) if reloader is not None else [],
        },
        "prompts": {"saved": len(gateway.prompts), "bytes": gateway.prompts.size},
        "models": [_model(gateway, name, route) for name, route in gateway.routes.items()],
        "leaving": [_leaving(route) for route in gateway.leaving.values()],
        "cluster": gateway.pool.status() if gateway.pool is not None else None,
    }


def _resident() -> int:
    """Resident memory of this process; 0 on systems without /proc."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _model(gateway: Gateway, name: str, route: Route) -> dict[str, Any]:
    stats = gateway.request_log.stats(name)
    status = route.engine.status() if route.engine is not None else None
    engine = asdict(status) if status is not None else None
    return {
        "name": name,
        "active": name == gateway.config.active_model,
        "runtime": route.model.runtime,
        "state": engine["state"] if engine is not None else _external(route),
        "in_flight": route.requests.count,
        **waiting(route, status),
        "queued": _queued(route),
        "requests": sum(stats.outcomes.values()),
        "outcomes": stats.outcomes,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "restored_tokens": stats.restored_tokens,
        "seconds_saved": round(stats.seconds_saved, 3),
        "completion_tokens": stats.completion_tokens,
        "calls": stats.calls,
        "units": stats.units,
        # About as many tokens, those of running streams included.
        "generated": stats.generated + sum(run.answer.chunks for run in route.requests.runs),
        "engine": engine,
        "replicas": [
            {"url": replica.url, "healthy": replica.healthy, "in_flight": replica.in_flight}
            for replica in route.server.replicas()
        ],
    }


def _queued(route: Route) -> list[str]:
    """What requests wait for that lack only a slot or a prefix, in the words of `Serving.describe`."""
    return [told for request, _ in route.requests.queued() if " reads=" in (told := request.serving.describe())]


def waiting(route: Route, engine: EngineSnapshot | None) -> dict[str, Any]:
    """The requests that wait for the model: in its engine's queue or, if flex, for a server that we don't start."""
    if engine is not None:
        return {name: getattr(engine, name) for name in _WAITING}
    line = route.line
    count = len(line) if line else 0
    return {
        "waiting": count,
        "waiting_tiers": {tier: count if tier == "flex" else 0 for tier in TIERS},
        "put_aside": 0,
        "waits_for": "place" if count else None,
        "waited": monotonic() - line.since if line else 0.0,
        "held_by": (),
    }


_WAITING = ("waiting", "waiting_tiers", "put_aside", "waits_for", "waited", "held_by")


def _external(route: Route) -> str:
    if route.server.replicas():
        return f"{sum(replica.healthy for replica in route.server.replicas())} of {len(route.server.replicas())}"
    return "external" if route.model.runtime != "echo" else "built in"


def _leaving(route: Route) -> dict[str, Any]:
    pid = route.engine.pid if route.engine is not None else None
    waits = waiting(route, None)["waiting"]  # at an engine of ours, the route that took it over tells
    return {"name": route.model.name, "in_flight": route.requests.count, "waiting": waits, "pid": pid}
