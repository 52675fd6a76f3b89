"""A conversation as a value: continue it with another model, another API, or on another day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, overload

from gateway.errors import ProviderInvalidRequest
from gateway.provider.messages import (
    AssistantMessage,
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
from gateway.schema.jsontext import dump_json, parse_json

Mapped: TypeAlias = Literal["openai", "anthropic", "gemini"]

_MESSAGES: Mapping[str, Any] = {
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}
_BLOCKS: Mapping[str, Any] = {
    "text": TextBlock,
    "image": ImageBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
}
_SOURCES: Mapping[str, Any] = {"url": UrlSource, "inline": InlineSource}


@dataclass(frozen=True, slots=True)
class Transcript(Sequence[Message]):
    """The messages of a conversation. Pass it to `complete()` as it is: `provider.complete(transcript)`.

    It keeps what every model wrote, signed reasoning included. Rendering leaves out what an API can't carry, and
    changes nothing here: after a call of another model, the first one gets back all of its own.
    """

    messages: tuple[Message, ...] = ()

    def adding(self, *messages: Message) -> Transcript:
        """A transcript with these messages appended."""
        return Transcript((*self.messages, *messages))

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def render(self, mapping: Mapped) -> dict[str, Any]:
        """The fields that hold the conversation in a request of that API."""
        fields: dict[str, Any] = _module(mapping).write_messages(self.messages)
        return fields

    @classmethod
    def read(cls, mapping: Mapped, fields: Mapping[str, Any]) -> Transcript:
        """The conversation of a request of that API; `render` gives the same fields again.

        Raises ProviderInvalidRequest for other fields, and for blocks that the contract doesn't have.
        """
        try:
            return cls(tuple(_module(mapping).read_messages(fields)))
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise ProviderInvalidRequest(f"not a conversation of the {mapping} mapping: {error!r}") from error

    def to_json(self) -> str:
        """The whole transcript as JSON. Raises ValueError for tool arguments that aren't JSON."""
        return dump_json([_plain(message) for message in self.messages])

    @classmethod
    def from_json(cls, text: str | bytes) -> Transcript:
        """The transcript that `to_json` wrote. Raises ProviderInvalidRequest for any other text."""
        try:
            return cls(tuple(_message(entry) for entry in parse_json(text)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ProviderInvalidRequest(f"not a transcript: {error!r}") from error


def _module(mapping: str) -> Any:
    if mapping not in ("openai", "anthropic", "gemini"):
        raise ProviderInvalidRequest(f"no mapping {mapping!r}; there are: openai, anthropic, gemini")
    return import_module(f"gateway.provider.mapping.{mapping}")


def _plain(message: Message) -> dict[str, Any]:
    return {name: value for name, value in asdict(message).items() if value is not None}


def _message(entry: Mapping[str, Any]) -> Message:
    fields = dict(entry)
    kind = _MESSAGES[fields.pop("role")]
    if isinstance(fields.get("content"), list):
        fields["content"] = tuple(_block(block) for block in fields["content"])
    if "tool_calls" in fields:
        fields["tool_calls"] = tuple(ToolCall(**call) for call in fields["tool_calls"])
    message: Message = kind(**fields)
    return message


def _block(entry: Mapping[str, Any]) -> Any:
    fields = dict(entry)
    kind = _BLOCKS[fields.pop("type")]
    if "source" in fields:
        source = dict(fields["source"])
        fields["source"] = _SOURCES[source.pop("type")](**source)
    return kind(**fields)
