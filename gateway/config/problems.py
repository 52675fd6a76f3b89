"""Problems of a configuration file."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Problem(Struct, frozen=True):
    """`line` and `column` count from 1; 0 if the problem has no place in a file."""

    message: str
    cure: str = ""
    file: Path | None = None
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{place}{self.message}" + (f"\n    {self.cure}" if self.cure else "")


class ConfigError(Exception):
    """Everything that is wrong with the file, in the order of its lines."""

    exit_code = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Unreadable(ConfigError):
    """The file is missing, isn't a plain one, or may not be read."""


class BadValue(ValueError):
    """`str(error)` is the problem, `cure` what to do; neither contains the value, which may be a secret."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure
