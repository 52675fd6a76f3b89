"""llama.cpp's llama-server, also from the wheel xllamacpp."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gateway.backends import collect, completion, messages
from gateway.backends.about import UNKNOWN, About
from gateway.backends.base import Address, Backend, Endpoint, Forward, Forwarded, TrackedForwarded
from gateway.backends.context import context_length_exceeded, may_exceed
from gateway.backends.decision import FIRST_TOKEN, first_tokens, is_set, likelihood, may_decide, several
from gateway.backends.fixups import StopWord
from gateway.backends.llamacpp_guard import MAY_BE_CALLS, TRIGGER_WHOLE, guardable
from gateway.backends.llamacpp_slots import LlamaCppSlots
from gateway.backends.openai import HTTPReply, OpenAIBackend, error_message, json_object, malformed
from gateway.backends.prompt_progress import PromptProgress
from gateway.backends.template import template_refusal
from gateway.backends.told import Told
from gateway.config import Adapter, Model
from gateway.errors import (
    GatewayError,
    ImagesUnsupported,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderModelNotLoaded,
    ProviderUnsupportedContentBlock,
)
from gateway.prompts.live import LivePrompts, unsaved
from gateway.prompts.protocols import Placing, PromptPlace
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.control_tokens import NONCE, ControlTokens, Prompt, as_text, broken, ends_with, may_be_one
from gateway.wire.engine import NEVER, Decided, Decision, Notation, RawText

if TYPE_CHECKING:
    from gateway.upstream import Response
    from gateway.wire.completions import PromptLogprobs

_needs_edit = messages.needs(messages.EMPTY_ARGUMENTS, messages.REFUSAL, messages.MEDIA, messages.ESCAPED_ASCII)

BAD_INPUT = (
    "Failed to parse messages",
    "Failed to parse tools",
    "Failed to parse tool call arguments",
    "Failed to parse input",
    "Unable to generate parser for this template",
    "JSON schema",
    "[json.exception.",
)
"""Parts of a 500's message that blame the request."""

UNKNOWN_PART = "unsupported content[].type"
"""The message about a content part of an unknown type."""

DENSE_BYTES = 2
"""Bytes per token in a dense prompt. llama.cpp itself rejects an even denser one, later."""

TRIGGER_WORD = 1
"""llama.cpp's number of the trigger type `word`; a word that is a token triggers as a token."""

MAX_VOCABULARY = 1_000_000
PIECES = 32_768
"""Tokens of the vocabulary that are asked for at once."""

NEGLIGIBLE = 1e-30
"""A scale at which an adapter changes no number. If all adapters of a request have the scale 0, llama.cpp b11549 goes
on from what another request's adapters made of the same prompt."""

BETWEEN = -1
"""A token id that no model has: llama.cpp passes it through, so it can separate the ids of several texts."""

SURELY_FITS = 512
"""Messages with fewer bytes fit any window, so the gateway doesn't ask for its size."""

NOWHERE = nullcontext()
"""Stands in for a turn if there is none."""

