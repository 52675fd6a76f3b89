"""The readers of calls by name. Each module loads on first use: a grammar costs more than all the rest."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from normalizers.spec import FormatSpec

DIALECTS: dict[str, str] = {
    "elements": "normalizers.read.elements:ElementCalls",
    "json": "normalizers.read.json_calls:JsonCalls",
    "messages": "normalizers.read.messages:Messages",
    "named": "normalizers.read.named:NamedCalls",
    "pythonic": "normalizers.read.pythonic:Pythonic",
    "tags": "normalizers.read.tags:TagCalls",
}


@cache
def load(target: str) -> Any:
    """The object at ``pkg.mod:attribute``. Raises ImportError or AttributeError."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def dialect_of(spec: FormatSpec) -> Any:
    """The class that reads the format's calls, loaded. Raises ImportError or AttributeError."""
    return load(DIALECTS.get(spec.dialect, spec.dialect))
