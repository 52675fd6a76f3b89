"""What a model can do behind the gateway, in Ollama's words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from gateway.backends.about import UNKNOWN, About, about
from gateway.config import Model
from gateway.core.model_server import READY_SECONDS
from gateway.core.route import Route
from gateway.errors import GatewayError

_THINKS = re.compile(
    r"enable_thinking|reasoning_content|reasoning_effort|think>|\[THINK\]|<\|START_THINKING\|>|<\|channel\|>"
)
"""What chat templates of models that think mention."""


async def abilities(route: Route) -> list[str]:
    """Starts no engine: reads the model's files, or asks its server if that isn't ours. `capabilities` in config.yaml
    may add to what they tell."""
    model = route.model
    if "chat" not in model.roles:
        return ["embedding"] if "embedding" in model.roles else []
    known, takes_tools = await _about(route)
    capability = route.sender.capability
    await capability.detect()
    # If the gateway reads the calls, it can show any model its tools.
    calls = model.runtime != "echo" and (takes_tools or not capability.reader.untouched)
    return ["completion", *_of_chat(model, known, calls=calls)]


def _of_chat(model: Model, known: About, *, calls: bool) -> Iterator[str]:
    listed = model.capabilities
    # A person who lists capabilities without this one has found that the model can't call.
    if "tool_calling" in listed or (calls and not listed):
        yield "tools"
    if "vision" in listed or known.sees or model.mmproj_path is not None:
        yield "vision"
    thinks = known.thinks if known.thinks is not None else _THINKS.search(known.template or "") is not None
    if "reasoning" in listed or thinks:
        yield "thinking"
    if known.inserts:
        yield "insert"


async def _about(route: Route) -> tuple[About, bool]:
    """What is known of the model, and whether its template has a place for tools."""
    if route.engine is not None:
        known = await asyncio.to_thread(about, route.model.path)
        return known, known.takes_tools
    try:
        async with asyncio.timeout(READY_SECONDS):
            backend = await route.server.backend()
            return await backend.about(), await backend.takes_tools()
    except (GatewayError, TimeoutError):
        return UNKNOWN, True
