"""The contract that every provider keeps (OpenArmature §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from gateway.provider.messages import Message
from gateway.provider.request import RuntimeConfig, Tool, ToolChoice
from gateway.provider.response import Response

if TYPE_CHECKING:
    from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound="BaseModel")


class Provider(Protocol):
    """One model behind one server: stateless and reentrant; it doesn't retry, route or loop on tool calls."""

    async def ready(self) -> None:
        """Returns if the next `complete()` is expected to succeed.

        Raises one of the nine categories of `gateway.errors`: above all provider_authentication,
        provider_invalid_model (unknown to the server), provider_model_not_loaded (known, not serving
        yet: poll), provider_unavailable.
        """
        ...

    @overload
    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        config: RuntimeConfig | None = None,
        response_schema: None = None,
        tool_choice: ToolChoice | None = None,
    ) -> Response[None]: ...

    @overload
    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        config: RuntimeConfig | None = None,
        *,
        response_schema: type[ModelT],
        tool_choice: ToolChoice | None = None,
    ) -> Response[ModelT | None]: ...

    @overload
    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        config: RuntimeConfig | None = None,
        *,
        response_schema: Mapping[str, Any],
        tool_choice: ToolChoice | None = None,
    ) -> Response[dict[str, Any] | None]: ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        config: RuntimeConfig | None = None,
        response_schema: Any = None,
        tool_choice: ToolChoice | None = None,
    ) -> Response[Any]:
        """One call of the model; the arguments are checked before anything is sent and never changed.

        messages: a system message first or none, a user or tool message last.
        tools: what the model may ask for; the caller runs the calls and makes the next `complete()`.
        response_schema: a JSON Schema of type `object`, or a pydantic model class; the content must
            conform to it and comes back as `Response.parsed`.
        tool_choice: None leaves the choice to the server's default.

        Raises one of the nine categories: provider_invalid_request before anything is sent,
        structured_output_invalid for content that isn't what response_schema asks for,
        provider_invalid_response for an answer that isn't a §6 Response.
        """
        ...
