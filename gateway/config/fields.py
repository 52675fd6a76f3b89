"""The types of the file's values: each validates a value and brings it to its final form.

Paths become absolute, lists tuples, command lines words, and amounts of memory bytes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetPydanticSchema,
    SecretStr,
    Strict,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from gateway.config.names import DEFAULT, PLACEHOLDERS, Role
from gateway.config.source import Filled

if TYPE_CHECKING:
    from normalizers import FormatSpec
else:
    FormatSpec = Any  # imported once a model has a format

Saved = Literal["on_stop", "each_turn", "off"]
DriverName = Literal["openai-chat", "openai-responses", "openai-embeddings", "openai-rerank", "debug"]
Capability = Literal["text", "tool_calling", "vision", "embeddings", "reasoning"]

RUNTIMES = ("ollama", "llama.cpp", "llama-cpp-python", "mlx", "faster-whisper", "piper", "openai", "echo")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

SERVED_HOST = r"^(\*|(\*\.)?[A-Za-z0-9_-]([A-Za-z0-9._-]*[A-Za-z0-9_-])?)$"
ALLOWED_HOST = r"^((\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?$"

ROLES: tuple[str, ...] = get_args(Role)

LEAST_MEMORY = 1_000_000
"""Bytes; a smaller amount of memory lacks its unit."""

FIELDS_OF_THE_CALL = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice"})


def _unknown(kind: str, name: str, known: Iterable[str], rest: str = "") -> PydanticCustomError:
    """`gateway.config.explain` reads the context: `known` for "did you mean", `cure` for the allowed values."""
    known = [*known]
    context = {"name": name, "kind": kind, "known": known, "cure": f"allowed: {', '.join(known)}{rest}"}
    return PydanticCustomError("unknown_name", "{name} is not a {kind}", context)


def _runtime(name: str) -> str:
    if name in RUNTIMES or IMPORT_STRING.fullmatch(name):
        return name
    raise _unknown("runtime", name, RUNTIMES, ", or a backend class as pkg.mod:Class")


def _model_name(name: str) -> str:
    if name == DEFAULT:
        raise PydanticCustomError(
            "reserved", '"default" means the active model', {"cure": "give the model another name"}
        )
    if not MODEL_NAME.fullmatch(name):
        raise PydanticCustomError(
            "model_name",
            "{name} is not a valid model name",
            {"name": repr(name), "cure": "use letters, digits and . _ - : @ +; the engine's own name is model_name"},
        )
    return name


def _roles(value: Any) -> tuple[str, ...]:
    """One role, or a list of them."""
    given = value if isinstance(value, list) else [value]
    for name in given:
        if name not in ROLES:
            raise _unknown("role", str(name), ROLES)
    if not given:
        raise PydanticKnownError("too_short", {"field_type": "List", "min_length": 1, "actual_length": 0})
    return tuple(dict.fromkeys(given))


def _number(value: Any) -> Any:
    if isinstance(value, Filled):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _tool_call_format(name: str | dict[str, Any]) -> str | FormatSpec:
    from normalizers import registry

    if isinstance(name, dict):
        try:
            return registry.define(name)
        except registry.UnknownFormat as error:
            raise PydanticCustomError("format", "{reason}", {"reason": str(error), "cure": ""}) from None
    try:
        spec = registry.get(name)
    except registry.UnknownFormat:
        raise _unknown("tool-call format", name, registry.names(), ", or a FormatSpec as pkg.mod:NAME") from None
    return name if ":" in name else spec.name


def _argument(arg: str) -> str:
    for name in re.findall(r"\{(\w+)\}", arg):
        if name not in PLACEHOLDERS:
            raise _unknown("placeholder", name, PLACEHOLDERS)
    return arg


def _extra_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    if taken := sorted(FIELDS_OF_THE_CALL & fields.keys()):
        raise PydanticCustomError(
            "field_of_the_call",
            "extra_body can't hold {names}",
            {"names": ", ".join(taken), "cure": "these belong to each request; leave them out"},
        )
    return {key: _plain(value) for key, value in fields.items()}


def _filters(names: Iterable[str]) -> None:
    if taken := sorted(FIELDS_OF_THE_CALL & {*names}):
        raise PydanticCustomError(
            "field_of_the_call",
            "{names} can't be filtered",
            {"names": ", ".join(taken), "cure": "these belong to each request; leave them out"},
        )


def _stripped(names: tuple[str, ...]) -> tuple[str, ...]:
    _filters(names)
    return names


def _forced(fields: Mapping[str, Any]) -> dict[str, Any]:
    _filters(fields)
    return {key: _plain(value) for key, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    value = _number(value)
    return str(value) if isinstance(value, str) else value


_UNITS = {"": 1} | {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = r"\s*(\d+(?:\.\d+)?)\s*([KMGTkmgt]i?[Bb])?\s*"


def _bytes(value: Any) -> Any:
    """`6 GB` as an int; leaves what isn't text."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(_SIZE, value)
    size = float(found[1]) * _UNITS[(found[2] or "").lower()] if found is not None else inf
    if size == inf:
        context = {"value": str(value), "cure": "write bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB"}
        raise PydanticCustomError("size", "{value} is not an amount of memory", context)
    return int(size)


def _enough(value: int) -> int:
    if value < LEAST_MEMORY:
        context = {"value": value, "cure": "write a unit: 12 GB"}
        raise PydanticCustomError("memory", "{value} bytes is too little for a model", context)
    return value


def _not_empty(value: Any) -> str:
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    if not value:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return value


