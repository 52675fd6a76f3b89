"""The pythonic family: a table of edge cases, each read whole, character by character and in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from normalizers import ToolArgs, ToolEnd, ToolStart, normalizer
from tests.normalizers.splits import parse, run, tool

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"
TOOLS = [
    tool("filesystem.list_dir", path="string"),
    tool("get_weather", ["city"], city="string", unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    tool("ping"),
    tool("set", count="integer", ratio="number", on="boolean", code="string", tags="array", options="object"),
    tool("label", colours={"type": "array", "items": {"type": "string"}}, count="integer"),
    tool("apply", options="object", count="integer"),
]

Calls = list[tuple[str, dict[str, Any]]]


def f(**arguments: Any) -> Calls:
    return [("f", arguments)]


BODIES: dict[str, tuple[str, Calls]] = {
    "one call": ('[f(a="x")]', f(a="x")),
    "without brackets": ('f(a="x")', f(a="x")),
    "no arguments": ("[f()]", f()),
    "empty block": ("[]", []),
    "nothing at all": ("", []),
    "several calls": ("[f(a=1), g(), h(b='y')]", [("f", {"a": 1}), ("g", {}), ("h", {"b": "y"})]),
    "calls on lines": ("f(a=1)\ng(b=2)", [("f", {"a": 1}), ("g", {"b": 2})]),
    "dotted name": ("[a.b.c(x=1)]", [("a.b.c", {"x": 1})]),
    "hyphen in name": ("[get-weather(x=1)]", [("get-weather", {"x": 1})]),
    "leading digit in name": ("[3d_print(x=1)]", [("3d_print", {"x": 1})]),
    "hyphen in key": ("[f(user-id=1)]", f(**{"user-id": 1})),
    "keyword keys": ("[f(from=1, class=2, None=3, True=4)]", f(**{"from": 1, "class": 2, "None": 3, "True": 4})),
    "python constants": ("[f(a=True, b=False, c=None)]", f(a=True, b=False, c=None)),
    "json constants": ("[f(a=true, b=false, c=null)]", f(a=True, b=False, c=None)),
    "mixed and nested": ("[f(a={'x': [true, None, {'y': False}]})]", f(a={"x": [True, None, {"y": False}]})),
    "negative": ("[f(a=-1, b=-0.5)]", f(a=-1, b=-0.5)),
    "plus sign": ("[f(a=+7)]", f(a=7)),
    "exponent": ("[f(a=1e5, b=2.5E-3)]", f(a=1e5, b=0.0025)),
    "bare fraction": ("[f(a=1., b=.5)]", f(a=1.0, b=0.5)),
    "hex, octal, binary": ("[f(a=0x1F, b=0o17, c=0b101)]", f(a=31, b=15, c=5)),
    "underscores": ("[f(a=1_000)]", f(a=1000)),
    "leading zeros": ("[f(a=07, b=00)]", f(a=7, b=0)),
    "many digits": ("[f(a=123456789012345678901234567890)]", f(a=123456789012345678901234567890)),
    "tuple": ("[f(a=(1, 2), b=(3,), c=())]", f(a=[1, 2], b=[3], c=[])),
    "parentheses": ("[f(a=(1), b=('x'))]", f(a=1, b="x")),
    "set": ("[f(a={1, 2}, b={'x'})]", f(a=[1, 2], b=["x"])),
    "empty containers": ("[f(a=[], b={})]", f(a=[], b={})),
    "keys that are not strings": ("[f(a={1: 'x', True: 'y', None: 'z'})]", f(a={"1": "x", "true": "y", "null": "z"})),
    "duplicate key": ("[f(a=1, a=2)]", f(a=2)),
    "trailing commas": ("[f(a=[1,], b={'x': 1,},),]", f(a=[1], b={"x": 1})),
    "unpacked dict": ("[f(**{'a': 1, 'b': [2]}, c=3)]", f(a=1, b=[2], c=3)),
    "an unpacked dict before another dict": ("[f(**{'a': 1}, b={'x': 2})]", f(a=1, b={"x": 2})),
    "an unpacked dict behind a keyword": ("[f(c=3, **{'a': 1})]", f(c=3, a=1)),
    "an empty unpacked dict": ("[f(**{}, a=1)]", f(a=1)),
    "an empty object literal": ("[f({})]", f()),
    "colons for equals signs": ("[f(a: 1, b: [2], c: {'x': 1})]", f(a=1, b=[2], c={"x": 1})),
    "keys in quotes": ("[f('a'=1, \"b\": 2, “c”=3)]", f(a=1, b=2, c=3)),
    "typographic quotes": ("[f(a=“x 'y'”, b=„z“, c=‘w’)]", f(a="x 'y'", b="z", c="w")),
    "bare words as keys of a dict": ("[f(a={x: 1, y: {z: 2}})]", f(a={"x": 1, "y": {"z": 2}})),
    "keys that are numbers": ("[f(a={1.5: 1, -1: 2, (3): 4})]", f(a={"1.5": 1, "-1": 2, "3": 4})),
    "tuples in tuples": ("[f(a=((1, 2), (3), (), {}, []))]", f(a=[[1, 2], 3, [], {}, []])),
    "tuples and sets in a dict": ("[f(a={'x': (1,), 'y': {1}})]", f(a={"x": [1], "y": [1]})),
    "space behind a sign": ("[f(a=+ 5, b=- 0.5)]", f(a=5, b=-0.5)),
    "a raw string that is formatted": (r"[f(a=rf'\d{{}}', b=R'\d')]", f(a=r"\d{}", b=r"\d")),
    "a continued line between arguments": ("[f(a=1, \\\n b=2)]", f(a=1, b=2)),
    "a quote that a keyword doesn't follow": ("[f(a='one', two')]", f(a="one', two")),
    "semicolons between calls": ("[f(a=1); g(b=2)]", [("f", {"a": 1}), ("g", {"b": 2})]),
    "object literal": ('[f({"path": "/tmp"})]', f(path="/tmp")),
    "adjacent strings": ("[f(a='x' 'y')]", f(a="xy")),
    "added strings": ("[f(a='x' + 'y' + \"z\")]", f(a="xyz")),
    "plain f-string": ("[f(a=f'x', b=f'{{}}')]", f(a="x", b="{}")),
    "raw string": (r"[f(a=r'\d\n')]", f(a=r"\d\n")),
    "raw string with its quote": (r"[f(a=r'\d\'s', b=1)]", f(a=r"\d\'s", b=1)),
    "u-string": ("[f(a=u'x')]", f(a="x")),
    "triple quotes": ('[f(a="""x "y" z""", b=\'\'\'\'q\'\'\')]', f(a='x "y" z', b="'q")),
    "empty strings": ("[f(a='', b=\"\", c='''''')]", f(a="", b="", c="")),
    "raw newline, tab, NUL": ("[f(a='x\n\ty\0')]", f(a="x\n\ty\0")),
    "escapes": (r"[f(a='\n\t\\\'\"\x41\u00e9\U0001F600\101\N{BULLET}')]", f(a="\n\t\\'\"A\u00e9\U0001f600A\u2022")),
    "unknown escapes": (r"[f(a='\d\q\xZZ\u12')]", f(a=r"\d\q\xZZ\u12")),
    "surrogate pair": (r"[f(a='\ud83d\ude00')]", f(a="\U0001f600")),
    "windows path": (r"[f(a='C:\new')]", f(a="C:\new")),
    "continued line": ("[f(a='x\\\ny')]", f(a="xy")),
    "nested quotes, sed": ("[f(a='sed -n '1,9p' x.py')]", f(a="sed -n '1,9p' x.py")),
    "nested quotes, print": ("[f(a='print('hi')')]", f(a="print('hi')")),
    "nested quotes, list": ("[f(a='print('a', 'b')', b=1)]", f(a="print('a', 'b')", b=1)),
    "apostrophe": ("[f(a='it's fine', b=2)]", f(a="it's fine", b=2)),
    "apostrophe in a dict": ("[f(a={'x': 'it's', 'y': 2}, b=3)]", f(a={"x": "it's", "y": 2}, b=3)),
    "apostrophe at the end of a dict": ("[f(a={'x': 'it's', }, b=3)]", f(a={"x": "it's"}, b=3)),
    "apostrophe in a list": ("[f(a=['it's', 'so'], b=3)]", f(a=["it's", "so"], b=3)),
    "nested double quotes": ('[f(a="say "hi" now")]', f(a='say "hi" now')),
    "brackets in strings": ("[f(a=']', b=')]', c='grep \"]\" x')]", f(a="]", b=")]", c='grep "]" x')),
    "end marker in a string": (f"[f(a='x {END} y')]", f(a=f"x {END} y")),
    "markdown fence": ("```python\n[f(a=1)]\n```", f(a=1)),
    "space everywhere": (" [ f( a = 'x' , b = [ 1 , 2 ] ) ] ", f(a="x", b=[1, 2])),
    "json array": ('[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]', [("f", {"a": 1}), ("g", {})]),
    "json object": ('{"name": "f", "parameters": {"a": "x"}}', f(a="x")),
    "name of a declared tool alone": ("ping", [("ping", {})]),
    "dotted name alone": ("system.get_info", [("system.get_info", {})]),
    "bracket in a string": (
        '[task.create(title="Q4", assignments="[")]',
        [("task.create", {"title": "Q4", "assignments": "["})],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    body, calls = BODIES[name]
    message = parse("pythonic", BEGIN + body + END, TOOLS)
    assert [(c.name, json.loads(c.arguments)) for c in message.tool_calls] == calls
    assert message.content == ""


REFUSED: dict[str, tuple[str, str]] = {
    "sum": ("f(a=1+2)", "expression"),
    "product": ("f(a=60*60)", "syntax"),
    "nested call": ("f(a=g(x=1))", "syntax"),
    "attribute": ("f(a=math.pi)", "expression"),
    "comparison": ("f(a=1 == 1)", "syntax"),
    "bytes": ("f(a=b'x')", "expression"),
    "ellipsis": ("f(a=...)", "expression"),
    "complex": ("f(a=1j)", "expression"),
    "infinity": ("f(a=1e999)", "expression"),
    "nan": ("f(a=nan)", "bare_word"),
    "bare word of unknown type": ("f(a=celsius)", "bare_word"),
    "f-string with a placeholder": ("f(a=f'{x}')", "f_string"),
    "positional, unknown tool": ("f('Paris')", "positional_argument"),
    "positional behind keyword": ("f(a='x', 'y')", "positional_argument"),
    "positional behind keyword, declared tool": ("get_weather(city='x', 'celsius')", "positional_argument"),
    "an object literal behind keyword": ("f(a=1, {'b': 2})", "positional_argument"),
    "no number, for a string": ("set(code=1j)", "expression"),
    "an attribute, for a string": ("set(code=a.b)", "expression"),
    "nan for a number": ("set(count=nan)", "bare_word"),
    "a bare word in a list of unknown type": ("set(tags=[red])", "bare_word"),
    "a bare word in a list within a list": ("label(colours=[[red]])", "bare_word"),
    "raw bytes": ("f(a=rb'x')", "expression"),
    "no comma": ("f(a=[1 2])", "syntax"),
    "a semicolon within": ("f(a=1;)", "syntax"),
    "plus before a string": ("f(a=+'x')", "syntax"),
    "unpacking within a dict": ("f(a={'x': 1, **{'y': 2}})", "syntax"),
    "unbalanced": ("f(a=[1)", "syntax"),
    "method on a string": ("f(a='x'.upper())", "unterminated_string"),
    "starred list": ("f(*[1])", "syntax"),
    "list as a key": ("f(a={[1]: 2})", "dict_key"),
    "deeply nested": ("f(a=" + "[" * 300 + "]" * 300 + ")", "nested_too_deep"),
    "prose": ("I cannot do that.", "syntax"),
    "missing parenthesis": ('get_weather location="Paris")', "syntax"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_calls_become_content(name: str) -> None:
    body, code = REFUSED[name]
    message = parse("pythonic", f"{BEGIN}[{body}]{END}", TOOLS)
    assert message.tool_calls == []
    # No call follows the marks, so they do no work.
    announced = body.startswith(("I cannot", "get_weather ", "f(*"))
    assert message.content == (f"[{body}]" if announced else f"{BEGIN}[{body}]{END}")
    assert [warning.code for warning in message.warnings if warning.code != "stray_marker"] == [code]


@pytest.mark.parametrize(
    "bad",
    [
        "g(a=1+2)",
        "g(a=1+[2, (3)])",
        "g(a=[, 1])",
        "g(a={: 1})",
        "g(a=1+')')",
        "g(a=1+')\\')')",
        "g(a=f'{x})')",
        "g(a=f'''{x}''')",
        'g(a=f"""{x}""")',
        "g(a=[f'{x}', {'b': 1}])",
    ],
)
def test_a_bad_call_leaves_the_good_ones_beside_it(bad: str) -> None:
    message = parse("pythonic", f"{BEGIN}[f(a=1), {bad}, h(b=')')]{END}")
    assert [call.name for call in message.tool_calls] == ["f", "h"]
    assert message.content == bad


SCHEMA: dict[str, tuple[str, str]] = {
    "positional by the order of the schema": (
        "get_weather('Paris', 'celsius')",
        '{"city": "Paris", "unit": "celsius"}',
    ),
    "bare word of an enumeration": ('get_weather(city="x", unit=celsius)', '{"city": "x", "unit": "celsius"}'),
    "number for a string": ("get_weather(city=02139)", '{"city": "02139"}'),
    "string for an integer": ("set(count='42')", '{"count": 42}'),
    "string for a number": ("set(ratio='1.50')", '{"ratio": 1.50}'),
    "string for a boolean": ("set(on='true')", '{"on": true}'),
    "string for an array": ("set(tags='[1, 2]')", '{"tags": [1, 2]}'),
    "not a number at all": ("set(count='many')", '{"count": "many"}'),
    "a valid value stays": ("set(code='42')", '{"code": "42"}'),
    "nan for a string": ("set(code=nan)", '{"code": "nan"}'),
    "infinity for a string": ("set(code=-inf)", '{"code": "-inf"}'),
    "a constant for a string": ("set(code=true)", '{"code": "true"}'),
    "one behind another": ("set(count='42', code='x', tags='[1]')", '{"count": 42, "code": "x", "tags": [1]}'),
    "unpacked": ("set(**{'count': '42', 'code': 7})", '{"count": 42, "code": "7"}'),
    "within an array": ("set(code=[1, 'x'], count=['1'])", '{"code": [1, "x"], "count": ["1"]}'),
    "bare words of an array": ("label(colours=[red, blue], count='1')", '{"colours": ["red", "blue"], "count": 1}'),
    "bare words of an unpacked array": ("label({'colours': [red], 'count': 1})", '{"colours": ["red"], "count": 1}'),
    "bare words of a set": ("label(colours={red, blue})", '{"colours": ["red", "blue"]}'),
    "a positional array": ("label([red], 1)", '{"colours": ["red"], "count": 1}'),
    "a positional object": ("apply({'x': 1}, 2)", '{"options": {"x": 1}, "count": 2}'),
    "a positional tuple": ("label(('red', 'blue'))", '{"colours": ["red", "blue"]}'),
}


@pytest.mark.parametrize("name", SCHEMA)
def test_values_follow_the_schema(name: str) -> None:
    body, arguments = SCHEMA[name]
    message = parse("pythonic", f"{BEGIN}[{body}]{END}", TOOLS)
    assert [call.arguments for call in message.tool_calls] == [arguments]


MESSAGES: dict[str, tuple[str, str, str, list[str]]] = {
    # text, content, reasoning, names
    "adr form": ('filesystem.list_dir(path="/x")', "", "", ["filesystem.list_dir"]),
    "adr form, twice": (
        'filesystem.list_dir(path="/x")\nfilesystem.list_dir(path="/y")',
        "",
        "",
        ["filesystem.list_dir"] * 2,
    ),
    "adr form on its own line": ('Sure.\nfilesystem.list_dir(path="/x")', "Sure.\n", "", ["filesystem.list_dir"]),
    "adr form within a line": ('Use filesystem.list_dir(path="/x")', 'Use filesystem.list_dir(path="/x")', "", []),
    "adr form, tool not declared": ('filesystem.remove(path="/x")', 'filesystem.remove(path="/x")', "", []),
    "bare list": ("[get_weather(city='x'), ping()]", "", "", ["get_weather", "ping"]),
    "bare list within prose": ("Here: [ping()] done", "Here: [ping()] done", "", []),
    "bare list of an unknown tool": ("[nope()]", "[nope()]", "", []),
    "bare call in a fence": ("```\nping()\n```", "```\nping()\n```", "", []),
    "bare list in back-ticks": ("write `[ping()]`", "write `[ping()]`", "", []),
    "bare call that fails": ("ping(a=1+2)\nok", "ping(a=1+2)\nok", "", []),
    "markdown link": ("See [ping](http://x).", "See [ping](http://x).", "", []),
    "two blocks": (f"a {BEGIN}[f()]{END}\n{BEGIN}[g()]{END} b", "a  b", "", ["f", "g"]),
    "text on both sides": (f"before {BEGIN}[f()]{END}\nafter", "before \nafter", "", ["f"]),
    "reasoning first": (f"<think>\nhm\n</think>\n\n{BEGIN}[f()]{END}", "", "hm", ["f"]),
    "a call in reasoning": (f"<think>{BEGIN}[f()]{END}</think>no", "no", f"{BEGIN}[f()]{END}", []),
    "echo of the block": (f"{BEGIN}[f(a=1)]{END}[f(a=1)]{END}done", "done", "", ["f"]),
    "end marker within a sentence": (f"a{END}b", f"a{END}b", "", []),
    "end marker at the end of a line": (f"a{END}\nb", "a\nb", "", []),
    "beginning of a marker at the end": ("a <|tool", "a <|tool", "", []),
    "two lists": (f"{BEGIN}[f()]\n[g(), h()] [i()]{END}x", "x", "", ["f", "g", "h", "i"]),
    "text behind the list": (f"{BEGIN}[f()] hello", "hello", "", ["f"]),
    "text behind the list, and the end marker": (f"{BEGIN}[f()]\nhello{END} x", "hello x", "", ["f"]),
    "a call behind the list": (f"{BEGIN}[f()]\ng(){END}", "g()", "", ["f"]),
    "dotted names": (f"{BEGIN}[a.b, ping]{END}", "", "", ["a.b", "ping"]),
    "a dotted name behind a call": (f"{BEGIN}[f(), a.b]{END}", "", "", ["f", "a.b"]),
    "a fence between calls": (f"{BEGIN}f()```{END}", "", "", ["f"]),
    "no end marker": (f"{BEGIN}[f(a=1)]", "", "", ["f"]),
    "no end marker behind a name": (f"{BEGIN}ping", "", "", ["ping"]),
    "no end marker behind an unknown name": (f"{BEGIN}pong", f"{BEGIN}pong", "", []),
    "unfinished": (f"{BEGIN}[f(a=1), g(b='x", "g(b='x", "", ["f"]),
    "space alone": (" \n", " \n", "", []),
    "nothing": ("", "", "", []),
    "angle brackets": ("1 < 2 and <b>x</b>", "1 < 2 and <b>x</b>", "", []),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    text, content, reasoning, names = MESSAGES[name]
    message = parse("pythonic", text, TOOLS)
    assert (message.content, message.reasoning) == (content, reasoning)
    assert [call.name for call in message.tool_calls] == names


def test_a_cut_answer_ends_in_a_cut_call() -> None:
    message = parse("pythonic", f"{BEGIN}[f(a=1), g(b='x", reason="length")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"a": 1}'), ("g", '{"b": "x')]
    assert message.content == ""
    assert [warning.code for warning in message.warnings] == ["truncated_call"]


@pytest.mark.parametrize("behind", ["", " ", ",", ", ", ", b", ", b=", ", b=0.", ", b=[", ", b='x"])
def test_an_answer_ends_wherever_it_is_cut(behind: str) -> None:
    message = parse("pythonic", f"{BEGIN}[add(a=0.00), add(a=0.25{behind}", reason="length")
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    assert calls[0] == ("add", '{"a": 0.00}')
    assert all(name == "add" and arguments.startswith('{"a": 0.25') for name, arguments in calls[1:])


def test_a_call_is_held_until_it_is_complete() -> None:
    parser = normalizer("pythonic", TOOLS)
    assert parser.held is None
    assert not [event for char in BEGIN + "[get_weather(city='Par" for event in parser.feed(char)]
    assert parser.held == ("get_weather", len("[get_weather(city='Par"))
    events = [event for char in "is')]" for event in parser.feed(char)]
    assert [type(event) for event in events] == [ToolStart, ToolArgs, ToolEnd]
    assert parser.held is None


def test_the_arguments_of_a_guarded_call_leave_before_they_end() -> None:
    parser = normalizer("pythonic", TOOLS, guarded=True)
    events = [event for char in BEGIN + "[get_weather(city='Par" for event in parser.feed(char)]
    assert isinstance(events[0], ToolStart)
    assert "".join(e.json for e in events if isinstance(e, ToolArgs)) == '{"city": "Par'


def test_names_are_matched_across_any_tool_list() -> None:
    events = run("pythonic", ["[pi", "ng()]"], [tool("ping"), tool("pong")])
    assert [event.name for event in events if isinstance(event, ToolStart)] == ["ping"]
