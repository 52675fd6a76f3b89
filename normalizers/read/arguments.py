"""Writes the arguments of one call as JSON while their tokens arrive.

The writer acts on each token, not on the grammar's reductions, which come only after a whole argument.
It emits what no later token can change. It holds back a scalar until its delimiter, the first element
of ``{`` or ``(`` until a token shows what the bracket means, a dict key until its colon, and a value
whose type the tool's schema refuses until its end.

The dialect's grammar has already checked that the token may come here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from normalizers.base import CallWriter
from normalizers.values.coerce import SchemaIndex, accepts, fitted_scalar
from normalizers.values.literals import CONSTANTS, json_number, json_string_body
from normalizers.values.loose_json import MAX_DEPTH, Malformed

_BAREWORD = re.compile(r"[^\W\d][\w\-]*")


class _Frame:
    __slots__ = ("kind", "lead", "naming")

    def __init__(self, kind: str, lead: str = "") -> None:
        self.kind = kind
        """``A``: arguments. ``M``: a dict whose pairs are arguments. ``[``: list, set or tuple. ``{``: dict.
        Undecided: ``?`` (dict or set) and ``(`` (tuple or parentheses)."""
        self.lead = lead
        self.naming = False
        """In a dict, whether the next value is a key."""


class ArgumentWriter:
    """One call at a time: `begin`, then `token` for each token after ``(``, while `open`."""

    __slots__ = (
        "_announced",
        "_calls",
        "_coerce_lead",
        "_count",
        "_frames",
        "_held",
        "_id",
        "_key",
        "_keyed",
        "_lead",
        "_parts",
        "_pending",
        "_position",
        "_schemas",
        "_unpack",
        "begun",
        "in_string",
        "name",
        "open",
        "undeclared",
    )

    def __init__(self, calls: CallWriter, schemas: SchemaIndex) -> None:
        self._calls = calls
        self._schemas = schemas
        self._frames: list[_Frame] = []
        self.begin("")
        self.open = self.begun = False
        """`open`: within the call's parentheses. `begun`: neither ended nor abandoned."""

    def begin(self, name: str, native_id: str | None = None) -> None:
        self.name = name
        self.undeclared = self._calls.refuses(name)
        """The call is text, since the request doesn't declare its tool."""
        self.open = self.begun = True
        self._id = native_id
        self._announced = False
        self._frames = [_Frame("A")]
        self._parts: list[str] = []
        self._held: list[list[str]] = []
        self._pending: tuple[str, str] | None = None
        self._lead = ""
        self._coerce_lead: str | None = None
        self._key: str | None = None
        self._count = self._position = 0
        self._keyed = self._unpack = False
        self.in_string = False

    @property
    def count(self) -> int:
        """The number of arguments begun so far."""
        return self._count

    @property
    def depth(self) -> int:
        return len(self._frames)

    @property
    def context(self) -> str:
        """The kind of the innermost bracket (see `_Frame`); ``K`` if a dict's key comes next."""
        frame = self._frames[-1]
        return "K" if frame.naming else frame.kind

    @property
    def before_argument(self) -> bool:
        """Whether an argument may begin here, with its key or without."""
        return self._key is None and self._pending is None and self._frames[-1].kind == "A"

    @property
    def positional(self) -> bool:
        """Whether the current argument has no key of its own."""
        return self._position > 0 and not self._keyed

    # -- tokens --------------------------------------------------------------------------------

    def token(self, kind: str, text: str) -> None:
        """Take a word, a number or a sign. Raises `Malformed`."""
        if kind == "NAME" or kind == "NUMBER":
            self._pending = (kind, text)
        elif kind == "EQUAL":
            assert self._pending is not None
            self._set_key(self._pending[1])
            self._keyed = True
            self._pending = None
        elif kind != "PLUS":
            self.delimiter(kind)

    def delimiter(self, kind: str) -> None:
        """Take a bracket, comma, colon or ``**``, which ends the scalar before it. Raises `Malformed`."""
        if self.in_string:
            self.in_string = False
            self._parts.append('"')
        elif self._pending is not None:
            if kind == "COLON" and self._frames[-1].kind == "A":
                self._calls.repaired("lexical")
                self.token("EQUAL", "=")
                return
            scalar = self._pending
            self._pending = None
            self._scalar(*scalar)
        _STEPS[kind](self)

    def open_string(self) -> None:
        """Take a string's opening quote. A string right after a string continues it. Raises `Malformed`."""
        if not self.in_string:
            if self._frames[-1].kind in "AM":
                self._value("string")
            self._put('"')
            self.in_string = True

    def string(self, body: str) -> None:
        """Take more of the open string, as it stands between the quotes of a JSON string."""
        self._parts.append(body)

    def argument(self, key: str) -> None:
        """Begin an argument whose value comes as a string or as JSON, not as tokens."""
        self.end_argument()
        self._set_key(key)

    def begin_string(self) -> None:
        self._put('"')
        self.in_string = True

    def value(self, json_text: str) -> None:
        self._put(json_text)

    def end_argument(self) -> None:
        if self.in_string:
            self.in_string = False
            self._parts.append('"')
        self._key = None

    def flush(self) -> None:
        """Emit all that is certain, if the call needn't be held."""
        if self._calls.guarded:
            self._emit()

    def _emit(self) -> None:
        live = self._held[0] if self._held else self._parts
        if live:
            text = live[0] if len(live) == 1 else "".join(live)
            live.clear()
            if not self._announced:
                self._announced = True
                self._calls.start(self.name, self._id)
            self._calls.args(text)

    def end(self, raw: str) -> None:
        """Complete the call. `raw` is its source."""
        self.end_argument()
        self._parts.append("}" if self._count else "{}")
        self._emit()
        self._calls.end(raw)
        self.open = self.begun = False

    @property
    def streaming(self) -> int:
        """The call's index if the rest of the open string goes out as it comes in; else -1."""
        if self.in_string and self._announced and not self._held and not self._parts:
            return self._calls.live
        return -1

    def cut(self) -> None:
        """End a call that the answer's length cut, with the arguments that are certain; without any it is dropped."""
        if self.begun:
            self._emit()
            if self._announced:
                self._calls.cut()
        self.abandon()

    def abandon(self) -> None:
        """Drop a malformed call. A guarded one emits what is certain, and never ends."""
        if self.begun:
            self.flush()
        self.open = self.begun = False

    def _put(self, text: str) -> None:
        if self._lead:
            self._parts.append(self._lead)
            self._lead = ""
        self._parts.append(text)

    def _hold(self) -> None:
        self._held.append(self._parts)
        self._parts = []

    def _release(self) -> str:
        text = "".join(self._parts)
        self._parts = self._held.pop()
        return text

    def _push(self, kind: str, lead: str = "") -> _Frame:
        if len(self._frames) >= MAX_DEPTH:
            raise Malformed("nested_too_deep")
        frame = _Frame(kind, lead)
        self._frames.append(frame)
        return frame

    # -- arguments and their values ------------------------------------------------------------

    def _set_key(self, key: str) -> None:
        self._key = key
        self._lead = f'{", " if self._count else "{"}"{json_string_body(key)}": '
        self._count += 1

    def _value(self, *kinds: str) -> None:
        """Begin a value of one of these JSON types; hold it back if the schema refuses them all."""
        if self._frames[-1].kind not in "AM" or self._frames[-1].naming:
            return
        key = self._argument_key()
        types = self._schemas.types(self.name, key)
        if types is not None and not any(accepts(types, kind) for kind in kinds):
            self._coerce_lead = self._lead
            self._lead = ""
            self._hold()

    def _argument_key(self) -> str:
        if self._key is None:
            key = None if self._keyed else self._schemas.positional(self.name, self._position)
            if key is None:
                raise Malformed("positional_argument")
            self._position += 1
            self._set_key(key)
            return key
        return self._key

    def _end_argument(self) -> None:
        if self._coerce_lead is not None:
            assert self._key is not None
            text = self._release()
            value = self._schemas.coerced(self.name, self._key, text)
            self._parts += (self._coerce_lead, value)
            self._coerce_lead = None
            if value != text:
                self._calls.repaired("schema")
        self._key = None

    def _scalar(self, kind: str, text: str) -> None:
        frame = self._frames[-1]
        types = None
        if frame.kind in "AM" and not frame.naming:
            types = self._schemas.types(self.name, self._argument_key())
        elif kind == "NAME" and self._in_array and self._key is not None:
            types = self._schemas.item_types(self.name, self._key)
        value = CONSTANTS.get(text) if kind == "NAME" else json_number(text)
        if value is None:
            value = self._as_string(text, types, frame.naming or frame.kind == "?")
        elif types is not None and frame.kind in "AM" and (fitted := fitted_scalar(value, text, types)) != value:
            self._calls.repaired("schema")
            value = fitted
        self._put(value)

    @property
    def _in_array(self) -> bool:
        """Whether the next value is an item of an argument that is an array."""
        frames = self._frames
        return frames[-1].kind == "[" and len(frames) == (3 if frames[1].kind == "M" else 2)

    def _as_string(self, text: str, types: frozenset[str] | None, naming: bool) -> str:
        """The JSON string of a bare word or of ``nan``."""
        wanted = naming or (types is not None and "string" in types)
        if not wanted or not (_BAREWORD.fullmatch(text) or text.lstrip("+-").lower() in _NOT_FINITE):
            raise Malformed("bare_word" if _BAREWORD.fullmatch(text) else "expression")
        self._calls.repaired("lexical")
        return f'"{json_string_body(text)}"'

    # -- brackets and delimiters ---------------------------------------------------------------

    def _open_list(self) -> None:
        self._value("array")
        self._put("[")
        self._push("[")

    def _open_paren(self) -> None:
        self._value("array", "string", "integer", "number", "boolean", "null", "object")
        self._push("(", self._lead)
        self._lead = ""
        self._hold()

    def _open_brace(self) -> None:
        if self._unpack or self._is_argument_object():
            self._unpack = False
            frame = self._push("M")
            frame.naming = True
        else:
            self._value("object", "array")
            self._push("?", self._lead)
            self._lead = ""
        self._hold()

    def _is_argument_object(self) -> bool:
        """Whether the brace of ``f({...})`` holds all arguments: not if the first parameter takes an object."""
        if self._count or self._frames[-1].kind != "A":
            return False
        first = self._schemas.positional(self.name, 0)
        return first is None or not accepts(self._schemas.types(self.name, first), "object")

    def _close_paren(self) -> None:
        frame = self._frames.pop()
        if frame.kind == "A":
            self._end_argument()
            self.open = False
        elif frame.kind == "(":
            self._put(frame.lead + (self._release() or "[]"))
        else:
            self._put_close("]")

    def _close_bracket(self) -> None:
        self._frames.pop()
        self._put_close("]")

    def _put_close(self, bracket: str) -> None:
        self._lead = ""
        self._parts.append(bracket)

    def _close_brace(self) -> None:
        frame = self._frames.pop()
        if frame.kind == "M":
            if frame.naming:
                self._release()
            else:
                self._end_argument()
        elif frame.kind == "?":
            element = self._release()
            self._parts.append(frame.lead + (f"[{element}]" if element else "{}"))
        else:
            if frame.naming:
                self._release()
            self._put_close("}" if frame.kind == "{" else "]")

    def _colon(self) -> None:
        frame = self._frames[-1]
        key = self._release()
        if key[:1] in ("[", "{"):
            raise Malformed("dict_key")
        frame.naming = False
        if key[:1] != '"':
            key = f'"{key}"'
        if frame.kind == "M":
            self._set_key(json.loads(key))
        else:
            self._parts.append(f"{frame.lead}{'{' if frame.kind == '?' else ''}{key}: ")
            frame.kind = "{"

    def _comma(self) -> None:
        frame = self._frames[-1]
        if frame.kind in "?(":
            self._parts_after_decision(frame)
        elif frame.kind == "A":
            self._end_argument()
        elif frame.kind == "[":
            self._lead = ", "
        else:
            if frame.kind == "M":
                self._end_argument()
            frame.lead = ", "
            frame.naming = True
            self._hold()

    def _parts_after_decision(self, frame: _Frame) -> None:
        first = self._release()
        self._parts.append(f"{frame.lead}[{first}")
        frame.kind = "["
        self._lead = ", "

    def _double_star(self) -> None:
        self._unpack = True


_NOT_FINITE = ("nan", "inf", "infinity")
_STEPS: dict[str, Callable[[ArgumentWriter], None]] = {
    "LPAR": ArgumentWriter._open_paren,
    "RPAR": ArgumentWriter._close_paren,
    "LSQB": ArgumentWriter._open_list,
    "RSQB": ArgumentWriter._close_bracket,
    "LBRACE": ArgumentWriter._open_brace,
    "RBRACE": ArgumentWriter._close_brace,
    "COLON": ArgumentWriter._colon,
    "COMMA": ArgumentWriter._comma,
    "DOUBLESTAR": ArgumentWriter._double_star,
}
