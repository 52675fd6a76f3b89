"""Retries: around any call, or inside one call of a provider (OpenArmature §7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.errors import Backoff, GatewayError
from gateway.provider.messages import AssistantMessage, Message, UserMessage
from gateway.provider.request import RuntimeConfig
from gateway.provider.response import Response
from gateway.provider.structured import StructuredOutputInvalid

if TYPE_CHECKING:
    from gateway.provider.observe import RetryReason

ResultT = TypeVar("ResultT")

BASE = 1.0
CAP = 30.0


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later: unavailable, rate limit, model not loaded."""
    return isinstance(error, GatewayError) and error.transient


def full_jitter(attempt: int, base: float = BASE, cap: float = CAP) -> float:
    """Seconds to wait after failed attempt `attempt` (0 is the first): anything up to base · 2^attempt, at most cap."""
    return Backoff(base, cap, jitter=1.0).delay(attempt + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When and how a call is repeated: `provider.complete(messages, retry=Retry(max_attempts=3))`.

    max_attempts: in all, the first included. transient: whether an error is worth another attempt.
    backoff: seconds to wait after failed attempt n, from 0; a server's Retry-After that is longer takes its place, and
        one beyond max_wait seconds ends the attempts, since the server would refuse earlier ones.
    on_retry: called after each failed attempt before another: its number, and its error or degraded response.
    per_attempt_override: config fields for the second attempt, the third, …; the last entry serves all further ones.
    reask: for content that breaks response_schema: returns the words in which to ask again. The next attempt has
        the model's answer and these words behind the messages. Without it such content isn't retried.

    Raises ValueError for max_attempts below 1.
    """

    max_attempts: int = 4
    transient: Callable[[Exception], bool] = is_transient
    backoff: Callable[[int], float] = full_jitter
    max_wait: float = CAP
    on_retry: Callable[[int, object], None] | None = None
    per_attempt_override: Sequence[RuntimeConfig] = ()
    reask: Callable[[StructuredOutputInvalid], str] | None = None
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")

    def reason(self, error: Exception) -> RetryReason | None:
        """Why to make another attempt after this error; None not to."""
        if (getattr(error, "retry_after", None) or 0.0) > self.max_wait:
            return None
        if self.reask is not None and isinstance(error, StructuredOutputInvalid) and error.output_content:
            return "reask"
        return "transient" if self.transient(error) else None

    def again(
        self, attempt: int, messages: Sequence[Message], config: RuntimeConfig | None, failure: object
    ) -> tuple[Sequence[Message], RuntimeConfig | None]:
        """The messages and config of attempt number `attempt`, from 1, after `failure` of the one before."""
        if schedule := self.per_attempt_override:
            config = (config or RuntimeConfig()).overridden(schedule[min(attempt, len(schedule)) - 1])
        if self.reask is not None and isinstance(failure, StructuredOutputInvalid) and failure.output_content:
            messages = [*messages, AssistantMessage(failure.output_content), UserMessage(self.reask(failure))]
        return messages, config

    async def run(self, attempt: Callable[[int, RetryReason | None, object], Awaitable[ResultT]]) -> ResultT:
        """Makes attempts until one succeeds or fails for good. attempt: gets its number, why it follows a failed one,
        and what that failed with."""
        number = 0
        reason: RetryReason | None = None
        failure: object = None
        while number < self.max_attempts - 1:
            asked = 0.0
            try:
                result = await attempt(number, reason, failure)
                if not (isinstance(result, Response) and result.finish_reason == "error"):
                    return result
                reason, failure = "transient", result
            except Exception as error:
                reason, failure = self.reason(error), error
                if reason is None:
                    raise
                asked = getattr(error, "retry_after", None) or 0.0
            if self.on_retry is not None:
                self.on_retry(number, failure)
            await self.sleep(max(asked, self.backoff(number)))
            number += 1
        return await attempt(number, reason, failure)


async def retry(call: Callable[[], Awaitable[ResultT]], **policy: Any) -> ResultT:
    """Repeats any call as `Retry(**policy)` says: `retry(provider.ready, max_attempts=10)`.

    A Response with finish_reason `error` is transient, too; after the last attempt it is returned as it is. Never
    retries a cancellation. Retries only the opening of a Stream: its deltas can't be taken back.

    Raises the last attempt's error, and ValueError for max_attempts below 1.
    """
    return await Retry(**policy).run(lambda _number, _reason, _failure: call())
