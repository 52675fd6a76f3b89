"""The contract without `await`, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

from gateway.provider.contract import AsJSON, AsModel, Config, Messages, ModelT, Provider, Tools, Unstructured
from gateway.provider.response import Response

ResultT = TypeVar("ResultT")


class SyncProvider:
    """A Provider whose calls block. Any number of threads may call at once; Ctrl-C cancels the call it interrupts.

    Owns the provider: `close()`, or leaving `with`, closes it and ends the event loop that it ran on.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._closing = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="provider", daemon=True)
        self._thread.start()

    def _run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        with self._closing:  # a call is begun before the shutdown, which cancels it, or not at all
            if self._closed:
                call.close()
                raise RuntimeError("this provider is closed")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # no effect on a call that has ended

    def ready(self) -> None:
        """See `Provider.ready`."""
        self._run(self._provider.ready())

    @overload
    def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[Unstructured]
    ) -> Response[None]: ...

    @overload
    def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[AsModel[ModelT]]
    ) -> Response[ModelT | None]: ...

    @overload
    def complete(
        self, messages: Messages, tools: Tools = None, config: Config = None, **options: Unpack[AsJSON]
    ) -> Response[dict[str, Any] | None]: ...

    def complete(self, messages: Messages, tools: Tools = None, config: Config = None, **options: Any) -> Response[Any]:
        """See `Provider.complete`."""
        return self._run(self._provider.complete(messages, tools, config, **options))

    def close(self) -> None:
        """Cancels the calls of other threads. Idempotent; returns once all is closed."""
        with self._closing:
            first, self._closed = not self._closed, True
        if not first:
            self._thread.join()
            return
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _shut_down(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if close := getattr(self._provider, "aclose", None):
            await close()
        await self._loop.shutdown_asyncgens()

    def __enter__(self) -> SyncProvider:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
