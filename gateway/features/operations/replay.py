"""Parses a recorded answer as another tool-call format."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.answer.errors import EngineError
from gateway.answer.normalize import Answer
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderRateLimit
from gateway.observe.shares import Workers
from gateway.services import Services
from gateway.wire.chat import ChatRequest, decode, encode
from normalizers import registry

AT_ONCE = 2
"""Requests whose answers are read: one, and one that waits for it."""

T = TypeVar("T")


class Replays:
    """Reads recorded answers in a thread of its own: a megabyte takes seconds, and others need the shared threads."""

    def __init__(self, services: Services) -> None:
        self._workers = Workers(1, name="replays")
        self._count = 0

    async def read(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Returns and raises what `work` does. It gets a function that says whether nobody waits for it any more.

        Raises ProviderRateLimit.
        """
        if self._count >= AT_ONCE:
            raise ProviderRateLimit("recorded answers are being read already: try again", retry_after=2)
        self._count += 1
        left = threading.Event()
        reading = asyncio.get_running_loop().run_in_executor(self._workers, work, left.is_set)
        reading.add_done_callback(self._ended)
        try:
            return await asyncio.shield(reading)  # it has its place until its thread is free
        finally:
            left.set()

    def _ended(self, reading: asyncio.Future[T]) -> None:
        self._count -= 1
        if not reading.cancelled():
            reading.exception()  # whoever asked may have left

    async def aclose(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)


def formats() -> list[str]:
    """Names of the formats, in the order of their table."""
    return registry.names()


def replayed(request: bytes, raw: Sequence[bytes], format: str, stream: bool, reasoning_open: bool) -> list[bytes]:
    """The payloads of a stream, or the one body, that the client would have received in this format.

    request: the recorded fields of the client's, as a JSON object. raw: the engine's payloads, or its one body.
    Raises ProviderInvalidRequest for an unknown format.
    """
    try:
        spec = registry.get(format)
    except registry.UnknownFormat as error:
        raise ProviderInvalidRequest(str(error), param="as") from None
    # The log drops long prompts; the format doesn't depend on them.
    fields = {"messages": [{"role": "user", "content": ""}], **decode(request)}
    answer = Answer(ChatRequest.parse(encode(fields)), spec, reasoning_open=reasoning_open)
    clean: list[bytes] = []
    try:
        if stream:
            answer.feed([*raw], clean)
            clean += answer.finish(done=True)
        elif raw:
            clean.append(answer.whole(raw[0]))
    except (EngineError, GatewayError):
        # The recorded answer ends with the engine's failure.
        clean += answer.remaining()
    return clean
