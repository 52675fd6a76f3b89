"""What an engine says within an answer."""

from __future__ import annotations


class EngineError(Exception):
    """The engine sent an error in an answer with status 200. `Backend.error` interprets the payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
