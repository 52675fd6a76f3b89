"""A span of OpenTelemetry for each request, by `log.traces`. Imported only if that is set.

Attributes are those of the GenAI conventions; others begin with `ctxgate.`. Spans contain prompts and answers only if
`log.trace_content` is set. A thread of the SDK sends spans in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from time import monotonic, time
from typing import Any

import msgspec
from msgspec import Struct
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.answer.capture import Recording
from gateway.answer.normalize import Answer
from gateway.config.values import Log
from gateway.observe.request_log import LEFT, OK, Ended, Row
from gateway.wire import genai
from gateway.wire.chat import ApiName, ChatRequest, decode, encode
from gateway.wire.fold import Fold
from gateway.wire.usage import tokens_of

OPERATIONS: Mapping[ApiName, str] = {"completions": "text_completion", "embeddings": "embeddings", "rerank": "rerank"}
"""API → `gen_ai.operation.name`; any other chats."""
PARAMETERS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty")},
    **{"max_completion_tokens": "max_tokens", "seed": "seed"},
}
"""Field of a request → its attribute behind `gen_ai.request.`."""


_propagator = TraceContextTextMapPropagator()
_parent: ContextVar[Context] = ContextVar("_parent", default=Context())  # noqa: B039  # nobody can change one


class Event(Struct, frozen=True):
    """at: by time.monotonic."""

    name: str
    at: float
    attributes: Mapping[str, Any] = {}


class Note(Struct):
    """A span's data beyond the request log. request: None unless it is a chat. answer: None if there was none."""

    runtime: str
    span: Span
    request: ChatRequest | None = None
    answer: Answer | None = None
    events: list[Event] = []


class Traces:
    """All but `route` of `gateway.core.gateway.Traces`."""

    def __init__(self, log: Log, exporter: SpanExporter | None = None) -> None:
        """log: with an OTLP/HTTP receiver as `traces`. exporter: takes its place."""
        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(log.traces)
        resource = Resource.create({"service.name": "ctxgate", "service.version": __version__})
        self.content = log.trace_content
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ctxgate", __version__)

    def continued(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        carrier: dict[str, str] = {}
        for key, value in headers:
            if key in (b"traceparent", b"tracestate"):
                name, text = key.decode(), value.decode("latin-1")
                carrier[name] = f"{carrier[name]},{text}" if name in carrier else text
        _parent.set(_propagator.extract(carrier, Context()) if carrier else Context())

    def begin(self) -> Span:
        """The span of a request that begins now, within the client's trace if it named one."""
        return self._tracer.start_span("request", context=_parent.get(), kind=SpanKind.SERVER)

    def write(self, row: Row, note: Note) -> None:
        """Ends the span of a request that has ended. May fail for odd contents."""
        ended = Ended(*row)
        clock = time() - monotonic()
        operation = OPERATIONS.get(ended.api, "chat")
        span = note.span
        span.update_name(f"{operation} {ended.model}")
        span.set_attributes(_attributes(ended, note, operation))
        for event in note.events:
            span.add_event(event.name, event.attributes, _nanoseconds(clock + event.at))
        if ended.first:
            span.add_event("first_token", timestamp=_nanoseconds(clock + ended.first))
        if ended.outcome not in (OK, LEFT):
            span.set_attribute("error.type", ended.outcome)
            span.set_status(StatusCode.ERROR, ended.outcome)
        if self.content and note.request is not None:
            span.set_attributes(_content(note.request, getattr(note.answer, "recording", None)))
        span.end(_nanoseconds(clock + ended.end))

    def close(self) -> None:
        """Sends the remaining spans. Blocks."""
        self._provider.shutdown()


def head_lines(span: Span) -> bytes:
    """The headers that pass the trace to a server; see `gateway.upstream.trace`."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span, Context()))
    return b"".join(b"\r\n%b: %b" % (name.encode(), value.encode("latin-1")) for name, value in carrier.items())


def _attributes(ended: Ended, note: Note, operation: str) -> genai.Attributes:
    prompt, cached, completion = tokens_of(ended.usage)
    found: genai.Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": note.runtime,
        "gen_ai.request.model": ended.model,
        "ctxgate.api": ended.api,
        "ctxgate.outcome": ended.outcome,
        "ctxgate.stream": ended.stream,
    }
    if ended.usage:
        found["gen_ai.usage.cache_read.input_tokens"] = cached
    if ended.first:
        found["gen_ai.server.time_to_first_token"] = ended.first - ended.began
    if ended.caller.client:
        found["ctxgate.client"] = ended.caller.client
    request, answer = note.request, note.answer
    if request is not None:
        found |= _parameters(request)
        if request.serving.tier is not None:
            found["openai.response.service_tier"] = request.serving.tier
    return found | genai.answered(
        model=ended.model if answer is not None else None,
        id=answer.contents.id if answer is not None else None,
        finish_reason=answer.contents.finish_reason if answer is not None else None,
        prompt_tokens=prompt if ended.usage else None,
        completion_tokens=completion if ended.usage else None,
    )


def _parameters(request: ChatRequest) -> genai.Attributes:
    found = {}
    for field, name in PARAMETERS.items():
        value = decode(request.fields[field]) if field in request.fields else None
        # The receiver gets no span of a batch with a number of more than 64 bits.
        if isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
            found[f"gen_ai.request.{name}"] = value
    return found


def _content(request: ChatRequest, recording: Recording | None) -> genai.Attributes:
    """The messages in the conventions' form, as JSON."""
    said = decode(request.fields["messages"])
    found = {"gen_ai.input.messages": encode([_message(message) for message in said]).decode()}
    if recording is not None and recording.clean and not recording.cut:
        answers = _answers([decode(payload) for payload in recording.clean])
        found["gen_ai.output.messages"] = encode([_message(message) for message in answers]).decode()
    return found


def _answers(payloads: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    choices = payloads[0].get("choices") or [{}]
    whole = payloads[0] if "message" in choices[0] else Fold(payloads).body()
    for choice in whole["choices"]:
        yield {**choice["message"], "finish_reason": choice.get("finish_reason")}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    content = message.get("content")
    texts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    for text in texts:
        if isinstance(text, dict) and isinstance(text.get("text"), str):
            kind = "tool_call_response" if message.get("role") == "tool" else "text"
            parts.append({"type": kind, "response" if kind != "text" else "content": text["text"]})
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": _json(function.get("arguments")),
            }
        )
    reason = {"finish_reason": message["finish_reason"]} if message.get("finish_reason") else {}
    return {"role": message.get("role"), "parts": parts, **reason}


def _json(text: Any) -> Any:
    try:
        return decode(text) if isinstance(text, str) else text
    except (msgspec.DecodeError, RecursionError):
        return text


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
