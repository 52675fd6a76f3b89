"""Any server that speaks OpenAI's chat completions: the base of the other HTTP backends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from gateway.backends.about import UNKNOWN, About, about
from gateway.backends.base import Address, Backend, DirectReply, Endpoint, Forward, Forwarded
from gateway.backends.collect import collected
from gateway.backends.context import exceeded
from gateway.backends.prompt_progress import PromptProgress
from gateway.backends.template import template_refusal
from gateway.backends.toolnames import ToolNames
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ImagesUnsupported,
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
from gateway.upstream import Response, Upstream
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.engine import Fixup
from gateway.wire.lenient import BROKEN, LenientReader
from gateway.wire.sse import EventTooLarge, SSEReader
from gateway.wire.values import exceeds

if TYPE_CHECKING:
    from gateway.prompts.protocols import PromptPlace
    from gateway.prompts.told import ToldTurn

MAX_ERROR_BODY = 1024 * 1024
MAX_MESSAGE = 16 * 1024
"""Longest error message of an engine, in characters. It may quote the request, and `error` searches it."""


class HTTPReply(DirectReply):
    """A reply read from an upstream response."""

    __slots__ = (
        *("_ended", "_json", "_reader", "_response", "_seen", "between_events"),
        *("collects", "done", "fixup", "progress", "turn"),
    )

    def __init__(self, response: Response, fixup: Fixup | None = None) -> None:
        self.fixup = fixup
        self.progress: PromptProgress | None = None
        """Reads llama.cpp's progress payloads, until the first token."""
        self.collects = False
        """The engine streams a whole answer; see `gateway.backends.collect`."""
        self.turn: PromptPlace | ToldTurn | None = None
        self._json: LenientReader | None = None
        self._response = response
        self._reader: SSEReader | None = None
        self._seen = False
        self.between_events = False
        self._ended = False
        self.done = False

    def whole(self) -> Awaitable[bytes]:
        if self.collects and self._is_stream():
            return collected(self)
        return self._response.read()

    @property
    def json(self) -> LenientReader:
        """Reads the payloads of a reply that translates them; the others leave it to the answer's normaliser."""
        if self._json is None:
            self._json = LenientReader()
        return self._json

    def _is_stream(self) -> bool:
        return b"event-stream" in self._response.headers.get(b"content-type", b"")

    async def payloads(self) -> list[bytes]:
        reader = self._reader
        if reader is None:  # a whole answer needs none
            reader = self._reader = SSEReader()
        while not self._ended:
            data = await self._response.receive()
            try:
                events = reader.feed(data) if data else reader.finish()
            except EventTooLarge as error:
                raise malformed(error) from error
            self.between_events = reader.between
            if not data:
                self._ended = True
                if not self._seen and not events:
                    raise await self.empty()
            if b"[DONE]" in events:
                del events[events.index(b"[DONE]") :]
                self.done = self._ended = True
                if not self._seen and not events:
                    raise await self.empty()
            if events and self.progress is not None:
                self._seen = True
                try:
                    events = self.progress.strip(events)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError) as error:
                    raise malformed(error) from error
                if events:
                    self.progress = None
            if events:
                self._seen = True
                return events
        return []

    def direct(self) -> HTTPReply:
        return self

    def attach(self, offer: Callable[[bytes], bool] | None) -> None:
        self._response.offer = offer

    async def empty(self) -> GatewayError:
        """The error for a 200 whose stream has no event."""
        return ProviderInvalidResponse("the engine answered 200 with an empty stream")

    def read_progress(self, progress: PromptProgress) -> None:
        """Reads the progress from the stream's comments."""
        self._reader = SSEReader()
        self._reader.comment = progress.comment

    def close(self) -> None:
        self._response.offer = None
        if self.done:
            self._response.finish()
        else:
            self._response.close()
        if self.turn is not None:
            self.turn.leave()


