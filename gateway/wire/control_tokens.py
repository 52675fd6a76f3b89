"""Keeps the text of control tokens in a request as text, which neither opens nor closes a turn.

An engine's tokenizer reads `<|im_end|>` in a rendered prompt as the token, no matter who wrote it. So the gateway puts
NONCE into each such text of a request's strings, has the engine render the prompt, and cuts the result there: the
template's own markers are read as tokens, those texts are sent as the ids of plain text. Works on JSON bytes; no I/O.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from gateway.errors import ProviderInvalidRequest

NONCE = f"CtxGate{secrets.token_hex(8)}"
"""Letters and digits, which no JSON encoder and no template changes. Nobody outside this process knows it."""

_NONCE = NONCE.encode()

MAX_TEXTS = 16_384
"""Texts of control tokens in one request: more than fit a usual window."""

MAX_AT_ONCE = 65_536
"""Places at which a text may begin that are looked at without a pause."""

Prompt = str | list[str | int]
"""A text, or texts and token ids in turn, which together are one prompt."""

LONGEST, OVERLAP = 128, 8192
"""Characters of a control token's text, and bytes that it takes at most, however it is escaped."""


def as_text(prompt: Prompt) -> str:
    """The prompt as one text, to compare beginnings: prompts that begin alike become texts that do."""
    if isinstance(prompt, str):
        return prompt
    return "".join(piece if isinstance(piece, str) else f"\0{piece}\0" for piece in prompt)


def ends_with(prompt: Prompt, text: str) -> bool:
    """Whether the prompt's text ends with this one, ignoring trailing white space."""
    last = prompt if isinstance(prompt, str) else prompt[-1]
    return isinstance(last, str) and last.rstrip().endswith(text)


_IN_BRACKETS = re.compile(rb"\[/?[A-Za-z]")


def may_be_one(text: str) -> bool:
    """Whether a token's text looks like a control token's; `sop`, say, would be in every other message."""
    return 2 < len(text) <= LONGEST and ("<" in text or "|" in text or "｜" in text or text[0] == "[")


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

    def escape(self, json: bytes, besides: Collection[str] = ()) -> bytes:
        """The JSON with NONCE behind the first character of each text; `besides`: texts that stay as they are.

        Raises ProviderInvalidRequest for more than MAX_TEXTS.
        """
        patterns = self._patterns if not besides else _patterns_besides(self, frozenset(besides))
        for pattern in _worth(patterns, json):
            json, found = pattern.subn(rb"\g<0>" + _NONCE, json, count=MAX_TEXTS + 1)
            if found > MAX_TEXTS:
                raise too_many()
        return json

    def slow(self, json: bytes) -> bool:
        """Whether so much in the JSON may begin one of the texts that a search takes more than a moment."""
        firsts = {text[:1].encode() for text in self._plain}
        return len(json) > MAX_AT_ONCE and sum(json.count(first) for first in (*firsts, b"\\u")) > MAX_AT_ONCE

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


def too_many() -> ProviderInvalidRequest:
    why = f"messages: more than {MAX_TEXTS} texts of control tokens, such as <|im_end|>, or one in a flood of others"
    return ProviderInvalidRequest(why, code="too_many_control_tokens", param="messages")


def slices(json: bytes) -> Iterable[bytes]:
    """Pieces that are searched in a moment each; each overlaps the next by more than any text is long."""
    return (json[at : at + MAX_AT_ONCE + OVERLAP] for at in range(0, len(json), MAX_AT_ONCE))


def count(*json: bytes) -> int:
    """How many texts `ControlTokens.escape` has marked."""
    return sum(each.count(_NONCE) for each in json)


def broken(json: bytes) -> bytes:
    """The escaped JSON with a space in each marked text: for engines that take no token ids."""
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


BACKSLASHES = rb"\\{1,8}"
"""Before an escape, in JSON within JSON within JSON too. Bounded, so that a search takes linear time."""

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
        patterns.append(rb"\\(?:%b)" % b"|".join(escaped))
    return [re.compile(pattern) for pattern in patterns]


def _rest(node: Node, *, partly: bool) -> bytes:
    if _END in node:
        return b""
    alternatives = [_either(character) + _rest(child, partly=partly) for character, child in node.items()]
    if partly:
        alternatives.append(b'"')
    return rb"(?:%b)" % b"|".join(alternatives)


def _either(character: str) -> bytes:
    return b"(?:%b|%b%b)" % (_written(character), BACKSLASHES, _escape(character))


def _written(character: str) -> bytes:
    """As encoders write it that don't escape it without need."""
    if character in '"\\':
        return BACKSLASHES + (b'"' if character == '"' else b"")
    return b"(?:%b)?/" % BACKSLASHES if character == "/" else re.escape(character.encode())


def _escape(character: str) -> bytes:
    """Its escape, without the backslash."""
    units = character.encode("utf-16-be")
    return BACKSLASHES.join(rb"u(?i:%02x%02x)" % (units[at], units[at + 1]) for at in range(0, len(units), 2))
