"""The sections of config.yaml that belong to features."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import Field, create_model

from gateway.config.fields import Section
from gateway.config.file import Entry, File
from gateway.config.source import Document
from gateway.feature import imported, installed, lacking

log = logging.getLogger("ctxgate")


@cache
def added() -> Mapping[str, type[Entry]]:
    """The sections that `File` doesn't have itself. One that can't be loaded is left out, and the log says so."""
    found: dict[str, type[Entry]] = {}
    for feature in installed():
        for key, name in feature.sections.items():
            if key in File.model_fields:
                continue
            try:
                entry = imported(name)
                if not issubclass(entry, Entry):
                    raise TypeError(f"{name} is no gateway.config.file.Entry")
            except Exception as error:  # noqa: BLE001 - code of others must not keep the gateway from starting
                log.error("%s of the feature %s: %s: %s", key, feature.name, type(error).__name__, error)
            else:
                found.setdefault(key, entry)
    return found


@cache
def file_class() -> type[File]:
    """`File` with the sections that features add."""
    generic: Any = Section  # mypy can't know types that are made here
    fields: dict[str, Any] = {
        key: (generic[entry] | None, Field(default=None, description=entry.__doc__)) for key, entry in added().items()
    }
    return create_model("File", __base__=File, **fields) if fields else File


def given(file: File) -> dict[str, Entry]:
    """The sections that features add and that the file has."""
    return {key: section for key in added() if (section := getattr(file, key)) is not None}


def lacking_extras(document: Document) -> Iterator[tuple[str, str]]:
    """The sections of the file whose feature lacks packages, and what `gateway.feature.lacking` says of it."""
    for feature in installed():
        for key in feature.sections:
            if document.data.get(key) and (lack := lacking(feature)):
                yield key, lack
