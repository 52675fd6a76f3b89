"""Parses the sources that `ctxgate add` accepts; no I/O."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from gateway.errors import ProviderInvalidRequest

FORMS = "a GGUF file, an MLX folder, hf:org/repo[:quant], ollama:name, or the URL of a running server"
_HUB = re.compile(r"(?:hf:|(?:https?://)?(?:hf\.co|huggingface\.co)/)(.*)", re.IGNORECASE)
_REPO = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::([\w.-]+))?")


class Local(Struct, frozen=True):
    path: Path


class Hub(Struct, frozen=True):
    """A repository of the Hugging Face hub. quant: part of a file's name, such as Q4_K_M, or the whole name."""

    repo: str
    quant: str | None = None
    revision: str | None = None


class InOllama(Struct, frozen=True):
    name: str


class AtURL(Struct, frozen=True):
    url: str


Source = Local | Hub | InOllama | AtURL


def parse(written: str) -> Source:
    """Raises ProviderInvalidRequest for anything but FORMS. A path need not exist."""
    if found := _HUB.fullmatch(written):
        repo = _REPO.fullmatch(found[1].rstrip("/"))
        if repo is None:
            raise ProviderInvalidRequest(f"{written}: write hf:org/repo, or hf:org/repo:Q4_K_M")
        return Hub(repo[1], repo[3], repo[2])
    kind, colon, rest = written.partition(":")
    if colon and kind == "ollama" and rest:
        return InOllama(rest)
    if kind in ("http", "https", "unix") and colon:
        return AtURL(written.rstrip("/").removesuffix("/v1"))
    if not written or "\0" in written:
        raise ProviderInvalidRequest(f"nothing to add: name {FORMS}")
    try:
        return Local(Path(written).expanduser())
    except RuntimeError:
        raise ProviderInvalidRequest(f"{written}: there is no such user") from None
