"""An executable object of any kind: its name and its three paths (object ABI)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Self, get_args

from gateway.config.projection import NAMING, is_component
from gateway.errors import ProviderInvalidModel

Kind = Literal["model", "agent", "tool"]
KINDS: tuple[Kind, ...] = get_args(Kind)

DEPTH: dict[Kind, int] = {"model": 2, "agent": 1, "tool": 1}
"""Path components of a name below the kind's folder: a model's is provider/model."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    """`kind/name`, where name is one component, or two of a model."""

    kind: Kind
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `model/openai/gpt-4o`. Raises ProviderInvalidModel (ENOENT) where no object can have that name."""
        kind, _, name = text.partition("/")
        for known in KINDS:
            if kind == known:
                parts = name.split("/")
                if len(parts) == DEPTH[known] and all(map(is_component, parts)):
                    return cls(known, name)
                raise ProviderInvalidModel(f"{text!r} can't be the name of an object: use {NAMING}")
        raise ProviderInvalidModel(f"{text!r} is no object: its kind is one of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Triple:
    """Where an object is: `entry` is executed and read, `sock` is talked to, `control` holds its small files."""

    name: ObjectName
    entry: Path
    sock: Path
    control: Path

    @classmethod
    def of(cls, root: Path, name: ObjectName) -> Self:
        entry = root / name.kind / name.name
        return cls(name, entry, entry.with_name(f"{entry.name}.sock"), entry.with_name(f"{entry.name}.d"))


def name_at(root: Path, path: Path) -> ObjectName:
    """Whose entry `path` is, symlinks followed: readlink decides the identity of an object.

    Raises ProviderInvalidModel for what isn't one of the tree.
    """
    try:
        found = path.resolve(strict=True)
        relative = PurePosixPath(found.relative_to(root.resolve()))
    except (OSError, ValueError) as error:
        raise ProviderInvalidModel(f"{path} is no object of {root}") from error
    return ObjectName.parse(str(relative))
