"""Keeps a room's turns within the context window of their model: the oldest turns become a summary.

Each change is an event, and durable before the model is called: a gateway that is killed meanwhile starts over from the
recorded events. Messages and events stay in the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError
from gateway.features.agents.window import (
    SHORT_RESULT,
    PastTurn,
    opened,
    shortened,
    to_fold,
    weight,
    with_short_results,
    with_steps_told,
)
from gateway.features.rooms.schemas import Compacted
from gateway.features.rooms.summary import Summariser
from gateway.provider import Message as Said
from gateway.provider import Tool, ToolMessage

UNKNOWN_WINDOW = 8192
"""Tokens of a window that isn't configured."""
ANSWER = 4
"""The answer may have at least the window divided by this, and the summary half of that."""
LEAST_ANSWER = 16
"""Tokens of the answer to a message that fills the window by itself."""
MAX_TURNS = 200
"""Turns that a model sees word for word, however large its window."""
REFUSALS = 4
"""How often a turn adapts to an engine that finds a conversation too long."""

Record = Callable[[str, Mapping[str, Any]], Awaitable[None]]
Count = Callable[[Sequence[Said], Sequence[Tool]], Awaitable[int]]
Load = Callable[[int, int], Awaitable[Sequence[PastTurn]]]
"""(after this message number, at most so many) → earlier turns, the oldest first."""


@dataclass(slots=True)
class Measure:
    """Estimates of a model's window and token count; refusals correct them.

    window: in tokens. scale: the engine's count of a conversation divided by ours, if that was too small.
    """

    window: int
    scale: float = 1.0


