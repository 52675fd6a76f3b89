"""Structured output (OpenArmature §5, §6, §8.1.5): what is asked of the server, what is made of its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from gateway import errors
from gateway.errors import ProviderInvalidRequest
from gateway.provider.messages import Message, SystemMessage
from gateway.provider.request import ResponseSchema
from gateway.provider.response import FinishReason, Usage
from gateway.schema.jsontext import parse_json
from gateway.schema.objects import ObjectSchema

if TYPE_CHECKING:
    from pydantic import BaseModel

_DIRECTIVE = """\
Answer with one JSON object that conforms to the JSON Schema below, and with nothing else: no words around it, no \
code fence.{unless}
{schema}"""
_UNLESS_TOOLS = " This holds for an answer in text; calling a tool stays allowed."


class StructuredOutputInvalid(errors.StructuredOutputInvalid):
    """The model's content is not what response_schema asks for (§7). `message` says why and where.

    response_schema: the JSON Schema that was asked for; None where the server refused an answer by itself.
    output_content: the content as the model wrote it; None where the server kept it.
    finish_reason, usage: of the answer; `length` tells a cut answer from a wrong one.
    """

    def __init__(
        self,
        message: str,
        *,
        response_schema: Mapping[str, Any] | None = None,
        output_content: str | None = None,
        finish_reason: FinishReason | None = None,
        usage: Usage | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(message, **rest)
        self.response_schema = response_schema
        self.output_content = output_content
        self.finish_reason = finish_reason
        self.usage = usage or Usage()


class OutputSchema:
    """The response_schema of one call: a JSON Schema, or a pydantic model class that stands for one.

    Raises ProviderInvalidRequest for anything that isn't an object schema.
    """

    __slots__ = ("model", "schema")

    def __init__(self, response_schema: ResponseSchema) -> None:
        self.model: type[BaseModel] | None = None
        if isinstance(response_schema, type):
            self.model = _model_class(response_schema)
            self.schema = ObjectSchema(_root_object(self.model.model_json_schema()), "response_schema")
        else:
            self.schema = ObjectSchema(response_schema, "response_schema")

    def response_format(self) -> dict[str, Any]:
        """The request field for servers that constrain output by themselves."""
        named = {"name": self.schema.name(), "schema": self.schema.schema, "strict": self.schema.strict()}
        return {"type": "json_schema", "json_schema": named}

    def augment(self, messages: Sequence[Message], tools: bool) -> list[Message]:
        """A copy of the messages whose system message asks for the schema, for servers that can't (§8.1.5.1)."""
        directive = _DIRECTIVE.format(unless=_UNLESS_TOOLS if tools else "", schema=self.schema.text)
        head, *rest = messages
        if isinstance(head, SystemMessage):
            return [replace(head, content=f"{head.content}\n\n{directive}"), *rest]
        return [SystemMessage(directive), *messages]

    def parse(self, content: str, finish_reason: FinishReason, usage: Usage) -> Any:
        """The value that `content` stands for. Raises StructuredOutputInvalid, which carries all there is."""

        def refuse(reason: str, cause: Exception | None) -> NoReturn:
            raise StructuredOutputInvalid(
                reason,
                response_schema=self.schema.schema,
                output_content=content,
                finish_reason=finish_reason,
                usage=usage,
            ) from cause

        try:
            value = parse_json(content)
        except ValueError as error:
            refuse(f"the content is not JSON: {error}", error)
        if reason := self.schema.violation(value):
            refuse(f"the content doesn't conform to the schema: {reason}", None)
        if self.model is None:
            return value
        from pydantic import ValidationError

        try:
            return self.model.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = "".join(f"/{part}" for part in first["loc"]) or "the value"
            refuse(f"the content is no {self.model.__name__}: {place}: {first['msg']}", error)


def _model_class(given: type) -> type[BaseModel]:
    from pydantic import BaseModel

    if issubclass(given, BaseModel):
        return given
    raise ProviderInvalidRequest(
        f"response_schema must be a JSON Schema or a pydantic model class, not the class {given.__name__}",
        param="response_schema",
    )


def _root_object(schema: dict[str, Any]) -> dict[str, Any]:
    """A recursive model's schema is a bare reference to its definition; the contract wants the object at the root."""
    prefix, _, name = str(schema.get("$ref", "")).rpartition("/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if prefix == "#/$defs" else schema
