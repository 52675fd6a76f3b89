"""Replies from a script, in place of those of an engine, and the text that a run makes of them."""

from __future__ import annotations

import json
from typing import Any

from gateway.backends import Reply
from gateway.core.run import Run
from gateway.upstream import EngineGone
from tests.gateway.double import chunk, completion

GONE = EngineGone("the engine went away", status=502)


class Scripted(Reply):
    """Hands out its payloads, then raises its error or ends."""

    def __init__(self, *payloads: bytes, error: Exception | None = None) -> None:
        self.closed = False
        self.done = error is None
        self._payloads = list(payloads)
        self._error = error

    async def whole(self) -> bytes:
        if self._error is not None:
            raise self._error
        return self._payloads[0]

    async def payloads(self) -> list[bytes]:
        if self._payloads:
            return [self._payloads.pop(0)]
        if self._error is not None:
            raise self._error
        return []

    def close(self) -> None:
        self.closed = True


def good(stream: bool) -> Scripted:
    if not stream:
        return Scripted(json.dumps(completion("Hello")).encode())
    return Scripted(*(json.dumps(each).encode() for each in (chunk("Hello"), chunk(reason="stop"))))


async def text(run: Run, stream: bool) -> str:
    if not stream:
        found: str = json.loads(await run.whole())["choices"][0]["message"]["content"]
        return found
    said: list[Any] = []
    while payloads := await run.payloads():
        said += [json.loads(payload)["choices"][0]["delta"].get("content") or "" for payload in payloads]
    return "".join(said)
