"""Renders a chat template as transformers does. Templates are foreign code: see `gateway.detection.worker`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from normalizers.derive.turns import EOS, NotRendered, Render

_TODAY = datetime(2026, 11, 2)
"""So that a template renders the same each time."""


class _Generation(Extension):
    """``{% generation %}``, which training uses, changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Callable[[], str]) -> str:
        return caller()


def compiled(source: str) -> Render:
    """A renderer of the template. Raises NotRendered, here and when it renders."""

    def refuse(message: str) -> None:
        raise NotRendered(message)

    def as_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _TODAY.strftime
    try:
        template = environment.from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise NotRendered(f"its syntax: {error}") from error

    def render(**variables: Any) -> str:
        tokens = {"bos_token": "<|bos|>", "eos_token": EOS, "pad_token": "<|pad|>", "unk_token": "<|unk|>"}
        try:
            return template.render(documents=None, **tokens, **variables)
        except (NotRendered, MemoryError):
            raise
        except Exception as error:
            raise NotRendered(f"{type(error).__name__}: {error}") from error

    return render