class OpenAIBackend(Backend):
    """Subclasses override `adapt`, `error`, `reply`, `takes_tools` and the two paths for their engine."""

    chat_path = "/v1/chat/completions"
    ready_path = "/v1/models"

    def __init__(self, model: Model, address: Address | None) -> None:
        if address is None:
            raise ProviderInvalidRequest(f"model {model.name!r}: runtime {model.runtime} needs a base_url or a port")
        super().__init__(model, address)
        self.address = address
        self.upstream = Upstream(
            address, connect_timeout=model.connect_timeout, silence_timeout=model.request_timeout, ca_file=model.ca_file
        )
        secret = model.api_key
        self._auth = [("Authorization", f"Bearer {secret.get_secret_value()}")] if secret is not None else []
        self._chat_head = self.post_head(self.chat_path)
        self._name = Raw(encode(model.upstream_name))
        self._about = UNKNOWN if model.path is None else None
        if model.runtime == "openai" and model.engine.health_check is not None:
            # Servers of sound and pictures need not list models.
            self.ready_path = urlsplit(model.engine.health_check).path or "/"
        # Other servers may enforce OpenAI's rule for names. Calls read from the model's text keep the declared names.
        self._strict_names = model.runtime == "openai" and model.tool_call_format == "native_json"

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> HTTPReply:
        fields["model"] = self._name
        self.adapt(fields)
        names = ToolNames.of(fields) if self._strict_names else None
        if names is not None:
            names.adapt(fields)
        response = await self.upstream.request(self._chat_head, encode(fields))
        if response.status != 200:
            raise await self.refusal(response)
        reply = self.reply(response, fields)
        if names is not None:
            reply.fixup = names
        return reply

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> HTTPReply:
        fields["model"] = self._name
        return HTTPReply(await self.accepted(self.post_head(f"/v1/{endpoint}"), fields))

    async def forward(self, sent: Forward) -> Forwarded:
        headers = [*self._auth, ("Accept", "*/*")]
        if sent.kind is not None:
            headers.append(("Content-Type", sent.kind))
        head = self.upstream.head(sent.method, self.address.prefix + sent.path, headers)
        if isinstance(sent.body, bytes):
            response = await self.upstream.request(head, sent.body)
        else:
            response = await self.upstream.upload(head, sent.size, sent.body())
        if sent.verbatim or 200 <= response.status < 300:
            return response
        raise await self.refusal(response)

    async def accepted(self, head: bytes, fields: Mapping[str, object]) -> Response:
        """Sends a POST and returns the response to read. Raises the error for any status but 200."""
        response = await self.upstream.request(head, encode(fields))
        if response.status != 200:
            raise await self.refusal(response)
        return response

    async def refusal(self, response: Response) -> GatewayError:
        """The error for a response whose status isn't 200. Reads and closes it."""
        try:
            error = self.fault(response.status, await response.read(MAX_ERROR_BODY))
        finally:
            response.close()
        if error.transient:
            headers = {name: value.decode("latin-1") for name, value in response.headers.items()}
            if headers.get(b"x-should-retry") == "false":
                error.last()
            elif (asked := retry_after(headers.get(b"retry-after-ms"), headers.get(b"retry-after"))) is not None:
                error.retry_after = asked
        return error

    async def ready(self) -> None:
        response = await self._probe(self.ready_path)
        if response.status != 200:
            raise await self.refusal(response)  # with the engine's Retry-After
        try:
            await response.read(MAX_ERROR_BODY)
        finally:
            response.close()

    async def takes_tools(self) -> bool:
        """Whether the template in the model's files mentions tools; assumes so without a known template."""
        return (await self.about()).takes_tools

    async def keeps_calls(self) -> bool:
        return (await self.about()).mentions("tool_calls")

    async def about(self) -> About:
        if self._about is None:
            self._about = await asyncio.to_thread(about, self.model.path)
        return self._about

    def heard(self) -> float | None:
        """When the last byte of an answer arrived, by the loop's clock; None while no answer is being read."""
        return self.upstream.heard()

    async def aclose(self) -> None:
        await self.upstream.aclose()

    def adapt(self, fields: dict[str, Raw]) -> None:
        """Changes a request's fields in place to what the engine supports."""

    def reply(self, response: Response, fields: dict[str, Raw]) -> HTTPReply:
        """The reply for a response with status 200. fields: the fields that were sent."""
        return HTTPReply(response)

    def error(self, status: int, body: bytes) -> GatewayError:
        """Maps an error reply of the engine (OpenArmature §8.1.3)."""
        message, code = error_message(body)
        if status in (400, 413, 422, 500) and (error := exceeded(message, self.model.context_window)) is not None:
            return error
        if status in (400, 422, 500) and (error := template_refusal(message)) is not None:
            return error
        said, message = message, f"the engine answered {status}: {message}".removesuffix(": ")
        if status in (401, 403):
            return ProviderAuthentication(message)
        if status in CONTENT_REFUSALS and refuses_content(said):
            refuse = ProviderUnsupportedContentBlock if BROKEN_IMAGE in said.lower() else ImagesUnsupported
            return refuse(f"the model doesn't support this content: {said}", param="messages")
        if status == 404:
            return ProviderInvalidModel(message)
        if status == 408:
            return ProviderUnavailable(message, status=502)
        if status == 429:
            return ProviderRateLimit(message, code=code)
        if status == 503 and (code == "model_not_loaded" or "loading" in message.lower()):
            return ProviderModelNotLoaded(message, retry_after=1)
        if 400 <= status < 500:
            return ProviderInvalidRequest(message, code=code)
        if status == 501:  # llama.cpp's, and so Ollama's: the server wasn't started for embeddings, or for reranking
            return ProviderInvalidRequest(message, code="unsupported_endpoint", param="model")
        if status >= 500:
            return ProviderUnavailable(message, status=502)
        return ProviderInvalidResponse(message)

    def post_head(self, path: str) -> bytes:
        return self.upstream.head(
            "POST",
            self.address.prefix + path,
            [*self._auth, ("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")],
        )

    async def get(self, path: str) -> tuple[int, bytes]:
        """Sends a small GET off the hot path, such as a readiness probe. Returns the status and body."""
        response = await self._probe(path)
        try:
            return response.status, await response.read(MAX_ERROR_BODY)
        finally:
            response.close()

    async def _probe(self, path: str) -> Response:
        return await self.upstream.request(self.upstream.head("GET", self.address.prefix + path, self._auth))


