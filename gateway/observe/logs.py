"""What is told on standard error: text or JSON lines, without secrets."""

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
HIDDEN = "[secret]"
LONG = 8
"""Characters of a secret that no other word holds by chance."""
NEVER = "(?!)"


def configure(config: Config, stream: TextIO | None = None) -> None:
    """Sets up the log as `config.log` says. Called again after each change of the configuration."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(config.log, secrets(config)))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("ctxgate").setLevel(config.log.level.upper())
    # uvicorn tells of each start and stop.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class Formatter(logging.Formatter):
    """secrets: texts that are never shown, wherever they come from."""

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
    """A short one is hidden where it stands alone: as a part of other words it tells nothing, and they are lost."""
    found = re.escape(secret)
    return found if len(secret) >= LONG else rf"(?<!\w){found}(?!\w)"


def secrets(config: Config) -> set[str]:
    """All that `config` holds."""
    found = {key.get_secret_value() for key in config.server.api_keys}
    found |= {model.api_key.get_secret_value() for model in config.models.values() if model.api_key is not None}
    return found
