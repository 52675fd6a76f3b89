"""Writes the default configuration, for `ctxgate init` and the commands that need one."""

from __future__ import annotations

import sys

from gateway.cli.text import say
from gateway.errors import ProviderUnavailable


def written() -> bool:
    """Writes the default configuration, and says where; False if there is one. Raises ProviderUnavailable."""
    from gateway.config import default

    try:
        if not default.write():
            return False
    except OSError as error:
        raise ProviderUnavailable(
            f"the default configuration can't be written: {error}; set XDG_CONFIG_HOME and XDG_DATA_HOME to folders "
            "that can be, or name a file with --config FILE"
        ) from None
    say(f"ctxgate: wrote {default.place()}, the default configuration; edit it there", file=sys.stderr)
    say(f"ctxgate: weights go to {default.models_dir()}", file=sys.stderr)
    return True