CONTENT_REFUSALS = (400, 404, 415, 422, 500, 501)
"""Statuses with which servers refuse images: Ollama's is 500."""

BROKEN_IMAGE = "invalid image input"
"""What a refusal says that is about one image, by a model that may read others."""

_REFUSES_CONTENT = re.compile(
    r"is not a multimodal model|at most 0 (image|audio|video)|missing data required for image input"
    r"|(image|audio|video)s? input is not supported|(not|n't) support (image|audio|video|vision)"
    r"|image_url is only supported by|(image|audio|video)s? (input|content)?\s*(is|are) not supported"
    r"|not support multimodal"
    r"|only 'text' content type is supported|no vision support|invalid image input",
    re.IGNORECASE,
)
"""How vLLM, Ollama, LM Studio, llama.cpp, mlx_lm and OpenAI refuse images, audio and video."""


def refuses_content(message: str) -> bool:
    """Whether a server's message says that its model reads no such content."""
    return _REFUSES_CONTENT.search(message) is not None


def json_object(body: bytes, reader: LenientReader | None = None, maximum: int | None = None) -> dict[str, Any]:
    """Decodes an engine's JSON object. reader: of the stream that it is part of. maximum: values that it may have.

    Raises ProviderInvalidResponse for anything else.
    """
    if maximum is not None and exceeds(body, maximum):
        raise ProviderInvalidResponse(f"the engine's answer has more than {maximum} JSON values")
    try:
        found = LenientReader().read(body, last=True) if reader is None else reader.read(body)
    except BROKEN as error:
        raise malformed(error) from error
    if not isinstance(found, dict):
        raise malformed(TypeError(f"it is no object: {body[:40]!r}"))
    return found


def malformed(error: Exception) -> ProviderInvalidResponse:
    """The error for an answer with an unexpected shape. error: the exception from reading it."""
    return ProviderInvalidResponse(f"the engine's answer is malformed: {error}")


def error_message(body: bytes) -> tuple[str, str | None]:
    """The message and code of an error body in any engine's format; the text itself if it isn't JSON."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:500].decode("utf-8", "replace").strip(), None
    error = value.get("error", value) if isinstance(value, dict) else value
    if error is value and isinstance(value, dict) and not value.get("message"):
        error = _detail(value.get("detail")) or value
    if isinstance(error, dict):
        code = error.get("code")
        return str(error.get("message") or error)[:MAX_MESSAGE], code if isinstance(code, str) else None
    return str(error)[:MAX_MESSAGE], None


def _detail(detail: object) -> object:
    """What FastAPI's servers say, such as kokoro-fastapi and speaches: a text, an object, or what is wrong with which
    field."""
    if not isinstance(detail, list):
        return detail
    faults = [fault for fault in detail if isinstance(fault, dict) and "msg" in fault]
    places = [fault.get("loc") for fault in faults]
    fields = [".".join(map(str, place[1:])) if isinstance(place, list) else "" for place in places]
    return "; ".join(f"{field}: {fault['msg']}".removeprefix(": ") for field, fault in zip(fields, faults, strict=True))
