"""The façade for scripts, over a real server."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from gateway.errors import ProviderInvalidModel
from gateway.provider import OpenAIProvider, Provider, Response, SyncProvider, UserMessage
from tests.patience import PATIENCE

from .server import Gathering, serve

HI = [UserMessage("hi")]


class Answer(BaseModel):
    word: str


@pytest.fixture
def url() -> Iterator[str]:
    with serve(Gathering(1)) as url:
        yield url


def test_ready_and_complete(url: str) -> None:
    with SyncProvider(OpenAIProvider(url, "m")) as provider:
        provider.ready()
        response = provider.complete(HI)
        assert_type(response, Response[None])
        assert response.message.content == "hi"
        structured = provider.complete([UserMessage('{"word": "hi"}')], response_schema=Answer)
        assert_type(structured.parsed, Answer | None)
        assert structured.parsed == Answer(word="hi")


def test_errors_come_through(url: str) -> None:
    with SyncProvider(OpenAIProvider(url, "x")) as provider, pytest.raises(ProviderInvalidModel, match="it has: m"):
        provider.ready()


def test_threads_call_at_once() -> None:
    with (
        serve(Gathering(8)) as url,
        SyncProvider(OpenAIProvider(url, "m")) as provider,
        ThreadPoolExecutor(8) as threads,
    ):
        answers = list(threads.map(lambda n: provider.complete([UserMessage(f"call {n}")]).message.content, range(8)))
    assert answers == [f"call {n}" for n in range(8)]


async def test_it_works_inside_a_running_loop(url: str) -> None:
    with SyncProvider(OpenAIProvider(url, "m")) as provider:
        assert provider.complete(HI).message.content == "hi"


class Hanging:
    """A provider whose calls end by cancellation alone."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    async def ready(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def complete(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_closing_cancels_the_calls_of_other_threads() -> None:
    hanging = Hanging()
    wrapped: Provider = hanging
    with ThreadPoolExecutor(1) as threads:
        provider = SyncProvider(wrapped)
        call = threads.submit(provider.ready)
        assert hanging.begun.wait(PATIENCE)
        provider.close()
        assert hanging.cancelled.wait(PATIENCE)
        assert call.exception(PATIENCE) is not None
    provider.close()


def test_ctrl_c_cancels_the_call() -> None:
    hanging = Hanging()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        assert hanging.begun.wait(PATIENCE)
        # Again if need be: a signal just before the main thread begins to wait doesn't wake it.
        while not hanging.cancelled.wait(0.2):
            signal.pthread_kill(main, signal.SIGINT)

    with SyncProvider(hanging) as provider, ThreadPoolExecutor(1) as threads:
        threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            provider.ready()
        assert hanging.cancelled.wait(PATIENCE)


def test_a_closed_provider_says_so() -> None:
    provider = SyncProvider(OpenAIProvider("http://127.0.0.1:9", "m"))
    provider.close()
    with pytest.raises(RuntimeError, match="closed"):
        provider.ready()


class SlowToClose(Hanging):
    """A provider that takes its time to close."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = threading.Event()
        self.may_close = threading.Event()

    async def aclose(self) -> None:
        self.closing.set()
        await asyncio.to_thread(self.may_close.wait, PATIENCE)


def test_calls_during_the_closing_end_at_once_and_closings_together() -> None:
    slow = SlowToClose()
    provider = SyncProvider(slow)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(provider.close)
        assert slow.closing.wait(PATIENCE)
        second = threads.submit(provider.close)
        late = threads.submit(provider.ready)
        assert isinstance(late.exception(PATIENCE), RuntimeError)
        assert not second.done()
        slow.may_close.set()
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (None, None)
