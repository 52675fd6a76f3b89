"""The keys of engines that restore prompts without effect."""

from __future__ import annotations

from pathlib import Path

from gateway.config.folders import whole

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
            keys = self._file.read_text("ascii", errors="replace").split()
            self._keys = {key for key in keys if key.isascii()}  # what is damaged is no key
        except FileNotFoundError:
            self._keys = set()

    def write(self) -> None:
        """Blocks. Raises OSError."""
        whole(self._file, "".join(f"{key}\n" for key in sorted(self._keys)).encode())
