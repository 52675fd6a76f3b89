"""Ollama's server, through its own `/api/chat`."""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import Raw

from gateway.backends import ollama_chat
from gateway.backends.about import About
from gateway.backends.base import Address, Reply
from gateway.backends.context import exceeded, may_exceed
from gateway.backends.openai import MAX_ERROR_BODY, OpenAIBackend, error_message, json_object
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    WeightsMissing,
)
from gateway.upstream import Response
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.sse import DEFAULT_MAX_EVENT_SIZE

FIRST_WITH_TRUNCATE = (0, 12, 6)
"""The first version with `truncate: false`, which keeps Ollama from cutting a prompt."""

DEFAULT_WINDOW = 2048
"""Smallest default context window of any Ollama version, in tokens."""

LAUNCH = {
    "gpu_layers": "num_gpu",
    "main_gpu": "main_gpu",
    "threads": "num_thread",
    "batch": "num_batch",
    "mmap": "use_mmap",
}
"""Keys of config.yaml → Ollama's `options`, with which it loads the model."""


class OllamaReply(Reply):
    """A reply from `/api/chat`: one JSON object, or a stream of JSON lines."""

    def __init__(self, response: Response, chat: ollama_chat.Chat) -> None:
        self._response = response
        self._chat = chat
        self._rest = b""
        self.done = False

    async def whole(self) -> bytes:
        return self._chat.whole(await self._response.read())

    async def payloads(self) -> list[bytes]:
        while not self.done:
            data = await self._response.receive()
            # An error before the first line has no line break.
            *lines, self._rest = (self._rest + (data or b"\n")).split(b"\n")
            if len(self._rest) > DEFAULT_MAX_EVENT_SIZE:
                raise ProviderInvalidResponse(f"a line of Ollama's answer exceeds {DEFAULT_MAX_EVENT_SIZE} bytes")
            payloads: list[bytes] = []
            for line in filter(None, map(bytes.strip, lines)):
                payloads += self._chat.chunks(line)
            self.done = self._chat.done
            if payloads or not data:
                return payloads
        return []

    def close(self) -> None:
        if self.done:
            self._response.finish()
        else:
            self._response.close()


class OllamaBackend(OpenAIBackend):
    chat_path = "/api/chat"

    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        kind = ("Content-Type", "application/json")
        self._show_head, self._generate_head = (
            self.upstream.head("POST", f"{self.address.prefix}/api/{call}", [*self._auth, kind])
            for call in ("show", "generate")
        )
        self._shown: dict[str, Any] | None = None
        self._version: tuple[int, ...] | None = None
        given = {option: getattr(model.engine, key) for key, option in LAUNCH.items()}
        self._settings = {option: value for option, value in given.items() if value is not None}

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> OllamaReply:  # type: ignore[override]
        """Sends the model's `context_window` as num_ctx, and tells Ollama to reject longer prompts."""
        body = ollama_chat.request(self.model.upstream_name, fields, self.model.context_window, self._settings)
        window = body["options"].get("num_ctx")
        if may_exceed(fields, window if isinstance(window, int) else DEFAULT_WINDOW):
            await self._check_version()
        response = await self.accepted(self._chat_head, body)
        return OllamaReply(response, ollama_chat.Chat(self.model.upstream_name, usage=request.include_usage))

    async def _check_version(self) -> None:
        """Raises ProviderInvalidRequest if this version of Ollama always truncates a long prompt."""
        if self._version is None:
            status, body = await self.get("/api/version")
            answer = json_object(body).get("version") if status == 200 else None
            found = re.match(r"(\d+)\.(\d+)\.(\d+)", str(answer))
            # A build from source reports 0.0.0.
            self._version = tuple(map(int, found.groups())) if found else (0, 0, 0)
        if (0, 0, 0) < self._version < FIRST_WITH_TRUNCATE:
            version, first = (".".join(map(str, number)) for number in (self._version, FIRST_WITH_TRUNCATE))
            raise ProviderInvalidRequest(
                f"the prompt may exceed the context window, and Ollama {version} would silently truncate it: "
                f"shorten it, raise context_window, or update Ollama to {first} or later",
                code="context_length_unknown",
                param="messages",
            )

    async def ready(self) -> None:
        """Returns if Ollama has the model, which it loads at the first request. Raises WeightsMissing."""
        await self._show()

    async def load(self, keep_alive: float | None) -> None:
        body: dict[str, Any] = {"model": self.model.upstream_name, "stream": False}
        if keep_alive is not None:
            body["keep_alive"] = -1 if keep_alive == math.inf else keep_alive
        response = await self.accepted(self._generate_head, body)
        try:
            await response.read(MAX_ERROR_BODY)
        finally:
            response.close()

    async def takes_tools(self) -> bool:
        shown = await self.shown()
        capabilities = shown.get("capabilities")
        # Before 0.6.4 Ollama reports only the template, no capabilities.
        return "tools" in capabilities if isinstance(capabilities, list) else ".Tools" in _template(shown)

    async def keeps_calls(self) -> bool:
        """If the template mentions neither, the model uses a renderer built into Ollama, which shows calls."""
        template = _template(await self.shown())
        return ".ToolCalls" in template or ".Tools" not in template

    async def about(self) -> About:
        shown = await self.shown()
        info = shown.get("model_info")
        architecture = info.get("general.architecture", "") if isinstance(info, dict) else ""
        return About(_template(shown), architecture, source="/api/show")

    async def shown(self) -> dict[str, Any]:
        """The cached answer of /api/show. Raises WeightsMissing if Ollama doesn't have the model."""
        if self._shown is None:
            self._shown = json_object(await self._show())
        return self._shown

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        if status == 404:
            ours = f"`ctxgate pull {self.model.name}` or " if self.model.pull is not None else ""
            remedy = f"{ours}`ollama pull {self.model.upstream_name}` fetches it"
            return WeightsMissing(f"Ollama: {message}; {remedy}", param="model")
        if (too_long := exceeded(message, self.model.context_window)) is not None:
            return too_long
        if "error parsing tool call" in message:
            return ProviderInvalidResponse(f"the model wrote a tool call that Ollama can't parse: {message}")
        return super().error(status, body)

    async def _show(self) -> bytes:
        """Asks /api/show for the model. Raises WeightsMissing if Ollama doesn't have it."""
        response = await self.upstream.request(self._show_head, encode({"model": self.model.upstream_name}))
        try:
            body = await response.read(MAX_ERROR_BODY * 16)
        finally:
            response.close()
        if response.status != 200:
            raise self.fault(response.status, body)
        return body


def _template(shown: dict[str, Any]) -> str:
    return str(shown.get("template") or "")
