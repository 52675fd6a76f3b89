"""Reads YAML into plain values, and records the line and column of each.

Reports duplicate keys, tags, keys that aren't text, and unset variables; knows nothing of what keys mean.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.config.problems import ConfigError, Problem, Unreadable

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of the file."""

_Parser: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^${}]*))?\}")

LONGEST_NUMBER = 100
MAX_BYTES = 1024 * 1024
MAX_DEPTH = 16
MAX_NODES = 50_000
"""Aliases are expanded, so a small text can describe a huge value."""
TOO_OFTEN = "nested or repeated too often"
UNFILLED = "of a file that is sent, only variables that the gateway's own has in the same text at the same place are"


class _TooDeep(Exception):
    """Raised at the first node that is too deep."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node


class _Loader(_Parser):  # type: ignore[misc] # libyaml's if it is installed
    """Limits the depth: libyaml recurses in C without a limit, and 100,000 brackets would crash the process.

    The parser calls the resolver's descend and ascend around each node.
    """

    depth = 0

    def descend_resolver(self, parent: Node, index: object) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH + 2:
            raise _TooDeep(parent)

    def ascend_resolver(self) -> None:
        self.depth -= 1


class Filled(str):
    """Text from variables. Counts as a number where the schema wants one."""


@dataclass(slots=True)
class Document:
    file: Path
    environ: Mapping[str, str]
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    written: dict[KeyPath, str] = field(default_factory=dict)
    """Scalars as written in the file, before variables are filled in."""
    filled: dict[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    """The values of the variables in each scalar that names some."""
    trusted: Mapping[KeyPath, str] | None = None
    """The scalars whose variables are filled in; None: all. In others stays what is written, or the default."""
    unfilled: dict[KeyPath, str] = field(default_factory=dict)
    """One variable of each scalar that names some, isn't trusted and has no default."""
    values: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    keys: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    renamed: dict[KeyPath, str] = field(default_factory=dict)
    """Path in the normal form → key as written in the file."""

    def place(self, path: KeyPath, *, key: bool = False) -> tuple[int, int]:
        """Line and column of the value at `path` (or of its key), else of the nearest enclosing one."""
        if key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
            key = True
        return self.keys[path] if key and path in self.keys else self.values.get(path, (1, 1))

    def at(self, path: KeyPath, message: str, cure: str = "", *, key: bool = False) -> Problem:
        if path in self.unfilled and not key:
            message, cure = f"{self.unfilled[path]} isn't filled in", UNFILLED
        line, column = self.place(path, key=key)
        return Problem(message, cure, self.file, line, column)

    def problem(self, path: KeyPath, message: str, cure: str = "", *, key: bool = False) -> None:
        self.problems.append(self.at(path, message, cure, key=key))

    def note(self, path: KeyPath, message: str) -> None:
        self.notes.append(self.at(path, message, key=True))

    def rename(self, mapping: dict[str, Any], place: KeyPath, old: str, new: str) -> None:
        """Renames the key `old` of `mapping`, which is at `place`, to `new`; keeps the order."""
        items = list(mapping.items())
        mapping.clear()
        mapping.update((new if k == old else k, v) for k, v in items)
        before, after = (*place, old), (*place, new)
        tables: tuple[dict[KeyPath, Any], ...] = (self.written, self.filled, self.unfilled, self.values, self.keys)
        for table in tables:
            for path in [path for path in table if path[: len(before)] == before]:
                table[after + path[len(before) :]] = table.pop(path)
        self.renamed[after] = old


def read(file: Path, environ: Mapping[str, str] | None = None, text: str | None = None) -> Document:
    """The file's values, with variables from `environ` (None: the process's own).

    text: read this instead of the file's content. Of variables it gets only those that the file has in the same text at
    the same place: else whoever sends a text could read any variable in what is said about it.
    Raises ConfigError if the file can't be read or isn't YAML; collects other problems in the document.
    """
    document = Document(file, os.environ if environ is None else environ)
    if text is None:
        text = _text(file)
    else:
        document.trusted = {}
        with suppress(ConfigError):
            document.trusted = read(file, environ).written
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError((_syntax(file, text, error),)) from error
    except _TooDeep as error:
        mark = error.node.start_mark
        problem = Problem(TOO_OFTEN, "", file, mark.line + 1, mark.column + 1)
        raise ConfigError((problem,)) from None
    if not isinstance(root, MappingNode):
        cure = "begin with active_model: and models:"
        raise ConfigError((Problem("the file must be a mapping of keys to values", cure, file, 1, 1),))
    document.data = _Reader(document).value(root, ())
    return document


def _text(file: Path) -> str:
    try:
        # Nobody may ever write to a pipe, and to open one would wait for it.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise Unreadable((Problem("isn't a plain file", "", file),))
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unreadable((Problem(f"can't be read: {error.strerror}", "", file),)) from error
    if len(raw) > MAX_BYTES:
        raise ConfigError((Problem(f"is longer than {MAX_BYTES} bytes", "", file),))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise ConfigError((Problem("isn't UTF-8 text", "save it as UTF-8", file, line, column),)) from error


