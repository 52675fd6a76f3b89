"""Maps a server's refusals to the nine categories (OpenArmature §7, §8.1.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
    retry_after,
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
    r"|(should|must) be|invalid parameter|only (text|support)|mmproj|extra inputs|unknown name"
    # vLLM: "… is not a multimodal model", "At most 0 image(s) may be provided". Ollama: the rest.
    r"|is not a (multi-?modal|vision)|at most 0 |missing data required",
    re.IGNORECASE,
)
# A file that is missing or damaged stays so; a lack of memory passes.
_BROKEN_WEIGHTS = re.compile(
    r"(unable to|failed to|could not|couldn't|cannot|can't|error) load(ing)? (the )?(model|weights)"
    r"|invalid file magic|(model|weights?|gguf|safetensors)\b.{0,80}\b(missing|corrupt|truncated)",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"memory|\boom\b|\bvram\b|cuda|metal|resource|busy|timed? ?out", re.IGNORECASE)
_IMAGE = re.compile(r"image|vision|multi-?modal|media[\s_-]?type|content[\s_-]?(block|part|type)", re.IGNORECASE)
_RESPONSE_FORMAT = re.compile(
    r"response_format|json_schema|output_config|responseJsonSchema|response_json_schema|responseMimeType", re.IGNORECASE
)
_REFUSALS = (400, 415, 422, 500, 501)
_KINDS = {str(category): kind for category, kind in CATEGORIES.items()} | {
    "structured_output_invalid": StructuredOutputInvalid
}
_LONGEST_MESSAGE = 2000


class Failure:
    """A refusal in the server's own words: an HTTP status and the body's `error`, in any of its shapes."""

    def __init__(self, status: int, error: Any, asked: float | None = None) -> None:
        self.status = status
        self.retry_after = asked
        self.lasting = False
        self.fields: dict[str, Any] = error if isinstance(error, dict) else {"message": error}
        message = self.fields.get("message") or self.fields.get("detail") or f"HTTP {status}"
        self.message = str(message)[:_LONGEST_MESSAGE]

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """Reads an answer whose status isn't 200."""
        try:
            document = parse_json(body)
        except ValueError:
            document = body.decode("utf-8", "replace")
        error = document.get("error", document) if isinstance(document, dict) else document
        found = cls(status, error, retry_after(headers.get("retry-after-ms"), headers.get("retry-after")))
        found.lasting = headers.get("x-should-retry") == "false"
        return found

    @classmethod
    def frame(cls, error: Any) -> Failure:
        """Reads an error inside a stream, whose own status was 200: the frame may have a status as its code."""
        fields = error if isinstance(error, dict) else {}
        code = fields.get("code")
        if type(code) is not int or not 400 <= code < 600:
            code = cls.status_of(fields.get("type"))
        return cls(code, error)

    @staticmethod
    def status_of(kind: object) -> int:
        """The HTTP status that an error of this `type` would have had."""
        return 400 if kind == "invalid_request_error" else 500

    @property
    def words(self) -> str:
        """The text that the patterns search."""
        named = (str(self.fields.get(name, ""))[:_LONGEST_MESSAGE] for name in ("code", "type", "param"))
        return f"{' '.join(named)} {self.message}"

    def refuses_response_format(self) -> bool:
        """Whether the server lacks structured output, so that the prompt must ask for it (§8.1.5.1)."""
        about = _RESPONSE_FORMAT.search(self.words) and "schema for response_format" not in self.message
        return bool(self.status in _REFUSALS and "category" not in self.fields and about and self._refused())

    def _refused(self) -> bool:
        return _REFUSED.search(self.words) is not None

    def refuses_image(self) -> bool:
        """Whether the words refuse an image; ask only after a call that had one."""
        return bool(_IMAGE.search(self.words)) and self._refused()

    def error(self, images: bool) -> GatewayError:
        """The error to raise. images: the call carried an image, which the server may have refused."""
        details = {k: v for k, v in self.fields.items() if k not in ("message", "type", "code", "param", "category")}
        code, param = self.fields.get("code"), self.fields.get("param")
        found = self._named(images)(
            self.message,
            code=code if isinstance(code, str) else None,
            param=param if isinstance(param, str) else None,
            retry_after=self.retry_after,
            details=details,
        )
        if found.transient and self.lasting:
            found.last()
        return found

    def _named(self, images: bool) -> type[GatewayError]:
        category = self.fields.get("category")
        if isinstance(category, str) and category in _KINDS:
            return _KINDS[category]  # our own gateway names it
        return self.kind(images)

    def kind(self, images: bool) -> type[GatewayError]:
        """The category that status and words stand for."""
        status = self.status
        if status in (401, 403):
            return ProviderAuthentication
        if status == 429:
            return ProviderRateLimit
        if images and status in _REFUSALS and self.refuses_image():
            return ProviderUnsupportedContentBlock
        if status in (400, 404) and _UNKNOWN_MODEL.search(self.words):
            return ProviderInvalidModel
        if status >= 500 and _BROKEN_WEIGHTS.search(self.message) and not _MEMORY.search(self.message):
            return ProviderInvalidModel
        if status in (400, 503) and _NOT_LOADED.search(self.words):
            return ProviderModelNotLoaded
        if status == 408 or status >= 500:
            return ProviderUnavailable
        return ProviderInvalidResponse if status < 400 else ProviderInvalidRequest
