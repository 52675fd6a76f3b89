"""Classes of what models write in place of a clean Python call or of clean JSON, as tables and as generators.

What a reader of either understands without doubt is read; anything else is text, and no value is guessed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.normalizers.splits import parse, tool

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"
TOOLS = [
    tool(
        "search",
        ["query"],
        query="string",
        limit="integer",
        mode={"type": "string", "enum": ["fast", "slow"]},
        level={"enum": ["low", "high"]},
        maybe={"anyOf": [{"type": "string"}, {"type": "null"}]},
        tags={"type": "array", "items": {"type": "string"}},
        levels={"type": "array", "items": {"enum": ["low", "high"]}},
        deep="object",
    ),
    tool("get", ["id"], id="integer"),
    tool("ping"),
]
Calls = list[tuple[str, dict[str, Any]]]


def search(**arguments: Any) -> Calls:
    return [("search", arguments)]


def got(id: int) -> Calls:
    return [("get", {"id": id})]


SPACE: list[tuple[str, Calls]] = [
    ('[ search ( query = "a b" , limit = 3 ) ]', search(query="a b", limit=3)),
    ('[search (query="a b")]', search(query="a b")),
    ('[search\n(\nquery\n=\n"a b"\n,\nlimit\n=\n3\n)\n]', search(query="a b", limit=3)),
    ('[search(query="a b" ), ping ( )]', [*search(query="a b"), ("ping", {})]),
    ("[search(query='a b' ) , get ( id = 7 )]", [*search(query="a b"), *got(7)]),
    ("[search(query='a', tags=[ 'x' , 'y' ] )]", search(query="a", tags=["x", "y"])),
    ("[search(query='a', deep={ 'k' : { 'l' : 1 } } )]", search(query="a", deep={"k": {"l": 1}})),
    ("[\tsearch\t(\tquery\t=\t'a'\t)\t]", search(query="a")),
    ("[search(query='a' 'b'  \n  'c' )]", search(query="abc")),
    ("[get(id=- 5)]", got(-5)),
    ("[get( id = +  5 )]", got(5)),
    ("[search(query='a', \\\n limit=2)]", search(query="a", limit=2)),
    ("[get\u00a0(id\u3000=\u00a07)]", got(7)),
    ("[ping( ) ; get (id=7) ; ]", [("ping", {}), *got(7)]),
]
BARE_WORDS: list[tuple[str, Calls]] = [
    ("[search(query=hello)]", search(query="hello")),
    ("[search(query='x', mode=fast)]", search(query="x", mode="fast")),
    ("[search(mode=slow, query='x')]", search(mode="slow", query="x")),
    ("[search(query='x', level=low)]", search(query="x", level="low")),
    ("[search(query='x', maybe=word)]", search(query="x", maybe="word")),
    ("[search(query='x', maybe=None)]", search(query="x", maybe=None)),
    ("[search(query=two-words)]", search(query="two-words")),
    ("[search(query='x', tags=[a, b])]", search(query="x", tags=["a", "b"])),
    ("[search(query='x', tags=[ a , 'b' , c ])]", search(query="x", tags=["a", "b", "c"])),
    ("[search(query='x', levels=[low, high])]", search(query="x", levels=["low", "high"])),
    ("[search(été)]", search(query="été")),
]
QUOTES: list[tuple[str, Calls]] = [
    ("[search(query=“a b”)]", search(query="a b")),
    ("[search(query=‘a b’)]", search(query="a b")),
    ("[search(query=”a b”)]", search(query="a b")),
    ("[search(query=„a b“)]", search(query="a b")),
    ("[search(query=‚a b‘)]", search(query="a b")),
    ("[search(query=“a”, limit=3)]", search(query="a", limit=3)),
    ("[search(query=‘it’s’)]", search(query="it’s")),
    ("[search(query=“say “hi” now”, limit=1)]", search(query="say “hi” now", limit=1)),
    ("[search(query=“a\\n”)]", search(query="a\n")),
    ("[search(“a b”)]", search(query="a b")),
    ("[search(query='x', tags=[“a”, ‘b’])]", search(query="x", tags=["a", "b"])),
    ('[search(query=“a\'s "b"”)]', search(query='a\'s "b"')),
    ("[search(query='a “b” c')]", search(query="a “b” c")),
]
COLONS: list[tuple[str, Calls]] = [
    ("[get(id: 7)]", got(7)),
    ("[get(id:7)]", got(7)),
    ("[get( id : 7 )]", got(7)),
    ("[get(id: '7')]", got(7)),
    ("[search(query: 'a', limit: 3)]", search(query="a", limit=3)),
    ("[search(query: 'a', limit=3)]", search(query="a", limit=3)),
    ("[search(query='a', limit: 3)]", search(query="a", limit=3)),
    ("[search(query: 'a, b: c', limit: 3)]", search(query="a, b: c", limit=3)),
    ("[search(query: fast)]", search(query="fast")),
    ("[search(query: 'x', deep: {'k': 1})]", search(query="x", deep={"k": 1})),
    ("[get(id: 7), get(id: 8)]", [*got(7), *got(8)]),
]
QUOTED_KEYWORDS: list[tuple[str, Calls]] = [
    ("[get('id'=7)]", got(7)),
    ('[get("id"=7)]', got(7)),
    ("[get(“id”=7)]", got(7)),
    ("[get('id': 7)]", got(7)),
    ("[get( 'id' = 7 )]", got(7)),
    ("[search('query'='a', 'limit'=3)]", search(query="a", limit=3)),
    ('[search("query": "a", "limit": 3)]', search(query="a", limit=3)),
    ("[search(query='a', 'limit'=3)]", search(query="a", limit=3)),
    ("[search('query'=“a”)]", search(query="a")),
    ("[search('query'='x=1', limit=2)]", search(query="x=1", limit=2)),
    ("[search('query')]", search(query="query")),
]
READ = {"space": SPACE, "bare words": BARE_WORDS, "quotes": QUOTES, "colons": COLONS, "keywords": QUOTED_KEYWORDS}


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{name}: {row[0]}") for name in READ for row in READ[name]])
def test_what_a_reader_understands_is_read(row: tuple[str, Calls]) -> None:
    body, calls = row
    for text in (BEGIN + body + END, body):
        message = parse("pythonic", text, TOOLS, unknown_tools="refuse")
        assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
        assert message.content == ""


def test_each_class_has_ten_cases() -> None:
    assert all(len(rows) >= 10 for rows in READ.values())


DOUBTFUL = [
    "get('id' == 7)",
    "get(id == 7)",
    "get(id := 7)",
    "get('id' + 'x' = 7)",
    "get(id = = 7)",
    "get(id=seven)",
    "get(id=x.y)",
    "get(id=-)",
    "get(id=- -5)",
    "get('i d'=7)",
    "get(7: id)",
    "search(query=two words)",
    "search(query='x', deep={'k': v})",
    "search(query='x', tags=[[a]])",
    'search(query="a”)',
    "search(query=“a)",
    "search (for it)",
]


@pytest.mark.parametrize("body", DOUBTFUL)
def test_anything_else_is_text(body: str) -> None:
    message = parse("pythonic", f"[{body}]", TOOLS, unknown_tools="refuse")
    assert not message.tool_calls
    assert message.content == f"[{body}]"


WORD = st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(lambda word: word not in ("none", "null", "true", "false"))
BLANK = st.text(" \t\n\u00a0", max_size=3)


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, Calls]:
    """A call of `search` with every class's liberties at once."""
    parts: list[tuple[str, Any]] = []
    for key in draw(st.lists(st.sampled_from(["query", "mode", "limit", "tags"]), min_size=1, unique=True)):
        words = [draw(WORD) for _ in range(2)]
        quote = draw(st.sampled_from(["''", '""', "“”", "‘’"]))
        written: dict[str, tuple[str, Any]] = {
            "query": (f"{quote[0]}{' '.join(words)}{quote[1]}", " ".join(words)),
            "mode": ("fast", "fast"),
            "limit": (f"-{draw(BLANK)}7", -7),
            "tags": (f"[{draw(BLANK)}{words[0]}{draw(BLANK)},{quote[0]}{words[1]}{quote[1]}]", words),
        }
        name = draw(st.sampled_from([key, f"'{key}'", f'"{key}"', f"“{key}”"]))
        text, value = written[key]
        sign = draw(st.sampled_from(["=", ":"]))
        parts.append((f"{draw(BLANK)}{name}{draw(BLANK)}{sign}{draw(BLANK)}{text}{draw(BLANK)}", (key, value)))
    body = f"[{draw(BLANK)}search{draw(BLANK)}({','.join(text for text, _ in parts)}){draw(BLANK)}]"
    return body, search(**dict(pair for _, pair in parts))


