"""The sections of config.yaml that belong to features."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from gateway.config.file import Entry, Keys
from gateway.config.source import Document
from gateway.config.values import Config, FileKeys
from gateway.feature import imported, installed, lacking

log = logging.getLogger("ctxgate")


@cache
def added() -> Mapping[str, type[Entry]]:
    """The sections that `Config` doesn't have itself. One that can't be loaded is left out, and the log says so."""
    found: dict[str, type[Entry]] = {}
    for feature in installed():
        for key, name in feature.sections.items():
            if key in Config.__struct_fields__:
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
def file_keys() -> Keys:
    """All keys at the top of the file."""
    return Keys(
        "File",
        *(FileKeys, Config),
        without=("source", "sections", "from_variables", "notes"),
        more=added(),
        about="_models/config.yaml of ctxgate",
    )


def of_features(file: Any) -> dict[str, Entry]:
    """The sections that features add and that the file has."""
    return {key: section for key in added() if (section := getattr(file, key)) is not None}


def lacking_extras(document: Document) -> Iterator[tuple[str, str]]:
    """The sections of the file whose feature lacks packages, and what `gateway.feature.lacking` says of it."""
    for feature in installed():
        for key in feature.sections:
            if document.data.get(key) and (lack := lacking(feature)):
                yield key, lack
