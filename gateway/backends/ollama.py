"""Ollama's server, through its own `/api/chat`."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.backends import ollama_chat
from gateway.backends.about import About
from gateway.backends.base import Address, Backend, Endpoint, Reply
from gateway.backends.collect import collected
from gateway.backends.context import context_length_exceeded, exceeded, may_exceed, prompt_size
from gateway.backends.openai import MAX_ERROR_BODY, OpenAIBackend, error_message, json_object
from gateway.backends.stopping import StopAt
from gateway.backends.told import Told
from gateway.config import Model
from gateway.config.values import OLLAMA_OPTIONS
from gateway.errors import (
    GatewayError,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
    WeightsMissing,
)
from gateway.upstream import Response
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.control_tokens import ControlTokens, may_be_one
from gateway.wire.engine import BROKEN_OFF, Fixup
from gateway.wire.sse import DEFAULT_MAX_EVENT_SIZE
from gateway.wire.values import MAX_TOKENS

FIRST_WITH_TRUNCATE = (0, 12, 6)
"""The first version with `truncate: false`, which keeps Ollama from cutting a prompt."""

BYTES_PER_TOKEN = 2
"""A prompt with fewer bytes for each token of the window fits, but for rare ones: see the end of its answer."""

LARGE = 256 * 1024
"""Bytes of an answer, or a line of it, that is read beside the event loop."""

DEFAULT_WINDOW = 2048
"""Smallest default context window of any Ollama version, in tokens."""

RESTARTS = re.compile(r"unexpected EOF|llama-server process has terminated", re.IGNORECASE)
"""How Ollama says that its runner ended before an answer began. It starts another one for the next request."""

CURES = (
    (
        re.compile(r"tools param requires --jinja"),
        "the model was made from a GGUF file without a template, so Ollama can't show it tools",
        "give it a TEMPLATE in its Modelfile, or set a tool_call_format and `tool_prompt: system` in config.yaml",
    ),
    (
        re.compile(r"does not support tools"),
        "the model's template has no place for tools",
        "set a tool_call_format and `tool_prompt: system` in config.yaml",
    ),
)
"""Ollama's words, what they mean, and the cure."""


