"""GGUF files that hold no model, and say what a test wants them to say."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

TEMPLATE = "tokenizer.chat_template"


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, value: Any) -> bytes:
    match value:
        case str():
            return string(key) + struct.pack("<I", 8) + string(value)
        case bool():
            return string(key) + struct.pack("<I?", 7, value)
        case int():
            return string(key) + struct.pack("<Iq", 11, value)
        case float():
            return string(key) + struct.pack("<Id", 12, value)
        case [str(), *_]:
            return string(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
        case [int(), *_]:
            return string(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    raise AssertionError(value)


def file(**values: Any) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(entry(k, v) for k, v in values.items())


def gguf(path: Path, size: int, **keys: Any) -> Path:
    """A GGUF file with these keys of an architecture `arch`, general ones by their full names, and `size` zero bytes as
    its weights."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    entries = {
        "general.architecture": "arch",
        **{key if key.startswith("general.") else f"arch.{key.replace('__', '.')}": keys[key] for key in keys},
    }
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    for key, value in entries.items():
        data += text(key)
        if isinstance(value, str):
            data += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            data += struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
        else:
            data += struct.pack("<II", 4, value)
    path.write_bytes(data)
    os.truncate(path, len(data) + size)
    return path
