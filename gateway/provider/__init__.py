"""A typed client for any OpenAI-compatible model server: the LLM provider contract of OpenArmature.

It shares the error categories of `gateway.errors` with the gateway, and knows nothing else of it. See
docs/provider.md.
"""

from gateway.provider.contract import Provider
from gateway.provider.messages import (
    AssistantMessage,
    ContentBlock,
    ImageBlock,
    InlineSource,
    Message,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.openai import OpenAIProvider
from gateway.provider.request import Capabilities, RuntimeConfig, Tool, ToolChoice, ToolChoiceForce
from gateway.provider.response import FinishReason, Response, Usage
from gateway.provider.retry import full_jitter, is_transient, retry
from gateway.provider.stream import Delta, ReasoningDelta, Stream, TextDelta, ToolCallDelta
from gateway.provider.structured import StructuredOutputInvalid
from gateway.provider.sync import SyncProvider

__all__ = [
    "AssistantMessage",
    "Capabilities",
    "ContentBlock",
    "Delta",
    "FinishReason",
    "ImageBlock",
    "InlineSource",
    "Message",
    "OpenAIProvider",
    "Provider",
    "ReasoningDelta",
    "Response",
    "RuntimeConfig",
    "Stream",
    "StructuredOutputInvalid",
    "SyncProvider",
    "SystemMessage",
    "TextBlock",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "ToolChoiceForce",
    "ToolMessage",
    "UrlSource",
    "Usage",
    "UserMessage",
    "full_jitter",
    "is_transient",
    "retry",
]
