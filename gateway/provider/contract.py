"""The contract that every provider keeps (OpenArmature §5), and the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Required, TypeAlias, TypedDict, TypeVar, Unpack, overload

from gateway.provider.messages import Message
from gateway.provider.request import ResponseSchema, RuntimeConfig, Tool, ToolChoice
from gateway.provider.response import Response
from gateway.provider.retry import Retry

if TYPE_CHECKING:
    from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound="BaseModel")

Messages: TypeAlias = Sequence[Message]
Tools: TypeAlias = Sequence[Tool] | None
Config: TypeAlias = RuntimeConfig | None


class Options(TypedDict, total=False):
    """Further arguments of a call."""

    response_schema: ResponseSchema | None
    tool_choice: ToolChoice | None
    retry: Retry | None


class Unstructured(TypedDict, total=False):
    """Options of a call whose answer is text."""

    response_schema: None
    tool_choice: ToolChoice | None
    retry: Retry | None


class AsModel(TypedDict, Generic[ModelT], total=False):
    """Options of a call whose answer is an instance of a pydantic model class."""

    response_schema: Required[type[ModelT]]
    tool_choice: ToolChoice | None
    retry: Retry | None


class AsJSON(TypedDict, total=False):
    """Options of a call whose answer conforms to a JSON Schema."""

    response_schema: Required[Mapping[str, Any]]
    tool_choice: ToolChoice | None
    retry: Retry | None


class Provider(Protocol):
    """One model behind one server: stateless and reentrant; it doesn't route or loop on tool calls, and
    retries only if the call says so."""

    async def ready(self) -> None:
        """Returns if the next `complete()` is expected to succeed.

        Raises one of the nine categories of `gateway.errors`: above all provider_authentication,
        provider_invalid_model (unknown to the server), provider_model_not_loaded (known, not serving
        yet: poll), provider_unavailable.
        """
        ...

    @overload
    async def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[Unstructured]
    ) -> Response[None]: ...

    @overload
    async def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[AsModel[ModelT]]
    ) -> Response[ModelT | None]: ...

    @overload
    async def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[AsJSON]
    ) -> Response[dict[str, Any] | None]: ...

    async def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[Options]
    ) -> Response[Any]:
        """Calls the model once. Checks the arguments before it sends anything, and never changes them.

        messages: a system message first or none, a user or tool message last.
        tools: what the model may ask for; the caller runs the calls and makes the next `complete()`.
        response_schema: a JSON Schema of type `object`, or a pydantic model class; the content must
            conform to it and comes back as `Response.parsed`.
        tool_choice: None leaves the choice to the server's default.
        retry: None makes one attempt.

        Raises one of the nine categories: provider_invalid_request before anything is sent,
        structured_output_invalid for content that breaks response_schema,
        provider_invalid_response for an answer that isn't a §6 Response.
        """
        ...
