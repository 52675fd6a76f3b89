"""The sections of config.yaml that belong to features."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import cache

from gateway.config.file import Entry, Keys
from gateway.config.source import Document
from gateway.config.values import Config, FileKeys
from gateway.feature import imported, installed, lacking

log = logging.getLogger("ctxgate")


def names() -> dict[str, str]:
    """Key → import string of its class."""
    return {key: name for feature in reversed(installed()) for key, name in feature.sections.items()}


def added(keys: Iterable[str]) -> dict[str, type[Entry]]:
    """The classes of those of the keys that are sections. One that can't be loaded is left out, and the log says so."""
    found: dict[str, type[Entry]] = {}
    for key, name in names().items():
        if key in keys and key not in Config.__struct_fields__:
            try:
                entry = imported(name)
                if not issubclass(entry, Entry):
                    raise TypeError(f"{name} is no gateway.config.file.Entry")
            except Exception as error:  # noqa: BLE001 - code of others must not keep the gateway from starting
                log.error("the section %s, %s: %s: %s", key, name, type(error).__name__, error)
            else:
                found[key] = entry
    return found


@cache
def file_keys(sections: frozenset[str] | None = None) -> Keys:
    """The keys at the top of a file with these sections of features; None: with all that there are."""
    return Keys(
        "File",
        *(FileKeys, Config),
        without=("source", "seen", "sections", "from_variables", "notes"),
        more=added(names() if sections is None else sections),
        about="_models/config.yaml of ctxgate",
    )


def lacking_extras(document: Document) -> Iterator[tuple[str, str]]:
    """The sections of the file whose feature lacks packages, and what `gateway.feature.lacking` says of it."""
    for feature in installed():
        for key in feature.sections:
            if document.data.get(key) and (lack := lacking(feature)):
                yield key, lack
