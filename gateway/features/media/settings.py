"""The section `media` of config.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.config.file import Entry

if TYPE_CHECKING:
    from gateway.config.fields import Bytes


class Media(Entry, frozen=True, kw_only=True):
    """Uploads of sound and pictures, and of anything else below /upstream/. They wait on disk, in state_dir."""

    max_upload_bytes: Bytes = 1024**3
    """Longest upload."""
    max_uploads_bytes: Bytes = 8 * 1024**3
    """All uploads on disk together; further ones get 503."""
