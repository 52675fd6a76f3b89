"""The streaming reader against an oracle: the same grammar on whole texts, with a Transformer that builds values."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark, Token, Transformer, UnexpectedToken
from lark.lexer import Lexer

from normalizers import ToolCall, get
from normalizers.read.push import Stack, Tables
from normalizers.values.literals import CONSTANTS, json_number
from normalizers.write.render import render_calls
from scripts.grammar_tables import GRAMMARS, place, tables
from tests.normalizers.splits import parse

SPEC = get("pythonic")
_TOKENS = re.compile(
    r"""(?P<SPACE>\s+)|(?P<STRING>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<DOUBLESTAR>\*\*)|(?P<LPAR>\()|(?P<RPAR>\))
    |(?P<LSQB>\[)|(?P<RSQB>\])|(?P<LBRACE>\{)|(?P<RBRACE>\})|(?P<COMMA>,)|(?P<EQUAL>=)|(?P<COLON>:)|(?P<SEMICOLON>;)
    |(?P<NUMBER>[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<PLUS>\+)|(?P<NAME>[^\W\d][\w.\-]*)""",
    re.VERBOSE | re.DOTALL,
)


class WholeLexer(Lexer):
    """Cuts a whole text into tokens with one regular expression."""

    def __init__(self, conf: object) -> None:
        pass

    def lex(self, text: str) -> Iterator[Token]:  # type: ignore[override]
        at = 0
        while at < len(text):
            match = _TOKENS.match(text, at)
            assert match, text[at:]
            at = match.end()
            if match.lastgroup != "SPACE":
                yield Token(str(match.lastgroup), match.group())


class Values(Transformer[Token, Any]):
    def start(self, children: list[Any]) -> list[Any]:
        return next((child for child in children if isinstance(child, list)), [])

    def calls(self, children: list[Any]) -> list[Any]:
        return [child for child in children if isinstance(child, tuple)]

    def call(self, children: list[Any]) -> tuple[str, dict[str, Any]]:
        merged: dict[str, Any] = {}
        for child in children:
            if isinstance(child, list):
                for part in child:
                    merged.update(part)
        return str(children[0]), merged

    def arguments(self, children: list[Any]) -> list[Any]:
        return [child for child in children if isinstance(child, dict)]

    def keyword(self, children: list[Any]) -> dict[str, Any]:
        return {str(children[0]): children[-1]}

    def unpack(self, children: list[Any]) -> Any:
        return children[-1]

    def number(self, children: list[Any]) -> Any:
        return json.loads(str(json_number(str(children[0]))))

    def name(self, children: list[Any]) -> Any:
        return json.loads(CONSTANTS[str(children[0])])

    def string(self, children: list[Any]) -> str:
        return "".join(ast.literal_eval(part) for part in children if part.type == "STRING")

    def items(self, children: list[Any]) -> list[Any]:
        return [child for child in children if not isinstance(child, Token)]

    def list(self, children: list[Any]) -> Any:
        return next((child for child in children if type(child) is list), [])

    set = list

    def empty_tuple(self, _: Any) -> Any:
        return []

    def group(self, children: Any) -> Any:
        return children[1]

    def tuple(self, children: Any) -> Any:
        rest: Any = next((child for child in children[3:] if not isinstance(child, Token)), ())
        return [children[1], *rest]

    def dict(self, children: Any) -> Any:
        return {key: value for child in children if not isinstance(child, Token) for key, value in [child]}

    def pair(self, children: Any) -> Any:
        return (children[0], children[2])


GRAMMAR = next(grammar for grammar in GRAMMARS if grammar.stem == "pythonic")
ORACLE = Lark(
    GRAMMAR.read_text("utf-8"), parser="lalr", lexer=WholeLexer, transformer=Values(), maybe_placeholders=False
)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=15)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc \"'", max_size=5), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
CALLS = st.lists(
    st.tuples(st.from_regex(r"[a-z]+(\.[a-z_]+)?", fullmatch=True), st.dictionaries(KEYS, VALUES, max_size=4)),
    min_size=1,
    max_size=3,
)


@given(calls=CALLS)
@settings(max_examples=200)
def test_stream_and_oracle_agree(calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = render_calls(SPEC, [ToolCall("", name, json.dumps(arguments)) for name, arguments in calls])
    body = text.removeprefix(SPEC.open[0]).removesuffix(SPEC.close[0])
    expected = ORACLE.parse(body)
    message = parse("pythonic", text, random_splits=1)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == expected == calls


WRITTEN = place(GRAMMAR).read_text("utf-8")
TABLES = [Tables.read(WRITTEN), Tables.read(WRITTEN, keep=3)]
KINDS = sorted({kind for row in TABLES[0].actions for kind in row if kind.isupper()} - {"$END"})


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: str(grammar.stem))
def test_the_tables_are_those_of_the_grammar(grammar: Path) -> None:
    assert place(grammar).read_text("utf-8") == tables(grammar.read_text("utf-8")), (
        "run python -m scripts.grammar_tables"
    )


@pytest.mark.parametrize("tables", TABLES, ids=["kept", "no room"])
@given(kinds=st.lists(st.sampled_from(KINDS), max_size=25), body=CALLS)
@settings(max_examples=200)
def test_push_parser_accepts_the_same_tokens_as_larks_own(
    tables: Tables, kinds: list[str], body: list[tuple[str, dict[str, Any]]]
) -> None:
    source = render_calls(SPEC, [ToolCall("", name, json.dumps(arguments)) for name, arguments in body])
    written = WholeLexer(object()).lex(source.removeprefix(SPEC.open[0]).removesuffix(SPEC.close[0]))
    legal = [token.type for token in written]
    for sequence in (kinds, legal, legal[: len(kinds)] + kinds):
        ours: Stack | None = tables.begin()
        larks = ORACLE.parse_interactive("")
        larks.parser_state.parse_conf.callbacks = {}
        for kind in sequence:
            assert ours is not None
            ours = ours.after.get(kind) or ours.feed(kind)
            try:
                larks.feed_token(Token(kind, ""))
            except UnexpectedToken:
                assert ours is None
                break
            assert ours is not None


def test_stream_and_oracle_agree_on_forms_that_render_never_writes() -> None:
    body = "[f(a=(1, 2,), b={'x'}, **{'c': None}), g()]"
    message = parse("pythonic", SPEC.open[0] + body + SPEC.close[0])
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == ORACLE.parse(body)
