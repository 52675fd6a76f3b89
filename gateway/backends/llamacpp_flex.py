"""Answers of llama.cpp that can be put aside at a token boundary, for requests with service tier flex.

The gateway asks `/completion` with the token ids of the rendered prompt. To put an answer aside it cuts the stream,
which ends the work in the engine at the next token, and saves the slot. The file has the ids of all that the engine
read and wrote, and the stream says how many of them the client has got (`timings.predicted_n`). To resume, the gateway
restores the file and sends a new request: its prompt is the previous one plus exactly those tokens, of which the engine
has to read only the last. So at temperature 0 the answer has the same words as one that was never interrupted.

Where that isn't so, the answer finishes first: see `may_pause` for requests, and `FlexReply.gives_way` for calls, in
which a grammar is active. The only state of the engine's sampler is the tokens, which count for its penalties as part
of the prompt; its random numbers start again, which only a request with a `seed` could notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from secrets import token_hex
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from gateway.backends.base import Backend, Reply, Seat
from gateway.backends.collect import collected
from gateway.backends.llamacpp_guard import MAY_BE_CALLS, TRIGGER_WHOLE, guardable
from gateway.backends.llamacpp_slots import LlamaCppSlots
from gateway.backends.openai import HTTPReply, json_object, malformed
from gateway.backends.prompt_progress import PromptProgress
from gateway.config import Model
from gateway.errors import ProviderUnavailable
from gateway.prompts.aside import Aside, put_aside, take_back
from gateway.prompts.live import LivePrompts
from gateway.prompts.protocols import Place
from gateway.prompts.turn import Turn
from gateway.upstream import Response
from gateway.wire.chat import PUT_ASIDE, ChatRequest, decode, encode
from gateway.wire.control_tokens import ControlTokens, ends_with
from gateway.wire.engine import Notation, RawText

if TYPE_CHECKING:
    from gateway.backends.about import About
    from gateway.errors import GatewayError
    from gateway.wire.control_tokens import Prompt

FORWARDED = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "stop", "ignore_eos", "logit_bias", "seed"),
        *("presence_penalty", "frequency_penalty", "repeat_penalty", "repeat_last_n"),
    )
)
"""Fields that work the same for a resumed answer, whose text so far counts as prompt."""
SHAPING = frozenset(
    (
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort"),
        *("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "cache_prompt"),
        *("service_tier", "user", "metadata", "store"),
    )
)
"""Fields that matter only before the engine begins to write, or only to the gateway."""
GRAMMAR = frozenset(("grammar", "grammar_lazy", "grammar_triggers"))
STREAMED = {
    "stream": Raw(b"true"),
    "cache_prompt": Raw(b"true"),
    "return_tokens": Raw(b"true"),
    "timings_per_token": Raw(b"true"),
    "return_progress": Raw(b"true"),
}


class _Cut(Exception):
    """The stream was cut to put its answer aside."""


def may_pause(fields: Mapping[str, Raw]) -> bool:
    """Whether an answer to a request with these fields can resume from its tokens.

    Not one that is sampled with a `seed`, nor one with fields that aren't known to be safe here.
    """
    if not fields.keys() <= FORWARDED | SHAPING:
        return False
    if bytes(fields.get("cache_prompt", b"true")) == b"false":
        return False
    drawn = "temperature" not in fields or decode(fields["temperature"]) != 0
    return not (drawn and decode(fields.get("seed", b"null")) is not None)


def written(ids: Sequence[int], told: int, held: Sequence[int] | None) -> list[int] | None:
    """The ids of the tokens whose text has arrived; None if they can't be determined.

    ids: those that came with the text, which lack the first tokens of characters of several. told: how many tokens the
    engine had written with the last of them; with speculation up to a few more. held: what the engine held behind the
    prompt when it stopped, more or one less; None if unknown.
    """
    if not ids or len(ids) == told:
        return list(ids)
    if held is None:
        return None
    if list(held[: len(ids)]) == list(ids):
        return list(ids)
    if len(held) == told - 1:
        return [*held, ids[-1]]
    return list(held[:told]) if len(held) >= told and held[told - 1] == ids[-1] else None


class Origin(Protocol):
    """The part of `gateway.backends.llamacpp.LlamaCppBackend` that this needs."""

    model: Model
    escapes: bool

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply: ...
    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> Reply: ...
    async def rendered(self, fields: dict[str, Raw]) -> Prompt | None: ...
    async def ids(self, prompt: Prompt, *, begins: bool = True) -> list[int] | None: ...
    async def placed(self, request: ChatRequest, fields: dict[str, Raw], prompt: Prompt | None) -> Place | None: ...
    async def guard(self, raw: RawText, pair: tuple[str, str] | None) -> dict[str, Raw]: ...
    async def accepted(self, head: bytes, fields: dict[str, Raw]) -> Response: ...
    def post_head(self, path: str) -> bytes: ...
    def error(self, status: int, body: bytes) -> GatewayError: ...
    async def notation(self) -> Notation: ...
    async def takes_tools(self) -> bool: ...
    async def keeps_calls(self) -> bool: ...
    async def control_tokens(self) -> ControlTokens | None: ...
    async def about(self) -> About: ...


class LlamaCppFlex(Backend):
    """A llama.cpp backend as flex requests see it."""

    unread = True

    def __init__(self, origin: Origin, prompts: LivePrompts, slots: LlamaCppSlots) -> None:
        self.model = origin.model
        self.escapes = origin.escapes
        self.origin = origin
        self.prompts = prompts
        self.slots = slots

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply:
        return await self.origin.open(request, fields)

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> Reply:
        """Sends requests whose answers can't be put aside like any other request."""
        raw = guardable(raw, fields)
        if raw.decision is not None or not may_pause(fields) or not await self.prompts.know(self.slots):
            return await self.origin.open_raw(request, fields, raw)
        prompt = await self.origin.rendered(fields)
        ids = await self.origin.ids(prompt) if prompt is not None else None
        pair = next((pair for pair in raw.think if prompt is not None and ends_with(prompt, pair[0])), None)
        asked = await self._asked(fields, raw, pair)
        if prompt is None or ids is None or asked is None:
            return await self.origin.open_raw(request, fields, raw)
        turn = await self.origin.placed(request, fields, prompt)
        if not isinstance(turn, Turn) or turn.slot is None:
            if turn is not None:
                turn.leave()
            turn = await self.prompts.take(self.slots, owner=request.caller.owner)
        if turn.slot is None:
            turn.leave()
            return await self.origin.open_raw(request, fields, raw)
        thoughts = [mark for pair in raw.think for mark in pair]
        marks = (*raw.starts, *thoughts) if raw.grammar is not None else ()
        reply = FlexReply(self, asked, ids, request, marks=marks, unmarked=raw.unmarked and pair is None)
        reply.reasoning_open, reply.by_grammar = pair is not None, raw.grammar is not None
        if request.stream:
            request.progress = reply.reading
        with turn:
            await reply.ask(turn)
        return reply

    async def _asked(self, fields: dict[str, Raw], raw: RawText, pair: tuple[str, str] | None) -> dict[str, Raw] | None:
        """The fields for `/completion` without the prompt; None if a grammar runs from the first token on.

        pair: the reasoning that the prompt opens.
        """
        asked = {name: value for name, value in fields.items() if name in FORWARDED and bytes(value) != b"null"}
        if raw.grammar is not None:
            grammar = {} if raw.forced else await self.origin.guard(raw, pair)
            if "grammar_lazy" not in grammar:
                return None
            asked |= grammar
        if "stop" in asked and isinstance(stop := decode(asked["stop"]), str):
            asked["stop"] = Raw(encode([stop]))
        if raw.markers:
            asked["preserved_tokens"] = Raw(encode(raw.markers))
        limit = next((fields[name] for name in ("max_completion_tokens", "max_tokens") if name in fields), None)
        if limit is not None and bytes(limit) != b"null":
            asked["n_predict"] = limit
        return {**asked, **STREAMED}

    def error(self, status: int, body: bytes) -> GatewayError:
        return self.origin.error(status, body)

    async def notation(self) -> Notation | None:
        return await self.origin.notation()

    async def takes_tools(self) -> bool:
        return await self.origin.takes_tools()

    async def keeps_calls(self) -> bool:
        return await self.origin.keeps_calls()

    async def control_tokens(self) -> ControlTokens | None:
        return await self.origin.control_tokens()

    async def about(self) -> About:
        return await self.origin.about()


