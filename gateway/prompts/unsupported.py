"""The keys of engines that restore prompts without effect."""

from __future__ import annotations

from pathlib import Path

UNSUPPORTED = "unsupported"
"""The file with the keys, one in a line."""


class Unsupported:
    """path: of the folder of saved prompts."""

    def __init__(self, path: Path) -> None:
        self._file = path / UNSUPPORTED
        self._keys: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys.add(key)

    def read(self) -> None:
        """Blocks. Raises OSError."""
        try:
            self._keys = set(self._file.read_text("ascii", errors="replace").split())
        except FileNotFoundError:
            self._keys = set()

    def write(self) -> None:
        """Blocks. Raises OSError."""
        self._file.write_text("\n".join(sorted(self._keys)) + "\n", "ascii")