TEMPLATE_FIELDS = ("messages", "tools", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt")
"""Fields that shape the prompt; all others control the generation."""

CHAT_FIELDS = ("tool_choice", "parallel_tool_calls", "reasoning_format", "parse_tool_calls", *TEMPLATE_FIELDS)
"""Fields without meaning for a completion."""

PARSED_FIELDS = ("response_format", "json_schema", "logprobs", "top_logprobs")
"""Fields that only the chat endpoint supports the way OpenAI does."""

_needs_chat = messages.needs(messages.MEDIA)


class LlamaCppBackend(OpenAIBackend):
    escapes = separates = True
    ready_path = "/health"

    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        self._template_head = self.post_head("/apply-template")
        self._tokenize_head = self.post_head("/tokenize")
        self._completion_head = self.post_head("/v1/completions")
        self._tokens_head = self.post_head("/completion")
        self.told: Told = Told(self.upstream, partial(_props, self))
        self._templates = True
        self._marks: dict[str, list[int]] = {}
        self._control: ControlTokens | None = None
        self._slots: LlamaCppSlots | None = None
        self._prompts: LivePrompts | None = None
        self._places: Placing | None = None
        self._adapters = _adapters(model)
        self._flexible: Backend | None = None

    def keep_prompts(self, prompts: LivePrompts) -> None:
        self._prompts = prompts
        self.ask_for_places(prompts)

    def ask_for_places(self, places: Placing) -> None:
        self._slots, self._places = LlamaCppSlots(self, self.told.said), places

    def kept_prompts(self) -> tuple[LivePrompts, LlamaCppSlots] | None:
        return (self._prompts, self._slots) if self._prompts is not None and self._slots is not None else None

    def flexible(self) -> Backend | None:
        if self._flexible is None and self._prompts is not None and self._slots is not None and not self._adapters:
            from gateway.backends.llamacpp_flex import LlamaCppFlex  # the gateway's start needn't wait for it

            self._flexible = LlamaCppFlex(self, self._prompts, self._slots)
        return self._flexible

    async def save_prompts(self) -> None:
        if self._prompts is not None and self._slots is not None:
            await self._prompts.save_all(self._slots)

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> HTTPReply:
        choice = request.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function" and "tools" in fields:
            _keep_named_tool(choice, fields)
        # llama.cpp streams no logprobs if the request has tools.
        whole = "tools" in fields and is_set("logprobs", fields)
        if whole and request.stream:
            message = "logprobs: llama.cpp streams none while tools are offered; leave out logprobs, tools or stream"
            raise ProviderInvalidRequest(message, param="logprobs")
        if self._adapters:
            self._weigh_adapters(request.model, fields)
        await self._check_fits(fields)
        progress = PromptProgress.requested(request, fields)
        collects = not request.stream and not whole
        if collects:
            fields |= collect.STREAM_FIELDS
        fixup = StopWord.asked(request, fields)
        turn = await self.placed(request, fields, None)
        with turn or NOWHERE:
            reply = await super().open(request, fields)
        reply.turn, reply.fixup = turn, fixup
        reply.progress, reply.collects = progress, collects
        return reply

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> HTTPReply:
        """Sends two requests: `/apply-template` renders the prompt, `/v1/completions` answers it.

        Images, audio, structured output and logprobs go to the chat endpoint, and so does everything on a server
        without `/apply-template`. That endpoint gets the grammar only without `tools`: llama.cpp rejects both together.
        It takes no token ids: of an escaped request only images and audio go there, with the texts broken.
        """
        self._weigh_adapters(request.model, fields)
        raw = guardable(raw, fields)
        forced = raw.forced
        prompt, format = None, None
        if forced:
            format = fields.pop("response_format", None)
        media = _needs_chat(fields["messages"]) is not None
        if self._templates and not media and (raw.escaped or not _needs_chat_endpoint(fields)):
            self.adapt(fields)
            prompt = await self._prompt(fields)
            self._templates = prompt is not None
        if prompt is None:
            if format is not None:
                fields["response_format"] = format
            if raw.escaped:
                fields |= {name: Raw(broken(bytes(fields[name]))) for name in ("messages", "tools") if name in fields}
            if forced and "tools" not in fields:
                fields.setdefault("grammar", Raw(encode(raw.grammar)))
            return await self.open(request, fields)
        if raw.escaped:
            _for_completions(fields)
        pair = next((pair for pair in raw.think if ends_with(prompt, pair[0])), None)
        if pair is not None and forced:
            # The grammar forces a call at once, so close the reasoning that the prompt opens.
            prompt, pair = _with_end(prompt, _end(prompt) + "\n\n" + pair[1] + "\n\n"), None
        fixup = StopWord.asked(request, fields)
        asked = {name: value for name, value in fields.items() if name not in CHAT_FIELDS}
        if raw.markers:
            asked["preserved_tokens"] = Raw(encode(raw.markers))
        await self._check_fits(fields, prompt)
        progress = PromptProgress.requested(request, fields)
        if progress is not None:
            asked["return_progress"] = fields["return_progress"]
        if not request.stream:
            asked |= collect.STREAM_FIELDS
        turn = await self.placed(request, fields, prompt)
        asked |= {name: fields[name] for name in ("id_slot", "cache_prompt") if name in fields}
        asked |= {"model": self._name, "prompt": Raw(encode(prompt))}
        with turn or NOWHERE:
            grammar, decided = await self._steered(asked, raw, pair, turn)
            response = await self.accepted(self._completion_head, asked | grammar)
        reply = _completion_kind(asked)(
            response,
            usage=request.include_usage or not request.stream,
            reasoning_open=pair is not None,
            by_grammar=bool(grammar),
        )
        reply.turn, reply.decided, reply.fixup = turn, decided, fixup
        reply.progress, reply.collects = progress, not request.stream
        return reply

    async def _steered(
        self, asked: dict[str, Raw], raw: RawText, pair: tuple[str, str] | None, turn: PromptPlace | None
    ) -> tuple[dict[str, Raw], Decided | None]:
        """The fields of the answer's grammar, and what was decided. pair: the reasoning that the prompt opens."""
        if raw.decision is not None and pair is None and may_decide(asked):
            if raw.decision.threshold >= NEVER:
                decided: Decided | None = Decided(0.0, NEVER)
            else:
                decided = await self._decide(raw.decision, raw.think, asked)
                if turn is not None and turn.fresh and turn.slot is not None:
                    asked["cache_prompt"] = Raw(b"true")  # the slot holds this prompt now
            if decided is not None:
                return {"grammar": Raw(encode(raw.decision.grammar(decided)))}, decided
        return await self._grammar(asked, raw, pair), None

    async def _decide(
        self, decision: Decision, think: tuple[tuple[str, str], ...], asked: Mapping[str, Raw]
    ) -> Decided | None:
        """Asks for the first token alone, which reads the prompt that the answer then finds in the cache.

        None where the answer may begin with reasoning. Raises as `accepted`.
        """
        names = ("prompt", "model", "id_slot", "cache_prompt", "preserved_tokens", "lora")
        question = {name: asked[name] for name in names if name in asked}
        response = await self.accepted(self._tokens_head, question | FIRST_TOKEN)
        try:
            tokens = first_tokens(await response.read())
        finally:
            response.close()
        openers, thoughts = [
            {mark: ids[0] for mark in marks if (ids := await self._ids_of(mark))}
            for marks in (decision.openers, [mark for mark, _ in think])
        ]
        found = likelihood(tokens, openers, thoughts)
        return None if found is None else Decided(found, decision.threshold)

    def reply(self, response: Response, fields: dict[str, Raw]) -> HTTPReply:
        if not several(fields):
            return HTTPReply(response)
        from gateway.backends.llamacpp_choices import ChoicesReply

        return ChoicesReply(response, decode(fields["n"]))

    def _weigh_adapters(self, name: object, fields: dict[str, Raw]) -> None:
        """Adds the adapters for the model name. A request's own `lora` wins, but loses the prompt cache."""
        if not self._adapters:
            return
        if "lora" not in fields:
            fields["lora"] = self._adapters[name if isinstance(name, str) and name in self._adapters else None]
        elif bytes(fields["lora"]) not in map(bytes, self._adapters.values()):
            fields["cache_prompt"] = Raw(b"false")

    async def _grammar(self, fields: dict[str, Raw], raw: RawText, pair: tuple[str, str] | None) -> dict[str, Raw]:
        """The fields for our grammar; none if the client's own wins. pair: the reasoning that the prompt opens."""
        if raw.grammar is None or "grammar" in fields or (not raw.forced and "json_schema" in fields):
            return {}
        return {"grammar": Raw(encode(raw.grammar))} if raw.forced else await self.guard(raw, pair)

    async def guard(self, raw: RawText, pair: tuple[str, str] | None) -> dict[str, Raw]:
        """The fields of a grammar that allows any text but broken calls.

        If each mark is one token, llama.cpp starts the grammar there, or with an answer that may begin with a call
        without marks, and other text costs nothing. Otherwise a token might hold a mark's end and more, which the
        grammar must see before the model writes it.
        """
        grammar, starts = (raw.grammar, raw.starts) if pair is None else (raw.in_reasoning, (pair[1],))
        fields = {"grammar": Raw(encode(grammar))}
        if not all([len(await self._ids_of(mark)) == 1 for mark in starts]):
            return fields
        # Calls within reasoning don't count.
        opened = [mark for mark, _ in raw.think if pair is None and len(await self._ids_of(mark)) == 1]
        triggers = [{"type": TRIGGER_WORD, "value": mark} for mark in (*starts, *opened)]
        if raw.unmarked and pair is None:
            triggers.append({"type": TRIGGER_WHOLE, "value": f"^({MAY_BE_CALLS.pattern})$"})
        return fields | {"grammar_lazy": Raw(b"true"), "grammar_triggers": Raw(encode(triggers))}

    async def _ids_of(self, mark: str) -> list[int]:
        """The tokens of the mark, asked for once; [] if the server can't tell."""
        if mark not in self._marks:
            self._marks[mark] = await self._tokens({"content": mark, "parse_special": True, "add_special": False}) or []
        return self._marks[mark]

    async def rendered(self, fields: dict[str, Raw]) -> Prompt | None:
        """The prompt of a chat without media; None if the server can't render it. Raises as `open`."""
        if not self._templates or _needs_chat(fields["messages"]) is not None:
            return None
        self.adapt(fields)
        prompt = await self._prompt(fields)
        if prompt is not None:
            await self._check_fits(fields, prompt)
        return prompt

    async def ids(self, prompt: Prompt, *, begins: bool = True) -> list[int] | None:
        """The tokens of a prompt, or of a text in its middle; None if the server can't tell."""
        return await self._tokens({"content": prompt, "add_special": begins, "parse_special": begins})

    def _placing(self, owner: str) -> tuple[Placing, LlamaCppSlots] | None:
        """What places requests of the owner; None if they may reuse whatever the engine holds."""
        if self._places is None and owner:
            self.ask_for_places(unsaved(self.model.name))
        return (self._places, self._slots) if self._places is not None and self._slots is not None else None

    async def placed(self, request: ChatRequest, fields: dict[str, Raw], prompt: Prompt | None) -> PromptPlace | None:
        """Chooses a request's slot, and writes it into the fields. prompt: the rendered one, if that is known."""
        owner = request.caller.owner
        if (placing := self._placing(owner)) is None:
            return None
        places, slots = placing
        if several(fields):
            # Each choice takes a slot.
            return _written(places.anywhere(slots, owner), fields)

        async def rendered(copy: dict[str, Raw]) -> str | None:
            if not self._templates or _needs_chat(copy["messages"]) is not None:
                return None
            self.adapt(copy)
            found = await self._prompt(copy)
            return None if found is None else as_text(found)

        async def render() -> str | None:
            return as_text(prompt) if prompt is not None else await rendered(dict(fields))

        async def other() -> str | None:
            start = messages.start(fields["messages"])
            return None if start is None else await rendered({**fields, "messages": start})

        sent = bytes(fields.get("tools", b"")), bytes(fields["messages"])
        # llama.cpp doesn't record with which adapters a saved prompt was computed.
        private = "id_slot" in fields or "lora" in fields or bytes(fields.get("cache_prompt", b"true")) == b"false"
        before, tell = request.serving.describe, request.serving.tell
        try:
            turn = await places.place(slots, sent, render, private=private, owner=owner, other=other, tell=tell)
        finally:
            tell(before)
        if turn is not None and turn.chain:
            turn.asked = sent
        return _written(turn, fields)

    async def _check_fits(self, fields: dict[str, Raw], prompt: Prompt | None = None) -> None:
        """Counts the tokens of a prompt that may exceed a slot's window; llama.cpp counts only once a slot is free.

        prompt: the rendered prompt, if it is known.

        Raises ProviderInvalidRequest (context_length_exceeded).
        """
        if len(bytes(fields["messages"])) < SURELY_FITS or (window := await self._window()) is None:
            return
        if not may_exceed(fields, DENSE_BYTES * window):
            return
        if prompt is None and self._templates:
            self.adapt(fields)
            prompt = await self._prompt(fields)
        if prompt is not None and (count := await self._count(prompt)) is not None and count >= window:
            raise context_length_exceeded(count, window)

    async def _window(self) -> int | None:
        """A slot's context window in tokens; None if the server doesn't report it."""
        settings = (await self.told.said()).get("default_generation_settings")
        window = settings.get("n_ctx") if isinstance(settings, dict) else None
        return window if isinstance(window, int) and window > 0 else None

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> HTTPReply:
        return await self.post_for("", endpoint, fields)

    async def post_for(self, owner: str, endpoint: Endpoint, fields: dict[str, Raw]) -> HTTPReply:
        if endpoint == "completions" and bytes(fields.get("suffix", b"null")) not in (b"null", b'""'):
            message = "suffix: llama.cpp ignores it here; put the model's own fill-in-the-middle tokens into the prompt"
            raise ProviderInvalidRequest(message, param="suffix")
        if self._adapters:
            self._weigh_adapters(decode(fields.get("model", b"null")), fields)
        turn = await self._placed_text(endpoint, fields, owner)
        with turn or NOWHERE:
            reply = await super().post(endpoint, fields)
        reply.turn = turn
        return reply

    async def forward(self, sent: Forward) -> Forwarded:
        fields: dict[str, Raw] | None = None
        if isinstance(sent.body, bytes) and sent.kind == "application/json":
            fields = msgspec.json.decode(sent.body, type=dict[str, Raw])
            if "messages" in fields:
                messages.edit(fields, messages.media_is_data)
        turn = None
        if sent.owner is not None and (placing := self._placing(sent.owner)) is not None:
            if fields is None:
                turn = placing[0].anywhere(placing[1], sent.owner)
            else:
                turn = await self._placed_text("infill", fields, sent.owner)
        with turn or NOWHERE:
            answer = await super().forward(sent if fields is None else replace(sent, body=encode(fields)))
        return answer if turn is None else TrackedForwarded(answer, turn.leave)

    async def _placed_text(self, endpoint: str, fields: dict[str, Raw], owner: str) -> PromptPlace | None:
        """As `placed`, for what isn't a chat."""
        if (placing := self._placing(owner)) is None:
            return None
        places, slots = placing
        if endpoint not in ("completions", "infill"):
            return places.anywhere(slots)
        text = bytes(fields.get("prompt" if endpoint == "completions" else "input_prefix", b""))
        if several(fields) or not places.admit_owner(owner):
            return _written(places.anywhere(slots, owner), fields)

        async def render() -> None:
            """Such prompts aren't saved."""

        return _written(await places.place(slots, [text], render, private=False, owner=owner), fields)

    async def count_tokens(self, fields: dict[str, Raw]) -> int | None:
        if not self._templates or _needs_chat(fields["messages"]) is not None:
            return None
        self.adapt(fields)
        prompt = await self._prompt(fields)
        return None if prompt is None else await self._count(prompt)

    async def prompt_logprobs(self, prompt: str | list[int], top: int) -> PromptLogprobs | None:
        from gateway.backends.llamacpp_logprobs import read

        tokens = prompt
        if isinstance(tokens, str):
            tokens = await self._tokens({"content": tokens, "add_special": True, "parse_special": True}) or []
        pieces = await self._tokens({"content": tokens, "with_pieces": True})
        window = await self._window()
        if pieces is None or len(pieces) != len(tokens):
            return None
        if window is not None and len(tokens) >= window:
            raise context_length_exceeded(len(tokens), window)
        texts = [piece.get("piece") if isinstance(piece, dict) else None for piece in pieces]
        head = self.post_head("/completion")

        async def post(asked: dict[str, Any]) -> dict[str, Any]:
            response = await self.accepted(head, {**asked, "model": self._name})
            try:
                return json_object(await response.read())
            finally:
                response.close()

        placing = self._placing("")
        turn = placing[0].anywhere(placing[1]) if placing is not None else None
        try:
            # Bytes that aren't text on their own come as numbers.
            return await read(tokens, [text if isinstance(text, str) else "\ufffd" for text in texts], top, post)
        finally:
            if turn is not None:
                turn.leave()

    async def control_tokens(self) -> ControlTokens | None:
        """Read from the server's vocabulary, once; empty if it doesn't tell the vocabulary."""
        if self._control is None:
            read = self._read_control_tokens
            told = self._prompts.control_tokens(self._slots, read) if self._prompts and self._slots else read()
            self._control = ControlTokens(await told)
        return self._control

    async def _read_control_tokens(self) -> dict[str, list[int]]:
        """The texts that are one token with special parsing and others without, and those others."""
        status, body = await self.get("/v1/models")
        served = json_object(body).get("data") if status == 200 else None
        meta = served[0].get("meta") if isinstance(served, list) and served and isinstance(served[0], dict) else None
        size = meta.get("n_vocab") if isinstance(meta, dict) else None
        if not isinstance(size, int):
            return {}
        texts: list[str] = []
        for first in range(0, min(size, MAX_VOCABULARY), PIECES):
            ids = list(range(first, min(size, first + PIECES)))
            pieces = await self._tokens({"content": ids, "with_pieces": True})
            found = [token.get("piece") for token in pieces or () if isinstance(token, dict)]
            texts += {text for text in found if isinstance(text, str) and may_be_one(text)}
        special, plain = await self._each(texts, special=True), await self._each(texts, special=False)
        line_break = (await self._each(["\n"], special=False))[0]
        found_tokens = {}
        for text, one, many in zip(texts, special, plain, strict=True):
            if len(one) == 1 and one != many:
                # After a line break, no tokenizer adds a space before the text.
                (after,) = await self._each([f"\n{text}"], special=False)
                begins = after[: len(line_break)] == line_break
                found_tokens[text] = after[len(line_break) :] if begins else many
        return found_tokens

    async def _each(self, texts: list[str], *, special: bool) -> list[list[int]]:
        """The ids of each text. [] for each if the server can't tell."""
        parts: list[str | int] = []
        for text in texts:
            parts += (text, BETWEEN)
        ids = await self._tokens({"content": parts, "parse_special": special, "add_special": False}) if texts else None
        found: list[list[int]] = [[]]
        for id in ids or ():
            if id == BETWEEN:
                found.append([])
            else:
                found[-1].append(id)
        return found[:-1] if len(found) == len(texts) + 1 else [[] for _ in texts]

    async def _tokens(self, asked: dict[str, Any]) -> list[Any] | None:
        """An answer of `/tokenize`; None if the server can't."""
        response = await self.upstream.request(self._tokenize_head, encode({**asked, "model": self._name}))
        try:
            body = await response.read()
        finally:
            response.close()
        tokens = json_object(body).get("tokens") if response.status == 200 else None
        return tokens if isinstance(tokens, list) else None

    async def _count(self, prompt: Prompt) -> int | None:
        """Counts tokens with the model's tokenizer; None if the server can't."""
        tokens = await self._tokens({"content": prompt, "add_special": True, "parse_special": True})
        return len(tokens) if tokens is not None else None

    async def _prompt(self, fields: dict[str, Raw]) -> Prompt | None:
        """Renders the prompt with the model's template; None if the server has no such endpoint.

        In an escaped request's prompt, what must stay text is token ids.
        """
        asked = {name: fields[name] for name in TEMPLATE_FIELDS if name in fields}
        asked["model"] = self._name
        response = await self.upstream.request(self._template_head, encode(asked))
        try:
            body = await response.read()
        finally:
            response.close()
        if response.status == 404:
            return None
        if response.status != 200:
            raise self.fault(response.status, body)
        rendered = completion.prompt(body)
        if NONCE not in rendered:
            return rendered
        tokens = await self.control_tokens()
        assert tokens is not None
        return tokens.cut(rendered)

    def adapt(self, fields: dict[str, Raw]) -> None:
        if _needs_edit(fields["messages"]):
            messages.edit(fields, messages.media_is_data, messages.arguments_are_text, messages.refusals_are_text)

    async def notation(self) -> Notation:
        return "gbnf"

    async def takes_tools(self) -> bool:
        """True for a server without /props, such as a router of several models."""
        return _supports(await self.told.said(), "supports_tools", "tools")

    async def keeps_calls(self) -> bool:
        """True for a server without /props."""
        return _supports(await self.told.said(), "supports_tool_calls", "tool_calls")

    async def progress(self) -> Hashable | None:
        """A value that changes with each step of any answer; None from a server without /slots.

        Raises ProviderInvalidResponse.
        """
        status, body = await self.get("/slots")
        if status != 200:
            return None
        try:
            slots = msgspec.json.decode(body, type=list[_Slot])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise malformed(error) from error
        return tuple((slot.id_task, slot.n_prompt_tokens_processed, slot.decoded) for slot in slots)

    async def about(self) -> About:
        """Prefers the local weights, which hold more than /props."""
        if (known := await super().about()) != UNKNOWN:
            return known
        props = await self.told.said()
        if not props:
            return UNKNOWN
        template, modalities = str(props.get("chat_template", "")), props.get("modalities")
        sees = modalities.get("vision") is True if isinstance(modalities, dict) else None
        return About(template, source="/props", sees=sees)

    async def met_another(self) -> bool:
        if another := await self.told.changed():
            self._control, self._marks, self._templates, self._slots, self._places = None, {}, True, None, None
        return another

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        try:
            error = msgspec.json.decode(body)["error"]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
            error = {}
        kind = error.get("type") if isinstance(error, dict) else None
        if kind == "exceed_context_size_error":
            return context_length_exceeded(error.get("n_prompt_tokens", 0), error.get("n_ctx", 0))
        if numbers := re.search(r"input \((\d{1,12}) tokens\) is too large.*batch size: (\d{1,12})", message):
            return context_length_exceeded(int(numbers[1]), int(numbers[2]))
        if kind == "unavailable_error":
            return ProviderModelNotLoaded(f"the engine is not ready yet: {message}", retry_after=1)
        if "input is not supported" in message or message == UNKNOWN_PART:
            refuse = ImagesUnsupported if "image input" in message else ProviderUnsupportedContentBlock
            return refuse(f"the model doesn't support this content: {message}", param="messages")
        if status == 400 and message.startswith("Pooling type 'none'"):
            remedy = "use an embedding model, or add args: [--pooling, mean] to the model in config.yaml"
            return ProviderInvalidRequest(f"{self.model.name} is a chat model: {remedy}", param="model")
        if status == 400 and message.startswith("model "):
            # llama-server in router mode, with several models.
            if message.endswith("is not loaded"):
                return ProviderModelNotLoaded(f"llama-server: {message}", retry_after=5)
            if message.endswith("not found"):
                return ProviderInvalidModel(f"llama-server: {message}", param="model")
        if (refused := _refused_field(message) or template_refusal(message)) is not None:
            return refused
        if status == 501 or (status == 500 and any(words in message for words in BAD_INPUT)):
            return ProviderInvalidRequest(f"the engine rejected the request: {message}")
        return super().error(status, body)


async def _props(backend: OpenAIBackend) -> dict[str, Any]:
    """The answer of /props; {} if the server has none. Raises the error of a server that still loads."""
    status, body = await backend.get("/props")
    if status == 503 and isinstance(error := backend.fault(status, body), ProviderModelNotLoaded):
        raise error
    return json_object(body) if status == 200 else {}


def _written(turn: PromptPlace | None, fields: dict[str, Raw]) -> PromptPlace | None:
    """Writes the place into the request's fields."""
    if turn is not None and turn.slot is not None and (turn.apart or "id_slot" not in fields):
        fields["id_slot"] = Raw(b"%d" % turn.slot)
    if turn is not None and turn.fresh:
        fields["cache_prompt"] = Raw(b"false")
    return turn


def _refused_field(message: str) -> ProviderInvalidRequest | None:
    """The error for a field that llama.cpp names in its message."""
    if found := re.fullmatch(r"Field '(\w+)': (?:\[json\.[\w.]+\] )?(.*)", message, re.DOTALL):
        name, fault = found.groups()
        remedy = (
            "; each answer takes a slot, and `parallel` in config.yaml says how many there are" if name == "n" else ""
        )
        return ProviderInvalidRequest(f"{name}: the engine rejected it: {fault}{remedy}", param=name)
    if found := re.search(r"JSON schema error at (\S+): (.*)", message):
        param = "response_format.json_schema.schema"
        return ProviderInvalidRequest(f"{param}: llama.cpp can't enforce it: at {found[1]}, {found[2]}", param=param)
    return None


class _NextToken(msgspec.Struct):
    n_decoded: int | None = None


class _Slot(msgspec.Struct):
    """next_token: an object; in newer builds a list with one object."""

    id_task: int | None = None
    n_prompt_tokens_processed: int | None = None
    next_token: _NextToken | list[_NextToken] | None = None

    @property
    def decoded(self) -> int | None:
        states = self.next_token if isinstance(self.next_token, list) else [self.next_token]
        return next((state.n_decoded for state in states if state is not None), None)


def _adapters(model: Model) -> dict[str | None, Raw]:
    """By the model's names, llama.cpp's field that weighs the adapters of one request; None stands for all other names.

    Empty if requests choose none.
    """
    adapters = model.engine.adapters
    names = [adapter.alias for adapter in adapters if adapter.alias is not None]

    def scale(adapter: Adapter, name: str | None) -> float:
        if adapter.alias in (None, name):
            return adapter.scale
        return NEGLIGIBLE if name is None and adapter.alias == names[0] else 0.0

    return {
        name: Raw(encode([{"id": number, "scale": scale(each, name)} for number, each in enumerate(adapters)]))
        for name in ([None, *names] if names else ())
    }


def _keep_named_tool(choice: dict[str, Any], fields: dict[str, Raw]) -> None:
    """Forces the named tool: keeps only that tool and requires a call. llama.cpp treats a name as "auto".

    Raises ProviderInvalidRequest for a tool that isn't declared.
    """
    name = choice["function"].get("name") if isinstance(choice.get("function"), dict) else None
    tools = msgspec.json.decode(fields["tools"])
    named = [tool for tool in tools if isinstance(tool.get("function"), dict) and tool["function"].get("name") == name]
    if not named:
        raise ProviderInvalidRequest(f"tool_choice: there is no tool {name!r}", param="tool_choice")
    fields["tools"], fields["tool_choice"] = Raw(encode(named)), Raw(b'"required"')


def _for_completions(fields: dict[str, Raw]) -> None:
    """Writes the fields of PARSED_FIELDS as the endpoint for plain prompts wants them."""
    format = msgspec.json.decode(fields.pop("response_format", b"null"))
    if isinstance(format, dict) and format.get("type") in ("json_schema", "json_object"):
        named = format.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else format.get("schema")
        fields["json_schema"] = Raw(encode(schema or {"type": "object"}))
    wanted, top = fields.pop("logprobs", b"null"), fields.pop("top_logprobs", b"null")
    if bytes(wanted) == b"true":
        fields["logprobs"] = Raw(top if bytes(top) not in (b"null", b"0") else b"1")


def _end(prompt: Prompt) -> str:
    """The text at the prompt's end, without white space behind it."""
    last = prompt if isinstance(prompt, str) else prompt[-1]
    return last.rstrip() if isinstance(last, str) else ""


def _with_end(prompt: Prompt, end: str) -> Prompt:
    return end if isinstance(prompt, str) else [*prompt[:-1], end]


def _completion_kind(fields: dict[str, Raw]) -> Callable[..., completion.CompletionReply]:
    if not several(fields):
        return completion.CompletionReply
    from gateway.backends.llamacpp_choices import ChoicesCompletionReply

    return partial(ChoicesCompletionReply, choices=decode(fields["n"]))


def _needs_chat_endpoint(fields: dict[str, Raw]) -> bool:
    if any(is_set(name, fields) for name in PARSED_FIELDS):
        return True
    return _needs_chat(fields["messages"]) is not None


def _supports(props: dict[str, Any], capability: str, word: str) -> bool:
    """Uses llama.cpp's own analysis of the chat template; older builds report only the template."""
    caps = props.get("chat_template_caps")
    if isinstance(caps, dict) and capability in caps:
        return bool(caps[capability])
    return not props or word in str(props.get("chat_template", "")) or "chat_template_tool_use" in props
