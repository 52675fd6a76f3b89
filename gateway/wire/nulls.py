"""A field that is null is absent: in every field of every API, and within the objects of options.

Without this, null would win over a default of config.yaml, and engines refuse it in fields of their own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import ProviderInvalidRequest

OPTIONS = frozenset(
    (
        *("response_format", "stream_options", "chat_template_kwargs", "tools", "tool_choice", "functions"),
        *("function_call", "reasoning", "text", "thinking", "output_config", "output_format", "conversation"),
        *("options", "audio", "prediction", "web_search_options", "logit_bias"),
    )
)
"""Fields whose objects have fields of their own. All other objects pass as they are."""

HISTORY = frozenset(("messages", "input", "system", "items"))
"""Fields with messages or items."""

CONTENT = "content"
"""Stays null in a message: chat templates tell that from a message without it."""

DATA = frozenset(("parameters", "schema", "input_schema", "arguments", "input", "output", "metadata"))
"""Keys below them whose values aren't fields: schemas, where null is a value, and what was said or called."""

MAX_FIELDS = 1000
"""Of a request. No API has a tenth of it; each takes about 100 bytes for as long as the request lives."""

MAX_KEPT_BYTES = 128 * 1024
"""Longer lists of tools aren't cached, so that the cache stays small."""

KEY_BYTES = 256
"""Bytes before a colon that hold the end of its key; more are white space that nobody writes."""

_null = re.compile(rb"null").search
_nulls = re.compile(rb":\s*null").finditer
_NULL = Raw(b"null")

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode, _encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


def read_fields(body: bytes) -> tuple[dict[str, Raw], bytes]:
    """The fields of a request that aren't null, and a body without those.

    Raises msgspec.DecodeError, and ProviderInvalidRequest for more fields than MAX_FIELDS.
    """
    fields, clean = _read_fields(body)
    if len(fields) > MAX_FIELDS:
        raise ProviderInvalidRequest(f"a request has at most {MAX_FIELDS} fields; this one has {len(fields)}")
    return fields, clean


def _read_fields(body: bytes) -> tuple[dict[str, Raw], bytes]:
    fields = _decode_fields(body)
    # `in` would try the bytes as a number first, which raises each time.
    return fields, _encode(fields) if body.find(b"null") >= 0 and _drop_nulls(fields) else body


def without_nulls(body: bytes) -> bytes:
    """The body of a request without its null fields. One that isn't a JSON object stays as it is."""
    if body.find(b"null") < 0:
        return body
    try:
        return _read_fields(body)[1]
    except (ValueError, RecursionError):
        return body  # whoever reads it says what is wrong


def _drop_nulls(fields: dict[str, Raw]) -> bool:
    """Removes the null fields of a request, in place. Returns whether there were any.

    An object of options that held nothing else goes, too.
    """
    changes: dict[str, Raw | None] = {}
    for name, value in fields.items():
        if value == _NULL:
            changes[name] = None
        elif name in OPTIONS or name in HISTORY:
            # As it is: its bytes would be one more copy of a long conversation.
            if _null(value) is None or (name in HISTORY and not _has_others(memoryview(value))):
                continue
            given = bytes(value)
            cleaned = (_cleaned if name == "tools" and len(given) <= MAX_KEPT_BYTES else _cleaned.__wrapped__)(given)
            if cleaned != given:
                changes[name] = None if cleaned == b"{}" else Raw(cleaned)
    for name, change in changes.items():
        if change is None:
            del fields[name]
        else:
            fields[name] = change
    return bool(changes)


def _has_others(history: memoryview) -> bool:
    """Whether a field other than `content` is null. Conversations are long, and most have only that."""
    for found in _nulls(history):
        key = bytes(history[max(0, found.start() - KEY_BYTES) : found.start()]).rstrip()
        if key.endswith(b'"') and not key.endswith((b'\\"', b'"content"')):
            return True
    return False


@lru_cache(maxsize=8)
def _cleaned(given: bytes) -> bytes:
    """Cached for tools, which agents repeat with every turn."""
    try:
        value = _decode(given)
        return _encode(value) if _clean(value) else given
    except (ValueError, RecursionError):
        return given


def _clean(value: Any) -> int:
    """Removes null fields in place; how many there were."""
    if isinstance(value, list):
        return sum(map(_clean, value))
    if not isinstance(value, dict):
        return 0
    nulls = [name for name, one in value.items() if one is None and name != CONTENT]
    for name in nulls:
        del value[name]
    return len(nulls) + sum(_clean(one) for name, one in value.items() if name not in DATA)
