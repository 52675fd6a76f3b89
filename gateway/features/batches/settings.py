"""The section `batches` of config.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gateway.config.file import Entry

if TYPE_CHECKING:
    from pydantic import Field

    from gateway.config.fields import NUMBER, Bytes, Days


class Batches(Entry, frozen=True, kw_only=True):
    """Files and batches below /v1/files and /v1/batches."""

    at_a_time: Annotated[int, Field(ge=1, le=1024), NUMBER] = 4
    """Requests of all batches that run at a time."""
    max_lines: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] = 50_000
    """Requests in one batch."""
    storage_max_bytes: Bytes = 1024**3
    """Total size of a user's files; the lines and answers of running batches count, too."""
    days: Days = 30.0
    """Days to keep files and ended batches."""