@given(written=spelled())
@settings(max_examples=150, deadline=None)
def test_liberties_combine(written: tuple[str, Calls]) -> None:
    body, calls = written
    message = parse("pythonic", BEGIN + body + END, TOOLS, random_splits=1)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls


# The same for arguments in JSON: what stands for `{"query": "a"}`

JSON_QUOTES: list[tuple[str, Calls]] = [
    ("{“query”: “a b”}", search(query="a b")),
    ('{"query": “a b”}', search(query="a b")),
    ('{“query”: "a b"}', search(query="a b")),
    ("{‘query’: ‘a b’}", search(query="a b")),
    ("{”query”: ”a b”}", search(query="a b")),
    ("{„query“: „a b“}", search(query="a b")),
    ("{‚query‘: ‚a b‘}", search(query="a b")),
    ("{“query”: ‘it’s’}", search(query="it’s")),
    ("{“query”: “say “hi”, then go”, “limit”: 3}", search(query="say “hi”, then go", limit=3)),
    ("{“query”: “a \"b\" 'c'”}", search(query="a \"b\" 'c'")),
    ("{“query”: “a\\n\\u00e9\\”b”}", search(query="a\né”b")),
    ("{“query”: “a\nb”}", search(query="a\nb")),
    ('{“query”: “a”, “tags”: [“x”, ‘y’ , "z"]}', search(query="a", tags=["x", "y", "z"])),
    ("{“query”: “a”, “deep”: {“k”: {“l”: “m”}}}", search(query="a", deep={"k": {"l": "m"}})),
    ('{"query": "a “b” c’s"}', search(query="a “b” c’s")),
    ("{“query”: “” }", search(query="")),
]
JSON_SPACE: list[tuple[str, Calls]] = [
    ('{ "query" : "a" , "limit" : 3 }', search(query="a", limit=3)),
    ('{"query":"a","limit":3}', search(query="a", limit=3)),
    ('{\n\t"query"\n:\n"a"\n,\n"limit"\n:\n3\n}', search(query="a", limit=3)),
    ('{\u00a0"query"\u3000:\u00a0"a"\u3000}', search(query="a")),
    ('{"tags" : [ "x" , "y" ] , "query" : "a"}', search(tags=["x", "y"], query="a")),
    ('{"query": "a", "deep": { }}', search(query="a", deep={})),
    ('{"query": "a", "tags": [ ]}', search(query="a", tags=[])),
    ('{"query": "a" ,}', search(query="a")),
    ('{"query": "a", "tags": ["x" , ]}', search(query="a", tags=["x"])),
    ("{“query” : “a” , “limit” : 3 }", search(query="a", limit=3)),
    ('{\r\n  "query": "a"\r\n}', search(query="a")),
]
JSON_SEPARATORS: list[tuple[str, Calls]] = [
    ('{"query" = "a"}', search(query="a")),
    ('{"query"="a", "limit"=3}', search(query="a", limit=3)),
    ('{"query" => "a", "limit" => 3}', search(query="a", limit=3)),
    ('{query = "a"}', search(query="a")),
    ('{"query": "a"; "limit": 3}', search(query="a", limit=3)),
    ('{"query": "a", "tags": ["x"; "y"]}', search(query="a", tags=["x", "y"])),
    ('{"query"："a"，"limit"：3}', search(query="a", limit=3)),
    ("{“query”：“a”，“limit”：3}", search(query="a", limit=3)),
    ('{"query": "a"； "limit": 3}', search(query="a", limit=3)),
    ('{"query": "x=1; y：2，z"}', search(query="x=1; y：2，z")),
    ('{"query": "a";}', search(query="a")),
]
JSON_KEYWORDS: list[tuple[str, Calls]] = [
    ('{query: "a", limit: 3}', search(query="a", limit=3)),
    ("{'query': 'a'}", search(query="a")),
    ("{'query': \"a\", limit: 3}", search(query="a", limit=3)),
    ('{"query": "a", "maybe": None}', search(query="a", maybe=None)),
    ('{"query": "a", "maybe": NULL}', search(query="a", maybe=None)),
    ('{"query": "a", "deep": {"on": True, "off": FALSE}}', search(query="a", deep={"on": True, "off": False})),
    ('{"query": "a", "mode": fast}', search(query="a", mode="fast")),
    ('{"query": "a", "level": low}', search(query="a", level="low")),
    ('{"query": "a", "tags": [x, y]}', search(query="a", tags=["x", "y"])),
    ('{"query": "a", "limit": 07}', search(query="a", limit=7)),
    ('{"query": "a", "limit": +3}', search(query="a", limit=3)),
]
JSON_READ = {
    "quotes": JSON_QUOTES,
    "space": JSON_SPACE,
    "separators": JSON_SEPARATORS,
    "keywords": JSON_KEYWORDS,
}
ENVELOPES = {
    "hermes": '<tool_call>\n{"name": "search", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "search", "parameters": %s}',
    "mistral": "[TOOL_CALLS]search[ARGS]%s",
    "granite_20b_fc": '<function_call> {"name": "search", "arguments": %s}',
    "arguments first": '<tool_call>\n{"arguments": %s, "name": "search"}\n</tool_call>',
}


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{name}: {row[0]}") for name in JSON_READ for row in JSON_READ[name]]
)
def test_what_a_reader_of_json_understands_is_read(row: tuple[str, Calls], envelope: str) -> None:
    body, calls = row
    format = "hermes" if envelope == "arguments first" else envelope
    message = parse(format, ENVELOPES[envelope] % body, TOOLS, unknown_tools="refuse")
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert message.content == ""