class FlexReply(HTTPReply):
    """marks: texts at which a grammar begins. unmarked: it also begins with an answer that may begin with a call."""

    __slots__ = (
        "_aside",
        "_asked",
        "_away",
        "_backend",
        "_begun",
        "_cached",
        "_closed",
        "_id",
        "_ids",
        "_known",
        "_left",
        "_limit",
        "_marks",
        "_prompt",
        "_request",
        "_saving",
        "_seat",
        "_tail",
        "_texts",
        "_told",
        "_unmarked",
        "_usage",
        "_written",
        "by_grammar",
        "history",
        "reasoning_open",
    )  # fmt: skip

    def __init__(
        self,
        backend: LlamaCppFlex,
        asked: dict[str, Raw],
        prompt: list[int],
        request: ChatRequest,
        *,
        marks: Iterable[str] = (),
        unmarked: bool = False,
    ) -> None:
        self.fixup = self.progress = None
        self.collects = True
        self.done = self.between_events = False
        self._json = None
        self._backend = backend
        self._asked = asked
        self._prompt = prompt
        self._limit: int | None = decode(asked["n_predict"]) if "n_predict" in asked else None
        self._request = request
        self._usage = request.include_usage or not request.stream
        self._marks = tuple(marks)
        self._unmarked = unmarked
        self._written: list[int] = []
        """Ids of the answer's tokens from before it was put aside."""
        self._ids: list[int] = []
        self._known = self._told = 0
        """How many of the ids came with the last text, and see `written`."""
        self._texts: list[str] = []
        """The text since it was last put aside."""
        self._tail = ""
        """The last text, in which a mark may have begun."""
        self._cached: int | None = None
        self._begun = False
        self._id = f"chatcmpl-{token_hex(16)}"
        self._seat: Seat | None = None
        self._saving: asyncio.Task[None] | None = None
        self._aside: Aside | None = None
        self._away = False
        """Whether it has no place at the engine."""
        self._left = False
        """A grammar is active: the answer finishes first."""
        self._closed = False
        self.history: list[tuple[str, float]] = []

    @property
    def flexible(self) -> FlexReply:  # type: ignore[override]
        return self

    async def ask(self, turn: Turn) -> None:
        """Sends the prompt and the answer so far. Raises as `accepted`."""
        origin = self._backend.origin
        asked = {**self._asked, "id_slot": Raw(b"%d" % turn.slot) if turn.slot is not None else Raw(b"-1")}
        if turn.fresh:
            asked["cache_prompt"] = Raw(b"false")
        asked["prompt"] = Raw(encode([*self._prompt, *self._written]))
        if not self._unmarked and "grammar_triggers" in asked:
            # The engine would take the rest of the answer for its start.
            triggers = [each for each in decode(asked["grammar_triggers"]) if each["type"] != TRIGGER_WHOLE]
            if triggers:
                asked["grammar_triggers"] = Raw(encode(triggers))
            else:
                asked = {name: value for name, value in asked.items() if name not in GRAMMAR}
        if self._limit is not None:
            asked["n_predict"] = Raw(b"%d" % max(0, self._limit - len(self._written)))
        response = await origin.accepted(origin.post_head("/completion"), asked)
        self._receive_from(response)
        self.turn = turn

    def _receive_from(self, response: Response) -> None:
        self._response = response
        self._reader = None
        self._seen = self._ended = False
        self._ids, self._texts, self._known, self._told = [], [], 0, 0
        self.progress = PromptProgress()

    # Reading

    def reading(self) -> str:
        """For `ChatRequest.progress`."""
        return self.progress.describe() if self.progress is not None else "waiting"

    def whole(self) -> Awaitable[bytes]:
        return collected(self)

    def direct(self) -> None:  # type: ignore[override]
        """None: the payloads aren't chat chunks, and may have to wait."""
        return

    async def payloads(self) -> list[bytes]:
        while True:
            try:
                events = await super().payloads()
            except _Cut:
                if await self._go_on():
                    continue
                # It was cut after its last token, and the engine can't be asked to stop there again.
                self.done = self._ended = True
                return [encode(chunk) for chunk in self._last({"stop_type": "limit", "tokens_predicted": 0})]
            chunks = [chunk for event in events for chunk in self._translated(event)]
            if chunks or not events:
                return chunks

    def _translated(self, payload: bytes) -> list[bytes]:
        """Chat chunks for a payload of `/completion`."""
        body = json_object(payload, self.json)
        if "error" in body:
            return [payload]
        try:
            text, timings = body.get("content") or "", body.get("timings") or {}
            self._ids += body.get("tokens") or ()
            if text:
                self._texts.append(text)
                self._known, self._told = len(self._ids), timings["predicted_n"]
                self._look_for_marks(text)
            if self._cached is None and "cache_n" in timings:
                self._cached = timings["cache_n"]
            chunks = [self._chunk({"content": text})] if text or not self._begun else []
            if body.get("stop"):
                self.done = True
                chunks += self._last(body)
        except (KeyError, TypeError, AttributeError) as error:
            raise malformed(error) from error
        return [encode(chunk) for chunk in chunks]

    def _look_for_marks(self, text: str) -> None:
        if self._unmarked and not self._left:
            begun = "".join(self._texts)
            self._left = MAY_BE_CALLS.fullmatch(begun) is not None
            self._unmarked = not begun.strip()
        if self._marks and not self._left:
            self._tail += text
            self._left = any(mark in self._tail for mark in self._marks)
            self._tail = self._tail[-max(map(len, self._marks)) :]

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self._head(), "choices": [choice]}

    def _head(self) -> dict[str, Any]:
        model = self._backend.model.upstream_name
        return {"id": self._id, "object": "chat.completion.chunk", "created": int(time()), "model": model}

    def _last(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        end = self._chunk({}, "length" if body.get("stop_type") == "limit" else "stop")
        if self._request.names_stop and (word := body.get("stopping_word")):
            end["choices"][0]["stop_reason"] = word
        chunks = [end]
        if self._usage:
            prompt, completion = len(self._prompt), len(self._written) + body["tokens_predicted"]
            usage: dict[str, Any] = {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": self._cached or 0},
            }
            chunks.append({**self._head(), "choices": [], "usage": usage})
        return chunks

    # Giving way

    def seated(self, seat: Seat) -> None:
        self._seat = seat

    @property
    def gives_way(self) -> bool:
        busy = self._seat is not None and self._saving is None and not self._left
        return busy and not self._closed and not self.done and not self._response.ended

    @property
    def closed(self) -> bool:
        return self._closed

    def put_aside(self) -> asyncio.Task[None]:
        if self._saving is None:
            self._saving = asyncio.create_task(self._save(), name="put an answer aside")
        return self._saving

    async def _save(self) -> None:
        prompts, turn = self._backend.prompts, self.turn
        assert isinstance(turn, Turn)
        async with prompts.saver.lock:
            if self._closed or self.done or self._response.ended:
                return  # it has ended meanwhile
            self._response.cut(_Cut())
            self.history.append(("put_aside", monotonic()))
            self._aside = await put_aside(prompts, turn)
        if not self._closed and self._seat is not None:
            self._away = True
            self._seat.leave()

    async def _go_on(self) -> bool:
        """True once an engine has accepted the rest of the answer; False if there is no rest. Raises as `Seat.join` and
        `ask`."""
        assert self._saving is not None
        assert self._seat is not None
        before, self._request.progress = self._request.progress, self._describe
        try:
            await asyncio.shield(self._saving)
            backend = await self._seat.join()
            self._away = False
            if not isinstance(backend, LlamaCppFlex):
                raise ProviderUnavailable("the model's settings changed while the answer was put aside", status=502)
            self._backend = backend
            await self._recall_written()
            if self._limit is not None and len(self._written) >= self._limit:
                return False
            turn = await take_back(backend.prompts, backend.slots, self._aside, self._request.caller.owner)
            await self._forget()
            with turn:
                await self.ask(turn)
        finally:
            self._request.progress = before
        self._saving = None
        self.history.append(("went_on", monotonic()))
        self._seat.taken(self)
        return True

    async def _recall_written(self) -> None:
        behind = [*self._prompt, *self._written]
        held = self._aside.tokens(behind) if self._aside is not None else None
        ids = written(self._ids[: self._known], self._told, held)
        if ids is None:
            # Tokenised again, the text may be other tokens, and other words may follow.
            ids = await self._backend.origin.ids("".join(self._texts), begins=False) or []
        self._written += ids

    def _describe(self) -> str:
        told = self._seat.describe() if self._seat is not None else ""
        return f"{PUT_ASIDE} {told}".strip()

    async def _forget(self) -> None:
        aside, self._aside = self._aside, None
        if aside is not None:
            await aside.discard()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        super().close()
        if self._away and self._seat is not None:
            self._away = False
            self._seat.back()
        saving = self._saving
        if saving is not None:
            finished = asyncio.create_task(self._discard(saving), name="forget an answer")
            FORGETTING.add(finished)
            finished.add_done_callback(FORGETTING.discard)

    async def _discard(self, saving: asyncio.Task[None]) -> None:
        await asyncio.wait({saving})
        await self._forget()


FORGETTING: set[asyncio.Task[None]] = set()
"""Keeps references to tasks, since the event loop doesn't."""
