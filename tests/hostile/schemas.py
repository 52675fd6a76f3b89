"""JSON Schemas that strangers may send: those of known attacks, and generated ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

DRAFTS = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#", "urn:no:such", 5)
NAMES = ("a", "b", "", "x" * 300, "é", "\u202e", "日本", "\ud7ff", "$ref", "a/b~c", '"', "\\", "\n", "\x00", "😀")
PATTERNS = (
    "(a+)+$",
    "(" * 90 + "a" + ")*" * 90,
    "(?i)" + "[\u0100-\uffff]" * 300,
    "(?=" * 40 + "a" + ")" * 40,
    "a{1,65535}" * 20,
    "(",
    "a{99999999999}",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "\\p{L}",
    "|".join("a" * n for n in range(90)),
)


def doubling(levels: int, keyword: str = "allOf") -> Json:
    """Each level refers to the next one twice: 2 ** levels evaluations."""
    definitions: Json = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**definitions, f"d{levels}": {"type": "object"}}, "type": "object", "$ref": "#/$defs/d0"}


def wide(properties: int) -> Json:
    found = {f"property_{n}": {"type": "string", "enum": ["a", "b"]} for n in range(properties)}
    return {"type": "object", "properties": found}


def deep(levels: int) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def dynamic(levels: int) -> Json:
    """As `doubling`, by references that only the evaluation resolves."""
    definitions: Json = {f"d{n}": {"anyOf": [{"$dynamicRef": f"#d{n + 1}"}] * 2} for n in range(levels)}
    definitions |= {f"d{n}": {"$dynamicAnchor": f"d{n}", **schema} for n, schema in enumerate(definitions.values())}
    definitions[f"d{levels}"] = {"$dynamicAnchor": f"d{levels}", "type": "integer"}
    return {"$defs": definitions, "type": "object", "$ref": "#/$defs/d0"}


def generated(seed: int) -> Json:
    """A hostile schema of its own for each seed; its root is an object."""
    return _Generator(random.Random(seed)).root()


class _Generator:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.left = chance.choice((5, 30, 200))
        """Schemas that may still be written."""

    def root(self) -> Json:
        special = self.chance.random()
        if special < 0.05:
            return doubling(self.chance.randint(10, 60), self.chance.choice(("allOf", "anyOf", "oneOf")))
        if special < 0.08:
            return deep(self.chance.randint(20, 400))
        if special < 0.1:
            return wide(self.chance.randint(100, 4000))
        if special < 0.12:
            return dynamic(self.chance.randint(5, 40))
        names = [f"d{n}" for n in range(self.chance.randint(1, 12))]
        schema = {"$defs": {name: self.schema(4) for name in names}, **self.mapping(5), "type": "object"}
        if self.chance.random() < 0.1:
            schema["$schema"] = self.chance.choice(DRAFTS)
        return schema

    def schema(self, depth: int) -> Any:
        self.left -= 1
        if depth <= 0 or self.left <= 0:
            return self.chance.choice((True, False, {}, {"type": "string"}, {"type": "integer"}, self.reference()))
        return self.mapping(depth)

    def mapping(self, depth: int) -> Json:
        made: Json = {}
        for _ in range(self.chance.randint(0, 4)):
            made |= self.chance.choice(_KEYWORDS)(self, depth - 1)
        return made

    def reference(self) -> Json:
        target = self.chance.choice(
            ("#", *(f"#/$defs/d{n}" for n in range(5)), "#/properties/a", "#/nowhere", "#x", "http://a.example/b", 5)
        )
        return {self.chance.choice(("$ref", "$ref", "$dynamicRef", "$recursiveRef")): target}

    def branches(self, depth: int) -> Json:
        keyword = self.chance.choice(("allOf", "anyOf", "oneOf"))
        return {keyword: [self.schema(depth) for _ in range(self.chance.choice((0, 1, 2, 5, 30)))]}

    def properties(self, depth: int) -> Json:
        found = {self.chance.choice(NAMES): self.schema(depth) for _ in range(self.chance.randint(0, 6))}
        made: Json = {"properties": found}
        if self.chance.random() < 0.5:
            made["required"] = [*found, *self.chance.sample(NAMES, 2)]
        return made

    def inner(self, depth: int) -> Json:
        keyword = self.chance.choice(
            (
                "not",
                "if",
                "then",
                "else",
                "items",
                "contains",
                "additionalProperties",
                "propertyNames",
                "unevaluatedProperties",
                "unevaluatedItems",
                "additionalItems",
            )
        )
        return {keyword: self.schema(depth)}

    def values(self, depth: int) -> Json:
        values: tuple[Any, ...] = (None, 1, 1e308, "a", [], {}, {"a": [1]}, True, "\u2028", [[[[]]]], 10**30)
        many = [self.chance.choice(values) for _ in range(self.chance.choice((0, 1, 5, 2000)))]
        return {"enum": many} if self.chance.random() < 0.7 else {"const": many}

    def patterns(self, depth: int) -> Json:
        pattern = self.chance.choice(PATTERNS)
        return self.chance.choice(({"pattern": pattern}, {"patternProperties": {pattern: self.schema(depth)}}))

    def bounds(self, depth: int) -> Json:
        keyword = self.chance.choice(
            (
                "minimum",
                "maximum",
                "exclusiveMinimum",
                "exclusiveMaximum",
                "multipleOf",
                "minLength",
                "maxLength",
                "minItems",
                "maxItems",
                "minProperties",
                "maxProperties",
            )
        )
        return {keyword: self.chance.choice((0, -1, 1, 1e300, 1e-300, 10**18, 2.5, "5", None, True))}

    def types(self, depth: int) -> Json:
        kinds: tuple[Any, ...] = (
            "string",
            "integer",
            "number",
            "object",
            "array",
            "null",
            "boolean",
            "text",
            5,
            {},
            [],
        )
        return {"type": self.chance.choice((self.chance.choice(kinds), self.chance.sample(kinds, 4), []))}

    def odd(self, depth: int) -> Json:
        keyword = self.chance.choice(
            (
                "properties",
                "items",
                "allOf",
                "$defs",
                "required",
                "enum",
                "$id",
                "$anchor",
                "format",
                "uniqueItems",
                "$dynamicAnchor",
                "dependentSchemas",
                "prefixItems",
                "\ud7ff",
                "title",
            )
        )
        return {keyword: self.chance.choice((5, "x", [], {}, None, True, [5], {"a": 5}, "#", "http://a.example/"))}


_KEYWORDS: tuple[Callable[[_Generator, int], Json], ...] = (
    _Generator.branches,
    _Generator.properties,
    _Generator.properties,
    _Generator.inner,
    _Generator.values,
    _Generator.patterns,
    _Generator.bounds,
    _Generator.types,
    _Generator.odd,
    lambda generator, depth: generator.reference(),
)
