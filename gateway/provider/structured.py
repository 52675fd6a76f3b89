"""Structured output (OpenArmature §5, §6, §8.1.5): how a call asks for it, and how its content is parsed."""

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
    """The model's content breaks response_schema (§7). `message` says why and where.

    response_schema: the JSON Schema of the call; None if the server itself refused the answer.
    output_content: the content as the model wrote it; None if the server withheld it.
    finish_reason, usage: of the answer; `length` means that the answer was cut, not wrong.
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
    """The response_schema of one call: a JSON Schema, or the schema of a pydantic model class.

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
        """The request field, for servers that constrain output natively."""
        named = {"name": self.schema.name(), "schema": self.schema.schema, "strict": self.schema.strict()}
        return {"type": "json_schema", "json_schema": named}

    def augment(self, messages: Sequence[Message], tools: bool) -> list[Message]:
        """Copies the messages, the schema in the system message: for servers without `response_format` (§8.1.5.1)."""
        directive = _DIRECTIVE.format(unless=_UNLESS_TOOLS if tools else "", schema=self.schema.text)
        head, *rest = messages
        if isinstance(head, SystemMessage):
            return [replace(head, content=f"{head.content}\n\n{directive}"), *rest]
        return [SystemMessage(directive), *messages]

    def parse(self, content: str, finish_reason: FinishReason, usage: Usage) -> Any:
        """Parses and checks the content. Raises StructuredOutputInvalid."""

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
            refuse(f"the content is not a {self.model.__name__}: {place}: {first['msg']}", error)


def _model_class(given: type) -> type[BaseModel]:
    from pydantic import BaseModel

    if issubclass(given, BaseModel):
        return given
    raise ProviderInvalidRequest(
        f"response_schema must be a JSON Schema or a pydantic model class, not the class {given.__name__}",
        param="response_schema",
    )


def _root_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Moves the definition to the root: a recursive model's schema is a bare reference to it."""
    prefix, _, name = str(schema.get("$ref", "")).rpartition("/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if prefix == "#/$defs" else schema
