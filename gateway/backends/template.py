"""One error for every conversation that a model's chat template refuses, whichever engine reports it."""

from __future__ import annotations

import re

from gateway.errors import ProviderInvalidRequest

REFUSED = "template_refused"
"""The error's code."""

_TRACE = re.compile(
    r"(?:^|\n)-+\nWhile executing .*\nError: (?:Jinja Exception: )?(?P<said>.*)|Jinja Exception: (?P<raised>.*)",
    re.DOTALL,
)
"""llama.cpp's report of a template that failed, or raised an error of its own."""

_ORDER = re.compile(
    r"roles? must alternate|system message must be at the beginning|system role not supported"
    r"|only .{1,150} roles are supported|no user query found|(?:unexpected|unknown|invalid)(?: message)? role"
    r"|tool call ids should be|only supports single tool-calls|no previous assistant message with a tool call"
    r"|there's no first user message|expected last role|not the same number of function calls"
    r"|tool message outside of assistant|cannot continue an assistant message"
    r"|cannot have 2 or more assistant messages"
    r"|messages with role 'tool' must be a response"
    r"|'tool_calls' must be followed by tool messages",
    re.IGNORECASE | re.DOTALL,
)
"""What chat templates, mistral-common and OpenAI say about the order of messages; other servers forward it."""

MAX_REASON = 300
"""Of the template's own words, in characters."""


def template_refusal(message: str) -> ProviderInvalidRequest | None:
    """Recognises an engine's message about a template's refusal; None for any other message."""
    if found := _TRACE.search(message):
        reason = found["said"] or found["raised"] or ""
    elif _ORDER.search(message):
        reason = message
    else:
        return None
    reason = " ".join(reason.split())[:MAX_REASON].rstrip(".")
    return ProviderInvalidRequest(
        f"messages: the model's chat template doesn't take this conversation: {reason}", code=REFUSED, param="messages"
    )
