"""mlx_lm.server, on Apple silicon and on Linux."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.backends import messages
from gateway.backends.about import special_tokens
from gateway.backends.base import Address, Endpoint
from gateway.backends.context import exceeded
from gateway.backends.decision import FIRST_OF_CHAT, NO_TOKEN, first_tokens_of_chat, likelihood, may_decide
from gateway.backends.openai import HTTPReply, OpenAIBackend, error_message, json_object
from gateway.backends.prompt_progress import PromptProgress
from gateway.backends.template import template_refusal
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ImagesUnsupported,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderUnavailable,
)
from gateway.prompts.told import ToldPrompts, ToldTurn
from gateway.upstream import Response
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.control_tokens import NONCE, ControlTokens, count, may_be_one
from gateway.wire.engine import NEVER, Decided, Decision, Fixup, Notation, RawText

OWN_MODEL = Raw(b'"default_model"')
"""Selects the model that the server started with. The server tries to load any other name."""

_needs_edit = messages.needs(messages.DEVELOPER, messages.REFUSAL)

LONG_BYTES = 512
"""The doctor ignores messages and tools of fewer bytes: reading them again costs almost nothing."""

MODEL_TROUBLE = (
    *("cached snapshot folder", "Repository Not Found", "Client Error", "No safetensors found"),
    *("No such file or directory", "is not a local folder", "Model type"),
)
"""Parts of a 404's message that blame the model; any other 404 blames the request."""


LATER = ("stream_options", "stop", "max_completion_tokens")
"""Fields that say nothing about an answer's first token."""

NONCE_FIELD = "ctxgate_nonce"
"""The template argument that tells `gateway.engines.mlx_server` where to split the prompt."""


OWNER_FIELD = "ctxgate_owner"
"""The field that tells the gateway's own server whose prompts it may reuse."""


class MLXReply(HTTPReply):
    """A reply of the gateway's own `mlx_server`, which says in headers whether a grammar holds the text, and how many
    tokens of the prompt came from a file."""

    __slots__ = ("by_grammar", "decided", "reasoning_open", "restored")

    def __init__(self, response: Response, fixup: Fixup | None) -> None:
        super().__init__(response, fixup)
        self.decided = None
        self.by_grammar = b"ctxgate-grammar" in response.headers
        self.reasoning_open = b"ctxgate-reasoning" in response.headers
        restored = response.headers.get(b"ctxgate-restored", b"")
        self.restored = int(restored) if restored.isdigit() else 0