_IN_QUOTES = "quote a text that begins with one of * & ! @ % `"
_CURES = {
    "mapping values are not allowed": 'quote a text that contains ": ", and put each key on its own line',
    "did not find expected key": "indent it like the keys beside it, and remove text after a closing quote",
    "did not find expected '-' indicator": "begin every line of the list with -, or none",
    "sequence entries are not allowed": "begin the list on its own line, or write [a, b]",
    "did not find expected ','": "separate the items in brackets by commas, and close the bracket",
    "end of stream": "close the quotation",
    "another document": "remove the line ---: the file is one document",
    "undefined alias": _IN_QUOTES,
    "cannot start any token": _IN_QUOTES,
    "expected alphabetic or numeric character": _IN_QUOTES,
}
"""Part of libyaml's message → cure."""


def _syntax(file: Path, text: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        return Problem(f"a character that YAML doesn't allow: {error.character!r}", "delete it", file, line, column)
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or str(error)
    if "end of stream" in said:  # an open quotation: its start helps more than the file's end
        mark = getattr(error, "context_mark", None) or mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    cure = next((cure for part, cure in _CURES.items() if part in said), "")
    lines = [*text.split("\n"), ""]
    if "\t" in lines[line - 1][: column + 1]:
        cure = "indent with spaces, not tabs"
    elif "${" in lines[line - 1]:
        cure = 'between { } or [ ], write "${NAME}" in quotes'
    return Problem(f"not YAML: {said}", cure, file, line, column)


class _Reader(SafeConstructor):
    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document
        self.environ = document.environ
        self.nodes = 0
        self.open: set[int] = set()

    def value(self, node: Node, path: KeyPath) -> Any:
        document = self.document
        document.values[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH or id(node) in self.open:
            document.problem(path, TOO_OFTEN)
            raise ConfigError(tuple(document.problems))
        self.open.add(id(node))
        try:
            if isinstance(node, ScalarNode):
                return self.scalar(node, path)
            if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            if isinstance(node, MappingNode) and node.tag == _TAG + "map":
                return self.mapping(node, path)
        finally:
            self.open.discard(id(node))
        document.problem(path, f"the YAML tag {node.tag.replace(_TAG, '!!')} has no meaning here", "leave it out")
        return None

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[MappingNode] = []
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if key_node.tag == _TAG + "merge":
                sources = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                if all(isinstance(source, MappingNode) for source in sources):
                    merged += sources
                else:
                    self.document.problem(path, "<< takes a mapping, or a list of mappings", "write <<: *anchor")
                continue
            key = key_node.value if isinstance(key_node, ScalarNode) else None
            inner = (*path, str(key))
            place = (mark.line + 1, mark.column + 1)
            if key is None or key_node.tag != _TAG + "str":
                written = "" if key is None else f" {key}"
                cure = "" if key is None else f'put it in quotes: "{key}"'
                self.document.problems.append(Problem(f"the key{written} isn't text", cure, self.document.file, *place))
                if key is None:
                    continue
            if key in found:
                first = self.document.keys[inner][0]
                message = f"{key} is given twice; the first one is on line {first}"
                self.document.problems.append(Problem(message, "keep one of them", self.document.file, *place))
                continue
            self.document.keys[inner] = place
            found[key] = self.value(value_node, inner)
        for source in merged:
            for key, value in self.value(source, (*path, "<<")).items():
                if key not in found:
                    found[key] = value
                    self.document.values[(*path, key)] = self.document.values[(*path, "<<", key)]
        return found

    def scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        text, tag = node.value, node.tag
        self.document.written[path] = text
        if "${" in text:
            text = self.filled(text, path)
            return Filled(text) if text else None
        if tag in (_TAG + "str", _TAG + "timestamp", _TAG + "value"):
            return text
        try:
            if tag in (_TAG + "int", _TAG + "float") and len(text) > LONGEST_NUMBER:
                raise ValueError  # pyyaml's work on base 60 grows with the square of the length
            plain = ScalarNode(tag, text)
            match tag.removeprefix(_TAG):
                case "null":
                    return None
                case "bool":
                    return self.construct_yaml_bool(plain)
                case "int":
                    number = self.construct_yaml_int(plain)
                    if abs(number) >= 2**63:
                        raise ValueError  # JSON for clients couldn't have it
                    return number
                case "float":
                    return self.construct_yaml_float(plain)
        except (ValueError, IndexError, KeyError):  # from pyyaml, if the text doesn't fit its tag
            self.document.problem(path, f"{node.value} isn't a number", "put it in quotes if it is text")
            return None
        self.document.problem(path, f"the YAML tag {tag.replace(_TAG, '!!')} has no meaning here", "leave it out")
        return None

    def filled(self, text: str, path: KeyPath) -> str:
        trusted = self.document.trusted is None or self.document.trusted.get(path) == text

        def fill(match: re.Match[str]) -> str:
            name, default = match.groups()
            if trusted and (value := self.environ.get(name)):
                self.document.filled[path] = (*self.document.filled.get(path, ()), value)
                return value
            if default is not None:
                return default
            if not trusted:
                return self.document.unfilled.setdefault(path, match[0])
            if name not in self.environ:
                self.document.problem(
                    path, f"the environment variable {name} isn't set", f"set it, or write ${{{name}:-default}}"
                )
            return ""

        if "${" in _VARIABLE.sub("", text):
            self.document.problem(path, f"{text!r} isn't a variable", "write ${NAME} or ${NAME:-default}")
            return text
        return _VARIABLE.sub(fill, text)