def test_each_class_of_json_has_ten_cases() -> None:
    assert all(len(rows) >= 10 for rows in JSON_READ.values())


AROUND: list[str] = [
    "{“name”: “search”, “arguments”: {“query”: “a”}}",
    "{“name” : “search” , “arguments” : {“query” : “a”}}",
    "{‘name’: ‘search’, ‘arguments’: {‘query’: ‘a’}}",
    '{"name" = "search", "arguments" = {"query" = "a"}}',
    '{"name" => "search", "arguments" => {"query" => "a"}}',
    '{"name"："search"，"arguments"：{"query"："a"}}',
    '{"name": "search"; "arguments": {"query": "a"}}',
    "{“arguments”: {“query”: “a”}, “name”: “search”}",
    '{name: “search”, arguments: {query: "a"}}',
    "{“function”: {“name”: “search”, “arguments”: {“query”: “a”}}}",
    "{„name“: „search“, „arguments“: {„query“: „a“}}",
]


@pytest.mark.parametrize("body", AROUND)
def test_the_same_around_the_arguments(body: str) -> None:
    message = parse("hermes", f"<tool_call>{body}</tool_call>", TOOLS, unknown_tools="refuse")
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == search(query="a")


def test_a_call_in_typographic_quotes_needs_no_mark() -> None:
    message = parse("llama3_json", AROUND[0], TOOLS, unknown_tools="refuse")
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == search(query="a")