class RoomWindow:
    """A `gateway.features.agents.turn.Window` for one turn of an actor."""

    def __init__(
        self,
        agent: str,
        system: str,
        compacted: Compacted,
        load: Load,
        count: Count,
        summariser: Summariser,
        record: Record,
        measure: Measure,
        answer: int,
    ) -> None:
        """compacted: the summary so far. answer: tokens that the turn may write at most."""
        self._agent = agent
        self._system = system
        self._compacted = compacted
        self._load = load
        self._count = count
        self._summariser = summariser
        self._record = record
        self._measure = measure
        self._answer = answer
        self._past: list[PastTurn] | None = None
        self._told: Mapping[str, Any] = {}
        self._sent = 0
        self._refusals = 0

    @property
    def _maximum(self) -> int:
        """Tokens that a conversation may have."""
        window = self._measure.window
        return window - min(self._answer, window // ANSWER)

    async def fit(self, turn: Sequence[Said], tools: Sequence[Tool]) -> Sequence[Said]:
        """The conversation to send. Raises GatewayError if the engine can't count it."""
        if self._past is None:
            self._past = [*await self._load(self._compacted.through_seq, MAX_TURNS + 1)]
        # One result must not displace the whole history.
        shown = with_short_results(turn, max(SHORT_RESULT, self._measure.window))
        tokens = await self._tokens(self._whole(shown), tools)
        while self._past and (tokens > self._maximum or len(self._past) > MAX_TURNS):
            tokens = await self._compact(shown, tools, tokens)
        left_out: Mapping[str, Any] = {}
        messages: Sequence[Said] = self._whole(shown)
        if tokens > self._maximum:
            messages, left_out, tokens = await self._squeezed(shown, tools)
        left_out = {**left_out, **_shortened(turn, messages)}
        if left_out and left_out != self._told:
            self._told = left_out
            await self._record("history:shortened", left_out)
        self._sent = tokens
        return messages

    def exceeded(self, error: GatewayError) -> bool:
        """Corrects the measure after the engine's refusal. False if a smaller conversation isn't possible."""
        self._refusals += 1
        if self._refusals > REFUSALS:
            return False
        before = self._maximum / self._measure.scale
        if window := error.details.get("context_window"):
            self._measure.window = min(self._measure.window, int(window))
        if (prompt := error.details.get("prompt_tokens")) and self._sent:
            self._measure.scale *= max(1.0, int(prompt) / self._sent)
        if self._maximum / self._measure.scale >= before:  # the engine didn't say by how much
            if self._sent > self._measure.window - LEAST_ANSWER:
                return False  # that was the smallest form: it says nothing of other rooms' conversations
            self._measure.scale *= 1.5
        return True

    def _whole(self, turn: Sequence[Said]) -> list[Said]:
        return opened(self._system, self._compacted.text, self._past or (), turn)

    async def _tokens(self, messages: Sequence[Said], tools: Sequence[Tool]) -> int:
        return round(await self._count(messages, tools) * self._measure.scale)

    async def _compact(self, turn: Sequence[Said], tools: Sequence[Tool], tokens: int) -> int:
        """Folds the oldest turns into the summary. Returns what the conversation has then."""
        assert self._past
        rest = weight(opened(self._system, self._compacted.text, (), turn))
        number = to_fold(self._past, tokens, self._measure.window // 2, rest, MAX_TURNS // 2)
        folded, before = self._past[:number], self._compacted
        summary = await self._summariser.write(before.text, folded, self._measure.window // (2 * ANSWER))
        self._compacted = Compacted(folded[-1].seq, summary.text)
        del self._past[:number]
        after = await self._tokens(self._whole(turn), tools)
        await self._record(
            "history:compacted",
            {
                "agent_id": self._agent,
                "from_seq": folded[0].seq,
                "through_seq": folded[-1].seq,
                "turns": number,
                "before": before.text,
                "summary": summary.text,
                "by": summary.by,
                "model": self._summariser.model,
                "problem": summary.problem,
                "tokens_before": tokens,
                "tokens_after": after,
            },
        )
        if len(self._past) <= MAX_TURNS:
            last = self._past[-1].seq if self._past else folded[-1].seq
            self._past += await self._load(last, MAX_TURNS + 1 - len(self._past))
        return after

    async def _squeezed(
        self, turn: Sequence[Said], tools: Sequence[Tool]
    ) -> tuple[Sequence[Said], Mapping[str, Any], int]:
        """The largest form of the conversation that fits, what it leaves out, and its tokens; else the smallest."""
        found: tuple[Sequence[Said], Mapping[str, Any], int] = (turn, {}, 0)
        for messages, left_out, maximum in self._forms(turn):
            found = messages, left_out, await self._tokens(messages, tools)
            if found[2] <= maximum:
                break
        return found

    def _forms(self, turn: Sequence[Said]) -> Iterator[tuple[Sequence[Said], Mapping[str, Any], int]]:
        """Ever smaller forms, what they leave out, and the tokens that each may have."""
        maximum = self._maximum
        window, summary = self._measure.window, self._compacted.text
        for chars in (window // 2, SHORT_RESULT):
            yield self._whole(with_short_results(turn, chars)), {}, maximum
        short, steps = [*turn], {}
        for all_steps in (False, True):
            short = with_steps_told(with_short_results(turn, SHORT_RESULT), window // 2, all_steps=all_steps)
            steps = {"steps": len(turn) - len(short)} if len(short) < len(turn) else {}
            yield self._whole(short), steps, maximum
        for share in (2, 4):
            cut = shortened(summary, len(summary) // share)
            yield opened(self._system, cut, (), short), {**steps, "summary": len(summary) - len(cut)}, maximum
        without = {**steps, "summary": len(summary)} if summary else steps
        for tokens in (maximum, window - LEAST_ANSWER):
            yield opened(self._system, "", (), short), without, tokens


def _shortened(turn: Sequence[Said], sent: Sequence[Said]) -> Mapping[str, Any]:
    """The tool results of the turn that are sent in short form."""
    shown = {message.tool_call_id: message.content for message in sent if isinstance(message, ToolMessage)}
    found = {
        message.tool_call_id: len(message.content)
        for message in turn
        if isinstance(message, ToolMessage) and shown.get(message.tool_call_id, message.content) != message.content
    }
    return {"results": found} if found else {}
