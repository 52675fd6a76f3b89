"""`/metrics` and `/-/…`: for whoever runs the gateway."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict
from starlette.responses import Response

from gateway.api.operations.snapshot import snapshot
from gateway.config import ConfigError
from gateway.config.diff import Difference
from gateway.core.reload import Reloader, describe
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.observe.request_log import Entry
from gateway.server.asgi import ASGIApp, too_large
from gateway.server.http import JSON, Request

MAX_FILE = 1024 * 1024
"""Bytes of a configuration that `/-/plan` accepts."""


async def metrics(request: Request) -> ASGIApp:
    from gateway.api.operations.metrics import exposition

    services = request.services
    text, kind = exposition(request.gateway, services.reloader, services.vitals, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": kind})


async def status(request: Request) -> ASGIApp:
    return JSON(snapshot(request.gateway, request.services.reloader))


async def plan(request: Request) -> ASGIApp:
    """What applying the file would change; with a POST, what the body would change in its place."""
    reloader = _reloader(request)
    text: str | None = None
    if request.method == "POST":
        body = await request.body()
        if len(body) > MAX_FILE:
            raise too_large(MAX_FILE, "the limit of a configuration")
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise ProviderInvalidRequest("the configuration is not valid UTF-8") from None
    try:
        return JSON(_changes(await reloader.plan(text)))
    except ConfigError as error:
        raise _invalid(error) from None


async def reload(request: Request) -> ASGIApp:
    try:
        return JSON(_changes(await _reloader(request).reload()))
    except ConfigError as error:
        raise _invalid(error) from None


async def requests(request: Request) -> ASGIApp:
    return JSON({"requests": [_entry(entry) for entry in request.gateway.request_log.entries()]})


async def request(request: Request) -> ASGIApp:
    key = request.path_params["key"]
    found = request.gateway.request_log.find(key)
    if found is None:
        message = (
            f"the log has no request {key}: log.requests sets how many it keeps, and it knows completions' ids only "
            "with log.bodies"
        )
        raise ProviderInvalidRequest(message, code="not_found", status=404)
    entry, recording = found
    return JSON({"request": _entry(entry), "recording": recording and _recording(recording)})


def _reloader(request: Request) -> Reloader:
    """Raises ProviderInvalidRequest for a gateway without a file."""
    if (reloader := request.services.reloader) is None:
        raise ProviderInvalidRequest("this gateway wasn't started from a file", code="no_configuration_file")
    return reloader


def _entry(entry: Entry) -> dict[str, Any]:
    """`face` is the old name of `api`; scripts may still read it."""
    return {**asdict(entry), "face": entry.api}


def _recording(recording: Any) -> dict[str, Any]:
    return {
        "request": recording.request,
        "tool_call_format": recording.tool_call_format,
        "reasoning_open": recording.reasoning_open,
        "raw": [part.decode("utf-8", "replace") for part in recording.raw],
        "clean": [part.decode("utf-8", "replace") for part in recording.clean],
        "cut": recording.cut,
    }


def _changes(difference: Difference) -> dict[str, Any]:
    return {
        "models": [
            {"name": change.name, "effect": change.effect, "changes": [str(each) for each in change.changes]}
            for change in difference.models
        ],
        "others": [str(change) for change in difference.others],
        "at_start": [str(change) for change in difference.at_start],
        "lines": describe(difference),
    }


def _invalid(error: ConfigError) -> GatewayError:
    problems = [
        {"line": problem.line, "column": problem.column, "message": problem.message, "cure": problem.cure}
        for problem in error.problems
    ]
    return ProviderInvalidRequest(str(error), code="invalid_configuration", status=422, details={"problems": problems})
