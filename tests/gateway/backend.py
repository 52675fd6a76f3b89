"""A backend of a user's own, as `runtime: pkg.mod:Class` names it: it fails as the request asks it to."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Raw

from gateway.backends import Address, Reply
from gateway.config import Model
from gateway.errors import CATEGORIES, GatewayError, InternalError
from gateway.wire.chat import ChatRequest, decode, encode
from tests.gateway.double import chunk

RUNTIME = "tests.gateway.backend:FailingBackend"

PLACES = ("open", "first", "later")
"""Before there is an answer, before its first chunk (the whole of it), after that."""

TOLD: dict[str, Any] = {"code": "asked", "param": "messages", "retry_after": 7, "details": {"n_ctx": 512}}
"""Every field that an error may have."""


class FailingBackend:
    """Request field `fail`: {"with": category or "bug", "at": one of PLACES, **arguments of the error}.

    With "after" it fails only then, in seconds. `ready` fails as the model's name says, if that is a category.
    """

    def __init__(self, model: Model, address: Address | None) -> None:
        self.model = model

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> FailingReply:
        fail: dict[str, Any] = decode(fields["fail"])
        place, after = fail.pop("at"), fail.pop("after", 0)
        error = made(fail)
        await asyncio.sleep(after)
        if place == "open":
            raise error
        return FailingReply(error, [encode(chunk("Hello"))] if place == "later" else [])

    def error(self, status: int, body: bytes) -> GatewayError:
        return InternalError("it sends no errors")

    async def ready(self) -> None:
        if self.model.name in CATEGORIES:
            raise made({"with": self.model.name, **TOLD})

    async def takes_tools(self) -> bool:
        return True

    async def aclose(self) -> None:
        """Holds nothing."""


class FailingReply(Reply):
    def __init__(self, error: Exception, before: list[bytes]) -> None:
        self._error = error
        self._before = before

    async def whole(self) -> bytes:
        raise self._error

    async def payloads(self) -> list[bytes]:
        if self._before:
            before, self._before = self._before, []
            return before
        raise self._error

    def close(self) -> None:
        """Holds nothing."""


def made(fail: dict[str, Any]) -> Exception:
    kind = fail.pop("with")
    return ZeroDivisionError("secret: 42") if kind == "bug" else CATEGORIES[kind]("told to fail", **fail)
