"""The command `ctxgate`."""

from __future__ import annotations

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, sys.argv by default. Returns the exit code."""
    # Loading a command makes no garbage, and looking for some takes a tenth of it.
    gc.disable()
    from gateway.cli.main import main as run

    return run(argv)
