"""The log on standard error: text or JSON lines, without secrets."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from msgspec import json

from gateway.config import Config
from gateway.config.hidden import hider
from gateway.config.values import Log
from gateway.wire.text import printable, printable_json

LOGGERS = ("ctxgate", "uvicorn.error", "mcp", "opentelemetry", "asyncio", "concurrent.futures")
"""Loggers whose messages pass through the formatter, which hides secrets."""
QUIET = ("uvicorn.error", "ctxgate.websocket", "httpx", "httpcore")
SERVERS = ("uvicorn.error", "ctxgate.websocket")
"""Loggers of the protocols."""


def configure(config: Config, stream: TextIO | None = None) -> None:
    """Sets up logging from `config.log`. Call it again after each change of the configuration."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(config.log, hider(config.secrets)))
    handler.addFilter(_is_ours)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("ctxgate").setLevel(config.log.level.upper())
    # At INFO, uvicorn logs each start and stop, WebSockets each connection, and the others log URLs and headers, which
    # may hold secrets.
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a record may tell of a fault of ours. The protocols log a traceback, too, for each answer that the end of
    the gateway cuts off, and for a text of a client that isn't UTF-8."""
    kind = record.exc_info[0] if record.exc_info else None
    expected = kind is not None and issubclass(kind, (asyncio.CancelledError, UnicodeDecodeError))
    return not (expected and record.name in SERVERS)


class Formatter(logging.Formatter):
    """Formats a record as text or JSON. hide: hides the secrets in a text."""

    def __init__(self, settings: Log, hide: Callable[[str], str]) -> None:
        super().__init__("ctxgate: %(message)s")
        self._json = settings.format == "json"
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        if not self._json:
            return printable(self._hide(super().format(record)))
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._hide(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = self._hide(self.formatException(record.exc_info))
        return printable_json(json.encode(line).decode())
