"""HTTP with one model server: sends, reads bounded bodies, turns refusals into the nine categories."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from typing import Any

import httpx
from pydantic import SecretStr

from gateway.config.hidden import hider
from gateway.errors import (
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidResponse,
    ProviderModelNotLoaded,
    ProviderUnavailable,
)
from gateway.provider.failures import Failure
from gateway.schema.jsontext import parse_json

MAX_BODY_BYTES = 64 * 1024 * 1024
AT_ONCE = 64
"""Pieces to read before others get the event loop: a server may send each byte in a chunk of its own."""
# A local model may take minutes to its first byte; a busy machine may take seconds to open a thousand connections.
_TIMEOUT = httpx.Timeout(600.0, connect=30.0)
# No limit of our own: concurrent calls go to the wire concurrently (§8.1.4).
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
_SERVING = frozenset({"loaded", "ready", "running", "serving", "idle", "ok"})


class Server:
    """One server. Raises ValueError for a base_url or api_key that can't be used.

    version: the path that a base_url without one gets, as `/v1`.
    key_header, key_prefix: where the key goes. It appears in no message and no repr.
    http_client: the caller's own, who closes it; without one `aclose` closes ours.
    """

    def __init__(
        self,
        base_url: str,
        version: str,
        api_key: str | None,
        http_client: httpx.AsyncClient | None,
        *,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        headers: Mapping[str, str] | None = None,
        failure: type[Failure] = Failure,
    ) -> None:
        self.base_url = _base_url(base_url, version)
        if api_key is not None and not re.fullmatch(r"[!-~]+", api_key):
            raise ValueError("api_key must be printable ASCII without spaces")
        self._api_key = api_key
        # A small body may unpack to any size, and httpx unpacks each piece as a whole.
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        if api_key is not None:
            self._headers[key_header] = key_prefix + api_key
        self._failure_type = failure
        self._own_client = http_client is None
        self._client = http_client or httpx.AsyncClient(
            verify=_tls(), timeout=_TIMEOUT, limits=_LIMITS, trust_env=False
        )

    async def aclose(self) -> None:
        if self._own_client:
            await self._client.aclose()

    async def open(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        """Sends a request and returns once the status is there, before the body. path: below the base URL."""
        headers = {"Content-Type": "application/json", **self._headers} if content is not None else self._headers
        request = self._client.build_request(method, self.base_url + path, content=content, headers=headers)
        try:
            return await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _connection_error(error, self.base_url) from error

    async def post(self, path: str, content: bytes) -> Any:
        """The JSON of the answer. Raises the error for any status but 200."""
        return await self._answered(await self.open("POST", path, content))

    async def get(self, path: str) -> Any:
        """See `post`."""
        return await self._answered(await self.open("GET", path))

    async def healthy(self, path: str) -> None:
        """Returns if a GET answers with status 200, whatever its body. Raises the error for any other."""
        answer = await self.open("GET", path)
        if answer.status_code != 200:
            failure, cause = await self.failure(answer)
            raise failure.error(images=False) from cause
        await answer.aclose()

    async def _answered(self, answer: httpx.Response) -> Any:
        if answer.status_code != 200:
            failure, cause = await self.failure(answer)
            raise failure.error(images=False) from cause
        return await self.json(answer)

    async def bytes(self, answer: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yields the body in pieces, up to MAX_BODY_BYTES; closes the answer at the end."""
        size = 0
        try:
            if answer.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
                raise ProviderInvalidResponse(f"{self.base_url} compresses its answer, which nobody asked for")
            pieces = 0
            async for piece in answer.aiter_bytes():
                pieces += 1
                if pieces % AT_ONCE == 0:
                    await asyncio.sleep(0)
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise ProviderInvalidResponse(f"{self.base_url} sent more than {MAX_BODY_BYTES} bytes")
                yield piece
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _connection_error(error, self.base_url) from error
        finally:
            await answer.aclose()

    async def json(self, answer: httpx.Response) -> Any:
        body = b"".join([piece async for piece in self.bytes(answer)])
        try:
            return parse_json(body)
        except ValueError as error:
            raise ProviderInvalidResponse(f"{self.base_url} answered with a body that is not JSON: {error}") from error

    async def failure(self, answer: httpx.Response) -> tuple[Failure, httpx.HTTPStatusError]:
        """Reads a refusal; returns it with httpx's own error, to be its cause."""
        body = b"".join([piece async for piece in self.bytes(answer)])
        if self._api_key is not None:
            hidden = hider([SecretStr(self._api_key)])(body.decode("utf-8", "surrogateescape"))
            body = hidden.encode("utf-8", "surrogateescape")
        kept = httpx.Response(answer.status_code, content=body, request=answer.request)
        cause = httpx.HTTPStatusError(f"HTTP {answer.status_code}", request=answer.request, response=kept)
        return self._failure_type.of(answer.status_code, answer.headers, body), cause

    async def ready(self, model: str) -> None:
        """Looks the model up in `GET /models`. Raises ProviderInvalidModel if the server doesn't know it,
        ProviderModelNotLoaded if it isn't serving.

        Asks the entry's `ready_path` too, if it has one: a server that starts engines on demand, as ours does,
        lists models that aren't loaded, and answers there once the model is.
        """
        entry = self._entry(await self.get("/models"), model)
        status = entry.get("status", entry.get("state"))
        status = status.get("value") if isinstance(status, dict) else status
        if isinstance(status, str) and status not in _SERVING:
            raise ProviderModelNotLoaded(f"the model {model!r} is known but not serving: {status}")
        if isinstance(path := entry.get("ready_path"), str):
            url = str(httpx.URL(f"{self.base_url}/").join(path))
            if not url.startswith(f"{self.base_url}/"):
                raise ProviderInvalidResponse(f"the server's ready_path leads away from it: {path}")
            await self.get(url.removeprefix(self.base_url))

    def _entry(self, listing: Any, model: str) -> dict[str, Any]:
        models = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(models, list):
            raise ProviderInvalidResponse(f"{self.base_url}/models doesn't list models")
        entries = [entry for entry in models if isinstance(entry, dict)]
        for entry in entries:
            aliases = entry.get("aliases")
            if entry.get("id") == model or (isinstance(aliases, list) and model in aliases):
                return entry
        known = ", ".join(str(entry.get("id")) for entry in entries[:20]) or "none"
        raise ProviderInvalidModel(f"the server has no model {model!r}; it has: {known}")


@cache
def _tls() -> ssl.SSLContext:
    """Shared by all providers: reading the certificates takes 90 ms."""
    return httpx.create_ssl_context(trust_env=False)


def _base_url(given: str, version: str) -> str:
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL as error:
        raise ValueError(f"base_url is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("base_url must be http://host[:port][/path] or https://…")
    if url.userinfo or url.query or url.fragment:
        raise ValueError("base_url must have no user, query or fragment; a key goes into api_key")
    return str(url.copy_with(path=url.path.rstrip("/") or version or "/")).rstrip("/")


def _connection_error(error: httpx.HTTPError | httpx.StreamError, base_url: str) -> GatewayError:
    """A failure below HTTP: nothing listens, the connection broke, time ran out, or the bytes weren't HTTP."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.DecodingError):
        return ProviderInvalidResponse(f"{base_url} sent a body that can't be decoded: {reason}")
    if isinstance(error, httpx.TimeoutException):
        return ProviderUnavailable(f"{base_url} didn't answer in time ({type(error).__name__})")
    return ProviderUnavailable(f"{base_url} can't be reached: {reason}")
