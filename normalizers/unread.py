"""Finds a tool call that was left in a text: the answer's reader didn't recognise it."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from normalizers.formats import FORMATS

MAX_CHARACTERS = 32768
"""Of a text, only so many are searched, so that a long answer costs no more."""

_SHOWN = 80
_SHORTEST_MARK = 6
"""Shorter marks also occur in prose."""

_OTHER_MARKS = (
    *("<tool_call", "<function_call", "<TOOLCALL>", "[TOOL_CALL]", "<function=", "<parameter=", "<invoke", "<arg_key>"),
    *("<|channel|>", "<|START_ACTION|>", "<|action_start|>", "<|tool_call:start|>", "<|tools_prefix|>"),
    *("<|function_call|>", "<|content_invoke_tool_json|>", "<|open|>tools", "<ifm|tool_call", "<longcat_tool_call>"),
    *("<atem:function_calls>", "<｜DSML｜"),
)
"""Marks of calls besides those of our formats, some without their end."""

_NAME_KEY = r"""["'](?:name|function|tool|tool_name)["']\s{0,20}:\s{0,20}["']([^"'\n]{1,200})["']\s{0,20}"""
_ARGUMENTS_KEY = r"""["'](?:arguments|parameters|args|input)["']\s{0,20}:"""
_JSON_CALL = re.compile(rf"{_NAME_KEY}(?:\}}|,([^{{}}]{{0,500}}?){_ARGUMENTS_KEY})")
_BEFORE_NAME = 200

_NAME = r"""([^\s()\[\]{}"'`,=:]{1,200})"""
_WRITTEN_CALL = re.compile(
    rf"(?:^|\[|```\w{{0,20}}\n)[ \t]{{0,20}}{_NAME}\((?:\s{{0,20}}\)|\s{{0,20}}\w{{1,100}}\s{{0,20}}=|\s{{0,20}}\{{)"
    rf"|^(?:[Tt]ool|Action):[ \t]{{0,20}}{_NAME}[ \t]{{0,20}}$",
    re.MULTILINE,
)


def unread_call(text: str, tools: Collection[str]) -> str | None:
    """The beginning of what looks like a call in the text; None if nothing does.

    That is a mark in which some model's calls stand, unless it is quoted, or one of these with the name of a tool: a
    JSON object with the name and arguments, or with the name alone; ``name(...)`` at the start of a line or list; a
    line ``Tool: name``. An object that describes a tool is no call. Takes a bounded time.
    """
    text = text[:MAX_CHARACTERS]
    if found := _marks().search(text):
        return text[found.start() : found.start() + _SHOWN]
    for found in _JSON_CALL.finditer(text):
        begin = text.rfind("{", max(0, found.start() - _BEFORE_NAME), found.start())
        described = '"description"' in (found[2] or "")
        if found[1] in tools and not described and begin > text.rfind("}", 0, found.start()):
            return text[begin : begin + _SHOWN]
    for found in _WRITTEN_CALL.finditer(text):
        if (found[1] or found[2]) in tools:
            return found[0].strip()
    return None


@cache
def _marks() -> re.Pattern[str]:
    ours = {mark for spec in FORMATS for mark in spec.call_marks if mark[:1] in ("<", "[")}
    marks = {mark for mark in ours if len(mark) >= _SHORTEST_MARK}.union(_OTHER_MARKS)
    return re.compile("(?<![`'\"])(?:" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")")