class OllamaReply(Reply):
    """The answer to one request: JSON objects, or streams of JSON lines, one for each choice.

    response: of the first choice. ask: sends the request for another choice. count: the tokens of its prompt.
    """

    def __init__(
        self,
        response: Response,
        chat: ollama_chat.OllamaChat,
        ask: Callable[[int], Awaitable[Response]],
        count: Callable[[], Awaitable[int]],
    ) -> None:
        self.fixup = Fixup()
        self._warnings: list[dict[str, str]] = []
        self.fixup.warnings = self._warnings
        self._response = response
        self._chat = chat
        self._ask = ask
        self._count = count
        self._asked = 1
        self._rest = b""
        self.done = False
        self.collects = False
        """The engine streams a whole answer; see `gateway.backends.collect`."""

    def warn(self, code: str, text: str) -> None:
        self._warnings.append({"code": code, "text": text})

    async def whole(self) -> bytes:
        if self.collects:
            return await collected(self)
        answers = []
        while True:
            body = await self._response.read()
            read = partial(json_object, body, maximum=MAX_TOKENS)
            answer = await asyncio.to_thread(read) if len(body) > LARGE else read()
            if answer.get("done") is False:
                message = answer.get("message")
                text = str(message.get("content") if isinstance(message, dict) else answer.get("response") or "")
                answer |= await self._broken_off(-(-len(text.encode()) // ollama_chat.BYTES_PER_TOKEN))
            answers.append(answer)
            if "error" in answer or not self._chat.has_more:
                return self._chat.whole(body, answers)
            self._chat.next_choice()
            await self._ask_again()

    async def payloads(self) -> list[bytes]:
        while not self.done:
            if self._chat.done:  # the end of the last choice has been passed on
                self._chat.next_choice()
                await self._ask_again()
            data = await self._response.receive()
            # An error before the first line has no line break.
            *lines, self._rest = (self._rest + (data or b"\n")).split(b"\n")
            if len(self._rest) > DEFAULT_MAX_EVENT_SIZE:
                raise ProviderInvalidResponse(f"a line of Ollama's answer exceeds {DEFAULT_MAX_EVENT_SIZE} bytes")
            payloads: list[bytes] = []
            for line in filter(None, map(bytes.strip, lines)):
                read = partial(self._chat.chunks, line)
                payloads += await asyncio.to_thread(read) if len(line) > LARGE else read()
                if self._chat.stopped:
                    break
            if self._chat.stopped and not self._chat.done:
                payloads += self._chat.translated(await self._cut())
            if not data and not self._chat.done and self._chat.lines:
                payloads += self._chat.broken_off(await self._broken_off(self._chat.lines))
            self.done = self._chat.done and not self._chat.has_more
            if payloads or not data:
                return payloads
        return []

    def close(self) -> None:
        if self.done and not self._chat.stopped:
            self._response.finish()
        else:
            self._response.close()

    async def _cut(self) -> dict[str, Any]:
        """The end of an answer behind a stop sequence. Ollama ends its work."""
        self._response.close()
        return {"done": True, "prompt_eval_count": await self._count(), "eval_count": self._chat.lines}

    async def _ask_again(self) -> None:
        self._response.finish()
        self._rest = b""
        self._response = await self._ask(self._asked)
        self._asked += 1

    async def _broken_off(self, written: int) -> dict[str, Any]:
        """The end of an answer that has none. written: its tokens."""
        self.warn(BROKEN_OFF, ollama_chat.BROKEN_OFF)
        return {"done": True, "done_reason": "length", "prompt_eval_count": await self._count(), "eval_count": written}


class _Vocabulary(Struct, rename={"tokens": "tokenizer.ggml.tokens", "types": "tokenizer.ggml.token_type"}):
    tokens: list[str] | None = None
    types: list[int] | None = None


class _Verbose(Struct):
    """What a verbose answer of /api/show says of the vocabulary. Nothing else of its megabytes is decoded."""

    model_info: _Vocabulary | None = None


CONTROL = 3
"""The type of control tokens in GGUF's `tokenizer.ggml.token_type`."""

MAX_VOCABULARY = 64 * 1024 * 1024
"""Bytes of such an answer, with every token and merge."""


class OllamaBackend(OpenAIBackend):
    chat_path = "/api/chat"
    escapes = True

    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        kind = ("Content-Type", "application/json")
        self._show_head, self._generate_head, self._embed_head = (
            self.upstream.head("POST", f"{self.address.prefix}/api/{call}", [*self._auth, kind])
            for call in ("show", "generate", "embed")
        )
        self.told: Told = Told(self.upstream, self._ask_model)
        self._control: ControlTokens | None = None
        self._version: tuple[int, ...] | None = None
        given = {option: getattr(model.engine, key) for key, option in OLLAMA_OPTIONS.items()}
        self._settings = {option: value for option, value in given.items() if value is not None}
        if model.context_window is not None:
            self._settings["num_ctx"] = model.context_window
        """The same with every request: Ollama loads the model again for others."""

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> OllamaReply:  # type: ignore[override]
        """Sends the model's `context_window` as num_ctx, and refuses longer prompts, as Ollama is told to.

        Asks once for each choice, one after the other. Leaves out an effort where the model doesn't think.
        """
        body = ollama_chat.request(self.model.upstream_name, fields, self._settings)
        thinks = "think" not in body or await self._able("thinking")
        effort = None if thinks else body.pop("think")
        choices = decode(fields["n"]) if "n" in fields else 1
        stop = None
        if request.names_stop:
            # Ollama says only that it stopped. Its answer has to be a stream to be cut.
            stop, body["stream"] = StopAt(body["options"].pop("stop")), True
        usage = request.include_usage or stop is not None
        chat = partial(ollama_chat.OllamaChat, usage=usage, choices=choices or 1, stop=stop)
        reply = await self._reply(self._chat_head, body, fields, chat)
        reply.collects = stop is not None and not request.stream
        if effort:
            told = f"{self.model.upstream_name} doesn't think, so Ollama got no effort"
            reply.warn("effort_unsupported", told)
        return reply

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> Reply:  # type: ignore[override]
        if endpoint == "rerank":
            return await Backend.post(self, endpoint, fields)
        if endpoint == "embeddings":
            body: dict[str, Any] = {"model": self.model.upstream_name, "options": self._settings, "truncate": False}
            body |= {name: fields[name] for name in ("input", "keep_alive") if name in fields}
            response = await self.accepted(self._embed_head, body)
            return EmbeddingsReply(response)
        body = ollama_chat.request(self.model.upstream_name, fields, self._settings)
        chat = partial(ollama_chat.Completion, usage=True)
        return await self._reply(self._generate_head, body, fields, chat)

    async def accepted(self, head: bytes, fields: Mapping[str, object]) -> Response:
        """As that of OpenAIBackend. Asks once more if the runner ended before it answered: Ollama starts another."""
        try:
            return await super().accepted(head, fields)
        except ProviderUnavailable as error:
            if RESTARTS.search(error.message) is None:
                raise
            return await super().accepted(head, fields)

    async def _reply(
        self, head: bytes, body: dict[str, Any], fields: dict[str, Raw], chat: Callable[..., ollama_chat.OllamaChat]
    ) -> OllamaReply:
        """Sends the request. fields: those that `body` was made of. chat: makes the translator of the answers."""
        options = body["options"]
        window = options.get("num_ctx")
        window = window if isinstance(window, int) else None
        if may_exceed(fields, window or DEFAULT_WINDOW):
            await self._check_version()
        if window is not None and may_exceed(fields, BYTES_PER_TOKEN * window):
            # Ollama takes longer prompts than it is told to, if it finds room for them.
            prompt = await self._count(head, body)
            if prompt >= window:
                raise context_length_exceeded(prompt, window)

        async def ask(choice: int) -> Response:
            seed = options.get("seed")
            # The same seed for all would make all choices the same.
            seeds = {"options": {**options, "seed": seed + choice}} if choice and isinstance(seed, int) else {}
            return await self.accepted(head, {**body, **seeds})

        async def count() -> int:
            try:
                return await self._count(head, body)
            except GatewayError:
                return prompt_size(fields) // ollama_chat.BYTES_PER_TOKEN

        made = chat(self.model.upstream_name, window=window)
        return OllamaReply(await ask(0), made, ask, count)

    async def _count(self, head: bytes, body: dict[str, Any]) -> int:
        """The tokens of a request's prompt, which Ollama reads and remembers. Raises what the request would."""
        short = {name: value for name, value in body.items() if name not in ("format", "logprobs", "top_logprobs")}
        asked = {**short, "stream": False, "options": {**body["options"], "num_predict": 1}}
        response = await self.accepted(head, asked)
        try:
            counted = json_object(await response.read(MAX_ERROR_BODY)).get("prompt_eval_count")
        finally:
            response.close()
        return counted if isinstance(counted, int) else 0

    async def _check_version(self) -> None:
        """Raises ProviderInvalidRequest if this version of Ollama always truncates a long prompt."""
        if self._version is None:
            status, body = await self.get("/api/version")
            answer = json_object(body).get("version") if status == 200 else None
            found = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", str(answer))
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
        body: dict[str, Any] = {"model": self.model.upstream_name, "stream": False, "options": self._settings}
        if keep_alive is not None:
            body["keep_alive"] = -1 if keep_alive == math.inf else keep_alive
        # Only this call loads a model that makes vectors alone, and only the other one unloads.
        head = self._embed_head if self.model.role == "embedding" and keep_alive != 0 else self._generate_head
        response = await self.accepted(head, body)
        try:
            await response.read(MAX_ERROR_BODY)
        finally:
            response.close()

    async def takes_tools(self) -> bool:
        # Before 0.6.4 Ollama reports only the template, no capabilities.
        return await self._able("tools", otherwise=".Tools" in _template(await self.told.said()))

    async def _able(self, capability: str, *, otherwise: bool = True) -> bool:
        """Whether the model has a capability. otherwise: the answer if Ollama doesn't report any."""
        capabilities = (await self.told.said()).get("capabilities")
        return capability in capabilities if isinstance(capabilities, list) else otherwise

    async def keeps_calls(self) -> bool:
        """If the template mentions neither, the model uses a renderer built into Ollama, which shows calls."""
        template = _template(await self.told.said())
        return ".ToolCalls" in template or ".Tools" not in template

    async def control_tokens(self) -> ControlTokens:
        """Read from /api/show, once; empty if it doesn't tell the vocabulary. Their texts are broken, not cut."""
        if self._control is None:
            self._control = await asyncio.to_thread(_control_tokens, await self._show(verbose=True))
        return self._control

    async def about(self) -> About:
        shown = await self.told.said()
        info = shown.get("model_info")
        architecture = info.get("general.architecture", "") if isinstance(info, dict) else ""
        able = shown.get("capabilities")
        told = [name in able if isinstance(able, list) else None for name in ("vision", "thinking", "insert")]
        return About(_template(shown), architecture, (), "/api/show", *told)

    async def met_another(self) -> bool:
        if another := await self.told.changed():
            self._control = None
        return another

    async def _ask_model(self) -> dict[str, Any]:
        """The answer of /api/show. Raises WeightsMissing if Ollama doesn't have the model."""
        self._version = None  # it may have been updated
        return json_object(await self._show())

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        if status == 404:
            ours = f"`ctxgate pull {self.model.name}` or " if self.model.pull is not None else ""
            remedy = f"{ours}`ollama pull {self.model.upstream_name}` fetches it"
            return WeightsMissing(f"Ollama: {message}; {remedy}", param="model")
        if (too_long := exceeded(message, self.model.context_window)) is not None:
            return too_long
        for words, meaning, cure in CURES:
            if words.search(message):
                return ProviderInvalidRequest(f"{meaning}: {cure} (Ollama: {message})", param="tools")
        if "error parsing tool call" in message:
            return ProviderInvalidResponse(f"the model wrote a tool call that Ollama can't parse: {message}")
        return super().error(status, body)

    async def _show(self, *, verbose: bool = False) -> bytes:
        """Asks /api/show for the model. Raises WeightsMissing if Ollama doesn't have it."""
        asked = {"model": self.model.upstream_name, **({"verbose": True} if verbose else {})}
        response = await self.upstream.request(self._show_head, encode(asked))
        try:
            body = await response.read(MAX_VOCABULARY)
        finally:
            response.close()
        if response.status != 200:
            raise self.fault(response.status, body)
        return body


class EmbeddingsReply(Reply):
    """An answer of `/api/embed`, in OpenAI's format."""

    def __init__(self, response: Response) -> None:
        self._response = response

    async def whole(self) -> bytes:
        answer = json_object(await self._response.read())
        vectors, tokens = answer.get("embeddings"), answer.get("prompt_eval_count") or 0
        if not isinstance(vectors, list):
            return encode(answer)
        data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return encode({"object": "list", "data": data, "usage": usage})

    def close(self) -> None:
        self._response.close()


def _control_tokens(shown: bytes) -> ControlTokens:
    try:
        known = _decode_verbose(shown).model_info or _Vocabulary()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        known = _Vocabulary()
    of_type = zip(known.tokens or (), known.types or (), strict=False)
    return ControlTokens({text: () for text, kind in of_type if kind == CONTROL and may_be_one(text)})


_decode_verbose = msgspec.json.Decoder(_Verbose).decode


def _template(shown: dict[str, Any]) -> str:
    return str(shown.get("template") or "")
