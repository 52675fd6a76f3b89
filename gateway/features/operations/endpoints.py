"""`/metrics` and `/-/…`: endpoints for the operator."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from starlette.responses import PlainTextResponse, Response

from gateway.config import ConfigError
from gateway.config.diff import Difference
from gateway.core.reload import Reloader, describe
from gateway.engines.logfile import last_lines, log_path
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.operations import live, replay
from gateway.features.operations.live import entry
from gateway.features.operations.replay import Replays, replayed
from gateway.features.operations.snapshot import snapshot
from gateway.observe.request_log import key_of
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.services import Services
from gateway.wire.chat import encode

MAX_LIST = 100_000
MAX_LINES = 5000
MAX_FILE = 512 * 1024
"""Bytes of a configuration that `/-/plan` accepts."""


async def metrics(request: Request) -> ASGIApp:
    from gateway.features.operations.metrics import exposition

    services = request.services
    accept = request.headers.get("accept", "")
    text, kind = await exposition(request.gateway, services.reloader, services.vitals, accept)
    return Response(text, headers={"content-type": kind})


async def status(request: Request) -> ASGIApp:
    return JSON(snapshot(request.gateway, request.services.reloader))


async def plan(request: Request) -> ASGIApp:
    """What applying the file would change; with a POST, what applying the body instead would change."""
    reloader = reloader_of(request.services)
    text: str | None = None
    if request.method == "POST":
        body = await request.short_body(MAX_FILE, "the limit of a configuration")
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
        return JSON(_changes(await reloader_of(request.services).reload()))
    except ConfigError as error:
        raise _invalid(error) from None


async def requests(request: Request) -> ASGIApp:
    """The last `limit` finished requests, newest first; those with numbers above `after`."""
    limit, after = request.number("limit", MAX_LIST, MAX_LIST, 1), request.number("after", 0, 2**53)
    return JSON({"requests": [entry(row) for row in islice(request.gateway.request_log.entries(after), limit)]})


async def request(request: Request) -> ASGIApp:
    """A request, its recording and, with `as`, its answer parsed as another format.

    raw, clean: how many payloads of each the client has already: it needs only the rest of an answer in progress.
    """
    key, format = request.path_params["key"], request.query_params.get("as")
    since = request.number("raw", 0, 2**31), request.number("clean", 0, 2**31)
    if (running := live.find(request.gateway, key)) is not None:
        about, recording = running
        return JSON({"request": about, "running": True, "recording": recording and _recording(recording, *since)})
    found = request.gateway.request_log.find(key)
    if found is None:
        message = (
            f"the log has no request {key}: log.requests sets how many it keeps, and it knows completions' ids only "
            "with log.bodies"
        )
        raise ProviderInvalidRequest(message, code="not_found", status=404)
    row, recording = found
    answer = {"request": entry(row), "running": False, "recording": recording and _recording(recording, *since)}
    if format is not None and recording is not None:
        fields, raw = encode(recording.request), recording.raw
        clean = await request.services.shared(Replays).read(
            lambda _: replayed(fields, raw, format, row.stream, recording.reasoning_open)
        )
        answer["replayed"] = {"format": format, "clean": _texts(clean)}
    return JSON(answer)


async def formats(request: Request) -> ASGIApp:
    """The names that `as` and `tool_call_format` accept."""
    return JSON({"formats": replay.formats()})


async def logs(request: Request) -> ASGIApp:
    """The last lines that a model's engine wrote."""
    model, lines = request.gateway.route(request.path_params["name"]).model, request.number("lines", 400, MAX_LINES, 1)
    path = log_path(request.gateway.config.state_dir, model.name)
    text = await asyncio.to_thread(lambda: "\n".join(last_lines(path, lines)))
    return PlainTextResponse(text)


def reloader_of(services: Services) -> Reloader:
    """Raises ProviderInvalidRequest for a gateway without a file."""
    if (reloader := services.reloader) is None:
        raise ProviderInvalidRequest("this gateway wasn't started from a file", code="no_configuration_file")
    return reloader


def _recording(recording: Any, raw: int = 0, clean: int = 0) -> dict[str, Any]:
    """See `gateway.answer.capture.Recording`. raw, clean: how many payloads of each to leave out at the beginning."""
    return {
        "request": recording.request,
        "sent": recording.sent,
        "tool_call_format": recording.tool_call_format,
        "reasoning_open": recording.reasoning_open,
        "accepted": recording.accepted and key_of(recording.accepted),
        "raw": _texts(recording.raw[raw:]),
        "clean": _texts(recording.clean[clean:]),
        "marks": recording.marks,
        "cut": recording.cut,
    }


def _texts(payloads: list[bytes]) -> list[str]:
    return [payload.decode("utf-8", "replace") for payload in payloads]


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
