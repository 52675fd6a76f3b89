"""Text that a model may get stuck in: a beginning, and what follows again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator

from normalizers import FormatSpec

UNITS = ["[", "[ ", "(", "{", "'", '"', "`", " ", "\n", "\\", "<", "search", "search (", "-", "]", ")", "=", ",", "“"]
CALL = json.dumps({"name": "ping", "arguments": {}})
"""Of a declared tool: the tests' `ping` takes no arguments."""
TRIES = {
    "fences": "```\n",
    "tildes": "~~~\n",
    "one long fence": "~~~~",
    "one long back-tick": "````",
    "back-ticks and words": "` x",
    "back-ticks and marks": "`x <tool_call>``",
    "fences and words": "``` x\n",
    "objects": '{"a": 1}\n',
    "calls": f"{CALL}\n",
    "fenced calls": f"```json\n{CALL}\n```\n",
    "lists of calls": f"[{CALL}]\n",
    "calls in tags": f"<tools>{CALL}</tools>\n",
    "tags": "<tools>",
    "tags on lines": "<function>\n",
    "Python calls": "ping()\n",
    "open objects": "{\n",
    "open calls": '{"name": "ping", "arguments": {"a": "',
    "sentences and brackets": "Hi. [",
    "marks": "<tool_call>\n",
    "marks and words": "<tool_call>x\n",
    "reasoning and fences": "<think>\n</think>\n```\n",
}
"""What is read for calls without marks, and then again as text: each may begin another try."""
END = " x"
"""Behind calls, it makes them text."""


def degenerate(spec: FormatSpec) -> Iterator[tuple[str, str]]:
    """Beginnings, and what follows again and again."""
    marks = [*spec.open, *spec.begins, *spec.close, *(mark for pair in spec.think for mark in pair)]
    opener = next(iter((*spec.open, *spec.begins)), "")
    for unit in dict.fromkeys((*UNITS, *marks[:4], *(mark[:-1] for mark in marks[:4]))):
        for head in dict.fromkeys(("", "[", "functools[", opener, f"{opener}[")):
            yield head, unit
    yield '{"name": "', "\\u0070"
    for unit in ('"limit": 1, ', '"input": 1, ', '"arguments": [], '):
        yield f'{opener}{{"name": "search", ', unit
    for unit in TRIES.values():
        yield "", unit
        if spec.think:
            yield f"{spec.think[0][0]}\n", unit
