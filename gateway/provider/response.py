"""The answer to a call (OpenArmature §6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from gateway.provider.messages import AssistantMessage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]

ParsedT_co = TypeVar("ParsedT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reports them; None for a missing or invalid count.

    cached_tokens: of the prompt, read from the server's cache of earlier prompts.
    cache_creation_tokens: of the prompt, written to that cache.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Response(Generic[ParsedT_co]):
    """The answer to one call.

    finish_reason: `error` marks a degraded answer, which is returned, not raised: inspect each tool call
        before executing it (§3).
    raw: the server's whole JSON body. For a streamed answer, the sum of its chunks.
    parsed: the structured value if the call had a response_schema and the model answered with content: an
        instance if response_schema is a pydantic model class. Otherwise None.
    """

    message: AssistantMessage
    finish_reason: FinishReason
    usage: Usage
    raw: dict[str, Any]
    parsed: ParsedT_co
