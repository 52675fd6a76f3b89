"""Sends requests to an OpenAI endpoint, whole or streamed, and measures times. Every wait is bounded."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import httpx

from gateway.features.evaluation.model_test.answers import (
    ModelAnswer,
    NotAnAnswer,
    StreamedParts,
    read_json,
    read_whole,
)
from gateway.wire.sse import SSEReader

Trouble = Literal["connection", "timeout", "rate_limit", "server_error", "refused", "bad_response", "context_exceeded"]

RETRIED = ("connection", "rate_limit")
RETRIED_STATUS = (429, 502, 503)
LONGEST_PAUSE = 10.0
LIST_SECONDS = 10.0
MAX_ANSWER = 16 * 1024 * 1024


class AskFailed(Exception):
    """No answer, which says nothing about the model: except for `context_exceeded`."""

    def __init__(self, kind: Trouble, detail: str, status: int | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.status = status


@dataclass(frozen=True)
class Endpoint:
    base_url: str
    """With /v1."""
    model: str
    key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    trust: ssl.SSLContext | bool = field(default=True, repr=False)
    """What vouches for an https server: a context of its own, or the authorities that the system trusts."""
    uds: Path | None = None
    """The socket to ask at, instead of the host of base_url."""
    key_variable: str = "OPENAI_API_KEY"
    """Where a person puts the key."""

    @property
    def shown(self) -> str:
        """Without user and password."""
        if self.uds is not None:
            return str(self.uds)
        parts = urlsplit(self.base_url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


@dataclass(frozen=True)
class Reply:
    """`ttft_ms` is the first delta with text, reasoning or a piece of a call; streams only."""

    answer: ModelAnswer
    ms: float
    ttfb_ms: float
    ttft_ms: float | None = None
    first_call_ms: float | None = None
    tokens_per_s: float | None = None
    attempts: int = 1


class Client:
    """One endpoint. `timeout` bounds a whole answer, in seconds."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, retries: int) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._retries = retries
        headers = dict(endpoint.headers)
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        times = httpx.Timeout(timeout, connect=10.0)
        over = httpx.AsyncHTTPTransport(uds=str(endpoint.uds) if endpoint.uds else None, verify=endpoint.trust)
        self._http = httpx.AsyncClient(headers=headers, timeout=times, trust_env=False, transport=over)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """JSON from the server. Raises AskFailed."""
        timeout = min(LIST_SECONDS, self._timeout)
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.get(f"{self.endpoint.base_url}{path}")
                if not response.is_success:
                    raise self._refusal(response.status_code, response.content)
                return response.json()
        except (TimeoutError, httpx.TimeoutException):
            raise AskFailed("timeout", f"{path} took more than {timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AskFailed("connection", self._safe(f"{path}: {error!r}")) from error

    async def ask(self, body: Mapping[str, Any], *, forced: bool = False, headers: Mapping[str, str] = {}) -> Reply:
        """Connections that fail, 429, 502 and 503 are tried again, after a pause with jitter; a timeout is not.

        Raises AskFailed.
        """
        for attempt in range(1, self._retries + 2):
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._once(body, forced, headers, attempt)
            except TimeoutError:
                raise AskFailed("timeout", f"no whole answer within {self._timeout:g} s") from None
            except AskFailed as error:
                again = error.kind in RETRIED or error.status in RETRIED_STATUS
                if not again or attempt > self._retries:
                    raise
                pause = min(LONGEST_PAUSE, 0.25 * 2**attempt)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    async def _once(self, body: Mapping[str, Any], forced: bool, headers: Mapping[str, str], attempt: int) -> Reply:
        url = f"{self.endpoint.base_url}/chat/completions"
        began = time.perf_counter()
        try:
            async with self._http.stream("POST", url, json=body, headers=headers) as response:
                first = time.perf_counter()
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread())
                if body["stream"]:
                    return await self._streamed(response, began, first, forced, attempt)
                text = await response.aread()
        except httpx.TimeoutException:
            raise AskFailed("timeout", f"nothing for {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AskFailed("connection", self._safe(repr(error))) from error
        ended = time.perf_counter()
        try:
            answer = read_whole(read_json(text), forced=forced)
        except ValueError as error:
            raise AskFailed("bad_response", self._safe(str(error)), 200) from error
        return Reply(answer, _ms(began, ended), _ms(began, first), attempts=attempt)

    async def _streamed(
        self, response: httpx.Response, began: float, first: float, forced: bool, attempt: int
    ) -> Reply:
        stream = StreamedParts()
        first_delta = last_delta = first_call = None
        reads: set[int] = set()
        try:
            async for data, read in _events(response):
                if stream.feed(data):
                    last_delta = time.perf_counter()
                    first_delta = first_delta or last_delta
                    reads.add(read)
                    if first_call is None and stream.complete_calls():
                        first_call = last_delta
            answer = stream.answer(forced=forced)
        except NotAnAnswer as error:
            raise AskFailed("bad_response", self._safe(str(error)), 200) from error
        speed = None
        tokens = answer.usage.get("completion_tokens")
        # What comes in few pieces, as a call does that had to be read to its end first, shows no speed.
        if isinstance(tokens, int) and len(reads) > max(2, tokens / 4) and first_delta and last_delta:
            speed = (tokens - 1) / (last_delta - first_delta) if last_delta > first_delta else None
        return Reply(
            answer,
            _ms(began, time.perf_counter()),
            _ms(began, first),
            _ms(began, first_delta) if first_delta else None,
            _ms(began, first_call) if first_call else None,
            speed,
            attempt,
        )

    def _refusal(self, status: int, body: bytes) -> AskFailed:
        text = body[:2000].decode("utf-8", "replace")
        detail = self._safe(f"HTTP {status}: {text[:300]}")
        if status == 401:
            detail += f"; put a key into {self.endpoint.key_variable}"
        if status in (400, 413) and ("context_length_exceeded" in text or "exceed_context_size" in text):
            return AskFailed("context_exceeded", detail, status)
        if status == 429:
            return AskFailed("rate_limit", detail, status)
        return AskFailed("server_error" if status >= 500 else "refused", detail, status)

    def _safe(self, text: str) -> str:
        """Removes the key, in case a server repeats it."""
        for secret in (self.endpoint.key, urlsplit(self.endpoint.base_url).password, *self.endpoint.headers.values()):
            if secret:
                text = text.replace(secret, "***")
        return text


async def _events(response: httpx.Response) -> AsyncIterator[tuple[str, int]]:
    """The data of each server-sent event, and the number of the read that completed it."""
    reader = SSEReader(MAX_ANSWER)
    size = read = 0
    async for part in response.aiter_bytes():
        size += len(part)
        read += 1
        if size > MAX_ANSWER:
            raise NotAnAnswer(f"more than {MAX_ANSWER} bytes")
        for data in reader.feed(part):
            yield data.decode("utf-8", "replace"), read
    for data in reader.finish():
        yield data.decode("utf-8", "replace"), read


def _ms(began: float, ended: float) -> float:
    return (ended - began) * 1000
