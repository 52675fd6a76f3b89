"""An executable object of any kind: its name and its three paths (object ABI)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Self, get_args

from gateway.errors import ProviderInvalidModel
from gateway.features.ctx.projection import NAMING, is_component

Kind = Literal["model", "agent", "tool"]
KINDS: tuple[Kind, ...] = get_args(Kind)

DEPTH: dict[Kind, int] = {"model": 2, "agent": 1, "tool": 1}
"""Path components of a name below the kind's folder: a model's is provider/model."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    """`kind/name`. The name has one component; a model's has two."""

    kind: Kind
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `model/openai/gpt-4o`. Raises ProviderInvalidModel (ENOENT) for an invalid name."""
        kind, _, name = text.partition("/")
        for known in KINDS:
            if kind == known:
                parts = name.split("/")
                if len(parts) == DEPTH[known] and all(map(is_component, parts)):
                    return cls(known, name)
                raise ProviderInvalidModel(f"{text!r} is not a valid name for an object: use {NAMING}")
        raise ProviderInvalidModel(f"{text!r} is not an object: its kind must be one of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Triple:
    """An object's paths. entry: the executable. sock: its socket. control: the folder of its small files."""

    name: ObjectName
    entry: Path
    sock: Path
    control: Path

    @classmethod
    def of(cls, root: Path, name: ObjectName) -> Self:
        entry = root / name.kind / name.name
        return cls(name, entry, entry.with_name(f"{entry.name}.sock"), entry.with_name(f"{entry.name}.d"))


def name_at(root: Path, path: Path) -> ObjectName:
    """The object whose entry `path` is. Follows symlinks: the target decides which object it is.

    Raises ProviderInvalidModel for a path that is not an object of the tree.
    """
    try:
        found = path.resolve(strict=True)
        relative = PurePosixPath(found.relative_to(root.resolve()))
    except (OSError, ValueError) as error:
        raise ProviderInvalidModel(f"{path} is not an object of {root}") from error
    return ObjectName.parse(str(relative))
