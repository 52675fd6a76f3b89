"""The seam between the gateway and an engine's server.

A backend knows one kind of server: how to ask it, how to tell that it is ready, what it gets wrong and
what its errors mean. `gateway.core` opens a Reply, `gateway.answer.normalize` reads it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal, Protocol, Self
from urllib.parse import urlsplit

from msgspec import Raw, Struct

from gateway.backends.about import About
from gateway.config import Model
from gateway.errors import GatewayError
from gateway.upstream import bracketed
from gateway.wire.chat import ChatRequest


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
        if self.uds is not None:
            return f"unix:{self.uds}"
        return f"{'https' if self.tls else 'http'}://{bracketed(self.host)}:{self.port}{self.prefix}"


class Fixup:
    """Puts an engine's own mistakes right, before the answer is normalised; one object for each answer.

    The laws that hold for every engine (call ids, indices, argument strings, finish_reason) are not a
    fixup's work: `gateway.answer.normalize` holds them. What a fixup changes is a fact about that engine,
    with a test from its recorded or running self.
    """

    every_chunk = False
    """True where chunks of plain text need mending too; else only chunks that carry tool calls, a
    finish_reason or no choice at all are shown to `chunk`."""

    def answer(self, answer: dict[str, Any]) -> None:
        """Mends a whole answer in place."""

    def chunk(self, chunk: dict[str, Any]) -> None:
        """Mends a streamed chunk in place."""


class Taker(Protocol):
    """Takes payloads in the middle of a read: neither method may wait."""

    def ready(self) -> bool: ...

    def take(self, payload: bytes, event: bytes) -> None:
        """event: the server-sent event that holds the payload."""
        ...


class RawText(Struct, frozen=True):
    """How an answer is asked for as the model wrote it, read by no parser of the engine's.

    markers: special tokens that stay in the text. think: the pairs of marks around reasoning. grammar: GBNF that the
    answer is held to; trigger: only from these words on, with which the grammar begins.
    """

    markers: tuple[str, ...] = ()
    think: tuple[tuple[str, str], ...] = ()
    grammar: str | None = None
    trigger: str | None = None


class Reply(Protocol):
    """One answer of an engine, whole or streamed as the request asked."""

    @property
    def fixup(self) -> Fixup | None: ...

    @property
    def done(self) -> bool:
        """The engine said `[DONE]`."""
        ...

    def whole(self) -> Awaitable[bytes]:
        """The JSON body of a whole answer."""
        ...

    async def payloads(self) -> list[bytes]:
        """The JSON payloads that arrived since the last call, at least one; [] once the stream has ended.

        Raises ProviderUnavailable where the engine went away, ProviderInvalidResponse where it didn't
        speak server-sent events.
        """
        ...

    def tap(self, taker: Taker) -> None:
        """Hands payloads over as they arrive, while `payloads` waits and would have returned them.

        What `take` raises, `payloads` raises. A reply without a socket of its own does nothing here.
        """
        ...

    def close(self) -> None:
        """Ends the answer. An unfinished one is cancelled in the engine. Idempotent, never blocks."""
        ...


class Backend(Protocol):
    """How one kind of engine server is used. `runtime: pkg.mod:Class` in config.yaml names another."""

    def __init__(self, model: Model, address: Address | None) -> None: ...

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply:
        """Sends the request. `fields` is this call's own copy of the request's fields, defaults filled in.

        Raises a GatewayError if the engine refuses before the first byte of an answer.
        """
        ...

    def error(self, status: int, body: bytes) -> GatewayError:
        """What an error of the engine means; in a stream, where it has no status, `status` is 500."""
        ...

    async def ready(self) -> None:
        """Returns if the next `open` is expected to succeed.

        Raises ProviderModelNotLoaded while the engine loads, ProviderUnavailable where nothing answers,
        ProviderInvalidModel where the server doesn't have the model.
        """
        ...

    async def takes_tools(self) -> bool:
        """Whether the model's chat template has a place for tools."""
        ...

    async def keeps_calls(self) -> bool:
        """Whether the model's chat template shows the calls of earlier answers."""
        ...

    async def about(self) -> About:
        """What is known of the model, from its files or from the server."""
        ...

    async def aclose(self) -> None: ...


class RawReply(Reply, Protocol):
    @property
    def reasoning_open(self) -> bool:
        """The prompt has begun the model's reasoning: the text starts within it."""
        ...

    @property
    def by_grammar(self) -> bool:
        """The text is held to the grammar that was asked for."""
        ...


class RawTextBackend(Backend, Protocol):
    """A backend that can also give the text as the model wrote it."""

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> RawReply:
        """As `open`: the prompt made by the model's own template, the answer read by no parser of the engine's.

        A server that can't is asked as in `open`.
        """
        ...


Endpoint = Literal["completions", "embeddings", "rerank"]
"""Of OpenAI's and Jina's, beside the chat one."""


class EndpointBackend(Backend, Protocol):
    """A backend whose server may have further endpoints."""

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> Reply:
        """Sends a request to `/v1/<endpoint>` of the server, `model` filled in. Raises as `open` does."""
        ...


class CountingBackend(Backend, Protocol):
    """A backend whose server tells how long a prompt is without answering it."""

    async def count_tokens(self, fields: dict[str, Raw]) -> int | None:
        """Of the prompt that the model's template makes of a chat request's fields; None where it can't be told."""
        ...
