"""The log on standard error: text or JSON lines, without secrets."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import TextIO

from msgspec import json

from gateway.config import Config
from gateway.config.values import Log

LOGGERS = ("ctxgate", "uvicorn.error")
QUIET = ("uvicorn.error", "httpx", "httpcore")
HIDDEN = "[secret]"
LONG = 8
"""Characters from which on a secret is hidden inside other words, too."""
NEVER = "(?!)"
"""A pattern that matches nothing."""


def configure(config: Config, stream: TextIO | None = None) -> None:
    """Sets up logging from `config.log`. Call it again after each change of the configuration."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(config.log, secrets(config)))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("ctxgate").setLevel(config.log.level.upper())
    # At INFO, uvicorn logs each start and stop, and the others log URLs and headers, which may hold secrets.
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class Formatter(logging.Formatter):
    """Formats a record as text or JSON. secrets: texts to hide wherever they occur."""

    def __init__(self, settings: Log, secrets: Iterable[str]) -> None:
        super().__init__("ctxgate: %(message)s")
        self._json = settings.format == "json"
        patterns = map(_pattern, sorted(secrets, key=len, reverse=True))
        self._hide = partial(re.compile("|".join(patterns) or NEVER).sub, HIDDEN)

    def format(self, record: logging.LogRecord) -> str:
        if not self._json:
            return self._hide(super().format(record))
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._hide(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = self._hide(self.formatException(record.exc_info))
        return json.encode(line).decode()


def _pattern(secret: str) -> str:
    """Hides a short secret only as a whole word: a longer word with it reveals nothing."""
    found = re.escape(secret)
    return found if len(secret) >= LONG else rf"(?<!\w){found}(?!\w)"


def secrets(config: Config) -> set[str]:
    """Every secret in the configuration."""
    found = {key.get_secret_value() for key in config.server.api_keys}
    found |= {model.api_key.get_secret_value() for model in config.models.values() if model.api_key is not None}
    return found