class MLXBackend(OpenAIBackend):
    ready_path = "/health"
    opens_escaped = True

    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        if model.path is not None or model.model_name is None:
            self._name = OWN_MODEL
        self.escapes = self.separates = _cuts(model)
        self._control: ControlTokens | None = None
        self._prompts = ToldPrompts() if self.escapes else None

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> HTTPReply:
        self._cut(fields)
        self._own(fields, request.caller.owner)
        reply = await super().open(request, fields)
        if self._prompts is not None:
            messages, tools = bytes(fields["messages"]), bytes(fields.get("tools", b""))
            asked = (tools, messages) if len(messages) + len(tools) >= LONG_BYTES else None
            restored = reply.restored if isinstance(reply, MLXReply) else 0
            reply.turn = ToldTurn(self._prompts, asked, restored, request.caller.owner)
        if request.stream:
            reply.read_progress(progress := PromptProgress(request.serving))
            request.serving.tell(progress.describe)
        return reply

    async def post_for(self, owner: str, endpoint: Endpoint, fields: dict[str, Raw]) -> HTTPReply:
        self._own(fields, owner)
        return await self.post(endpoint, fields)

    def _own(self, fields: dict[str, Raw], owner: str) -> None:
        """Tells the server the owner. No client may name another one."""
        fields.pop(OWNER_FIELD, None)
        if owner and self.separates:
            fields[OWNER_FIELD] = Raw(encode(owner))

    def _cut(self, fields: dict[str, Raw]) -> None:
        """Lets the server cut the prompt where texts hold control tokens."""
        texts = (bytes(fields[name]) for name in ("messages", "tools") if name in fields)
        if self._control is not None and count(*texts):
            given = msgspec.json.decode(fields.get("chat_template_kwargs", b"null")) or {}
            fields["chat_template_kwargs"] = Raw(encode({**given, NONCE_FIELD: NONCE}))

    async def control_tokens(self) -> ControlTokens | None:
        """Read from the model's folder, once. The server cuts within each, so nobody needs their ids."""
        if self._control is None:
            special = await asyncio.to_thread(special_tokens, self.model.path)
            self._control = ControlTokens({text: () for text in special if may_be_one(text)})
        return self._control

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> HTTPReply:
        """As `open`, with a grammar for the server; without one, the server itself reads the answer's calls."""
        if raw.grammar is None:
            return await self.open(request, fields)
        grammars = {"grammar": raw.grammar, "in_reasoning": raw.in_reasoning, "markers": raw.markers}
        fields["ctxgate"] = Raw(encode(grammars))
        decided = None
        if raw.decision is not None and may_decide(fields):
            decided = await self._decide(request, raw.decision, raw.think, fields)
        if decided is not None and raw.decision is not None:
            fields["ctxgate"] = Raw(encode({**grammars, "grammar": raw.decision.grammar(decided)}))
        reply = await self.open(request, fields)
        if isinstance(reply, MLXReply):
            reply.decided = decided
        return reply

    async def _decide(
        self, request: ChatRequest, decision: Decision, think: tuple[tuple[str, str], ...], fields: Mapping[str, Raw]
    ) -> Decided | None:
        """Asks for the first token alone, which reads the prompt that the answer then finds in the cache.

        None where the answer begins with reasoning, or may, and where the server takes no grammars.
        """
        if decision.threshold >= NEVER:
            return Decided(0.0, NEVER)
        question = {name: value for name, value in fields.items() if name not in LATER} | FIRST_OF_CHAT
        self._cut(question)
        self._own(question, request.caller.owner)
        first = await super().open(request, question)
        try:
            tokens = first_tokens_of_chat(await first.whole())
        finally:
            first.close()
        if not isinstance(first, MLXReply) or first.reasoning_open or not first.by_grammar:
            return None
        thoughts = dict.fromkeys((mark for mark, _ in think), NO_TOKEN)
        found = likelihood(tokens, dict.fromkeys(decision.openers, NO_TOKEN), thoughts)
        return None if found is None else Decided(found, decision.threshold)

    async def notation(self) -> Notation | None:
        """The gateway's own server takes grammars if llguidance is installed; a plain mlx_lm.server takes none."""
        status, body = await self.get(self.ready_path)
        return "lark" if status == 200 and json_object(body).get("grammars") == "lark" else None

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> HTTPReply:
        if endpoint == "completions" and "logprobs" in fields:
            # Its own number is a chat's `top_logprobs` there.
            fields |= {"logprobs": Raw(b"true"), "top_logprobs": fields["logprobs"]}
        return await super().post(endpoint, fields)

    def adapt(self, fields: dict[str, Raw]) -> None:
        if "repeat_penalty" in fields:
            # llama.cpp's name of the parameter, which config.yaml accepts too.
            fields.setdefault("repetition_penalty", fields.pop("repeat_penalty"))
        if _needs_edit(fields["messages"]):
            messages.edit(fields, messages.developer_is_system, messages.refusals_are_text)

    def reply(self, response: Response, fields: dict[str, Raw]) -> HTTPReply:
        return MLXReply(response, _Fixup(self.model.name))

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        if status == 503:
            return ProviderUnavailable(f"mlx_lm.server is not ready: {message}", retry_after=1)
        if (too_long := exceeded(message)) is not None:
            return too_long
        if status == 404 and body.startswith(b"{"):
            # mlx_lm.server answers 404 to every failure before the first token.
            if "generation thread died" in message:
                return ProviderUnavailable(f"mlx_lm.server: {message}", status=502)
            if "Only 'text' content" in message:
                return ImagesUnsupported(f"the model doesn't support this content: {message}", param="messages")
            if any(words in message for words in MODEL_TROUBLE):
                return ProviderInvalidModel(f"mlx_lm.server doesn't have this model: {message}", param="model")
            rejected = ProviderInvalidRequest(f"the engine rejected the request: {message}")
            return template_refusal(message) or rejected
        return super().error(status, body)


def _cuts(model: Model) -> bool:
    """Whether the model's server is `gateway.engines.mlx_server`; no other one splits an escaped prompt."""
    if model.path is None or model.base_url is not None or model.uds is not None:
        return False
    engine = model.engine
    return engine.command is None or any(arg.endswith("gateway/engines/mlx_server.py") for arg in engine.args)


class _Fixup(Fixup):
    """mlx_lm.server names every model `default_model`."""

    every_chunk = True

    def __init__(self, name: str) -> None:
        self._name = name

    def answer(self, answer: dict[str, Any]) -> None:
        answer["model"] = self._name

    def chunk(self, chunk: dict[str, Any]) -> None:
        chunk["model"] = self._name
