"""`ctxgate models`"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.client import PROBE_SECONDS, address, base_url, headers, trust
from gateway.cli.options import Command, config_option, configuration, json_option
from gateway.cli.running import located
from gateway.cli.text import say
from gateway.config.values import STARTABLE
from gateway.features.models.places import tagged, urls

if TYPE_CHECKING:
    import ssl

    import httpx

    from gateway.config import Config, Model

EXAMPLES = """\
examples:
  ctxgate models
  ctxgate models --available "qwen3 4b"
  ctxgate models --json | jq -r '.models[] | select(.installed) | .name'
"""

HEAD = ("", "MODEL", "RUNTIME", "FORMAT", "CONTEXT", "INSTALLED", "RUNNING")


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@json_option
@click.option("--available", metavar="WORDS", help="Search the Hugging Face hub instead.")
def models(config: Path | None, as_json: bool, available: str | None) -> None:
    """Lists the models of config.yaml: which one is active, which are installed, which run now."""
    if available is not None:
        _search(available, as_json)
        return
    report = asyncio.run(_report(configuration(config)))
    if as_json:
        say(json.dumps(report, indent=2))
    else:
        _show(report)


def _search(words: str, as_json: bool) -> None:
    from msgspec.structs import asdict

    from gateway.cli.table import show, table
    from gateway.features.models.inventory.hub import search

    found = search(words)
    if as_json:
        say(json.dumps({"available": [asdict(one) for one in found]}, indent=2))
        return
    rows = [(one.source, f"{one.downloads:,}", f"{one.likes:,}", one.updated) for one in found]
    show(table(("SOURCE", "DOWNLOADS", "LIKES", "UPDATED"), rows), "\nctxgate add SOURCE fetches one and adds it")


async def _report(config: Config) -> dict[str, Any]:
    """Probes all servers at once: takes PROBE_SECONDS at most."""
    server = located(config.server, config.source)
    async with contextlib.AsyncExitStack() as stack:
        probe = _Probe(stack)
        health, *states = await asyncio.gather(
            probe.ask(base_url(server), server.uds, "/health", headers(server), trust(server)),
            *(_engine(model, probe) for model in config.models.values()),
        )
    rows = []
    for model, (installed, running) in zip(config.models.values(), states, strict=True):
        rows.append(
            {
                "name": model.name,
                "active": model.name == config.active_model,
                "runtime": model.runtime,
                "tool_call_format": model.tool_call_format,
                "context_window": model.context_window,
                "display_name": model.display_name,
                "path": str(model.path) if model.path is not None else None,
                "bytes": _bytes(model.path) if model.path is not None else None,
                "pull": model.pull is not None,
                "installed": installed,
                "running": _runs_here(model, health) if running is None else running,
            }
        )
    gateway = {"url": address(server), "running": health is not None}
    return {"config": str(config.source), "gateway": gateway, "models": rows}


def _runs_here(model: Model, health: dict[str, Any] | None) -> bool | None:
    """Whether the gateway runs an engine for the model, from its `/health`; None for a model without an engine."""
    if model.runtime not in STARTABLE:
        return None
    if health is None:
        return False
    engines = health.get("engines")
    return engines.get(model.name) == "ready" if isinstance(engines, dict) else None


async def _engine(model: Model, probe: _Probe) -> tuple[bool | None, bool | None]:
    """Whether the model is installed, on each of its servers, and whether it runs on any; None for unknown."""
    if model.runtime == "echo":
        return True, None
    installed = model.path.exists() if model.path is not None else None
    if not model.replicas and model.base_url is None and model.uds is None:
        return installed, None if installed else False
    if model.runtime == "ollama":
        found = await asyncio.gather(*(_at_ollama(base, model, probe) for base in urls(model)))
        has = [installed for installed, _ in found]
        return (False if False in has else None if None in has else True), any(loaded for _, loaded in found)
    key = {"authorization": f"Bearer {model.api_key.get_secret_value()}"} if model.api_key is not None else {}
    found_there = await asyncio.gather(*(probe.ask(base, model.uds, "/v1/models", key) for base in urls(model)))
    return installed, any(answer is not None for answer in found_there)


async def _at_ollama(base: str, model: Model, probe: _Probe) -> tuple[bool | None, bool]:
    """Whether this Ollama has the model, and whether it has loaded it."""
    tags, loaded = await asyncio.gather(
        probe.ask(base, model.uds, "/api/tags", {}), probe.ask(base, model.uds, "/api/ps", {})
    )
    return _in_ollama(tags, model), bool(_in_ollama(loaded, model))


class _Probe:
    """Asks servers that may be absent. Keeps a client for each socket: to make one takes longer than most answers."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._clients: dict[tuple[Path | None, ssl.SSLContext | bool], httpx.AsyncClient] = {}

    async def ask(
        self, base: str, uds: Path | None, path: str, headers: dict[str, str], verify: ssl.SSLContext | bool = True
    ) -> dict[str, Any] | None:
        """The JSON object answered; {} for any other answer; None for none within PROBE_SECONDS."""
        import httpx

        client = self._clients.get((uds, verify))
        if client is None:
            transport = httpx.AsyncHTTPTransport(uds=str(uds) if uds is not None else None, verify=verify)
            client = self._clients[uds, verify] = httpx.AsyncClient(transport=transport, trust_env=False)
            self._stack.push_async_callback(client.aclose)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await client.get(base + path, headers=headers)
        except (httpx.HTTPError, TimeoutError):
            return None
        return _object(response)


def _in_ollama(listing: dict[str, Any] | None, model: Model) -> bool | None:
    """Whether the listing names the model."""
    if listing is None or not isinstance(listing.get("models"), list):
        return None
    wanted = tagged(model.upstream_name)
    return any(isinstance(entry, dict) and entry.get("name") == wanted for entry in listing["models"])


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _bytes(path: Path) -> int | None:
    if path.is_dir():
        return sum(_file_bytes(os.path.join(folder, file)) for folder, _, files in os.walk(path) for file in files)
    return _file_bytes(path) if path.is_file() else None


def _file_bytes(path: Path | str) -> int:
    """0 for a file that is unreadable or gone."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _show(report: dict[str, Any]) -> None:
    from gateway.cli.table import show, table

    gateway = report["gateway"]
    state = f"running at {gateway['url']}" if gateway["running"] else "not running"
    show(table(HEAD, map(_row, report["models"])), f"\ngateway: {state}")


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    from gateway.features.models.pull.progress import size

    installed = _word(model["installed"])
    if model["bytes"]:
        installed = size(model["bytes"])
    elif model["installed"] is False and model["pull"]:
        installed = "no, pull it"
    return (
        "*" if model["active"] else "",
        model["name"],
        model["runtime"],
        model["tool_call_format"],
        str(model["context_window"] or "-"),
        installed,
        _word(model["running"]),
    )


def _word(state: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[state]
