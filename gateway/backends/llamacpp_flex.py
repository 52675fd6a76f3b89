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
from collections.abc import Awaitable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from msgspec import Raw

from gateway.backends.base import Backend, Reply, Seat
from gateway.backends.collect import collected
from gateway.backends.llamacpp_guard import guardable
from gateway.backends.llamacpp_slots import LlamaCppSlots
from gateway.backends.openai import HTTPReply, json_object, malformed
from gateway.backends.prompt_progress import PromptProgress
from gateway.backends.resumable import Chunks, GrammarWatch, Tokens
from gateway.config import Model
from gateway.errors import ProviderUnavailable
from gateway.prompts.aside import Aside, put_aside, take_back
from gateway.prompts.live import LivePrompts
from gateway.prompts.protocols import PromptPlace
from gateway.prompts.turn import Turn
from gateway.upstream import Response
from gateway.wire.chat import PUT_ASIDE, ChatRequest, decode, encode
from gateway.wire.control_tokens import ControlTokens, ends_with
from gateway.wire.engine import Notation, RawText

if TYPE_CHECKING:
    from gateway.backends.about import About
    from gateway.errors import GatewayError
    from gateway.prompts.told import ToldTurn
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


class Origin(Protocol):
    """The part of `gateway.backends.llamacpp.LlamaCppBackend` that this needs."""

    model: Model
    escapes: bool

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply: ...
    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> Reply: ...
    async def rendered(self, fields: dict[str, Raw]) -> Prompt | None: ...
    async def ids(self, prompt: Prompt, *, begins: bool = True) -> list[int] | None: ...
    async def placed(
        self, request: ChatRequest, fields: dict[str, Raw], prompt: Prompt | None
    ) -> PromptPlace | None: ...
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
        super().__init__(origin.model, None)
        self.escapes = origin.escapes
        self.forgetting: set[asyncio.Task[None]] = set()
        """Work behind answers that were closed: the event loop alone would not keep it."""
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
        watch = GrammarWatch(marks, unmarked=raw.unmarked and pair is None)
        tokens, guarded = Tokens(asked, ids), raw.grammar is not None
        reply = FlexReply(self, request, tokens, watch, reasoning_open=pair is not None, by_grammar=guarded)
        if request.stream:
            request.serving.tell(reply.reading)
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


