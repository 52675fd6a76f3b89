"""`/metrics` and `/-/…`: for whoever runs the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.api import endpoint
from gateway.api.chat import Client
from gateway.api.endpoint import Request, Row
from gateway.api.operations.status import status
from gateway.config import ConfigError
from gateway.config.diff import Difference
from gateway.core.reload import Reloader, told
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.server.asgi import too_large

MAX_FILE = 1024 * 1024
"""Bytes of a configuration that somebody wants planned."""


class OperationsFace(endpoint.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (
            ("GET", "/metrics", self.metrics),
            ("GET", "/-/status", self.status),
            ("GET", "/-/plan", self.plan),
            ("POST", "/-/plan", self.plan),
            ("POST", "/-/reload", self.reload),
            ("GET", "/-/requests", self.requests),
            ("GET", "/-/requests/(.+)", self.request),
        )

    async def metrics(self, request: Request, client: Client) -> None:
        from gateway.api.operations.metrics import exposition

        accept = next((value.decode("latin-1") for name, value in request.headers if name == b"accept"), "")
        text, kind = exposition(self.gateway, self.services.reloader, accept)
        await client.whole(200, ((b"content-type", kind.encode()),), text)

    async def status(self, request: Request, client: Client) -> None:
        await endpoint.json(client, status(self.gateway, self.services.reloader))

    async def plan(self, request: Request, client: Client) -> None:
        """With a body: of that text, as if it stood in the file."""
        reloader = self._reloader()
        if len(request.body) > MAX_FILE:
            raise too_large(MAX_FILE, "the most that a configuration has")
        try:
            text = request.body.decode() if request.method == "POST" else None
            await endpoint.json(client, _shown(await reloader.plan(text)))
        except UnicodeDecodeError:
            raise ProviderInvalidRequest("the configuration is not valid UTF-8") from None
        except ConfigError as error:
            raise _bad_file(error) from None

    async def reload(self, request: Request, client: Client) -> None:
        try:
            await endpoint.json(client, _shown(await self._reloader().reload()))
        except ConfigError as error:
            raise _bad_file(error) from None

    async def requests(self, request: Request, client: Client) -> None:
        await endpoint.json(client, {"requests": list(self.gateway.request_log.entries())})

    async def request(self, request: Request, client: Client) -> None:
        key = request.parts[0]
        found = self.gateway.request_log.find(key)
        if found is None:
            raise ProviderInvalidRequest(
                f"no request {key} is remembered (log.requests says how many are; a completion's id is known only with "
                "log.bodies)",
                code="not_found",
                status=404,
            )
        entry, recording = found
        await endpoint.json(client, {"request": entry, "recording": recording and _recording_shown(recording)})

    def _reloader(self) -> Reloader:
        """Raises ProviderInvalidRequest where there is no file."""
        if (reloader := self.services.reloader) is None:
            raise ProviderInvalidRequest("this gateway wasn't started from a file", code="no_configuration_file")
        return reloader


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
