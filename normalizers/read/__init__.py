"""Readers of model text: the framing of an answer, and one dialect for each way of writing calls."""

import re
from collections.abc import Iterable

NAME_KEYS = frozenset({"name", "tool", "tool_name"})
ARGUMENT_KEYS = frozenset(
    {
        "action_input",
        "args",
        "arguments",
        "input",
        "kwargs",
        "parameters",
        "params",
        "tool_input",
        "tool_parameters",
    }
)
CALL_KEYS = NAME_KEYS | ARGUMENT_KEYS | {"function", "id", "type"}
"""Keys of a call written as a JSON object."""

_WS = r"[ \t\r\n]*"
OF_FENCE = rf"```[a-zA-Z0-9_+\-. \t]*\r?\n{_WS}"
OF_LIST = rf"\[{_WS}"
OF_OBJECT = rf'\{{{_WS}("type"{_WS}:{_WS}"function"{_WS},{_WS})*'
OF_FUNCTION = rf'"function"{_WS}:{_WS}\{{{_WS}'
OF_NAME = rf'"({"|".join(sorted(NAME_KEYS))})"{_WS}:{_WS}"'
BEGINNING = re.compile(rf"{_WS}({OF_FENCE})?({OF_LIST})?{OF_OBJECT}({OF_FUNCTION})?{OF_NAME}")
"""An answer up to the name of its first call without marks. A guard's grammar begins where a declared tool's name
follows, as JSON spells it and with its closing quote."""


def may_be_told(name: str, marks: Iterable[str]) -> bool:
    """Whether a guard's grammar tells a tool's name from text: the readers strip it, and look for the marks in it."""
    return name == name.strip() != "" and not any(mark in name for mark in marks)
