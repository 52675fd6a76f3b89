"""Reads the whole form of an upload. Blocks, so use a thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.features.media.wire.form import BadForm, Field, FileStart, FormReader
from gateway.wire.body import invalid_form

STEP = 1024 * 1024
"""Bytes to search before other threads may run."""


@dataclass(frozen=True, slots=True)
class File:
    """parts: its content, in pieces of at most two STEPs."""

    name: str
    parts: list[bytes] = field(default_factory=list)


def fields(content_type: str, body: bytes) -> dict[str, str | File]:
    """The fields by name. Raises ProviderInvalidRequest."""
    found: dict[str, str | File] = {}
    file = File("")
    try:
        reader = FormReader(content_type)
        for at in range(0, len(body), STEP):
            for event in reader.feed(body[at : at + STEP]):
                if isinstance(event, Field):
                    found[event.name] = event.value
                elif isinstance(event, FileStart):
                    file = found[event.name] = File(event.filename)
                else:
                    file.parts.append(event)
        reader.finish()
    except BadForm as error:
        raise invalid_form(error) from None
    return found
