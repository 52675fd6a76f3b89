"""What each program of this folder does: one function for each cell of docs/clients/table.md.

A program calls `fill`. It writes a line of JSON for each cell, which `tests/clients/table.py` judges. What its client
can't do is a text that says so.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

URL, KEY, MODEL = sys.argv[1:4] if len(sys.argv) > 3 else ("", "", "")
COLLECTED = "only once Python collects the closed generator's stream"
WRONG_KEY, ENDLESS, ABSENT = "wrong", "endless", "gone"
HELLO = "Hello"
QUESTION = "What is the weather in Paris in celsius?"
LONG = "word " * 3000
RESULT = '{"temp_c": 21}'
NAME, DESCRIPTION = "get_weather", "Current weather in a city."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["city"],
}
FUNCTION = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
Cell = Callable[[], object] | str


def said(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def _tell(cell: str, **facts: object) -> None:
    print(json.dumps({"cell": cell, **facts}), flush=True)


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _told(cell: str, program: Callable[[], object]) -> None:
    began = time.monotonic()
    try:
        got = program()
    except Exception as error:  # noqa: BLE001  # whatever the client raises is what the table shows
        seconds = time.monotonic() - began
        causes = _causes(error)
        text = "\n".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        _tell(cell, error=[type(cause).__name__ for cause in causes], text=text, seconds=seconds)
    else:
        if hasattr(got, "model_dump"):
            got = got.model_dump()
        _tell(cell, got=got, seconds=time.monotonic() - began)


def fill(
    *, chat: Cell, stream: Cell, tools: Cell, structured: Cell, cancel: Cell, ask: Callable[[str, str, str], object]
) -> None:
    """chat, stream: return the text. tools: the arguments of the call, and the text after its result; then a remark,
    if that text can't be the usual one. structured: a Weather. cancel: leaves a stream of `ENDLESS` after its first
    piece; returns a remark, if there is one. ask: a chat with a key, a model and a text."""
    given: dict[str, Cell] = {
        "chat": chat,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "cancel": cancel,
        "overflow": lambda: ask(KEY, MODEL, LONG),
        "wrong key": lambda: ask(WRONG_KEY, MODEL, HELLO),
        "missing weights": lambda: ask(KEY, ABSENT, HELLO),
    }
    for cell, program in given.items():
        if isinstance(program, str):
            _tell(cell, cannot=program)
            continue
        _told(cell, program)
        if cell == "cancel":
            # Stays until the engine's side is known: the end of this process would cancel, too.
            sys.stdin.readline()
