"""The seam between the gateway and an engine's server.

A backend knows one kind of server: how to ask it, when it is ready, what it gets wrong and what its errors mean.
`gateway.core` opens a Reply, `gateway.answer.normalize` reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Self
from urllib.parse import urlsplit

from msgspec import Raw, Struct

from gateway.backends.about import UNKNOWN, About
from gateway.config import Model
from gateway.config.hidden import hider
from gateway.errors import GatewayError, InternalError, ProviderInvalidRequest
from gateway.upstream import bracketed
from gateway.wire.chat import ChatRequest
from gateway.wire.control_tokens import ControlTokens
from gateway.wire.engine import Decided, Fixup, Notation, RawText

if TYPE_CHECKING:
    from gateway.backends.told import Told
    from gateway.prompts.live import LivePrompts
    from gateway.prompts.protocols import Placing, PromptPlace, SlotServer
    from gateway.prompts.told import ToldTurn
    from gateway.wire.completions import PromptLogprobs

Endpoint = Literal["completions", "embeddings", "rerank"]
"""Endpoints of OpenAI's and Jina's APIs other than chat."""


class Address(Struct, frozen=True):
    """Where an engine listens: a TCP host and port, or a Unix socket. `prefix` stands before `/v1/...`."""

    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    tls: bool = False
    prefix: str = ""

    @classmethod
    def parse(cls, base_url: str) -> Self:
        """From `http[s]://host[:port][/prefix]` or `unix:/path`; `/v1` is not part of the prefix."""
        if base_url.startswith("unix:"):
            return cls(uds=base_url.removeprefix("unix:"))
        url = urlsplit(base_url)
        tls = url.scheme == "https"
        return cls(url.hostname or "", url.port or (443 if tls else 80), None, tls, url.path.rstrip("/"))

    def __str__(self) -> str:
        """For people: without the prefix, which may hold a key."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        return f"{'https' if self.tls else 'http'}://{bracketed(self.host)}:{self.port}"


class Forward(Struct, frozen=True):
    """A request that an engine's server gets as its client wrote it.

    path: below the server's address, with a query. kind: Content-Type; None without a body. body: all of it, or a
    function that begins its pieces anew, `size` bytes in all. verbatim: any status is an answer; else those of errors
    become a GatewayError. owner: whose prompt the server may read; None: it reads none.
    """

    method: str
    path: str
    kind: str | None = None
    body: bytes | Callable[[], AsyncIterator[bytes]] = b""
    size: int = 0
    verbatim: bool = False
    owner: str | None = None


class Forwarded(Protocol):
    """The answer to a `Forward`, unchanged."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """By lower-case names."""
        ...

    async def receive(self) -> bytes:
        """The bytes that arrived since the last call, at least one; b"" at the end. Raises ProviderUnavailable, and
        ProviderInvalidResponse."""
        ...

    def close(self) -> None:
        """Ends the answer and cancels unfinished work in the engine. Idempotent, never blocks."""
        ...


class TrackedForwarded:
    """An unchanged answer. ended: called once it is closed."""

    def __init__(self, answer: Forwarded, ended: Callable[[], None]) -> None:
        self._answer = answer
        self._ended: Callable[[], None] | None = ended

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        return self._answer.headers

    async def receive(self) -> bytes:
        return await self._answer.receive()

    def close(self) -> None:
        self._answer.close()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


class Reply:
    """One answer of an engine, whole or streamed as the request asked. Subclasses implement the first three methods."""

    __slots__ = ()

    fixup: Fixup | None = None
    """Corrects this engine's mistakes in the answer."""
    done = False
    """The engine sent `[DONE]`."""
    reasoning_open = False
    """The prompt opens the model's reasoning, so the text starts within it."""
    by_grammar = False
    """The engine enforces the grammar that was sent: every call that begins with a marker is readable."""
    decided: Decided | None = None
    """Whether it calls a tool was decided before it was written, and how."""
    turn: PromptPlace | ToldTurn | None = None
    """The request's place among the engine's prompts, if it matters."""
    history: Sequence[tuple[str, float]] = ()
    """Its events in the engine: names, and times by time.monotonic."""
    flexible: Flexible | None = None
    """This reply, if it can be put aside."""

    def whole(self) -> Awaitable[bytes]:
        """The JSON body of a whole answer."""
        raise NotImplementedError

    async def payloads(self) -> list[bytes]:
        """The JSON payloads that arrived since the last call, at least one; [] once the stream has ended.

        Raises ProviderUnavailable if the engine goes away, ProviderInvalidResponse if it doesn't speak server-sent
        events.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends the answer and cancels unfinished work in the engine. Idempotent, never blocks."""
        raise NotImplementedError

    def direct(self) -> DirectReply | None:
        """This reply on its engine's socket, where a `gateway.core.shortcut` may attach."""
        return None


