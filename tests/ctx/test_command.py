"""The command line of an executed object: which words are options, and which are input."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.command import Caller, File, Words, parse
from gateway.features.ctx.objects import Kind

CALLER = Caller("main", "/")
ROWS: list[tuple[str, list[str], list[Any], dict[str, Any]]] = [
    # kind, the line, its input, what the options say
    ("model", ["-t", "hello"], ["hello"], {"form": "text"}),
    ("model", ["hello", "-t"], ["hello"], {"form": "text"}),
    ("agent", ["What is here?", "--text"], ["What is here?"], {"form": "text"}),
    ("tool", ['{"path": "x"}', "--text"], ['{"path": "x"}'], {"form": "text"}),
    ("model", ["hello", "--schema", "{}", "-t"], ["hello"], {"form": "text", "schema": "{}"}),
    ("model", ["hello", "--system", "Be brief."], ["hello"], {"system": "Be brief."}),
    ("model", ["-t", "hello", "--jsonl"], ["hello"], {"form": "jsonl"}),
    ("model", ["hello", "-", "-t"], ["hello", File("-")], {"form": "text"}),
    ("model", ["-f", "a", "-t"], [File("a")], {"form": "text"}),
    ("model", ["hello", "-t", "-f", "a"], ["hello", File("a")], {"form": "text"}),
    ("model", ["hello", "--help"], ["hello"], {"asked": "help"}),
    # Within the input, they are input.
    ("model", ["what", "does", "ls", "-t", "do?"], ["what does ls -t do?"], {"form": "jsonl"}),
    ("model", ["what", "is", "--text", "for", "-t"], ["what is --text for"], {"form": "text"}),
    ("model", ["what", "is", "-x"], ["what is -x"], {}),
    ("model", ["what", "is", "-x", "-t"], ["what is -x"], {"form": "text"}),
    ("agent", ["what", "is", "--schema", "-t"], ["what is --schema"], {"form": "text"}),
    ("model", ["what", "is", "--schema"], ["what is --schema"], {"schema": None}),
    ("model", ["it", "is", "-5"], ["it is -5"], {}),
    ("model", ["--", "hello", "-t"], ["hello -t"], {"form": "jsonl"}),
    ("model", ["hello", "--", "-t"], ["hello -t"], {"form": "jsonl"}),
]


@pytest.mark.parametrize(("kind", "line", "parts", "says"), ROWS)
def test_a_line(kind: Kind, line: list[str], parts: list[Any], says: dict[str, Any]) -> None:
    command = parse(kind, line, CALLER)
    assert command.parts == [Words(part) if isinstance(part, str) else part for part in parts]
    assert {name: getattr(command, name) for name in says} == says


def test_an_unknown_option_before_the_input() -> None:
    with pytest.raises(ProviderInvalidRequest, match="unknown option --frob"):
        parse("model", ["--frob", "hello"], CALLER)
