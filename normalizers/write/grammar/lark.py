"""The same rules in Lark's syntax as llguidance reads it, for engines that have no GBNF."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

_TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|\[((?:\\.|[^\]\\])*)\]|\{[\d,]+\}|([a-zA-Z][\w-]*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A rule that llguidance matches by one regular expression, without a stack.

    but: a regular expression of texts to leave out. lazy: the first end that matches is the lexeme's.
    """

    regex: str
    but: str = ""
    lazy: bool = False


def to_lark(root: str, rules: Mapping[str, str], lexemes: Mapping[str, Lexeme]) -> str:
    """rules: expressions as GBNF has them, by name."""
    names = {name: f"r{number}" for number, name in enumerate(rules)}
    names |= {name: f"T{number}" for number, name in enumerate(lexemes)}
    names |= {name: f"z{number}" for number, (name, lexeme) in enumerate(lexemes.items()) if lexeme.lazy}

    def token(match: re.Match[str]) -> str:
        terminal, chars, name = match.groups()
        if terminal is not None:
            return json.dumps(_unescaped(terminal), ensure_ascii=False)
        if chars is not None:
            return "/[" + chars.replace("/", r"\x2f") + "]/"
        return match[0] if name is None else names[name]

    lines = [f"start: {_TOKEN.sub(token, root)}"]
    lines += [f"{names[name]}: {_TOKEN.sub(token, body)}" for name, body in rules.items()]
    for name, lexeme in lexemes.items():
        regex = f"/{lexeme.regex}/" + (f" & ~/{lexeme.but}/" if lexeme.but else "")
        if lexeme.lazy:
            terminal = names[name].upper()
            lines += [f"{names[name]}[lazy]: {terminal}", f"{terminal}: {regex}"]
        else:
            lines.append(f"{names[name]}: {regex}")
    return "\n".join(lines) + "\n"


def _unescaped(terminal: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], terminal)
