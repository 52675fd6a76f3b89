"""What a model can do behind its engine: the format of its calls, and what its chat template shows."""

from __future__ import annotations

import asyncio

from gateway.backends import Backend
from gateway.backends.about import About, about
from gateway.config import Model
from gateway.request.constraints import may_use_grammar
from gateway.request.prepare import Capabilities
from normalizers import Detection, FormatSpec, detect, registry


class CapabilityFinder:
    """Asks the engine what its model can do, once for each backend, and keeps the answer.

    reader: the format in which we read the model's answers. evidence: why we take that one; "" before we looked.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.reader: FormatSpec = model.custom_format or registry.get(model.tool_call_format)
        self.undetected = self.reader.name == "auto"
        self.evidence = "the engine reads the calls" if self.reader.untouched else "config.yaml"
        if self.undetected:
            self.evidence = ""
        self._known: tuple[Backend, Capabilities] | None = None
        self.plain = Capabilities(self.reader, self.reader)
        """What a request without tools, constraints and past calls looks at: the reader alone."""

    async def detect(self, backend: Backend) -> None:
        """Detects the format if config.yaml leaves it open; looks once."""
        if self.undetected:
            self._found(await backend.about())
            # If nothing says beforehand, each answer shows it: the first known marker counts.
            self.undetected = False

    async def all(self, backend: Backend) -> Capabilities:
        """Everything. Raises a GatewayError if the engine has to be asked and doesn't answer."""
        if self._known is None or self._known[0] is not backend:
            self._known = backend, await self._ask(backend)
        return self._known[1]

    async def look(self) -> None:
        """Detects the format from the model's files; asks no engine."""
        if self.undetected and not self.evidence:
            self._found(await asyncio.to_thread(about, self._model.path))

    async def _ask(self, backend: Backend) -> Capabilities:
        reader, way = self.reader, self._model.tool_prompt
        dialect = reader
        if reader.untouched:
            if not may_use_grammar(self._model.runtime):
                return Capabilities(reader, dialect)
            if (found := _detected(await backend.about())) is not None:
                dialect = registry.get(found.format)
            if dialect.untouched:  # nothing of what follows matters
                return Capabilities(reader, dialect)
        takes_tools = await backend.takes_tools()
        return Capabilities(
            reader,
            dialect,
            raw_text=backend.gives_raw_text,
            tools_in_prompt=way == "system" if way != "auto" else not takes_tools,
            takes_tools=takes_tools,
            keeps_calls=await backend.keeps_calls(),
        )

    def _found(self, known: About) -> None:
        found = _detected(known)
        if found is None:
            self.evidence = "not seen yet: the first known marker in an answer counts"
            return
        self.reader = registry.get(found.format)
        self.plain = Capabilities(self.reader, self.reader)
        self.evidence = f"{found.source} {', '.join(found.evidence)} ({known.source})"
        self.undetected = False


def _detected(known: About) -> Detection | None:
    return detect(special_tokens=known.tokens, chat_template=known.template or "", architecture=known.architecture)
