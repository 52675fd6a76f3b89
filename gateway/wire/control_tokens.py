"""Keeps the text of control tokens in a request what it is: text, which opens no turn and closes none.

An engine's tokenizer reads `<|im_end|>` in a rendered prompt as the token, whoever wrote it. So the gateway puts NONCE
into each such text of a request's strings, has the engine render the prompt, and cuts the result there: the template's
own marks are read as tokens, those texts are sent as the ids of plain text. Works on JSON bytes; no I/O.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

NONCE = f"CtxGate{secrets.token_hex(8)}"
"""Letters and digits, which no JSON encoder and no template changes. Nobody outside this process knows it."""

_NONCE = NONCE.encode()

Prompt = str | list[str | int]
"""A text, or texts and token ids in turn, which together are one prompt."""


def as_text(prompt: Prompt) -> str:
    """The prompt as one text, to compare beginnings: prompts that begin alike become texts that do."""
    if isinstance(prompt, str):
        return prompt
    return "".join(piece if isinstance(piece, str) else f"\0{piece}\0" for piece in prompt)


_IN_BRACKETS = re.compile(rb"\[/?[A-Za-z]")


def may_be_one(text: str) -> bool:
    """Whether a token's text looks like a control token's; `sop`, say, would be in every other message."""
    return len(text) > 2 and ("<" in text or "|" in text or "｜" in text or text[0] == "[")


def suspicious(json: bytes) -> bool:
    """Whether a string in the JSON may hold the text of a control token of some model."""
    if b"<" in json or b"|" in json or b"\\u" in json or b"\xef\xbd\x9c" in json:
        return True
    return _IN_BRACKETS.search(json) is not None


class ControlTokens:
    """The control tokens of one model: their texts, and the ids of each text read as plain text."""

    def __init__(self, plain: Mapping[str, Sequence[int]]) -> None:
        self._plain = {text: list(ids) for text, ids in plain.items() if text}
        self._lengths = sorted({len(text) for text in self._plain}, reverse=True)
        self._patterns = _patterns(self._plain)

    def __bool__(self) -> bool:
        return bool(self._plain)

    def found(self, json: bytes) -> bool:
        """Whether a string in the JSON holds one of the texts, or ends with the beginning of one."""
        return any(pattern.search(json) for pattern in _worth(self._patterns, json))

    def guard(self, json: bytes, besides: Collection[str] = ()) -> bytes:
        """The JSON with NONCE behind the first character of each text; `besides`: texts that stay as they are."""
        patterns = self._patterns if not besides else _patterns_besides(self, frozenset(besides))
        for pattern in _worth(patterns, json):
            json = pattern.sub(rb"\g<0>" + _NONCE, json)
        return json

    def besides(self, texts: frozenset[str]) -> list[re.Pattern[bytes]]:
        return _patterns(text for text in self._plain if text not in texts)

    def cut(self, rendered: str) -> Prompt:
        """The prompt for a rendered text: without NONCE, and with each text around one as ids. Begins with a string."""
        first, *others = rendered.split(NONCE)
        prompt: list[str | int] = []
        text = [first]
        for right in others:
            at = next((at for at in range(len(text) - 1, -1, -1) if text[at]), None)
            found = self._beginning(text[at][-1] + right[: self._lengths[0]]) if at is not None else None
            if found is not None and at is not None:
                text[at] = text[at][:-1]
                before = "".join(text)
                if before or not prompt:
                    prompt.append(before)
                prompt += self._plain[found]
                text = [right[len(found) - 1 :]]
            else:
                text.append(right)
        rest = "".join(text)
        if not prompt:
            return rest
        return [*prompt, rest] if rest else prompt

    def _beginning(self, text: str) -> str | None:
        """The longest of the texts that `text` begins with."""
        return next((text[:length] for length in self._lengths if text[:length] in self._plain), None)


def count(*json: bytes) -> int:
    """How many texts `ControlTokens.guard` has marked."""
    return sum(each.count(_NONCE) for each in json)


def broken(json: bytes) -> bytes:
    """The guarded JSON with a space in each marked text: for engines that take no token ids."""
    return json.replace(_NONCE, b" ")


@lru_cache(maxsize=64)
def _patterns_besides(tokens: ControlTokens, texts: frozenset[str]) -> list[re.Pattern[bytes]]:
    return tokens.besides(texts)


# Patterns. Each matches the first character of a text that follows, as any JSON encoder may write it: `<`, `\u003c`,
# and `\\u003c` in JSON within JSON, such as the arguments of a past call. A string that ends with the beginning of a
# text counts, too: a template may put two parts of a content together.


def _worth(patterns: list[re.Pattern[bytes]], json: bytes) -> list[re.Pattern[bytes]]:
    """The patterns that may match: the last one only where anything is escaped by number."""
    return patterns if b"\\u" in json else patterns[:-1]


Node = dict[str, "Node"]
_END = ""
"""The key of a node at which a text ends."""


def _patterns(texts: Iterable[str]) -> list[re.Pattern[bytes]]:
    """One pattern for each first character, since a search for one byte is the fastest, and one for all escaped."""
    trie: Node = {}
    for text in texts:
        node = trie
        for character in text:
            node = node.setdefault(character, {})
        node[_END] = {}
    patterns: list[bytes] = []
    escaped: list[bytes] = []
    for first, node in trie.items():
        partly = not first.isalnum() and not first.isspace()
        rest = rb"(?=%b)" % _rest(node, partly=partly)
        patterns.append(_written(first) + rest)
        escaped.append(_escape(first) + rest)
    if escaped:
        patterns.append(rb"\\+(?:%b)" % b"|".join(escaped))
    return [re.compile(pattern) for pattern in patterns]


def _rest(node: Node, *, partly: bool) -> bytes:
    if _END in node:
        return b""
    alternatives = [_either(character) + _rest(child, partly=partly) for character, child in node.items()]
    if partly:
        alternatives.append(b'"')
    return rb"(?:%b)" % b"|".join(alternatives)


def _either(character: str) -> bytes:
    return rb"(?:%b|\\+%b)" % (_written(character), _escape(character))


def _written(character: str) -> bytes:
    """As encoders write it that don't escape it without need."""
    if character in '"\\':
        return rb"\\+" + (b'"' if character == '"' else b"")
    return rb"\\*/" if character == "/" else re.escape(character.encode())


def _escape(character: str) -> bytes:
    """Its escape behind the backslash."""
    units = character.encode("utf-16-be")
    return rb"\\+".join(rb"u(?i:%02x%02x)" % (units[at], units[at + 1]) for at in range(0, len(units), 2))