class FlexReply(Reply):
    """A reply of several requests to the engine: a new one after each time that it was put aside."""

    __slots__ = (
        *("_aside", "_away", "_backend", "_chunks", "_closed", "_reply", "_request", "_saving", "_seat", "_tokens"),
        *("_watch", "by_grammar", "done", "history", "reasoning_open"),
    )

    def __init__(
        self,
        backend: LlamaCppFlex,
        request: ChatRequest,
        tokens: Tokens,
        watch: GrammarWatch,
        *,
        reasoning_open: bool,
        by_grammar: bool,
    ) -> None:
        self.reasoning_open, self.by_grammar = reasoning_open, by_grammar
        self.done = False
        self.history: list[tuple[str, float]] = []
        self._backend = backend
        self._request = request
        self._tokens, self._watch = tokens, watch
        self._chunks = Chunks(request, backend.model.upstream_name)
        self._reply: Resumed | None = None
        """The request that the engine works on now."""
        self._seat: Seat | None = None
        self._saving: asyncio.Task[None] | None = None
        self._aside: Aside | None = None
        self._away = False
        """Whether it has no place at the engine."""
        self._closed = False

    @property
    def flexible(self) -> FlexReply:  # type: ignore[override]
        return self

    @property
    def turn(self) -> PromptPlace | ToldTurn | None:  # type: ignore[override]
        return self._reply.turn if self._reply is not None else None

    @property
    def tokens(self) -> int:
        """The answer's tokens so far."""
        return self._tokens.so_far

    async def ask(self, turn: Turn) -> None:
        """Sends the prompt and the answer so far. Raises as `accepted`."""
        origin = self._backend.origin
        asked = self._watch.triggers(self._tokens.request(turn.slot, fresh=turn.fresh))
        response = await origin.accepted(origin.post_head("/completion"), asked)
        self._reply = Resumed(response, turn)

    # Reading

    def reading(self) -> str:
        """For `Serving.tell`."""
        progress = self._reply.progress if self._reply is not None else None
        return progress.describe() if progress is not None else "waiting"

    def whole(self) -> Awaitable[bytes]:
        return collected(self)

    async def payloads(self) -> list[bytes]:
        while not self.done:
            assert self._reply is not None
            try:
                events = await self._reply.payloads()
            except _Cut:
                if await self._go_on():
                    continue
                # It was cut after its last token, and the engine can't be asked to stop there again.
                self.done = True
                ended = {"stop_type": "limit", "tokens_predicted": 0}
                return [encode(chunk) for chunk in self._chunks.last(self._tokens, ended)]
            chunks = [chunk for event in events for chunk in self._translated(event, self._reply)]
            if chunks or not events:
                return chunks
        return []

    def _translated(self, payload: bytes, reply: Resumed) -> list[bytes]:
        """Chat chunks for a payload of `/completion`."""
        body = json_object(payload, reply.json)
        if "error" in body:
            return [payload]
        try:
            text, timings = body.get("content") or "", body.get("timings") or {}
            self._tokens.add(text, body.get("tokens") or (), timings["predicted_n"] if text else None)
            self._watch.read(text)
            if "cache_n" in timings:
                self._chunks.cached(timings["cache_n"])
            chunks = [*self._chunks.text(text)]
            if body.get("stop"):
                self.done = True
                reply.end()
                chunks += self._chunks.last(self._tokens, body)
        except (KeyError, TypeError, AttributeError) as error:
            raise malformed(error) from error
        return [encode(chunk) for chunk in chunks]

    # Giving way

    def seated(self, seat: Seat) -> None:
        self._seat = seat

    @property
    def gives_way(self) -> bool:
        seated = self._seat is not None and self._saving is None and not self._watch.active
        return seated and not self._closed and self._reply is not None and not self._reply.has_ended

    @property
    def closed(self) -> bool:
        return self._closed

    def put_aside(self) -> asyncio.Task[None]:
        if self._saving is None:
            self._saving = asyncio.create_task(self._save(), name="put an answer aside")
        return self._saving

    async def _save(self) -> None:
        prompts, reply = self._backend.prompts, self._reply
        assert reply is not None
        assert isinstance(reply.turn, Turn)
        async with prompts.saver.lock:
            if self._closed or reply.has_ended or self._watch.active:
                self._saving = None  # it has gone on meanwhile, to its end or into a call
                return
            reply.cut()
            self.history.append(("put_aside", monotonic()))
            self._aside = await put_aside(prompts, reply.turn)
        if not self._closed and self._seat is not None:
            self._away = True
            self._seat.leave()

    async def _go_on(self) -> bool:
        """True once an engine has accepted the rest of the answer; False if there is no rest. Raises as `Seat.join` and
        `ask`."""
        assert self._saving is not None
        assert self._seat is not None
        serving = self._request.serving
        before = serving.describe
        serving.tell(self._describe)
        try:
            await asyncio.shield(self._saving)
            backend = await self._seat.join()
            self._away = False
            if not isinstance(backend, LlamaCppFlex):
                raise ProviderUnavailable("the model's settings changed while the answer was put aside", status=502)
            self._backend = backend
            await self._recall()
            if self._tokens.at_limit:
                return False
            turn = await take_back(backend.prompts, backend.slots, self._aside, self._request.caller.owner)
            await self._forget()
            with turn:
                await self.ask(turn)
        finally:
            serving.tell(before)
        self._saving = None
        self.history.append(("went_on", monotonic()))
        self._seat.taken(self)
        return True

    async def _recall(self) -> None:
        """Finds out which tokens the client has."""
        held = self._aside.tokens(self._tokens.all) if self._aside is not None else None
        if not self._tokens.recall(held):
            # Tokenised again, the text may be other tokens, and other words may follow.
            self._tokens.retokenised(await self._backend.origin.ids(self._tokens.text, begins=False) or [])

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
        if self._reply is not None:
            self._reply.close()
        if self._away and self._seat is not None:
            self._away = False
            self._seat.count_in()
        if (saving := self._saving) is not None:
            forgetting = self._backend.forgetting
            finished = asyncio.create_task(self._discard(saving), name="forget an answer")
            forgetting.add(finished)
            finished.add_done_callback(forgetting.discard)

    async def _discard(self, saving: asyncio.Task[None]) -> None:
        await asyncio.wait({saving})
        await self._forget()


class Resumed(HTTPReply):
    """The answer of one request to `/completion`."""

    __slots__ = ()

    def __init__(self, response: Response, turn: Turn) -> None:
        super().__init__(response)
        self.progress = PromptProgress()
        self.turn = turn

    @property
    def has_ended(self) -> bool:
        return self.done or self._response.ended

    def end(self) -> None:
        """The engine's last payload has come."""
        self.done = True

    def cut(self) -> None:
        """Ends the work in the engine; `payloads` raises _Cut."""
        self._response.cut(_Cut())
