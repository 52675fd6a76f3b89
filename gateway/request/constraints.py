"""Output constraints, and how each engine enforces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.request.grammars import MAX_SCHEMA, forced_tools, tool_name
from gateway.schema.fault import Measure, Unchecked
from gateway.wire.chat import ChatRequest, compact, decode, encode
from gateway.wire.engine import Notation
from gateway.wire.text import short

Json = dict[str, Any]

Kind = Literal["call", "json", "json or call"]
"""`call`: the model must call a tool. `json`: the text must be JSON. `json or call`: JSON, unless it calls a tool."""

Method = Literal["engine", "grammar", "checked", "refused"]
"""`engine`: the engine enforces it. `grammar`: we send a grammar in the model's own dialect. `checked`: we hold the
answer back until it conforms, and ask again if it doesn't. `refused`: a 400."""

SCHEMA_FIELD = "response_format.json_schema.schema"

_CHECKED: Mapping[Kind, Method] = {"call": "checked", "json": "checked", "json or call": "checked"}

METHODS: Mapping[str, Mapping[Kind, Method]] = {
    # A grammar of calls needs a known dialect that has one, and MLX needs a server that takes grammars; else the answer
    # is checked.
    "llama.cpp": {"call": "grammar", "json": "engine", "json or call": "grammar"},
    "llama-cpp-python": _CHECKED,
    "mlx": {"call": "grammar", "json": "grammar", "json or call": "grammar"},
    "ollama": {"call": "engine", "json": "engine", "json or call": "checked"},
    "openai": _CHECKED,
    "echo": {"call": "refused", "json": "refused", "json or call": "refused"},
}
"""By runtime; answers of a user's own backend are checked.

The gateway itself enforces `tool_choice` "none" (it hides the tools and drops calls) and `parallel_tool_calls` false
(it drops further calls) on every engine."""

BY_FORMAT = ("ollama",)
"""Runtimes whose engines hold to `response_format` and ignore `tool_choice`: the former forces calls."""

NEED_WORDS = ("llama-cpp-python", "mlx", "ollama")
"""Runtimes whose engines don't understand the constraints that we check: the system message states them in words."""


def may_use_grammar(runtime: str) -> bool:
    """Whether we enforce some constraint on this runtime by a grammar in the model's dialect."""
    return "grammar" in METHODS.get(runtime, _CHECKED).values()


class Constraint(Struct, frozen=True):
    """must: the tools of which the model has to call one; () allows any.

    schema: the text's, as JSON; None allows any object.
    """

    kind: Kind
    must: tuple[str, ...] = ()
    schema: bytes | None = None

    def method(self, runtime: str) -> Method:
        return METHODS.get(runtime, _CHECKED)[self.kind]

    @property
    def text_schema(self) -> bytes | None:
        """The JSON Schema of an answer in text; None if the answer must be a call."""
        return None if self.kind == "call" else self.schema or b'{"type":"object"}'

    def words(self) -> str:
        """The constraint as an instruction to a model."""
        if self.kind == "call":
            return f"Call {' or '.join(self.must) or 'one of the tools'} now, whatever is said, and write nothing else."
        value = "one JSON object" if self.schema is None else "one JSON value"
        words = f"Answer with {value}, and with nothing else: no words around it, no code fence."
        if self.kind == "json or call":
            words += " This is about an answer in text: calling a tool stays allowed."
        if self.schema is not None:
            words += f" It has to conform to this JSON Schema: {self.schema.decode()}"
        return words


def constraint(request: ChatRequest) -> Constraint | None:
    """The constraint that the request puts on its answer.

    Raises ProviderInvalidRequest for an undeclared tool, an unknown response_format or a missing schema.
    """
    must = forced_tools(request)
    if must is not None:
        return Constraint("call", must)
    format = request.response_format
    kind = None if format is None else format.type
    if format is None or kind is None or kind == "text":
        return None
    may_call = request.tools is not None and request.tool_choice != "none"
    if kind == "json_object":
        return Constraint("json or call" if may_call else "json")
    if kind != "json_schema":
        raise ProviderInvalidRequest(
            f"response_format.type: there is no {short(kind)}; allowed: text, json_object, json_schema",
            param="response_format.type",
        )
    if format.schema[:1] != b"{":
        raise ProviderInvalidRequest(f"{SCHEMA_FIELD}: a JSON Schema is needed", param=SCHEMA_FIELD)
    if len(format.schema) > MAX_SCHEMA:
        raise ProviderInvalidRequest(f"{SCHEMA_FIELD}: it is longer than {MAX_SCHEMA} bytes", param=SCHEMA_FIELD)
    return Constraint("json or call" if may_call else "json", schema=compact(format.schema))


