"""Compiling a JSON Schema and checking values against it, with `jsonschema`. No bounds here: see `checker`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.schema.fault import TOO_DEEP, Fault, InvalidSchema, Unchecked

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from referencing import Resource
    from referencing._core import Resolver

_LONGEST_PATTERN = 100


def validator(text: str) -> Validator:
    """Compiles a schema. Raises InvalidSchema, also for a reference that leads out of it: we never fetch one."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(text)
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        raise InvalidSchema("$schema is not a string")
    kind = validator_for(schema, default=Draft202012Validator)
    # An empty registry: the default one fetches unknown references over the network.
    registry: Registry[Any] = Registry()
    try:
        kind.check_schema(schema)
        root = Resource.from_contents(schema, default_specification=DRAFT202012)
        _resolve(root, registry.resolver_with_root(root))
    except SchemaError as error:
        raise InvalidSchema(f"{error.json_path}: {error.message}") from error
    except Unresolvable as error:
        raise InvalidSchema(f"the reference {error.ref!r} leads nowhere inside it") from error
    except RecursionError as error:
        raise InvalidSchema(TOO_DEEP) from error
    except OverflowError as error:  # a pattern's
        raise InvalidSchema(str(error)) from error
    return kind(schema, registry=registry)


def _resolve(resource: Resource[Any], resolver: Resolver[Any]) -> None:
    """Looks up every reference once, to find a dangling one before a model is asked."""
    if isinstance(resource.contents, Mapping) and isinstance(reference := resource.contents.get("$ref"), str):
        resolver.lookup(reference)
    for part in resource.subresources():
        _resolve(part, resolver.in_subresource(part))


def fault(validator: Validator, value: Any) -> Fault | None:
    """The most telling reason why the value breaks the schema; None if it conforms. Raises Unchecked."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(validator.iter_errors(value))
    except re.error as failure:
        pattern = failure.pattern if isinstance(failure.pattern, str) else ""
        raise Unchecked(f"its pattern {pattern[:_LONGEST_PATTERN]!r} can't be read: {failure.msg}") from failure
    except OverflowError as failure:
        raise Unchecked(f"its patterns are too large: {failure}") from failure
    except Unresolvable as failure:
        raise Unchecked(f"its reference {failure.ref!r} leads nowhere inside it") from failure
    except RecursionError:
        return Fault([], "the value or its schema is nested too deeply to be checked")
    except (AttributeError, KeyError, TypeError, ValueError) as failure:  # a reference to what isn't a schema
        raise Unchecked(f"one of its references leads to what isn't a schema ({failure})") from failure
    return None if error is None else Fault([*error.absolute_path], error.message)
