"""The conversation as values (OpenArmature §3): messages, content blocks, tool calls.

Building a value never fails: `complete()` checks the whole conversation before it sends anything (see
`gateway.provider.validation`). Constructors turn lists into tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Detail = Literal["auto", "low", "high"]


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Text in a user or assistant message (§3.1.1); not empty.

    signature: opaque, from a server that signs the text of its answers; goes back to that server as it came.
    """

    text: str
    signature: str | None = None
    type: Literal["text"] = field(default="text", init=False)


@dataclass(frozen=True, slots=True)
class UrlSource:
    """An image by `http(s):` or `data:` URL (§3.1.3). Goes to the server unchanged; we fetch nothing."""

    url: str
    type: Literal["url"] = field(default="url", init=False)


@dataclass(frozen=True, slots=True)
class InlineSource:
    """An image as base64 text (§3.1.3), passed on as it is. The block needs a `media_type`."""

    base64_data: str
    type: Literal["inline"] = field(default="inline", init=False)


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """An image in a user message (§3.1.2).

    media_type: IANA type such as `image/png`; required for an InlineSource, ignored for a UrlSource.
    detail: fidelity hint; None leaves it to the server's default.
    """

    source: UrlSource | InlineSource
    media_type: str | None = None
    detail: Detail | None = None
    type: Literal["image"] = field(default="image", init=False)


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    """A model's reasoning in an assistant message (§3.1.4); not empty.

    signature: opaque; a server that signs its reasoning takes the block back only with it.
    """

    text: str
    signature: str | None = None
    type: Literal["thinking"] = field(default="thinking", init=False)


@dataclass(frozen=True, slots=True)
class RedactedThinkingBlock:
    """Reasoning that the server shows only encrypted (§3.1.5); goes back to it as it came."""

    data: str
    type: Literal["redacted_thinking"] = field(default="redacted_thinking", init=False)


ContentBlock: TypeAlias = TextBlock | ImageBlock
AnswerBlock: TypeAlias = TextBlock | ThinkingBlock | RedactedThinkingBlock


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool (§3).

    id: as the server wrote it, never rewritten.
    arguments: parsed, and conforming to the tool's schema; None only in a Response whose
        finish_reason is `error`, if the server's text isn't a JSON object (`Response.raw` has it).
    signature: opaque, from a server that signs its calls; goes back to that server as it came.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions; only at the head of a conversation."""

    content: str
    role: Literal["system"] = field(default="system", init=False)


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A person's turn: text, or content blocks in the order for the model (§3.1.6)."""

    content: str | Sequence[ContentBlock]
    role: Literal["user"] = field(default="user", init=False)

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            object.__setattr__(self, "content", tuple(self.content))


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The model's turn. `content` may be empty only beside tool calls; a server's null becomes ''.

    content: text; blocks in the model's order if it showed its reasoning or signed its text.
    """

    content: str | Sequence[AnswerBlock] = ""
    tool_calls: Sequence[ToolCall] = ()
    role: Literal["assistant"] = field(default="assistant", init=False)

    def __post_init__(self) -> None:
        for name in ("content", "tool_calls"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))

    @property
    def blocks(self) -> tuple[AnswerBlock, ...]:
        """The content as blocks: none for an empty text."""
        content = self.content
        if isinstance(content, str):
            return (TextBlock(content),) if content else ()
        return tuple(content)

    @property
    def text(self) -> str:
        """What the model said, without its reasoning."""
        content = self.content
        if isinstance(content, str):
            return content
        return "".join(block.text for block in content if isinstance(block, TextBlock))

    @property
    def reasoning(self) -> str:
        """The reasoning that the server shows as text; '' if it shows none."""
        content = self.content
        if isinstance(content, str):
            return ""
        return "".join(block.text for block in content if isinstance(block, ThinkingBlock))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """A tool's result as text, for the ToolCall of that id in an earlier assistant message."""

    content: str
    tool_call_id: str
    role: Literal["tool"] = field(default="tool", init=False)


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage
