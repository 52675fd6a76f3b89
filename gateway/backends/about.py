"""Reads a model's chat template, architecture and special tokens from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gateway.backends import gguf
from gateway.wire.chat import encode

TEMPLATE, ARCHITECTURE, TOKENS = "tokenizer.chat_template", "general.architecture", "tokenizer.ggml.tokens"


class About(msgspec.Struct, frozen=True):
    """template: "" if the model has none, None if unknown. tokens: the special tokens that look like markers.
    source: the file or endpoint that this comes from. sees, thinks, inserts: the server says that the model reads
    images, thinks before it answers, and fills the gap between two texts; None if it says nothing."""

    template: str | None = None
    architecture: str = ""
    tokens: tuple[str, ...] = ()
    source: str = ""
    sees: bool | None = None
    thinks: bool | None = None
    inserts: bool | None = None

    @property
    def takes_tools(self) -> bool:
        """Whether the template has a place for tools; True if it is unknown."""
        return self.mentions("tools") or self.mentions('"tool_use"')  # the name of a separate template for tools

    def mentions(self, word: str) -> bool:
        """Whether the template contains the word; True if the template is unknown."""
        return self.template is None or word in self.template


UNKNOWN = About()


def about(path: Path | None) -> About:
    """Reads a GGUF file, a model's folder, a `tokenizer_config.json`, or a template's `.jinja` file. Returns UNKNOWN
    if that fails."""
    if path is None:
        return UNKNOWN
    try:
        if path.is_dir():
            return _folder(path)
        if path.suffix == ".jinja":
            return About(path.read_text("utf-8"), source=path.name)
        if path.suffix == ".json":
            template, tokens = _tokenizer_config(_json(path))
            return About(template, tokens=tokens, source=path.name) if template or tokens else UNKNOWN
        return _gguf(path)
    except (OSError, ValueError):  # NotGGUF, DecodeError and UnicodeDecodeError are ValueErrors
        return UNKNOWN


def _gguf(path: Path) -> About:
    found = gguf.metadata(path, (TEMPLATE, ARCHITECTURE, TOKENS), arrays=(TOKENS,))
    markers = tuple(filter(_is_marker, found.get(TOKENS) or ()))
    return About(_text(found.get(TEMPLATE)), _text(found.get(ARCHITECTURE)), markers, path.name)


def _folder(folder: Path) -> About:
    template = ""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        template = jinja.read_text("utf-8")
    configured, tokens = _tokenizer_config(_json(folder / "tokenizer_config.json"))
    template = template or _tokenizer_config(_json(folder / "chat_template.json"))[0] or configured
    return About(template, _text(_json(folder / "config.json").get("model_type")), tokens, folder.name)


def _tokenizer_config(config: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The template, and the tokens that look like markers. Of several templates, the list as JSON."""
    found = config.get("chat_template") or ""
    added = config.get("added_tokens_decoder")
    tokens = [str(token.get("content")) for token in added.values()] if isinstance(added, dict) else []
    return found if isinstance(found, str) else encode(found).decode(), tuple(filter(_is_marker, tokens))


def special_tokens(folder: Path | None) -> tuple[str, ...]:
    """The texts that the tokenizer of a model's folder always reads as tokens. () if its files don't tell."""
    try:
        if folder is None or not folder.is_dir():
            return ()
        added = _json(folder / "tokenizer.json").get("added_tokens")
        if not isinstance(added, list):
            added = [*(_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}).values()]
        return tuple(str(token["content"]) for token in added if token.get("special") is True)
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return ()


def _json(file: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(file.read_bytes())
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_marker(token: str) -> bool:
    return len(token) > 3 and token[0] in "<[" and token[-1] in ">]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
