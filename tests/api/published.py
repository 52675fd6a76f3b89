"""The types of OpenAI's and Anthropic's own packages."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter


@cache
def published(name: str) -> TypeAdapter[Any]:
    """name: as in `openai.types.chat:ChatCompletion`. Imported late, because it takes seconds."""
    module, _, kind = name.partition(":")
    return TypeAdapter(getattr(import_module(module), kind))


def check(name: str, value: Any) -> None:
    """Strictly: no number may come as text."""
    published(name).validate_json(json.dumps(value), strict=True)
