"""`/v1/completions`: continues texts, without a chat template. Each choice is one request to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from gateway.api.streaming import Opened, PayloadEncoding, StreamedAnswer
from gateway.core import Route
from gateway.core.in_thread import LARGE, in_thread_if_large
from gateway.core.passthrough import Passthrough
from gateway.core.permission import tier_of
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.completions.reader import CompletionReader, summed
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.wire.chat import Caller, encode, tier_in
from gateway.wire.completions import CreateCompletion, Part
from gateway.wire.sse import Sink

AT_ONCE = 8
"""Requests to the engine at a time, of one request here, unless it is large: each holds the whole prompt."""


async def create(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted = await request.translated(CreateCompletion.parse)
    route = request.gateway.route(wanted.model, "chat")
    parts = await in_thread_if_large(size, wanted.parts, route.model.runtime)
    wanted = wanted.without_prompt()
    wanted.tier = tier_of(route.model, request.caller, wanted.model, tier_in(wanted.fields))
    if wanted.stream:
        return StreamedAnswer(
            _opened(route, wanted, parts, request.caller), PayloadEncoding(wanted), request.gateway.config.server
        )
    limits = request.principal.limits
    # They share the place of their request, where the key has a number of places.
    one_by_one = size > LARGE or (limits is not None and limits.parallel is not None)
    places = asyncio.Semaphore(1 if one_by_one else AT_ONCE)

    async def one(part: Part, reader: CompletionReader) -> tuple[dict[str, Any], int]:
        """The answer, and its bytes."""
        async with places:
            if part is not parts[0]:
                _count(request.caller)
            await _read_prompt(route, part, reader, wanted)
            posted = route.post("completions", part.fields, "completions", request.caller, asked=wanted.model)
            async with posted as answer:
                payload = await answer.whole()
                read = partial(reader.read, whole=True)
                return await in_thread_if_large(len(payload), read, payload), len(payload)

    readers = [CompletionReader(part, wanted.known.logprobs, route.model.name) for part in parts]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(part, reader)) for part, reader in zip(parts, readers, strict=True)]
    except ExceptionGroup as errors:  # Python 3.11.2 puts what `except*` raises into a group again
        refusals, bugs = errors.split(GatewayError)
        if refusals is None or bugs is not None:
            raise
        raise refusals.exceptions[0] from None
    usage = summed((part, reader.usage) for part, reader in zip(parts, readers, strict=True))

    def made() -> JSON:
        choices = [choice for task in tasks for choice in task.result()[0]["choices"]]
        answer = {**tasks[0].result()[0], "choices": choices, "usage": usage}
        return JSON(answer if wanted.tier is None else {**answer, "service_tier": wanted.tier})

    return await in_thread_if_large(sum(task.result()[1] for task in tasks), made)


def _count(caller: Caller) -> None:
    """Counts a further request to the engine, in the place of the one before. Raises LimitReached."""
    if (meter := caller.meter) is not None:
        meter.again()


@asynccontextmanager
async def _opened(route: Route, wanted: CreateCompletion, parts: list[Part], caller: Caller) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        yield _Choices(route, wanted, parts, stack, caller), tuple


async def _read_prompt(route: Route, part: Part, reader: CompletionReader, wanted: CreateCompletion) -> None:
    """Asks for the prompt's log-probabilities if the part wants them. Raises ProviderInvalidRequest if nobody knows."""
    if not part.reads:
        return
    async with route.use(wanted.tier) as backend:
        reader.before = await backend.prompt_logprobs(part.prompt, wanted.known.logprobs or 0)
    if reader.before is None:
        message = f"echo: runtime {route.model.runtime} gives no log-probabilities of a prompt; leave out logprobs"
        raise ProviderInvalidRequest(message, param="echo")


class _Choices:
    """The chunks of one choice after the other, then the usage of all if the client wants it."""

    def __init__(
        self, route: Route, wanted: CreateCompletion, parts: list[Part], stack: AsyncExitStack, caller: Caller
    ) -> None:
        self._caller = caller
        self._route = route
        self._wanted = wanted
        self._waiting = parts[::-1]
        self._stack = stack
        self._answer: Passthrough | None = None
        self._read: list[tuple[Part, CompletionReader]] = []
        self._head: dict[str, Any] = {}
        self._ended = False

    async def payloads(self) -> list[bytes]:
        while not self._ended:
            if self._answer is None and self._waiting:
                if self._read:
                    _count(self._caller)
                part = self._waiting.pop()
                self._read.append((part, CompletionReader(part, self._wanted.known.logprobs, self._route.model.name)))
                await _read_prompt(self._route, *self._read[-1], self._wanted)
                asked = self._wanted.model
                opened = self._route.post(
                    "completions", part.fields, "completions", self._caller, asked=asked, stream=True
                )
                self._answer = await self._stack.enter_async_context(opened)
            if self._answer is None:
                self._ended = True
                return self._usage()
            if not (payloads := await self._answer.payloads()):
                await self._stack.aclose()
                self._answer = None
            elif clean := await in_thread_if_large(sum(map(len, payloads)), self._clean, payloads):
                return clean
        return []

    def _clean(self, payloads: list[bytes]) -> list[bytes]:
        reader, clean = self._read[-1][1], []
        for payload in payloads:
            chunk = reader.read(payload)
            self._head = self._head or {name: value for name, value in chunk.items() if name in ("id", "created")}
            if chunk["choices"]:
                clean.append(encode({**chunk, **self._head}))
        return clean

    def _usage(self) -> list[bytes]:
        if not self._wanted.usage:
            return []
        usage = summed((part, reader.usage) for part, reader in self._read)
        named = {"object": "text_completion", "model": self._route.model.name}
        return [encode({**self._head, **named, "choices": [], "usage": usage})]

    def push_to(self, sink: Sink) -> None:
        """Nothing to do: every payload is rewritten here."""
