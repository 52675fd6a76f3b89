"""A Provider over HTTP for every server that speaks OpenAI's chat completions (OpenArmature §8.1)."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator
from functools import cache
from types import TracebackType
from typing import Any, Literal, Unpack, overload

import httpx

from gateway.errors import ProviderInvalidModel, ProviderInvalidResponse, ProviderModelNotLoaded
from gateway.provider.contract import AsJSON, AsModel, Config, Messages, ModelT, Options, Tools, Unstructured
from gateway.provider.failures import Failure, connection_error
from gateway.provider.mapping import Call
from gateway.provider.request import Capabilities
from gateway.provider.response import Response
from gateway.provider.stream import Stream, read_events
from gateway.schema.jsontext import parse_json

MAX_BODY_BYTES = 64 * 1024 * 1024
# A local model may take minutes to its first byte; a busy machine may take seconds to open a thousand connections.
_TIMEOUT = httpx.Timeout(600.0, connect=30.0)
# No limit of our own: concurrent calls go to the wire concurrently (§8.1.4).
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
_SERVING = frozenset({"loaded", "ready", "running", "serving", "idle", "ok"})


class OpenAIProvider:
    """One model behind one server. It remembers one thing: whether the server knows `response_format`.

    base_url: `http(s)://host:port`, with or without `/v1`; another path stays as it is.
    api_key: sent as a bearer token; appears in no message and no repr.
    http_client: an httpx.AsyncClient with its own limits, timeouts and proxies; the caller closes it.
        Without one the provider has its own, which reads no proxy settings from the environment, and
        `aclose()` or `async with` closes it.

    Raises ValueError for a base_url or api_key that can't be used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self.base_url = _base_url(base_url)
        self.model = model
        self.capabilities = capabilities or Capabilities()
        if api_key is not None and not re.fullmatch(r"[!-~]+", api_key):
            raise ValueError("api_key must be printable ASCII without spaces")
        self._api_key = api_key
        self._native = self.capabilities.native_response_format is not False
        self._own_client = http_client is None
        self._client = http_client or httpx.AsyncClient(
            verify=_tls(), timeout=_TIMEOUT, limits=_LIMITS, trust_env=False
        )

    def __repr__(self) -> str:
        return f"OpenAIProvider({self.base_url!r}, {self.model!r})"

    @property
    def structured_output(self) -> Literal["native", "prompt"]:
        """How the next call with a response_schema asks for it (§8.1.5.1); Capabilities can fix it."""
        return "native" if self._native else "prompt"

    async def aclose(self) -> None:
        if self._own_client:
            await self._client.aclose()

    async def __aenter__(self) -> OpenAIProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def ready(self) -> None:
        """Looks the model up in `GET /models`; see `Provider.ready`.

        Asks the entry's `ready_path` too, if it has one: a server that starts engines on demand, as ours does,
        lists models that aren't loaded, and answers there once the model is.
        """
        entry = self._entry(await self._get(f"{self.base_url}/models"))
        status = entry.get("status", entry.get("state"))
        status = status.get("value") if isinstance(status, dict) else status
        if isinstance(status, str) and status not in _SERVING:
            raise ProviderModelNotLoaded(f"the model {self.model!r} is known but not serving: {status}")
        if isinstance(path := entry.get("ready_path"), str):
            url = str(httpx.URL(f"{self.base_url}/").join(path))
            if not url.startswith(f"{self.base_url}/"):
                raise ProviderInvalidResponse(f"the server's ready_path leads away from it: {path}")
            await self._get(url)

    def _entry(self, listing: Any) -> dict[str, Any]:
        """The model's entry in the server's list. Raises ProviderInvalidModel."""
        models = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(models, list):
            raise ProviderInvalidResponse(f"{self.base_url}/models doesn't list models")
        entries = [entry for entry in models if isinstance(entry, dict)]
        for entry in entries:
            aliases = entry.get("aliases")
            if entry.get("id") == self.model or (isinstance(aliases, list) and self.model in aliases):
                return entry
        known = ", ".join(str(entry.get("id")) for entry in entries[:20]) or "none"
        raise ProviderInvalidModel(f"the server has no model {self.model!r}; it has: {known}")

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[Unstructured],
    ) -> Response[None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AsModel[ModelT]],
    ) -> Response[ModelT | None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AsJSON],
    ) -> Response[dict[str, Any] | None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[True],
        **options: Unpack[Unstructured],
    ) -> Stream[None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[True],
        **options: Unpack[AsModel[ModelT]],
    ) -> Stream[ModelT | None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[True],
        **options: Unpack[AsJSON],
    ) -> Stream[dict[str, Any] | None]: ...

    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: bool = False,
        **options: Unpack[Options],
    ) -> Response[Any] | Stream[Any]:
        """Calls the model once: see `Provider.complete`.

        stream: return a Stream as soon as the server accepts the call, before it answers.

        With a response_schema the request has `response_format`. For a server that lacks it, a directive in the
        system message takes its place: Capabilities says so, or the server's refusal, which costs a second request.
        """
        # In a thread, as `call.response`: checking schemas may take long.
        call = await asyncio.to_thread(
            Call.check, self.model, self.capabilities, messages, tools, config, stream=stream, **options
        )
        while True:
            native = self._native
            answer = await self._open("POST", f"{self.base_url}/chat/completions", call.body(native))
            if answer.status_code == 200:
                break
            failure, cause = await self._failure(answer)
            if not (self._may_learn(call, native) and failure.refuses_response_format()):
                raise failure.error(call.images) from cause
            self._native = False
        if stream:
            if "application/json" in answer.headers.get("content-type", ""):
                await answer.aclose()
                raise ProviderInvalidResponse(f"{self.base_url} answered a streamed call with a whole body")
            return Stream(read_events(self._bytes(answer), call), answer.aclose)
        return await asyncio.to_thread(call.response, await self._json(answer))

    def _may_learn(self, call: Call, native: bool) -> bool:
        return native and call.output is not None and self.capabilities.native_response_format is None

    async def _get(self, url: str) -> Any:
        answer = await self._open("GET", url, None)
        if answer.status_code != 200:
            failure, cause = await self._failure(answer)
            raise failure.error(images=False) from cause
        return await self._json(answer)

    async def _open(self, method: str, url: str, content: bytes | None) -> httpx.Response:
        """Sends a request and returns once the status is there, before the body."""
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = self._client.build_request(method, url, content=content, headers=headers)
        try:
            return await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise connection_error(error, self.base_url) from error

    async def _bytes(self, answer: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yields the body in pieces, up to MAX_BODY_BYTES; closes the answer at the end."""
        size = 0
        try:
            async for piece in answer.aiter_bytes():
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise ProviderInvalidResponse(f"{self.base_url} sent more than {MAX_BODY_BYTES} bytes")
                yield piece
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise connection_error(error, self.base_url) from error
        finally:
            await answer.aclose()

    async def _json(self, answer: httpx.Response) -> Any:
        body = b"".join([piece async for piece in self._bytes(answer)])
        try:
            return parse_json(body)
        except ValueError as error:
            raise ProviderInvalidResponse(f"{self.base_url} answered with a body that is not JSON: {error}") from error

    async def _failure(self, answer: httpx.Response) -> tuple[Failure, httpx.HTTPStatusError]:
        """Reads a refusal; returns it with httpx's own error, to be its cause."""
        body = b"".join([piece async for piece in self._bytes(answer)])
        if self._api_key is not None:
            body = body.replace(self._api_key.encode(), b"[api key]")
        kept = httpx.Response(answer.status_code, content=body, request=answer.request)
        cause = httpx.HTTPStatusError(f"HTTP {answer.status_code}", request=answer.request, response=kept)
        return Failure.of(answer.status_code, answer.headers, body), cause


@cache
def _tls() -> ssl.SSLContext:
    """Shared by all providers: reading the certificates takes 90 ms."""
    return httpx.create_ssl_context(trust_env=False)


def _base_url(given: str) -> str:
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL as error:
        raise ValueError(f"base_url is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("base_url must be http://host[:port][/path] or https://…")
    if url.userinfo or url.query or url.fragment:
        raise ValueError("base_url must have no user, query or fragment; a key goes into api_key")
    return str(url.copy_with(path=url.path.rstrip("/") or "/v1")).rstrip("/")
