"""What is told on standard error."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.config import Config, Model, Server
from gateway.config.values import Log
from gateway.observe import logs

log = logging.getLogger("ctxgate")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = [
        (logger, logger.handlers, logger.level, logger.propagate) for logger in map(logging.getLogger, logs.LOGGERS)
    ]
    yield
    for logger, handlers, level, propagate in kept:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def configured(key: str = "sesame", **settings: Any) -> io.StringIO:
    stream = io.StringIO()
    models = {"m": Model(name="m", runtime="openai", base_url="http://a:1", api_key=SecretStr(key))}
    server = Server(api_keys=(SecretStr("open-sesame"),))
    config = Config(source=Path("c"), active_model="m", models=models, server=server, log=Log(**settings))
    logs.configure(config, stream)
    return stream


def test_text() -> None:
    stream = configured()
    log.info("hello %s", "you")
    log.debug("not this")
    assert stream.getvalue() == "ctxgate: hello you\n"


def test_json_lines() -> None:
    stream = configured(format="json", level="debug")
    log.debug("one\ntwo")
    try:
        raise ValueError("with sesame")
    except ValueError:
        log.exception("three")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("debug", "ctxgate", "one\ntwo")
    assert first["time"].endswith("Z")
    assert (second["level"], second["message"]) == ("error", "three")
    assert second["error"].endswith("ValueError: with [secret]")


def test_errors_that_nobody_waits_for_are_told_without_secrets() -> None:
    stream = configured(format="json")

    async def fails() -> None:
        raise ValueError("with sesame")

    async def lost() -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait({task})
        del task
        future = Future[None]()
        future.add_done_callback(lambda _: int("sesame"))
        future.set_result(None)

    asyncio.run(lost())
    gc.collect()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["logger"] for line in lines} == {"asyncio", "concurrent.futures"}
    assert len(lines) == 2
    assert "sesame" not in stream.getvalue()


@pytest.mark.parametrize("name", logs.SERVERS)
def test_no_traceback_of_what_the_end_cuts_off(name: str) -> None:
    stream = configured()
    logger = logging.getLogger(name)
    for error in (asyncio.CancelledError("timeout graceful shutdown exceeded"), b"\xff"):
        try:
            if isinstance(error, bytes):
                error.decode()
            else:
                raise error
        except BaseException:
            logger.exception("Exception in ASGI application")
    assert stream.getvalue() == ""
    logger.info("connection open")
    assert stream.getvalue() == ""
    try:
        raise KeyError("a fault")
    except KeyError:
        logger.exception("Exception in ASGI application")
    assert "KeyError: 'a fault'" in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_secrets_are_never_told(format: str) -> None:
    stream = configured(format=format)
    log.warning("a key sesame, another one %s", "open-sesame")
    assert "sesame" not in stream.getvalue()
    assert stream.getvalue().count("[secret]") == 2


SHORT = {
    "one letter": ("e", "the engine refused Bearer e, 'e' and key=e", "the engine refused Bearer *, '*' and key=*"),
    "a word": ("none", "nonetheless none of (none)", "nonetheless * of (*)"),
    "signs": ("$.", "costs $. or $.5", "costs * or $.5"),
    "a long one": ("open-it-up", "xopen-it-upx", "x*x"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_secret_leaves_other_words_alone(name: str) -> None:
    key, said, told = SHORT[name]
    stream = configured(key)
    log.warning(said)
    assert stream.getvalue() == f"ctxgate: {told}\n".replace("*", "[secret]")


def test_another_configuration_replaces_the_first() -> None:
    first, second = configured(), configured(level="error")
    log.warning("too little")
    log.error("enough")
    assert (first.getvalue(), second.getvalue()) == ("", "ctxgate: enough\n")
