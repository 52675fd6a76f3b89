"""What is told on standard error: text or JSON lines, without secrets."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from msgspec import json

from gateway.config import Config
from gateway.config.values import Log

LOGGERS = ("ctxgate", "uvicorn.error")
HIDDEN = "[secret]"


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
        self._secrets = sorted(secrets, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        if not self._json:
            return self._without_secrets(super().format(record))
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._without_secrets(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = self._without_secrets(self.formatException(record.exc_info))
        return json.encode(line).decode()

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def secrets(config: Config) -> set[str]:
    """All that `config` holds."""
    found = {key.get_secret_value() for key in config.server.api_keys}
    found |= {model.api_key.get_secret_value() for model in config.models.values() if model.api_key is not None}
    return found
