"""What a provider tells an observer about its requests. Without an observer it builds none of this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gateway.provider.deltas import Delta

Operation = Literal["complete", "embed", "rerank"]
RetryReason = Literal["transient", "reask"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call; without a `Retry` the only one.

    system: whose wire format it speaks: `openai`, `anthropic`, `gemini`, `tei`, `jina`, `cohere`.
    index: number of the attempt, from 0.
    retry_reason: why this attempt follows a failed one; None for the first.
    parameters: the fields of the call's config that are set, without `extra`; of a rerank, its top_k, too.
    counts: of an embedding its `input_count`; of a rerank its `document_count` and `query_length` in bytes.
    """

    operation: Operation
    system: str
    model: str
    index: int = 0
    retry_reason: RetryReason | None = None
    stream: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class Observation(Protocol):
    """Watches one attempt. What its methods raise reaches the caller."""

    def delta(self, delta: Delta) -> None:
        """A piece of a streamed answer arrived."""
        ...

    def end(self, outcome: Any) -> None:
        """The attempt ended, once: with its response, or with the exception that it raises."""
        ...


class Observer(Protocol):
    """Watches a provider: `OpenAIProvider(…, observer=…)`."""

    def attempt(self, attempt: Attempt) -> Observation:
        """An attempt begins."""
        ...
