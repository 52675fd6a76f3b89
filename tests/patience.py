"""How long a test waits for an event before it gives up."""

PATIENCE = 240.0
"""Seconds: enough for a machine that has other work to do, and less than pytest allows a test. Only a failure waits
that long."""
