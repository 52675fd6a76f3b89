"""Reads a text that is nothing but JSON objects and what may stand around them."""

from __future__ import annotations

import json
import re
from typing import Any

from normalizers.values.loose_json import read_loosely

Json = dict[str, Any]

_TOKEN = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{}]""", re.DOTALL)


def objects(text: str) -> list[Json]:
    """The outermost objects of a text that is nothing else but brackets, fences and separators around them."""
    found, between = [], []
    depth = start = end = 0
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            if depth == 0:
                start = token.start()
                between.append(text[end:start])
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                end = token.end()
                found.append(json.loads(read_loosely(text[start:end]) or ""))
    assert depth == 0
    assert re.fullmatch(r"\s*(```[\w+\-. \t]*\r?\n\s*)?\[?[\s,;\]]*(```\s*)?", "".join([*between, text[end:]]))
    return found
