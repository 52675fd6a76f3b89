"""What OpenAI's stored objects have in common: their metadata, and the lists in which they come."""

from __future__ import annotations

from typing import Any

from gateway.errors import ProviderInvalidRequest

MAX_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
"""OpenAI's limits."""


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Raises ProviderInvalidRequest."""
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise ProviderInvalidRequest(f"metadata: at most {MAX_METADATA} keys", param="metadata")
    if any(len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE for key, value in metadata.items()):
        message = f"metadata: keys of at most {LONGEST_KEY} characters, values of at most {LONGEST_VALUE}"
        raise ProviderInvalidRequest(message, param="metadata")


def page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A list of at most `limit` objects. found: these, and at least one more if there are more."""
    return listed(found[:limit], more=len(found) > limit)


def listed(shown: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """A list of these objects. more: it goes on."""
    ends = {"first_id": shown[0].get("id") if shown else None, "last_id": shown[-1].get("id") if shown else None}
    return {"object": "list", "data": shown, **ends, "has_more": more}
