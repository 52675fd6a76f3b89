"""Reads the metadata of GGUF files: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_STRING = 16 * 1024 * 1024
"""Largest string in bytes. A longer one means a broken file, not a chat template."""
MAX_COUNT = 2**32

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class NotGGUF(ValueError):
    pass


def metadata(
    path: Path, wanted: Collection[str], arrays: Collection[str] = (), *, until: str | None = None
) -> dict[str, Any]:
    """Returns the wanted keys that the file has, with their values. An array is None unless `arrays` names its key.

    Stops at the last wanted key, or at the first key that starts with `until`. Raises OSError, and NotGGUF for
    anything but a little-endian GGUF 2 or 3.
    """
    found: dict[str, Any] = {}
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise NotGGUF(f"{path} is not a GGUF file")
        version, _, count = _number(file, "<I"), _number(file, "<Q"), _number(file, "<Q")
        if version not in VERSIONS:
            raise NotGGUF(f"{path} has the unsupported GGUF version {version}; supported are 2 and 3")
        for _ in range(count):
            key = _string(file).decode("utf-8", "replace")
            if until is not None and key.startswith(until):
                break
            value = _value(file, _number(file, "<I"), elements=key in arrays)
            if key in wanted:
                found[key] = value
                if len(found) == len(wanted):
                    break
    return found


def _value(file: BinaryIO, kind: int, *, elements: bool) -> Any:
    if kind == _STRING:
        return _string(file).decode("utf-8", "replace")
    if kind == _ARRAY:
        of, count = _number(file, "<I"), _number(file, "<Q")
        if count > MAX_COUNT:
            raise NotGGUF(f"{file.name}: an array of {count} elements")
        if of in _SCALARS and elements:
            return [_number(file, _SCALARS[of]) for _ in range(count)]
        if of in _SCALARS:
            file.seek(count * struct.calcsize(_SCALARS[of]), 1)
        elif of == _STRING and elements:
            return [_string(file).decode("utf-8", "replace") for _ in range(count)]
        elif of == _STRING:
            for _ in range(count):
                file.seek(_length(file), 1)
        else:
            raise NotGGUF(f"{file.name}: an array of type {of}")
        return None
    if kind not in _SCALARS:
        raise NotGGUF(f"{file.name}: a value of type {kind}")
    return _number(file, _SCALARS[kind])


def _string(file: BinaryIO) -> bytes:
    length = _length(file)
    data = file.read(length)
    if len(data) < length:
        raise NotGGUF(f"{file.name} ends in the middle of its metadata")
    return data


def _length(file: BinaryIO) -> int:
    length: int = _number(file, "<Q")
    if length > MAX_STRING:
        raise NotGGUF(f"{file.name}: a string of {length} bytes")
    return length


def _number(file: BinaryIO, form: str) -> Any:
    size = struct.calcsize(form)
    data = file.read(size)
    if len(data) < size:
        raise NotGGUF(f"{file.name} ends in the middle of its metadata")
    return struct.unpack(form, data)[0]
