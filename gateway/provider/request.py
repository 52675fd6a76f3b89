"""The arguments of a call besides its messages (OpenArmature §4–§6): tools, tool choice, sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask for (§4).

    name: unique within a call.
    parameters: JSON Schema of the arguments, an object schema; references only within itself.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoiceForce:
    """The model must call this tool and no other (§5)."""

    name: str
    type: Literal["tool"] = field(default="tool", init=False)


ToolChoice: TypeAlias = Literal["auto", "required", "none"] | ToolChoiceForce


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Sampling of one call (§6); a field that is None stays out of the request.

    max_tokens: upper bound of the completion, in tokens. Anthropic's API requires it.
    seed: best effort; equal seeds promise no equal answers (§9).
    stop_sequences: texts that end the answer.
    extra: further fields of the request body, sent as they are (`{"top_k": 40}`). A field that the
        call itself sets may be repeated with the same value; another value is provider_invalid_request.
        Stop sequences in both are sent together.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_sequences: Sequence[str] | None = None

    def overridden(self, by: RuntimeConfig) -> RuntimeConfig:
        """A copy with the fields that `by` sets; its `extra` goes key by key."""
        changes = {name: value for name in SAMPLING if (value := getattr(by, name)) is not None}
        return replace(self, **changes, extra={**self.extra, **by.extra})


SAMPLING = (
    *("temperature", "max_tokens", "top_p", "seed"),
    *("frequency_penalty", "presence_penalty", "stop_sequences"),
)
"""The fields of RuntimeConfig that have a meaning of their own."""


ResponseSchema: TypeAlias = "Mapping[str, Any] | type[BaseModel]"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the caller knows about a server and its model before the first call.

    image_input: False refuses image blocks before sending anything (§7).
    image_media_types: types accepted for inline images; None accepts every `image/*` and leaves the
        choice to the server.
    native_response_format: whether the server constrains output to a schema by itself (§8.1.5, §8.2.5, §8.3.5).
        None tries it and learns from the first refusal; set False for a server that silently ignores it.
    streaming: False refuses streamed calls before sending anything (§5).
    """

    image_input: bool = True
    image_media_types: frozenset[str] | None = None
    native_response_format: bool | None = None
    streaming: bool = True
