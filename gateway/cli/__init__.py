"""The command `ctxgate`."""

from gateway.cli.main import main

__all__ = ["main"]
