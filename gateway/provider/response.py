"""What a call gives back (OpenArmature §6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from gateway.provider.messages import AssistantMessage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]

ParsedT_co = TypeVar("ParsedT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reported them; None where it reported none, or none that is a count."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Response(Generic[ParsedT_co]):
    """The answer to one call.

    finish_reason: `error` marks a degraded answer that is surfaced, not raised: look at each tool call
        before executing it (§3).
    raw: the server's JSON body, whole. Of a streamed answer, the body that its chunks add up to.
    parsed: the structured value if the call had a response_schema and the model answered with content
        (an instance of the class, where a pydantic model class was given); else None.
    """

    message: AssistantMessage
    finish_reason: FinishReason
    usage: Usage
    raw: dict[str, Any]
    parsed: ParsedT_co