class DirectReply(Reply):
    """A reply whose events can be taken directly from the engine's socket."""

    __slots__ = ()

    between_events = False
    """Whether no event is partly read."""
    translate: Callable[[bytes], list[bytes]] | None = None
    """Turns one payload of the engine into chat chunks; None if a payload is one."""

    def attach(self, offer: Callable[[bytes], bool] | None) -> None:
        """Offers bytes to `offer` as they arrive while `payloads` waits; True takes them. `payloads` raises what
        `offer` raises."""
        raise NotImplementedError


class WrappedReply(Reply):
    """Another reply; a subclass says what is different, and whether its events may be taken from the socket."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def fixup(self) -> Fixup | None:  # type: ignore[override]
        return self._reply.fixup

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self._reply.done

    @property
    def reasoning_open(self) -> bool:  # type: ignore[override]
        return self._reply.reasoning_open

    @property
    def by_grammar(self) -> bool:  # type: ignore[override]
        return self._reply.by_grammar

    @property
    def decided(self) -> Decided | None:  # type: ignore[override]
        return self._reply.decided

    @property
    def turn(self) -> PromptPlace | ToldTurn | None:  # type: ignore[override]
        return self._reply.turn

    @property
    def history(self) -> Sequence[tuple[str, float]]:  # type: ignore[override]
        return self._reply.history

    @property
    def flexible(self) -> Flexible | None:  # type: ignore[override]
        return self._reply.flexible

    def whole(self) -> Awaitable[bytes]:
        return self._reply.whole()

    async def payloads(self) -> list[bytes]:
        return await self._reply.payloads()

    def close(self) -> None:
        self._reply.close()


class Seat(Protocol):
    """The place of a flexible reply at its engine."""

    def leave(self) -> None:
        """The reply has been put aside."""
        ...

    async def join(self) -> Backend:
        """Waits for a place again; returns the backend to continue with, `flexible` if possible. Raises as the engine's
        `join`."""
        ...

    def count_in(self) -> None:
        """The reply was closed while it was put aside: counts it as in flight, so that it can leave like any other."""
        ...

    def taken(self, reply: Flexible) -> None:
        """The engine has accepted the rest of the reply."""
        ...

    def describe(self) -> str:
        """The progress of its wait."""
        ...


class Flexible(Protocol):
    """A reply that can be put aside at a token boundary, and later resumes as if nothing had happened."""

    @property
    def gives_way(self) -> bool:
        """Whether it can be put aside now."""
        ...

    @property
    def closed(self) -> bool: ...

    def put_aside(self) -> asyncio.Task[None]:
        """Ends its work in the engine and saves it; the task ends once the place is free, and raises nothing."""
        ...

    def seated(self, seat: Seat) -> None:
        """Its place, once the engine has accepted it."""
        ...


class ReplicaStatus(Struct, frozen=True):
    """One of several servers of a model. healthy: it answered when it was last asked. asked: requests so far."""

    url: str
    healthy: bool
    in_flight: int
    asked: int


class Backend:
    """How to use one kind of engine server. `runtime: pkg.mod:Class` in config.yaml names a class of your own.

    A backend implements `open`; everything else has a default, which often says "not supported".
    """

    escapes = False
    """Whether it has `control_tokens`, and takes requests whose texts are escaped: `open_raw` and `count_tokens`
    do, or `open` if `opens_escaped`."""
    unread = False
    """Whether the gateway has to parse every answer itself: it uses `open_raw` wherever it knows the format."""
    opens_escaped = False
    """Whether `open` takes escaped requests; else their texts are broken for it."""

    separates = False
    """Whether the engine reuses an owner's prompts for that owner alone; see `gateway.wire.chat.Caller`. If it doesn't,
    and several owners ask it, nobody is told what it reuses."""

    told: Told | None = None
    """What its server says of its model, if that isn't ours and says something."""

    replays = 0
    """How often a request whose server goes away is sent again, if its client has nothing yet: other servers answer."""

    def __init__(self, model: Model, address: Address | None) -> None:
        self.model = model

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply:
        """Sends the request. `fields` is this call's own copy of the request's fields, defaults filled in.

        Raises a GatewayError if the engine refuses before the first byte of an answer.
        """
        raise NotImplementedError

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> Reply:
        """Like `open`, but the model's own template makes the prompt, and no parser of the engine touches the answer.

        For a server that can't do this, the same as `open`.
        """
        raise NotImplementedError

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> Reply:
        """Sends a request to `/v1/<endpoint>` of the server, `model` filled in. Raises as `open` does."""
        message = f"model {self.model.name!r}: the runtime {self.model.runtime} serves no {endpoint}"
        raise ProviderInvalidRequest(message, code="unsupported_endpoint", param="model")

    async def forward(self, sent: Forward) -> Forwarded:
        """Passes on a request for any path of the server. Raises as `open` does, and what the body's pieces raise."""
        message = f"model {self.model.name!r}: the runtime {self.model.runtime} has no server for {sent.path}"
        raise ProviderInvalidRequest(message, code="unsupported_endpoint", param="model")

    async def post_for(self, owner: str, endpoint: Endpoint, fields: dict[str, Raw]) -> Reply:
        """Like `post`. owner: whose prompts the engine may reuse; see `gateway.wire.chat.Caller`."""
        return await self.post(endpoint, fields)

    async def count_tokens(self, fields: dict[str, Raw]) -> int | None:
        """The length of a chat request's prompt; None if the server can't tell without answering it."""
        return None

    async def prompt_logprobs(self, prompt: str | list[int], top: int) -> PromptLogprobs | None:
        """The log-probabilities of a prompt's own tokens, and of the `top` likeliest at each position.

        None if the server can't tell.
        """
        return None

    def error(self, status: int, body: bytes) -> GatewayError:
        """Translates an error of the engine. An error within a stream has no status: `status` is 500 then."""
        return InternalError(f"the engine answered {status}: {body[:200]!r}")

    def fault(self, status: int, body: bytes) -> GatewayError:
        """Like `error`, but without the model's secrets: servers quote keys that they refuse."""
        if self.model.secrets:
            body = hider(self.model.secrets)(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        return self.error(status, body)

    async def ready(self) -> None:
        """Returns if the next `open` is expected to succeed.

        Raises ProviderModelNotLoaded while the engine loads, ProviderUnavailable if nothing answers,
        ProviderInvalidModel if the server doesn't have the model.
        """

    async def load(self, keep_alive: float | None) -> None:
        """Has a server that isn't ours load the model; returns once it is in memory.

        keep_alive: seconds without a request until the server unloads it, 0: now, inf: never, None: its own default.
        Raises ProviderInvalidRequest if the server offers no such operation.
        """
        raise ProviderInvalidRequest(
            f"model {self.model.name!r}: its server isn't the gateway's, and decides itself what it keeps in memory",
            code="not_loadable",
            param="model",
        )

    async def met_another(self) -> bool:
        """Whether its server, which isn't ours, says that it has another model than before: it was started anew."""
        return False

    async def notation(self) -> Notation | None:
        """The notation of the grammars that `open_raw` takes; None if only `open` works."""
        return None

    async def takes_tools(self) -> bool:
        """Whether the model's chat template has a place for tools."""
        return True

    async def keeps_calls(self) -> bool:
        """Whether the model's chat template shows the calls of earlier answers."""
        return True

    async def control_tokens(self) -> ControlTokens | None:
        """The control tokens of the model; None if the server doesn't tell. Asked only of backends that escape."""
        return None

    async def about(self) -> About:
        """Facts about the model, from its files or its server."""
        return UNKNOWN

    def replicas(self) -> Sequence[ReplicaStatus]:
        """The servers behind this backend, if it distributes over several."""
        return ()

    def flexible(self) -> Backend | None:
        """This backend for answers that may be put aside; None if it has to finish all of them.

        Its replies may be `Flexible`.
        """
        return None

    def keep_prompts(self, prompts: LivePrompts) -> None:
        """Lets `prompts` save and restore the engine's prompts; a backend that can't do this ignores them."""

    def ask_for_places(self, places: Placing) -> None:
        """Lets `places` choose the slots of requests; a backend that can't choose ignores it."""

    def kept_prompts(self) -> tuple[LivePrompts, SlotServer] | None:
        """The argument of `keep_prompts`, and the engine's slots; None if it was ignored."""
        return None

    async def save_prompts(self) -> None:
        """Saves the engine's prompts before it ends. Raises nothing."""

    def heard(self) -> float | None:
        """When the last byte of an answer came, by the loop's clock; None if the backend doesn't notice."""
        return None

    async def progress(self) -> Hashable | None:
        """A value that changes with each step of any of the server's answers; None if the server has none."""
        return None

    async def aclose(self) -> None:
        """Closes every connection."""
