"""Maps a server's refusals and failed connections to the nine categories (OpenArmature §7, §8.1.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from gateway.errors import (
    CATEGORIES,
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderModelNotLoaded,
    ProviderRateLimit,
    ProviderUnavailable,
    ProviderUnsupportedContentBlock,
    seconds_until_retry,
)
from gateway.provider.structured import StructuredOutputInvalid
from gateway.schema.jsontext import parse_json

# Servers word these conditions freely. We look for the last two only after a call that may have caused them.
_UNKNOWN_MODEL = re.compile(
    r"model_not_found|no such model|unknown model"
    r"|model(\s+['\"`]?[^\s'\"`]+['\"`]?,?)?\s+((is|was)\s+)?(not found|unknown|does ?n[o']t exist)",
    re.IGNORECASE,
)
_NOT_LOADED = re.compile(
    r"model_not_loaded|loading model|model\b.{0,200}\b(not loaded|loading|not ready)", re.IGNORECASE
)
_REFUSED = re.compile(
    r"(not|n't|un)[\s_-]?((be|yet|currently)\s)?(support|accept|allow|permit|available|implement|recogni|expect|know)"
    r"|(should|must) be|invalid parameter|only (text|support)|mmproj",
    re.IGNORECASE,
)
_IMAGE = re.compile(r"image|vision|multi-?modal|media[\s_-]?type|content[\s_-]?(block|part|type)", re.IGNORECASE)
_RESPONSE_FORMAT = re.compile(r"response_format|json_schema", re.IGNORECASE)
_REFUSALS = (400, 415, 422, 500, 501)
_KINDS = {str(category): kind for category, kind in CATEGORIES.items()} | {
    "structured_output_invalid": StructuredOutputInvalid
}
_LONGEST_MESSAGE = 2000


class Failure:
    """A refusal in the server's own words: an HTTP status and the body's `error`, in any of its shapes."""

    def __init__(self, status: int, error: Any, retry_after: float | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        self.fields: dict[str, Any] = error if isinstance(error, dict) else {"message": error}
        self.message = str(self.fields.get("message") or f"HTTP {status}")[:_LONGEST_MESSAGE]

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """Reads an answer whose status isn't 200."""
        try:
            document = parse_json(body)
        except ValueError:
            document = body.decode("utf-8", "replace")
        error = document.get("error", document) if isinstance(document, dict) else document
        return cls(status, error, seconds_until_retry(headers.get("retry-after")))

    @classmethod
    def frame(cls, error: Any) -> Failure:
        """Reads an error inside a stream, whose own status was 200: the frame may have a status as its code."""
        fields = error if isinstance(error, dict) else {}
        code = fields.get("code")
        if type(code) is not int or not 400 <= code < 600:
            code = 400 if fields.get("type") == "invalid_request_error" else 500
        return cls(code, error)

    @property
    def words(self) -> str:
        """The text that the patterns search."""
        return " ".join(str(self.fields.get(name, "")) for name in ("code", "type", "param")) + " " + self.message

    def refuses_response_format(self) -> bool:
        """Whether the server lacks structured output, so that the prompt must ask for it (§8.1.5.1)."""
        about = _RESPONSE_FORMAT.search(self.words) and "schema for response_format" not in self.message
        return bool(self.status in _REFUSALS and "category" not in self.fields and about and self._refused())

    def _refused(self) -> bool:
        return _REFUSED.search(self.words) is not None

    def error(self, images: bool) -> GatewayError:
        """The error to raise. images: the call carried an image, which the server may have refused."""
        details = {k: v for k, v in self.fields.items() if k not in ("message", "type", "code", "param", "category")}
        code, param = self.fields.get("code"), self.fields.get("param")
        return self._kind(images)(
            self.message,
            code=code if isinstance(code, str) else None,
            param=param if isinstance(param, str) else None,
            retry_after=self.retry_after,
            details=details,
        )

    def _kind(self, images: bool) -> type[GatewayError]:
        category = self.fields.get("category")
        if isinstance(category, str) and category in _KINDS:
            return _KINDS[category]  # our own gateway names it
        status = self.status
        if status in (401, 403):
            return ProviderAuthentication
        if status == 429:
            return ProviderRateLimit
        if images and status in _REFUSALS and _IMAGE.search(self.words) and self._refused():
            return ProviderUnsupportedContentBlock
        if status in (400, 404) and _UNKNOWN_MODEL.search(self.words):
            return ProviderInvalidModel
        if status in (400, 503) and _NOT_LOADED.search(self.words):
            return ProviderModelNotLoaded
        if status == 408 or status >= 500:
            return ProviderUnavailable
        if status < 400:
            return ProviderInvalidResponse
        return ProviderInvalidRequest


def connection_error(error: httpx.HTTPError | httpx.StreamError, base_url: str) -> GatewayError:
    """A failure below HTTP: nothing listens, the connection broke, time ran out, or the bytes weren't HTTP."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.DecodingError):
        return ProviderInvalidResponse(f"{base_url} sent a body that can't be decoded: {reason}")
    if isinstance(error, httpx.TimeoutException):
        return ProviderUnavailable(f"{base_url} didn't answer in time ({type(error).__name__})")
    return ProviderUnavailable(f"{base_url} can't be reached: {reason}")