def named_tool(request: ChatRequest) -> dict[str, Raw]:
    """The field `tools` with only the tool that `tool_choice` names; {} if it names none."""
    choice = request.tool_choice
    if not isinstance(choice, Mapping) or request.tools is None:
        return {}
    tools = [tool for tool in decode(request.tools) if tool_name(tool) == tool_name(choice)]
    return {"tools": Raw(encode(tools))} if tools else {}


JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class _Typed(Struct, gc=False):
    type: Any = None


class _Declared(Struct, gc=False):
    """A tool, or its function. Nothing else of it is decoded: its schema may have a megabyte."""

    type: Any = "function"
    parameters: Raw = Raw(b"null")
    function: _Declared | None = None


_decode_declared = msgspec.json.Decoder(list[_Declared]).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode


def check_tools(request: ChatRequest, runtime: str) -> None:
    """Raises ProviderInvalidRequest for tools that only OpenAI's own models have, and for a schema of an unknown type.

    Another server behind `runtime: openai` may run tools of its own. A call of a custom one would come back to us, who
    can't read it.
    """
    for at, tool in enumerate(_decode_declared(request.tools) if request.tools is not None else ()):
        kind = tool.type
        if kind == "custom" or (kind != "function" and runtime != "openai"):
            place = f"tools[{at}].type"
            cure = "declare a function, here with one string as its parameter" if kind == "custom" else "leave it out"
            raise ProviderInvalidRequest(f"{place}: no tools of type {short(kind)} on this API; {cure}", param=place)
        parameters = bytes((tool.function or tool).parameters)
        if parameters.startswith(b"{"):
            _check_type(_decode_typed(parameters).type, f"tools[{at}].function.parameters")


def _check_type(wanted: Any, place: str) -> None:
    for kind in wanted if isinstance(wanted, list) else [wanted]:
        if kind is not None and kind not in JSON_TYPES:
            message = (
                f"{place}: not a valid JSON Schema: there is no type {short(kind)}; allowed: {', '.join(JSON_TYPES)}"
            )
            raise ProviderInvalidRequest(message, param=place)


def measured(request: ChatRequest, wanted: Constraint | None, notation: Notation | None, measure: Measure) -> None:
    """Refuses schemas whose grammar would overload the engine.

    llama.cpp, whose notation is GBNF, makes one of the tools, too, even if it only renders the prompt. Raises
    ProviderInvalidRequest. Blocks for a bounded time.
    """
    if wanted is not None and wanted.schema is not None:
        _measured([decode(wanted.schema)], SCHEMA_FIELD, measure)
    if notation == "gbnf" and request.tools is not None and request.tool_choice != "none":
        functions = [tool.get("function", tool) for tool in decode(request.tools) if isinstance(tool, Mapping)]
        schemas = [function.get("parameters") for function in functions if isinstance(function, Mapping)]
        _measured([schema for schema in schemas if isinstance(schema, Mapping)], "tools", measure)


def _measured(schemas: list[Any], param: str, measure: Measure) -> None:
    try:
        measure(schemas)
    except Unchecked as error:
        raise ProviderInvalidRequest(f"{param}: no engine can enforce it: {error}", param=param) from None


def refused(constraint: Constraint, runtime: str) -> ProviderInvalidRequest:
    """The error for a constraint that this runtime can't enforce."""
    param = "tool_choice" if constraint.kind == "call" else "response_format"
    return ProviderInvalidRequest(f"{param}: runtime {runtime} can't enforce it", param=param)