DOUBTFUL_JSON = [
    '{"query" == "a"}',
    '{"query" := "a"}',
    '{"query": = "a"}',
    '{"query": "a”}',
    '{"query": “a"}',
    "{“query: “a”}",
    "{“query”: “a “b”}",
    "{“query”: “a” “b”}",
    '{"query": "a" "limit": 3}',
    '{"query": two words}',
    '{"query": "a", "deep": {"k": v}}',
    '{"query" "a"}',
]


@pytest.mark.parametrize("body", DOUBTFUL_JSON)
def test_any_other_json_is_text(body: str) -> None:
    message = parse("hermes", ENVELOPES["hermes"] % body, TOOLS, unknown_tools="refuse")
    assert not message.tool_calls
    assert body in message.content


@st.composite
def spelled_json(draw: st.DrawFn) -> tuple[str, Calls]:
    """Arguments in JSON with every class's liberties at once."""
    parts: list[str] = []
    value: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(["query", "mode", "limit", "tags"]), min_size=1, unique=True)):
        words = [draw(WORD) for _ in range(2)]
        opening, closing = draw(st.sampled_from([("'", "'"), ('"', '"'), ("“", "”"), ("‘", "’"), ("„", "“")]))
        written: dict[str, tuple[str, Any]] = {
            "query": (f"{opening}{' '.join(words)}{closing}", " ".join(words)),
            "mode": ("fast", "fast"),
            "limit": ("7", 7),
            "tags": (f"[{draw(BLANK)}{words[0]}{draw(BLANK)},{opening}{words[1]}{closing}]", words),
        }
        name = draw(st.sampled_from([key, f"{opening}{key}{closing}", f'"{key}"']))
        sign = draw(st.sampled_from([":", "=", "=>", "："]))
        text, value[key] = written[key]
        parts.append(f"{draw(BLANK)}{name}{draw(BLANK)}{sign}{draw(BLANK)}{text}{draw(BLANK)}")
    return "{" + draw(st.sampled_from([",", ";", "，"])).join(parts) + "}", search(**value)


@given(written=spelled_json(), envelope=st.sampled_from(["hermes", "mistral", "arguments first"]))
@settings(max_examples=150, deadline=None)
def test_liberties_of_json_combine(written: tuple[str, Calls], envelope: str) -> None:
    body, calls = written
    format = "hermes" if envelope == "arguments first" else envelope
    message = parse(format, ENVELOPES[envelope] % body, TOOLS, random_splits=1)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
