"""A typed client for models behind OpenAI-compatible servers, Anthropic's and Google's: OpenArmature's LLM provider.

It shares the error categories of `gateway.errors` with the gateway, and needs no SDK. See docs/provider.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gateway.provider.contract import Provider
from gateway.provider.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.provider.messages import (
    AnswerBlock,
    AssistantMessage,
    ContentBlock,
    ImageBlock,
    InlineSource,
    Message,
    RedactedThinkingBlock,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.openai import OpenAIProvider
from gateway.provider.request import Capabilities, RuntimeConfig, Tool, ToolChoice, ToolChoiceForce
from gateway.provider.response import FinishReason, Response, Usage
from gateway.provider.retry import Retry, full_jitter, is_transient, retry
from gateway.provider.stream import Stream
from gateway.provider.structured import StructuredOutputInvalid
from gateway.provider.sync import SyncProvider

if TYPE_CHECKING:
    from gateway.provider.names import embedder, provider, reranker
    from gateway.provider.observe import Attempt, Observation, Observer
    from gateway.provider.transcript import Transcript

_LATER = {
    "Attempt": "observe",
    "Observation": "observe",
    "Observer": "observe",
    "Transcript": "transcript",
    "embedder": "names",
    "provider": "names",
    "reranker": "names",
}
"""Imported on first use, from these modules."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


__all__ = [
    "AnswerBlock",
    "AssistantMessage",
    "Attempt",
    "Capabilities",
    "ContentBlock",
    "Delta",
    "FinishReason",
    "ImageBlock",
    "InlineSource",
    "Message",
    "Observation",
    "Observer",
    "OpenAIProvider",
    "Provider",
    "ReasoningDelta",
    "RedactedThinkingBlock",
    "Response",
    "Retry",
    "RuntimeConfig",
    "Stream",
    "StructuredOutputInvalid",
    "SyncProvider",
    "SystemMessage",
    "TextBlock",
    "TextDelta",
    "ThinkingBlock",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "ToolChoiceForce",
    "ToolMessage",
    "Transcript",
    "UrlSource",
    "Usage",
    "UserMessage",
    "embedder",
    "full_jitter",
    "is_transient",
    "provider",
    "reranker",
    "retry",
]
