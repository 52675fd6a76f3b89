"""Makes pydantic read config.yaml into classes whose fields are the file's keys.

A class is all there is of a section: its annotations say what the file may write, its values are what the code uses.
They are made into classes of pydantic only once a file has the section, so that code that only reads the values needs
no pydantic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from msgspec import NODEFAULT, Struct

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationInfo
    from pydantic_core import CoreSchema


class Entry(Struct, frozen=True, kw_only=True):
    """A mapping in the file: each field is a key. A key that is omitted, or has no value, takes the field's default.

    The annotations may use every name of `gateway.config.fields`, even without importing it. The docstring of a field
    is the description that editors show.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return _later(keys_of(cls), lambda form: cls(**given(form)))


class Keys:
    """The keys of several classes in one mapping; the earlier class counts. As an annotation: a value's keys.

    without: fields that are no keys. more: further keys and the classes of their values.
    """

    def __init__(
        self,
        name: str,
        *kinds: type[Entry],
        about: str | None,
        without: tuple[str, ...] = (),
        more: Mapping[str, type[Entry]] = {},
    ) -> None:
        self.name = name
        self.about = about
        self.kinds = kinds
        self.without = without
        self.more = more

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return _later(self, lambda form: form)

    @cached_property
    def form(self) -> type[BaseModel]:
        """A class with an attribute for each key, None where the file gives none."""
        from pydantic import ConfigDict, Field, create_model

        from gateway.config import fields

        keys: dict[str, Any] = {
            name: (kind | None, Field(default=None, description=kind.__doc__)) for name, kind in self.more.items()
        }
        for kind in reversed(self.kinds):
            names = {**vars(fields), **vars(sys.modules[kind.__module__])}
            hints, required = get_type_hints(kind, localns=names, include_extras=True), without_default(kind)
            for name in kind.__struct_fields__:
                if name not in self.without:
                    keys[name] = (hints[name], ...) if name in required else (hints[name] | None, None)
        config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)
        return create_model(self.name, __config__=config, __doc__=self.about, **keys)


@cache
def keys_of(kind: type[Entry]) -> Keys:
    return Keys(kind.__name__, kind, about=kind.__doc__)


def flat(annotation: Any) -> Iterator[Any]:
    """The annotation and all its parts; a class of the file as its `Keys`."""
    is_entry = isinstance(annotation, type) and issubclass(annotation, Entry)
    yield keys_of(annotation) if is_entry else annotation
    for part in get_args(annotation):
        yield from flat(part)


def defaults(kind: type[Struct]) -> dict[str, Any]:
    """Field → default, for all fields that have one."""
    # Not `msgspec.structs.fields`: it resolves annotations, and some names exist only for type checkers.
    found = zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False)
    return {name: default for name, default in found if default is not NODEFAULT}


def without_default(kind: type[Struct]) -> set[str]:
    return {*kind.__struct_fields__} - defaults(kind).keys()


def given(form: BaseModel) -> dict[str, Any]:
    """The keys that the file gives, with their values."""
    return {name: value for name, value in vars(form).items() if value is not None}


def _later(keys: Keys, made: Callable[[BaseModel], object]) -> CoreSchema:
    """Builds the schema of a mapping once a file has one: all of them would take longer than the rest of the file."""
    from pydantic_core.core_schema import definitions_schema, with_info_plain_validator_function

    def validate(value: object, info: ValidationInfo) -> object:
        return made(keys.form.model_validate(value, context=info.context))

    def json_schema(schema: CoreSchema, handler: Callable[[CoreSchema], dict[str, Any]]) -> dict[str, Any]:
        keys.form.model_rebuild()
        # Wrapped: else it gets no name.
        return handler(definitions_schema(keys.form.__pydantic_core_schema__, []))

    return with_info_plain_validator_function(validate, metadata={"pydantic_js_annotation_functions": [json_schema]})
