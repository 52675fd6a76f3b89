"""Lets Ollama pull a model of its library."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from gateway.config import Model, PullSource
from gateway.errors import ProviderInvalidModel, ProviderInvalidResponse, ProviderUnavailable
from gateway.features.models.places import urls
from gateway.features.models.pull.progress import Progress
from gateway.features.models.pull.stopping import HOOKS

SILENCE = 600.0
"""Seconds without a line: Ollama sends nothing while it verifies tens of gigabytes."""


def fetch(model: Model, source: PullSource, progress: Progress) -> None:
    """Of a model with replicas, each Ollama gets it, one after the other."""
    for base in urls(model):
        _fetch(base, model.uds, source, progress)


def _fetch(base: str, uds: Path | None, source: PullSource, progress: Progress) -> None:
    transport = httpx.HTTPTransport(uds=str(uds)) if uds is not None else None
    where = str(uds or base)
    timeout = httpx.Timeout(SILENCE, connect=5)
    done = False
    try:
        with (
            httpx.Client(transport=transport, timeout=timeout, trust_env=False, event_hooks=HOOKS) as http,
            http.stream("POST", f"{base}/api/pull", json={"model": source.name, "stream": True}) as response,
        ):
            if response.is_error:
                response.read()
                raise _failed(source, _text(response.content))
            for line in response.iter_lines():
                if line.strip():
                    done = _line(line, source, progress)
    except httpx.ConnectError as error:
        raise ProviderUnavailable(f"Ollama isn't running at {where}: start it with `ollama serve`") from error
    except httpx.HTTPError as error:
        raise ProviderUnavailable(
            f"Ollama at {where} went away ({str(error) or type(error).__name__}); pull again to continue"
        ) from error
    if not done:
        raise ProviderInvalidResponse(f"Ollama ended the pull of {source.name} without success; pull again to continue")


def _line(line: str, source: PullSource, progress: Progress) -> bool:
    """Handles a line `{status, digest?, total?, completed?}` or `{error}`; returns whether the status is success."""
    try:
        event = json.loads(line)
    except ValueError as error:
        raise ProviderInvalidResponse(f"Ollama sent a line that isn't JSON: {line[:100]!r}") from error
    if not isinstance(event, dict):
        raise ProviderInvalidResponse(f"Ollama sent a line that isn't an object: {line[:100]!r}")
    if "error" in event:
        raise _failed(source, str(event["error"]))
    status, total = str(event.get("status", "")), event.get("total")
    if isinstance(total, int) and total:
        layer = str(event.get("digest", "")).removeprefix("sha256:")[:12]
        progress(f"{source.name} {layer}", event.get("completed", 0), total)
    return status == "success"


def _text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _failed(source: PullSource, reason: str) -> ProviderInvalidModel | ProviderUnavailable:
    if "not exist" in reason or "not found" in reason:
        return ProviderInvalidModel(f"Ollama's library has no {source.name} ({reason})")
    return ProviderUnavailable(f"Ollama can't pull {source.name}: {reason}")
