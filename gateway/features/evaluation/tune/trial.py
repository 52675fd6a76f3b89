"""Tries settings on this machine: starts an engine with each, sends requests, and measures the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.config import Config, Model, Prompts
from gateway.config.values import Log
from gateway.core import Gateway
from gateway.engines import memory
from gateway.engines.reading_step import SIZES
from gateway.errors import GatewayError
from gateway.features.evaluation.tune.scores import Reading, Result, passes, rungs, same_words, survivors
from gateway.features.evaluation.tune.settings import Keys, applied, changed
from gateway.features.evaluation.tune.texts import to_read
from gateway.wire.chat import ChatRequest, encode

Body = dict[str, Any]
Requests = Callable[[int], dict[str, Body]]
"""The requests with one number, by the kind of text."""
Told = Callable[[list[Result], int, int], None]
"""Called with all results so far, the number of answers, and the number expected."""

ANSWER_SECONDS = 600.0


class Trials:
    """results: those so far, the model's own setting first; they grow while the trials run.

    folder: the engines' state; the files of a running gateway stay untouched.
    """

    def __init__(self, config: Config, model: Model, tried: Sequence[Keys], requests: Requests, folder: Path) -> None:
        self.results = [Result(keys) for keys in tried]
        self.reading: dict[int, list[float]] = {}
        """See `Kept`."""
        self._config = config
        self._model = model
        self._requests = requests
        self._folder = folder
        self._done = 0

    async def halve(self, told: Told) -> None:
        """Successive halving: all settings answer a request of each kind, the faster half more, until two are left.

        Leaves out settings that contain a value which by itself has failed or changed words: they couldn't be chosen.
        Settings take turns, back and forth, so that a machine that gets slower or faster favours none. Cancelling keeps
        the results so far.
        """
        alive = list(range(len(self.results)))
        kinds = len(self._requests(0))
        plan = rungs(len(alive) - 1)
        total = sum((count + 1) * repeats * kinds for count, repeats in plan)
        number = 0
        for count, repeats in plan:
            if number:  # the first rung has no results to rank by
                ranked = survivors([self.results[place] for place in alive], count)
                alive = [place for place in alive if any(self.results[place] is kept for kept in ranked)]
            for some in passes(range(number, number + repeats)):
                for place in alive:
                    if not number and self._hopeless(place):
                        continue
                    await self._try(place, some, lambda: told(self.results, self._done, total))
                alive.reverse()
            alive.sort()
            number += repeats

    async def all(self, repeats: int, told: Told) -> None:
        """Every setting answers the same number of requests."""
        total = len(self.results) * repeats * len(self._requests(0))
        for number in range(repeats):
            for place in range(len(self.results)):
                await self._try(place, [number], lambda: told(self.results, self._done, total))

    def _hopeless(self, place: int) -> bool:
        base, *others = self.results
        changes = changed(self.results[place].keys, base.keys)
        if len(changes) < 2:
            return False
        singles = ({key: value} for key, value in changes.items())
        tried = [result for result in others if result.readings or result.failed]
        known = [result for single in singles for result in tried if changed(result.keys, base.keys) == single]
        return any(result.failed or not same_words(result, base) for result in known)

    async def read(self) -> None:
        """Measures how fast the engine reads with steps of several sizes, back and forth. Raises GatewayError."""
        for number, size in enumerate([*SIZES, *reversed(SIZES)]):
            async with Gateway(self._alone(applied(self._model, {"batch": size}))) as gateway:
                await _ask(gateway, "warm-up", 0, self._warm_up())
                found = await _ask(gateway, "reading", number, to_read(number))
                self.reading.setdefault(size, []).append(found.read / found.first)

    def _alone(self, model: Model) -> Config:
        """A gateway with this model, on a port of its own, beside any running one."""
        return replace(
            self._config,
            active_model=model.name,
            models={model.name: replace(model, port=None, retries=0, fallbacks=())},
            prompts=Prompts(save="off"),
            log=Log(requests=0),
            state_dir=self._folder,
            store=None,
        )

    async def _try(self, place: int, numbers: Sequence[int], told: Callable[[], None]) -> None:
        """Adds the readings of one setting. An engine that doesn't run with it is a result, too."""
        own, result = self.results[0].keys, self.results[place]
        model = applied(self._model, changed(result.keys, own))
        try:
            async with Gateway(self._alone(model)) as gateway:
                await _ask(gateway, "warm-up", 0, self._warm_up())
                for number in numbers:
                    for kind, body in self._requests(number).items():
                        reading = await _ask(gateway, kind, number, body)
                        self._done += 1
                        self.results[place] = replace(
                            self.results[place],
                            readings=[*self.results[place].readings, reading],
                            memory=max(self.results[place].memory, _memory(gateway)),
                        )
                        told()
        except GatewayError as error:
            self.results[place] = replace(self.results[place], failed=str(error))

    def _warm_up(self) -> Body:
        """The first answer reads the weights from the disk."""
        return {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "temperature": 0}


async def _ask(gateway: Gateway, kind: str, number: int, body: Body) -> Reading:
    """Raises GatewayError."""
    asked = ChatRequest.parse(encode({**body, "stream": True, "stream_options": {"include_usage": True}}))
    began, first = time.perf_counter(), 0.0
    usage: dict[str, Any] = {}
    words = sha256()
    async with asyncio.timeout(ANSWER_SECONDS):
        with await gateway.chat(asked) as run:
            while payloads := await run.payloads():
                for payload in payloads:
                    chunk = json.loads(payload)
                    usage = chunk.get("usage") or usage
                    for choice in chunk["choices"]:
                        said = _words(choice["delta"])
                        words.update(said.encode())
                        first = first or (time.perf_counter() - began if said else 0.0)
    whole = time.perf_counter() - began
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Reading(
        kind,
        number,
        max(0, usage.get("prompt_tokens", 0) - cached),
        max(1, usage.get("completion_tokens", 0)),
        first or whole,
        whole,
        words.hexdigest() if not body.get("temperature", 1) else None,
    )


def _words(delta: dict[str, Any]) -> str:
    calls = (call.get("function") or {} for call in delta.get("tool_calls") or ())
    told = "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls)
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "") + told


def _memory(gateway: Gateway) -> int:
    """The engine's peak memory in bytes; 0 if unknown."""
    engine = gateway.route(None).engine
    used = memory.usage(engine.pid) if engine is not None and engine.pid is not None else None
    return used.peak if used is not None else 0