def _words(value: Any) -> tuple[str, ...]:
    """A command line, split as a shell would."""
    try:
        words = shlex.split(_not_empty(value))
    except ValueError as error:
        context = {"reason": str(error), "cure": "close the quotation"}
        raise PydanticCustomError("command", "{reason}", context) from None
    return (os.path.expanduser(words[0]), *words[1:]) if words else ()


def absolute(written: str, folder: Path) -> Path:
    """Expands `~` and resolves a relative path against `folder`. Raises PydanticCustomError for an unknown user."""
    try:
        return Path(os.path.normpath(folder / Path(written).expanduser()))
    except RuntimeError:
        context = {"cure": "write the folder's whole path"}
        raise PydanticCustomError("user", "there is no such user", context) from None


def _folder(info: ValidationInfo) -> Path:
    return Path((info.context or {})["folder"])


def _located(value: Any, info: ValidationInfo) -> Path:
    return absolute(_not_empty(value), _folder(info))


def _socket_at_home(value: str, info: ValidationInfo) -> str:
    if not value.startswith("unix:~"):
        return value
    return f"unix:{absolute(value.removeprefix('unix:'), _folder(info))}"


def _written(kind: Any) -> GetPydanticSchema:
    """How the file writes a value of another type."""
    return GetPydanticSchema(lambda source, handler: handler.generate_schema(kind))


NUMBER = BeforeValidator(_number)
Memory = Annotated[
    int,
    AfterValidator(_enough),
    BeforeValidator(_bytes),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": LEAST_MEMORY}, {"type": "string", "pattern": f"^{_SIZE}$"}]}
    ),
]
Sandboxing = Annotated[
    Literal["auto", "off"],
    BeforeValidator(lambda value: "off" if value is False else value),
    WithJsonSchema({"enum": ["auto", "off", False]}),
]
Saving = Annotated[
    Saved,
    # YAML reads a bare `off` as false.
    BeforeValidator(lambda value: "off" if value is False else value),
    WithJsonSchema({"enum": [*get_args(Saved), False]}),
]
Port = Annotated[int, Field(ge=1, le=65535), NUMBER]
Text = Annotated[str, StringConstraints(min_length=1)]
_TEXT = WithJsonSchema({"type": "string", "minLength": 1})
FilePath = Annotated[Path, BeforeValidator(_located), _TEXT]
"""Absolute; relative ones start at the validation context's `folder`."""
Folder = Annotated[FilePath, AfterValidator(Path.resolve)]
"""Without links."""
Command = Annotated[tuple[str, ...], BeforeValidator(_words), _TEXT]
BaseURL = Annotated[Text, AfterValidator(_socket_at_home)]
Item = TypeVar("Item")
Many = Annotated[tuple[Item, ...], Strict(False)]
"""A list of the file, as a tuple."""
Tokens = Annotated[int, Field(ge=1), NUMBER]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
Wait = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Days = Annotated[float, Field(gt=0, le=36500), NUMBER]
Bytes = Annotated[int, Field(ge=1024), NUMBER]
Count = Annotated[int, Field(ge=1, le=1024), NUMBER]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Secret = Annotated[
    SecretStr,
    _written(
        Annotated[
            str,
            # From an empty variable.
            BeforeValidator(lambda value: "" if value is None else value),
            AfterValidator(SecretStr),
            WithJsonSchema({"type": ["string", "null"], "pattern": r"^(\$\{[A-Za-z_]\w*(:-)?\}|keychain:.+)$"}),
        ]
    ),
]
"""${NAME} or keychain:NAME; `gateway.config.build` puts the secret in its place."""
SecretText = Annotated[SecretStr, _written(Annotated[str, AfterValidator(SecretStr)])]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Origin = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s*]+)$")]
Argument = Annotated[
    str, BeforeValidator(_text), AfterValidator(_argument), WithJsonSchema({"type": ["string", "number"]})
]
RuntimeName = Annotated[
    str,
    AfterValidator(_runtime),
    WithJsonSchema({"type": "string", "anyOf": [{"enum": [*RUNTIMES]}, {"pattern": f"^{IMPORT_STRING.pattern}$"}]}),
]
ModelName = Annotated[
    str, AfterValidator(_model_name), WithJsonSchema({"type": "string", "pattern": f"^{MODEL_NAME.pattern}$"})
]
Roles = Annotated[
    tuple[Role, ...],
    BeforeValidator(_roles),
    WithJsonSchema({"anyOf": [{"enum": [*ROLES]}, {"type": "array", "items": {"enum": [*ROLES]}, "minItems": 1}]}),
]
ServedHost = Annotated[str, StringConstraints(pattern=SERVED_HOST, to_lower=True)]
AllowedHost = Annotated[str, StringConstraints(pattern=ALLOWED_HOST, to_lower=True)]
ProviderURL = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@?#]+$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$")]
MCPName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
UserID = Annotated[int, _written(Annotated[str, StringConstraints(pattern=r"^\d+$"), AfterValidator(int)])]
GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*$")]

ExtraBody = Annotated[Mapping[str, Any], AfterValidator(_extra_body)]
StripParams = Annotated[Many[Text], AfterValidator(_stripped)]
ForceParams = Annotated[Mapping[str, Any], AfterValidator(_forced)]
ToolCallFormat = Annotated[
    str | FormatSpec, _written(Annotated[str | dict[str, Any], AfterValidator(_tool_call_format)])
]
"""A name, an import string, or a mapping, which becomes a FormatSpec."""
