"""`/metrics` and `/-/…`: for whoever runs the gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.asgi import ClientGone, Receive, Scope, Send, read_body
from gateway.config import ConfigError
from gateway.config.diff import Difference
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.reload import told
from gateway.services import Services
from gateway.status import status
from gateway.wire.chat import encode

MAX_FILE = 1024 * 1024
"""Bytes of a configuration that somebody wants planned."""

Answering = Callable[[Request], Awaitable[Response]]


class OperationsFace:
    def __init__(self, services: Services) -> None:
        self._gateway = services.gateway
        self._reloader = services.reloader
        self._endpoints: dict[tuple[str, str], Answering] = {
            ("GET", "/metrics"): self._metrics,
            ("GET", "/-/status"): self._status,
            ("GET", "/-/plan"): self._plan,
            ("POST", "/-/plan"): self._plan,
            ("POST", "/-/reload"): self._reload,
            ("GET", "/-/requests"): self._requests,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        method, path = request.method, scope["path"]
        if path.startswith("/-/requests/") and method == "GET":
            answer: Answering = self._request
        elif (found := self._endpoints.get((method, path))) is not None:
            answer = found
        elif allowed := [verb for verb, known in self._endpoints if known == path]:
            raise ProviderInvalidRequest(
                f"{method} {path}: use {' or '.join(allowed)}", code="method_not_allowed", status=405
            )
        else:
            raise ProviderInvalidRequest(f"{method} {path}: no such endpoint", code="not_found", status=404)
        try:
            response = await answer(request)
        except ClientGone:
            return
        await response(scope, receive, send)

    def error_body(self, error: GatewayError) -> bytes:
        return encode(error.body())

    async def aclose(self) -> None:
        """Nothing is held."""

    async def _metrics(self, request: Request) -> Response:
        from gateway.metrics import exposition

        text, content_type = exposition(self._gateway, self._reloader, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def _status(self, request: Request) -> Response:
        return JSONResponse(status(self._gateway, self._reloader))

    async def _plan(self, request: Request) -> Response:
        """With a body: of that text, as if it stood in the file."""
        if self._reloader is None:
            raise _no_file()
        body = await read_body(request.scope, request.receive, MAX_FILE, "the most that a configuration has")
        try:
            text = body.decode() if request.method == "POST" else None
            return JSONResponse(_shown(await self._reloader.plan(text)))
        except UnicodeDecodeError:
            raise ProviderInvalidRequest("the configuration is not valid UTF-8") from None
        except ConfigError as error:
            raise _bad_file(error) from None

    async def _reload(self, request: Request) -> Response:
        if self._reloader is None:
            raise _no_file()
        try:
            return JSONResponse(_shown(await self._reloader.reload()))
        except ConfigError as error:
            raise _bad_file(error) from None

    async def _requests(self, request: Request) -> Response:
        entries = list(self._gateway.ledger.entries())
        return Response(encode({"requests": entries}), media_type="application/json")

    async def _request(self, request: Request) -> Response:
        key = request.url.path.removeprefix("/-/requests/")
        found = self._gateway.ledger.find(key)
        if found is None:
            raise ProviderInvalidRequest(
                f"no request {key} is remembered (log.requests says how many are; a completion's id is known only with "
                "log.bodies)",
                code="not_found",
                status=404,
            )
        entry, recording = found
        body = {"request": entry, "recording": recording and _recording_shown(recording)}
        return Response(encode(body), media_type="application/json")


def _recording_shown(recording: Any) -> dict[str, Any]:
    return {
        "request": recording.request,
        "tool_call_format": recording.tool_call_format,
        "reasoning_open": recording.reasoning_open,
        "raw": [part.decode("utf-8", "replace") for part in recording.raw],
        "clean": [part.decode("utf-8", "replace") for part in recording.clean],
        "cut": recording.cut,
    }


def _shown(difference: Difference) -> dict[str, Any]:
    return {
        "models": [
            {"name": change.name, "effect": change.effect, "changes": [str(each) for each in change.changes]}
            for change in difference.models
        ],
        "others": [str(change) for change in difference.others],
        "at_start": [str(change) for change in difference.at_start],
        "lines": told(difference),
    }


def _bad_file(error: ConfigError) -> GatewayError:
    problems = [
        {"line": problem.line, "column": problem.column, "message": problem.message, "cure": problem.cure}
        for problem in error.problems
    ]
    return ProviderInvalidRequest(str(error), code="invalid_configuration", status=422, details={"problems": problems})


def _no_file() -> GatewayError:
    return ProviderInvalidRequest("this gateway wasn't started from a file", code="no_configuration_file")
