"""An observer that writes spans of OpenTelemetry: `OpenAIProvider(…, observer=OpenTelemetry())`.

One span for each attempt, named and described as OpenArmature's observability §5.5, §5.5.8 and §5.5.13 say. No span
contains any content: neither messages nor answers, texts, documents or `extra`.
"""

from __future__ import annotations

from typing import Any

from gateway.errors import GatewayError
from gateway.provider.deltas import Delta
from gateway.provider.observe import Attempt
from gateway.provider.response import Response, Usage
from gateway.provider.structured import StructuredOutputInvalid
from gateway.wire import genai

SPANS = {"complete": "llm", "embed": "embedding", "rerank": "rerank"}
"""Operation → the span's name between `openarmature.` and `.complete`."""


class OpenTelemetry:
    """Needs the package opentelemetry-api, and the process to have a tracer provider: without one, spans go nowhere.

    tracer: anything with `start_span`; None takes the process's. system: `gen_ai.system`, for a server that speaks
    another's API (`vllm`).

    Raises ImportError, which says what to install.
    """

    def __init__(self, tracer: Any = None, *, system: str | None = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise ImportError("the OpenTelemetry observer needs the package: pip install opentelemetry-api") from error
        self._tracer = trace.get_tracer("gateway.provider") if tracer is None else tracer
        self._kind = trace.SpanKind.CLIENT
        self._error = trace.StatusCode.ERROR
        self._system = system

    def attempt(self, attempt: Attempt) -> Span:
        attributes = _request(attempt, self._system or attempt.system)
        name = f"openarmature.{SPANS[attempt.operation]}.complete"
        return Span(self._tracer.start_span(name, kind=self._kind, attributes=attributes), attempt, self._error)


class Span:
    """One attempt's span; see `Observation`."""

    def __init__(self, span: Any, attempt: Attempt, error: Any) -> None:
        self._span = span
        self._attempt = attempt
        self._error = error
        self._begun = False

    def delta(self, delta: Delta) -> None:
        if not self._begun:
            self._begun = True
            self._span.add_event("first_delta")

    def end(self, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            category = outcome.category if isinstance(outcome, GatewayError) else type(outcome).__name__
            found = {"openarmature.error.category": category}
            if isinstance(outcome, StructuredOutputInvalid):  # the server did answer
                found |= _answered(outcome.finish_reason, outcome.usage)
            self._span.set_status(self._error, category)
        elif isinstance(outcome, Response):
            found = _identity(outcome.raw) | _answered(outcome.finish_reason, outcome.usage)
        else:
            found = _retrieved(self._attempt, outcome)
        self._span.set_attributes({name: value for name, value in found.items() if value is not None})
        self._span.end()


def _request(attempt: Attempt, system: str) -> dict[str, Any]:
    found: dict[str, Any] = {"gen_ai.system": system, "gen_ai.request.model": attempt.model}
    if attempt.operation == "complete":
        found |= {"openarmature.llm.model": attempt.model, "openarmature.llm.attempt_index": attempt.index}
        if attempt.retry_reason is not None:
            found["openarmature.llm.retry_reason"] = attempt.retry_reason
        for name, value in attempt.parameters.items():
            found[f"gen_ai.request.{name}"] = list(value) if name == "stop_sequences" else value
        return found
    kind = SPANS[attempt.operation]
    for name, value in {**attempt.parameters, **attempt.counts}.items():
        if name != "dimensions":  # the span's is the vectors' own
            found[f"openarmature.{kind}.{name}"] = value
    return found


def _identity(raw: Any) -> dict[str, Any]:
    """The model and id that the server answered with; Gemini has names of its own for them."""
    names = {"gen_ai.response.model": ("model", "modelVersion"), "gen_ai.response.id": ("id", "responseId")}
    return {
        attribute: next((raw[key] for key in keys if isinstance(raw.get(key), str)), None)
        for attribute, keys in names.items()
    }


def _answered(finish_reason: str | None, usage: Usage) -> dict[str, Any]:
    """What is None goes into no attribute."""
    return {
        "openarmature.llm.finish_reason": finish_reason,
        "openarmature.llm.usage.prompt_tokens": usage.prompt_tokens,
        "openarmature.llm.usage.completion_tokens": usage.completion_tokens,
        "openarmature.llm.usage.total_tokens": usage.total_tokens,
        "openarmature.llm.cache_read.input_tokens": usage.cached_tokens,
        "openarmature.llm.cache_creation.input_tokens": usage.cache_creation_tokens,
        **genai.answered(
            finish_reason=finish_reason, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        ),
    }


def _retrieved(attempt: Attempt, outcome: Any) -> dict[str, Any]:
    usage = outcome.usage
    tokens = None if usage is None else usage.input_tokens
    found = genai.answered(model=outcome.model, id=outcome.response_id, prompt_tokens=tokens)
    if attempt.operation == "embed":
        return found | {"openarmature.embedding.dimensions": outcome.dimensions}
    return found | {
        "openarmature.rerank.result_count": len(outcome.results),
        "openarmature.rerank.search_units": None if usage is None else usage.search_units,
    }
