"""A backend that fails as its request says: a real implementation of the seam, named in a configuration."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from gateway.backends.base import Address, Mender, Taker
from gateway.config import Model
from gateway.errors import CATEGORIES, GatewayError
from gateway.wire.chat import ChatRequest

Place = str
PLACES = ("open", "answer", "first chunk", "second chunk")


def failure(category: str) -> Exception:
    """The error of that category with every field set; anything else is a bug of the backend's own."""
    for name, kind in CATEGORIES.items():
        if name == category:
            return kind(f"{name} was asked for", code="asked", param="messages", retry_after=7, details={"n_ctx": 512})
    return ZeroDivisionError(category)


class FailingBackend:
    """The last message of a request is `{"category": …, "place": …}`; `ready` fails as the model's name says."""

    def __init__(self, model: Model, address: Address | None) -> None:
        self.model = model

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> FailingReply:
        asked = json.loads(json.loads(bytes(fields["messages"]))[-1]["content"])
        error = failure(asked["category"])
        if asked["place"] == "open":
            raise error
        return FailingReply(error, before=1 if asked["place"] == "second chunk" else 0)

    def error(self, status: int, body: bytes) -> GatewayError:
        raise AssertionError("this backend reports no errors in payloads")

    async def ready(self) -> None:
        raise failure(self.model.name)

    async def takes_tools(self) -> bool:
        return True

    async def aclose(self) -> None:
        """Holds nothing."""


class FailingReply:
    mender: Mender | None = None
    done = False

    def __init__(self, error: Exception, before: int) -> None:
        self._error, self._before = error, before

    async def whole(self) -> bytes:
        raise self._error

    async def payloads(self) -> list[bytes]:
        if self._before:
            self._before -= 1
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"role": "assistant", "content": "word"},
                "finish_reason": None,
            }
            return [json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode()]
        raise self._error

    def tap(self, taker: Taker) -> None:
        """Nothing arrives by itself."""

    def close(self) -> None:
        """Nothing is under way."""
