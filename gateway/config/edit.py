"""Edits config.yaml as text: one model or one value changes, every other byte stays, comments included.

The functions on text raise ProviderInvalidRequest if the file doesn't have the shape that they need, and know no more
of the file than that: `write` checks that the new text loads and means what it should.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING

from gateway.config.folders import whole
from gateway.config.loader import load
from gateway.config.values import Config
from gateway.errors import ProviderInvalidRequest

if TYPE_CHECKING:
    from yaml import MappingNode, Node

BOM = b"\xef\xbb\xbf"


def write(file: Path, before: bytes, after: bytes, holds: Callable[[Config], bool]) -> None:
    """Replaces the file atomically; its mode and links to it stay.

    holds: whether the new configuration is as wanted. Raises ProviderInvalidRequest if somebody changed the file since
    it was `before`, or unless `holds`; ConfigError if `after` isn't valid.
    """
    if not holds(load(file, text=after.decode("utf-8-sig"))):
        raise ProviderInvalidRequest(f"{file} can't be edited automatically: change it in an editor")
    # Resolved, so that a link to the file stays a link.
    file = file.resolve()
    if file.read_bytes() != before:
        raise ProviderInvalidRequest(f"{file} changed meanwhile: nothing was written; do it again")
    whole(file, after, S_IMODE(file.stat().st_mode))


def with_active_model(text: bytes, name: str) -> bytes:
    """The file with another `active_model`, which must be a plain scalar in it."""
    import yaml

    written, root = _composed(text)
    found = _value(root, "active_model")
    if not isinstance(found, yaml.ScalarNode) or "$" in found.value:
        raise ProviderInvalidRequest(
            "active_model isn't a plain name in the file: write the model's name there, or change the variable yourself"
        )
    start, end = found.start_mark.index, found.end_mark.index
    return _encoded(text, written[:start] + name + written[end:])


def with_model(text: bytes, entry: str) -> bytes:
    """The file with one more model, the last. entry: its lines, as they stand without indentation."""
    written, root = _composed(text)
    models = _models(root)
    end = _end(written, models)
    margin = " " * models.value[0][0].start_mark.column
    lines = [f"{margin}{line}".rstrip() for line in entry.rstrip("\n").split("\n")]
    before = written[:end] if written[:end].endswith("\n") else written[:end] + "\n"
    gap = "" if written[end : end + 1] in ("", "\n") else "\n"
    return _encoded(text, "\n".join([before, *lines, gap + written[end:]]))


def without_model(text: bytes, name: str) -> bytes:
    """The file without the model, and without the comment right above it."""
    written, root = _composed(text)
    models = _models(root)
    found = [(key, value) for key, value in models.value if key.value == name]
    if len(found) != 1:
        raise ProviderInvalidRequest(f"{name} isn't a separate entry under models: remove it in an editor")
    key, value = found[0]
    start = written.rfind("\n", 0, key.start_mark.index) + 1
    margin = " " * key.start_mark.column
    while (above := _line_above(written, start)) is not None and above[1].startswith(f"{margin}#"):
        start = above[0]
    end = _end(written, value)
    above = _line_above(written, start)
    if above is not None and not above[1].strip() and written[end : end + 1] == "\n":
        end += 1  # one of two empty lines
    return _encoded(text, written[:start] + written[end:])


def with_keys(text: bytes, model: str, keys: Mapping[str, str], *, comment: str = "") -> bytes:
    """The file with these keys in the model's entry. keys: values as YAML on one line.

    A key that stands there gets the value; the others follow the entry's last key. comment: follows the first value,
    instead of an older one that begins with the same word; an entry in braces has no place for it.
    """
    import yaml

    for key, value in keys.items():
        written, root = _composed(text)
        entry = _value(_models(root), model)
        if not isinstance(entry, yaml.MappingNode) or not entry.value:
            raise ProviderInvalidRequest(f"{model} isn't a separate entry under models: change it in an editor")
        text = _encoded(text, _with_key(written, entry, key, value, "" if entry.flow_style else comment))
        comment = ""
    return text


def _with_key(written: str, entry: MappingNode, key: str, value: str, comment: str) -> str:
    noted = f"{value}  # {comment}" if comment else value
    for name, old in entry.value:
        if name.value == key:
            if old.start_mark.index < name.end_mark.index:
                raise ProviderInvalidRequest(f"{key} is shared by an anchor: change it in an editor")
            rest = written[_last(old).end_mark.index :]
            if comment:
                rest = re.sub(rf"\A[ \t]*# {re.escape(comment.split()[0])} [^\n#]*?(?=[ \t]*(?:#|\n|\Z))", "", rest)
            return f"{written[: name.end_mark.index]}: {noted}{rest}"
    if entry.flow_style:
        end = entry.end_mark.index - 1
        inside = written[:end].rstrip()
        return f"{inside}{' ' if inside.endswith(',') else ', '}{key}: {value}{written[end:]}"
    end = _end(written, entry)
    before = written[:end] if written[:end].endswith("\n") else written[:end] + "\n"
    return f"{before}{' ' * entry.value[0][0].start_mark.column}{key}: {noted}\n{written[end:]}"


def _composed(text: bytes) -> tuple[str, MappingNode]:
    import yaml

    written = text.decode("utf-8-sig")
    root = yaml.compose(written, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ProviderInvalidRequest("the file isn't a mapping")
    return written, root


def _encoded(text: bytes, written: str) -> bytes:
    return (BOM if text.startswith(BOM) else b"") + written.encode()


def _value(mapping: MappingNode, name: str) -> Node | None:
    """The value of the only key with this name."""
    found = [value for key, value in mapping.value if key.value == name]
    return found[0] if len(found) == 1 else None


def _models(root: MappingNode) -> MappingNode:
    """Raises ProviderInvalidRequest unless each model stands on lines of its own."""
    import yaml

    models = _value(root, "models")
    if not isinstance(models, yaml.MappingNode) or models.flow_style or not models.value:
        raise ProviderInvalidRequest("models: is written in braces; write each model on lines of its own")
    return models


def _last(node: Node) -> Node:
    """The value with which a block ends. The block's own end lies behind the comments that follow it."""
    import yaml

    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


def _end(written: str, node: Node) -> int:
    """Where the line after the node's last one begins."""
    end = _last(node).end_mark
    at = end.index
    if at and written[at - 1] == "\n" and end.column == 0:
        return int(at)  # a literal text, which ends with its line
    line_end = written.find("\n", at)
    return len(written) if line_end < 0 else line_end + 1


def _line_above(written: str, start: int) -> tuple[int, str] | None:
    """Where the line before `start` begins, and its text."""
    if not start:
        return None
    begins = written.rfind("\n", 0, start - 1) + 1
    return begins, written[begins : start - 1]
