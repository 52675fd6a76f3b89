"""The capabilities of a model behind its engine: the format of its calls, and what its chat template supports."""

from __future__ import annotations

import asyncio
from functools import cache

from msgspec.structs import replace

from gateway.backends import Backend
from gateway.backends.about import About, about
from gateway.config import Model
from gateway.config.values import DECIDED
from gateway.core.in_thread import in_thread_if_large
from gateway.detection.choice import FormatChoice, choose, is_new
from gateway.errors import ProviderInvalidRequest
from gateway.observe.shares import Workers
from gateway.request.constraints import may_use_grammar
from gateway.request.escaped import needs_escape
from gateway.request.prepare import ModelCapabilities
from gateway.wire.chat import ChatRequest
from gateway.wire.control_tokens import ControlTokens, slices, too_many
from gateway.wire.engine import NEVER
from normalizers import FormatSpec, registry
from normalizers.derive.history import History

PAST_ARGUMENTS = {"llama-cpp-python": "text", "mlx": "object"}
"""Runtime → the form in which its server hands the arguments of past calls to the chat template. llama.cpp finds out
what the template wants; of others nobody knows."""


class CapabilityFinder:
    """Asks the engine what its model can do, once for each backend, and keeps the answer.

    reader: the format in which we parse the model's answers. evidence: why this one; "" before detection.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.reader: FormatSpec = model.custom_format or registry.get(model.tool_call_format)
        undetected = self.reader.name == "auto"
        given = model.custom_format is not None or undetected or self.reader.untouched
        self._named = "" if given else self.reader.name
        """The built-in format that is configured."""
        self.evidence = "the engine reads the calls" if self.reader.untouched else "config.yaml"
        if undetected:
            self.evidence = ""
        self.known: dict[tuple[Backend, bool], ModelCapabilities] = {}
        """The last answers of the backend and of the one for flex requests: without and with the part about past
        calls."""
        self._escaping: tuple[Backend | None, dict[tuple[bool, bool], ModelCapabilities]] = (None, {})
        """The results of `escaping`, by past calls and tools."""
        self.reader_only = None if undetected else ModelCapabilities(self.reader, self.reader)
        """For plain requests (`ChatRequest.plain`): the reader alone. None until it is detected."""

    async def find(self, request: ChatRequest, backend: Backend, *, plain: bool | None = None) -> ModelCapabilities:
        """What the request needs. Raises a GatewayError if the engine has to be asked and doesn't answer.

        plain: nothing but the reader; if omitted: `request.plain`.
        """
        if self.reader_only is None:
            await self._detect(await backend.about())
            # If nothing says beforehand, each answer shows it: the first known marker counts.
            self.reader_only = ModelCapabilities(self.reader, self.reader)
        if request.plain if plain is None else plain:
            return self.reader_only
        key = backend, request.past_calls
        known = self.known.get(key)
        if known is None:
            known = await self._ask(backend, past=request.past_calls)
            # Backends of engines that are gone are forgotten.
            kept = {
                of: capabilities
                for of, capabilities in self.known.items()
                if of[0] is backend or of[0].unread != backend.unread
            }
            self.known = {**kept, key: known}
        return known

    async def escaping(
        self, request: ChatRequest, backend: Backend, capabilities: ModelCapabilities
    ) -> ModelCapabilities:
        """What the request needs, if its texts hold control tokens of the model; else `capabilities`.

        Call it if `may_need_escape` and the backend escapes. The gateway itself reads the answer of a server that takes
        token ids, since only the endpoint for plain prompts does. Raises as `find` does.
        """
        tokens = await backend.control_tokens()
        if tokens is None or not tokens:
            return capabilities
        for json in (bytes(request.fields["messages"]), request.tools or b""):
            if await in_thread_if_large(len(json), tokens.slow, json):
                await _search_slowly(tokens, json)
                return capabilities
        if not await in_thread_if_large(request.size, needs_escape, request, tokens, capabilities.dialect):
            return capabilities
        if self._escaping[0] is not backend:
            self._escaping = backend, {}
        kept = self._escaping[1]
        with_tools = request.tools is not None
        key = request.past_calls, with_tools
        if key not in kept:
            capabilities = await self._ask(backend, past=request.past_calls)
            notation = await backend.notation()
            if backend.opens_escaped or notation is None:
                kept[key] = replace(capabilities, control_tokens=tokens, opens_escaped=backend.opens_escaped)
            else:
                reader = capabilities.dialect
                if reader.untouched and not with_tools:
                    reader = registry.get("auto")
                notation = None if reader.untouched else notation
                kept[key] = replace(
                    capabilities, reader=reader, dialect=reader, notation=notation, control_tokens=tokens
                )
        return kept[key]

    def deciding(self, capabilities: ModelCapabilities) -> ModelCapabilities:
        """For a request with a threshold of its own. Raises ProviderInvalidRequest if no answer can be held to it."""
        if self._model.runtime not in DECIDED or capabilities.reader.untouched:
            cause = (
                "the engine reads its calls"
                if capabilities.reader.untouched
                else f"its runtime is {self._model.runtime}"
            )
            raise ProviderInvalidRequest(
                f"the model {self._model.name} can't hold an answer to a call_threshold: {cause}; leave it out",
                param="call_threshold",
            )
        # Any threshold makes the grammars that are needed; the request's own takes its place once they're there.
        return (
            capabilities
            if capabilities.notation is None or capabilities.threshold is not None
            else replace(capabilities, threshold=NEVER)
        )

    async def detect(self) -> None:
        """Detects the format from the model's files; asks no engine."""
        if not self.evidence:
            await self._detect(await asyncio.to_thread(about, self._model.path))

    async def _ask(self, backend: Backend, *, past: bool) -> ModelCapabilities:
        """Asks only for what the request needs, with past calls or without."""
        choice, grammars = FormatChoice(None), may_use_grammar(self._model.runtime)
        if past or grammars or self._model.keep_reasoning == "always":
            choice = await _chosen(await backend.about(), self._named)
            self._lay_out(choice)
        reader, way, history = self.reader, self._model.tool_prompt, choice.history
        dialect = reader
        if reader.untouched and grammars:
            dialect = choice.spec or reader
        if dialect.untouched:
            # We neither read nor write calls.
            return ModelCapabilities(
                reader, dialect, notation=await backend.notation(), history=history, unread=backend.unread
            )
        takes_tools = await backend.takes_tools() if past or way == "auto" else True
        return ModelCapabilities(
            reader,
            dialect,
            notation=await backend.notation(),
            tools_in=way if way != "auto" else "template" if takes_tools else "system",
            wording=self._model.tool_wording,
            examples=self._model.tool_examples,
            threshold=self._model.call_threshold,
            takes_tools=takes_tools,
            keeps_calls=await self._keeps_calls(backend, history) if past else True,
            history=history,
            unread=backend.unread,
        )

    async def _keeps_calls(self, backend: Backend, history: History) -> bool:
        """Whether the template shows past calls as they were written, from what the server hands to it."""
        if not await backend.keeps_calls():
            return False
        handed = PAST_ARGUMENTS.get(self._model.runtime, "either")
        return "either" in (history.arguments, handed) or history.arguments == handed

    def _lay_out(self, choice: FormatChoice) -> None:
        """Takes over how the template writes calls of the configured format."""
        spec = choice.spec
        if spec is not None and spec.name == self._named and spec.layout != self.reader.layout:
            self.reader = spec
            self.reader_only = ModelCapabilities(spec, spec)

    async def _detect(self, known: About) -> None:
        choice = await _chosen(known)
        found, spec = choice.found, choice.spec
        if found is None or spec is None:
            self.evidence = "not seen yet: the first known marker in an answer counts"
            return
        self.reader = spec
        self.reader_only = ModelCapabilities(self.reader, self.reader)
        self.evidence = f"{found.source} {', '.join(found.evidence)} ({known.source})"


@cache
def _inspectors() -> Workers:
    """One process at a time renders a template, however many models there are, and only such templates wait for it."""
    return Workers(1, name="chat templates")


async def _chosen(known: About, wanted: str = "") -> FormatChoice:
    executor = _inspectors() if await asyncio.to_thread(is_new, known, wanted) else None
    return await asyncio.get_running_loop().run_in_executor(executor, choose, known, wanted)


async def _search_slowly(tokens: ControlTokens, json: bytes) -> None:
    """Raises ProviderInvalidRequest if the JSON holds one of the texts. Lets others run meanwhile."""
    for piece in slices(json):
        if tokens.found(piece):
            raise too_many()
        await asyncio.sleep(0)
