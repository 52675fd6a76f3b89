"""The arguments of a call besides its messages (OpenArmature §4–§6): tools, tool choice, sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    max_tokens: upper bound of the completion, in tokens.
    seed: best effort; equal seeds promise no equal answers (§9).
    extra: further fields of the request body, sent as they are (`{"top_k": 40}`). A field that the
        call itself sets may be repeated with the same value; another value is provider_invalid_request.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


ResponseSchema: TypeAlias = "Mapping[str, Any] | type[BaseModel]"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the caller knows about a server and its model before the first call.

    image_input: False refuses image blocks before sending anything (§7).
    image_media_types: types accepted for inline images; None accepts every `image/*` and leaves the
        choice to the server.
    native_response_format: whether the server constrains output by `response_format` (§8.1.5). None
        tries it and learns from the first refusal; set False for a server that silently ignores it.
    """

    image_input: bool = True
    image_media_types: frozenset[str] | None = None
    native_response_format: bool | None = None
