"""Draws the sample: which places, and which fault at each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.work_item import MutationSpec

from scripts.mutation.operators import NODES, can_change, operators
from scripts.mutation.rules import equivalent

PACKAGES = {
    "core": "gateway/core",
    "request": "gateway/request",
    "answer": "gateway/answer",
    "wire": "gateway/wire",
    "engines": "gateway/engines",
    "normalizers": "normalizers",
}


@dataclass(frozen=True)
class Place:
    """A piece of code and the faults of one family that fit there."""

    key: str
    specs: tuple[MutationSpec, ...]


def mutated(source: str, spec: MutationSpec) -> str:
    """The module's source with the fault."""
    code = mutate_code(source, operators()[spec.operator_name], spec.occurrence)
    assert isinstance(code, str), "the fault was found in this source"
    return code


def sample(root: Path, packages: list[str], size: int, seed: int) -> list[MutationSpec]:
    """`size` faults, as many from each package, so that a large package doesn't stand in for a weak one.

    Each place counts once, however many faults fit there: else an operator with eleven others would count eleven
    times. A place's rank is a hash of the seed and its line of code, so an edit elsewhere keeps the rest of a sample.
    """
    drawn: list[MutationSpec] = []
    for index, package in enumerate(packages):
        share = size // len(packages) + (index < size % len(packages))
        ranked = sorted(places(root, PACKAGES[package]), key=lambda place: _hash(f"{seed} {place.key}"))
        sound = (spec for place in ranked if (spec := _sound(root, place, seed)) is not None)
        drawn += islice(sound, share)
    return drawn


def _sound(root: Path, place: Place, seed: int) -> MutationSpec | None:
    """The fault drawn at a place; None if each that fits is no Python, as `not` before a `:=`."""
    for spec in sorted(place.specs, key=lambda spec: _hash(f"{seed} {place.key} {_variant(spec)}")):
        with suppress(SyntaxError):
            compile(mutated((root / spec.module_path).read_text("utf-8"), spec), spec.module_path, "exec")
            return spec
    return None


def places(root: Path, folder: str) -> Iterator[Place]:
    for path in sorted((root / folder).rglob("*.py")):
        yield from _places(path.read_text("utf-8"), path.relative_to(root))


def _places(source: str, path: Path) -> Iterator[Place]:
    lines, found = source.splitlines(), dict[tuple[str, tuple[int, int]], list[MutationSpec]]()
    nodes = list(ast_nodes(get_ast(source)))
    # In the order of the tree: a fault is the n-th of its operator there.
    by_family = {family: [node for node in nodes if node.type in kinds] for family, kinds in NODES.items()}
    for name, operator in operators().items():
        fitting = by_family[name.partition("_")[0]]
        positions = ((node, *position) for node in fitting for position in operator.mutation_positions(node))
        for occurrence, (node, start, end) in enumerate(positions):
            if can_change(name.partition("_")[0], node) and not equivalent(node, start, name):
                spec = MutationSpec(path, name, occurrence, start, end, definition_name=_definition(node))
                found.setdefault((name.partition("_")[0], start), []).append(spec)
    again: dict[str, int] = {}
    for (family, (row, column)), specs in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        key = f"{path} {family} {column} {lines[row - 1].strip()}"
        again[key] = again.get(key, 0) + 1
        yield Place(f"{key} {again[key]}", tuple(specs))


def _variant(spec: MutationSpec) -> str:
    # NumberReplacer makes two faults at one place: they differ in their occurrence alone.
    return f"{spec.operator_name} {spec.occurrence % 2}"


def _definition(node: Any) -> str | None:
    names = []
    while node is not None:
        if node.type in ("funcdef", "classdef"):
            names.append(node.name.value)
        node = node.parent
    return ".".join(reversed(names)) or None


@cache
def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
