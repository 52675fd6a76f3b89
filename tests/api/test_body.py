"""Errors of a request's body name the field at fault and, for a closed set, the allowed values."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from msgspec import Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire.body import TOLD_CHARS, read


class Cat(Struct, tag="cat", tag_field="type"):
    sound: Literal["meow", "purr"] = "meow"


class Dog(Struct, tag="dog", tag_field="type"):
    pass


class Zoo(Struct):
    size: Literal["large", "small"] | None = None
    name: str | None = None
    pets: list[Cat | Dog] | None = None
    names: list[Literal["Ada", "Bob"]] | None = None


ERRORS: dict[str, tuple[bytes, str | None, str]] = {
    "a field": (b'{"size": "huge"}', "size", "size: invalid enum value 'huge'; allowed: large, small"),
    "in a list": (b'{"names": ["Bob", "Eve"]}', "names[1]", "names[1]: invalid enum value 'Eve'; allowed: Ada, Bob"),
    "a tag": (b'{"pets": [{"type": "cow"}]}', "pets[0].type", "pets[0].type: invalid value 'cow'; allowed: cat, dog"),
    "behind a tag": (
        *(b'{"pets": [{"type": "cat", "sound": "moo"}]}', "pets[0].sound"),
        "pets[0].sound: invalid enum value 'moo'; allowed: meow, purr",
    ),
    "an open set": (b'{"name": 1}', "name", "name: expected `str | null`, got `int`"),
    "the body": (b"[]", None, "the request body: expected `object`, got `array`"),
    "no JSON": (b"{", None, "the request body is not valid JSON: Input data was truncated"),
    "no UTF-8": (b'{"name": "\xff"}', None, "the request body is not valid UTF-8"),
    "no UTF-8 in an unknown field": (b'{"other": "\xff"}', None, "the request body is not valid UTF-8"),
    "nested too deeply": (
        *(b'{"other": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", None),
        "the request body is not valid: it is nested too deeply",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_field_and_its_values(name: str) -> None:
    body, param, message = ERRORS[name]
    with pytest.raises(ProviderInvalidRequest) as caught:
        read(msgspec.json.Decoder(Zoo), body)
    assert (caught.value.param, str(caught.value)) == (param, message)


@pytest.mark.parametrize(
    ("body", "begin", "end"),
    [
        (b'{"pets": [{"type": "%s"}]}', "pets[0].type: invalid value 'xxx", "xxx'; allowed: cat, dog"),
        (b'{"names": ["%s"]}', "names[0]: invalid enum value 'xxx", "xxx'; allowed: Ada, Bob"),
        (b'{"%s": 1}', "the request body: object contains unknown field `xxx", "xxx`"),
    ],
)
def test_an_error_holds_a_part_of_a_long_value(body: bytes, begin: str, end: str) -> None:
    class Strict(Zoo, forbid_unknown_fields=True):
        pass

    with pytest.raises(ProviderInvalidRequest) as caught:
        read(msgspec.json.Decoder(Strict), body % (b"x" * 100_000))
    message = str(caught.value)
    assert message.startswith(begin)
    assert message.endswith(end)
    assert len(message) < TOLD_CHARS + 100


def test_a_good_body() -> None:
    body = b'{"size": "small", "pets": [{"type": "cat", "sound": "purr"}, {"type": "dog"}]}'
    assert read(msgspec.json.Decoder(Zoo), body) == Zoo(size="small", pets=[Cat("purr"), Dog()])
