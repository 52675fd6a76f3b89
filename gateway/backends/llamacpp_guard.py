"""The guard of calls without marks, as llama.cpp takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Raw
from msgspec.structs import replace

from gateway.wire.engine import RawText

TRIGGER_WHOLE = 3
"""That of a regular expression that the whole answer so far matches; the grammar begins with its group."""

MAY_BE_CALLS = re.compile(r"\s*[\[{`<][\s\S]*")
"""An answer that may begin with a call without marks, or with reasoning, of which the marks may not be tokens."""


def guardable(raw: RawText, fields: Mapping[str, Raw]) -> RawText:
    """The same without a grammar that ends the answer behind a call, if the request's fields may forbid its end.

    llama.cpp fails where no token is left.
    """
    banned = any(bytes(fields.get(name, b"null")) not in (b"null", b"false") for name in ("ignore_eos", "logit_bias"))
    if not (raw.unmarked and banned):
        return raw
    return replace(raw, grammar=None, in_reasoning=None, starts=(), unmarked=False)
