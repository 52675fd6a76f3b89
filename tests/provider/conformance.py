"""Runs OpenArmature's llm-provider fixtures through the real wire mapping: only the socket is replaced."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from gateway.errors import GatewayError
from gateway.provider import (
    AnswerBlock,
    AssistantMessage,
    Attempt,
    Capabilities,
    Delta,
    ImageBlock,
    InlineSource,
    Message,
    OpenAIProvider,
    ReasoningDelta,
    RedactedThinkingBlock,
    Response,
    Retry,
    RuntimeConfig,
    SystemMessage,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceForce,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.anthropic import AnthropicProvider
from gateway.provider.chat import ChatProvider
from gateway.provider.gemini import GeminiProvider
from gateway.provider.request import SAMPLING
from gateway.provider.structured import StructuredOutputInvalid

from .fixtures import Case, Unclaimed, UnknownDirective, known, literal, subset

FILE = {"mapping", "mock_provider", "cases", "calls", "call", "expected", "expected_wire_bytes_identical"}
CASE = {"name", "description", "mock_provider", "call", "calls", "expected"}
WIRE = {"expected_wire_request", "expected_wire_request_checks", "expected_wire_request_absent_keys"}
CALL = {"operation", "messages", "tools", "config", "response_schema", "tool_choice", "stream", "retry"}
EXPECTED = {"response", "raises", "success", "provider_call_count", "caller_messages_unmodified"}
EXPECTED |= {"invariants", "llm_spans", "wire_requests", "no_token_events_emitted"}
RETRY = {"max_attempts", "backoff", "classifier", "per_attempt_override", "reask"}

MAPPINGS: dict[str, tuple[type[ChatProvider], Capabilities]] = {
    "openai": (OpenAIProvider, Capabilities()),
    "anthropic": (AnthropicProvider, Capabilities()),
    "gemini": (GeminiProvider, Capabilities()),
    # "A mapping that supports atomic complete() and declares no streaming support."
    "streaming_unsupported_stub": (OpenAIProvider, Capabilities(streaming=False)),
}


@dataclass
class Recorded:
    """One attempt, as an observer sees it: a span (observability §5.5)."""

    attempt: Attempt
    deltas: list[Delta] = field(default_factory=list)
    outcome: Any = None

    def delta(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def end(self, outcome: Any) -> None:
        assert self.outcome is None, "an attempt ended twice"
        self.outcome = outcome

    @property
    def error_category(self) -> str | None:
        return self.outcome.category if isinstance(self.outcome, GatewayError) else None

    @property
    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "openarmature.llm.model": self.attempt.model,
            "openarmature.llm.attempt_index": self.attempt.index,
        }
        if self.attempt.retry_reason is not None:
            found["openarmature.llm.retry_reason"] = self.attempt.retry_reason
        if isinstance(self.outcome, Response):
            found["openarmature.llm.finish_reason"] = self.outcome.finish_reason
        return found


class Recorder:
    def __init__(self) -> None:
        self.spans: list[Recorded] = []

    def attempt(self, attempt: Attempt) -> Recorded:
        self.spans.append(Recorded(attempt))
        return self.spans[-1]


@dataclass
class Seen:
    """All that one call shows from outside."""

    step: dict[str, Any]
    arguments: dict[str, Any]
    before: dict[str, Any]
    bodies: list[Any]
    answers: list[Any]
    spans: list[Recorded]
    slept: list[float]
    response: Response[Any] | None
    error: GatewayError | None

    @property
    def body(self) -> Any:
        assert len(self.bodies) == 1
        return self.bodies[0]

    @property
    def extras(self) -> dict[str, Any]:
        return dict(self.step["config"]["extras"])

    @property
    def refused(self) -> bool:
        """Before anything was sent."""
        return self.error is not None and self.error.category == "provider_invalid_request" and not self.bodies

    @property
    def deltas(self) -> list[Delta]:
        return [delta for span in self.spans for delta in span.deltas]

    def appended(self, attempt: int) -> list[Any]:
        """The messages of an attempt behind those of the first."""
        first = self.bodies[0]["messages"]
        assert self.bodies[attempt]["messages"][: len(first)] == first
        return list(self.bodies[attempt]["messages"][len(first) :])

    def stops(self) -> Any:
        body = self.body
        return body.get("stop") or body.get("stop_sequences") or body["generationConfig"]["stopSequences"]

    def reasons(self) -> list[str | None]:
        return [span.attempt.retry_reason for span in self.spans]


def _unchanged(seen: Seen) -> bool:
    return seen.arguments == seen.before


def _spans_match(seen: Seen) -> bool:
    return len(seen.spans) == len(seen.bodies) >= 1


def _one_refused(seen: Seen) -> bool:
    return seen.refused and len(seen.spans) == 1


def _untouched(seen: Seen) -> bool:
    return all(seen.body[name] == value for name, value in seen.extras.items())


def _same_as_whole(seen: Seen) -> bool:
    """Whether the assembled body, answered whole, is the same Response."""
    assert seen.response is not None

    async def whole() -> Response[Any]:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, json=seen.response.raw))  # type: ignore[union-attr]
        async with httpx.AsyncClient(transport=transport) as client:
            answer: Response[Any] = await OpenAIProvider("http://whole", "m", http_client=client).complete(
                **seen.arguments
            )
            return answer

    return bool(_run(whole) == seen.response)


def _run(work: Callable[[], Any]) -> Any:
    """Runs a coroutine to its end beside the running loop."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


def _terminal(seen: Seen) -> bool:
    """Whether usage and finish reason are those of the last chunks that have them."""
    chunks = [chunk for chunk in seen.answers[0]["stream_body"] if isinstance(chunk, dict)]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert seen.response is not None
    return bool(seen.response.finish_reason == reasons[-1]) and seen.response.raw["usage"] == chunks[-1]["usage"]


def _raw_usage(seen: Seen) -> bool:
    assert seen.response is not None
    return bool(seen.response.raw["usage"] == seen.answers[0]["body"]["usage"])


def _concatenated(seen: Seen) -> bool:
    text = "".join(delta.text for delta in seen.deltas if isinstance(delta, TextDelta))
    return seen.response is not None and text == seen.response.message.text


def _calls_parse(seen: Seen) -> bool:
    return seen.response is not None and all(isinstance(c.arguments, dict) for c in seen.response.message.tool_calls)


def _thinking(seen: Seen) -> bool:
    text = "".join(delta.text for delta in seen.deltas if isinstance(delta, ReasoningDelta))
    blocks = () if seen.response is None else seen.response.message.blocks
    return bool(text) and blocks[0] == ThinkingBlock(text)


def _text_block(seen: Seen) -> bool:
    return seen.response is not None and isinstance(seen.response.message.blocks[-1], TextBlock)


def _pairs(seen: Seen) -> bool:
    """Whether each reask added the model's own answer and the caller's words, and nothing was lost on the way."""
    expected: list[Any] = []
    for number, span in enumerate(seen.spans[1:], 1):
        failure = seen.spans[number - 1].outcome
        if span.attempt.retry_reason == "reask":
            assert isinstance(failure, StructuredOutputInvalid)
            words = reask(seen.step["retry"]["reask"]["template"])(failure)
            expected += [{"role": "assistant", "content": failure.output_content}, {"role": "user", "content": words}]
        if seen.appended(number) != expected:
            return False
    return True


def _overridden(seen: Seen) -> bool:
    base = {k: v for k, v in seen.step.get("config", {}).items() if k in SAMPLING}
    schedule = seen.step["retry"]["per_attempt_override"]
    for number, body in enumerate(seen.bodies):
        sent = base | (schedule[min(number, len(schedule)) - 1] if number else {})
        if {name: body.get(name) for name in sent} != sent:
            return False
    return True


def _declared_first(seen: Seen) -> bool:
    declared = seen.step["config"]["stop_sequences"]
    return bool(seen.stops()[: len(declared)] == declared)


def _union(seen: Seen) -> bool:
    more = next(iter(seen.extras.values()))
    return bool(set(seen.stops()) == {*seen.step["config"]["stop_sequences"], *([more] if type(more) is str else more)})


def _declared_only(seen: Seen) -> bool:
    return seen.error is None and seen.stops() == seen.step["config"]["stop_sequences"]


def _succeeded_after(*categories: str) -> Callable[[Seen], bool]:
    def check(seen: Seen) -> bool:
        return seen.response is not None and seen.spans[0].error_category in categories and len(seen.spans) > 1

    return check


INVARIANTS: dict[str, Callable[[Seen], bool]] = {
    "call_returns_successful_response_after_transient_retry": _succeeded_after("provider_unavailable"),
    "n_attempts_emit_n_llm_spans": _spans_match,
    "attempt_index_attribute_distinct_per_span": lambda seen: (
        [span.attempt.index for span in seen.spans] == list(range(len(seen.spans)))
    ),
    "exhaustion_propagates_final_error": lambda seen: seen.error is seen.spans[-1].outcome,
    "every_attempt_span_carries_error_category": lambda seen: all(span.error_category for span in seen.spans),
    "non_transient_exits_retry_loop_on_first_occurrence": lambda seen: len(seen.bodies) == 1,
    "exactly_one_attempt_span_for_non_transient": lambda seen: len(seen.spans) == 1,
    "no_backoff_sleep_invoked": lambda seen: not seen.slept,
    "streamed_request_sends_stream_true_and_include_usage": lambda seen: (
        seen.body["stream"] is True and seen.body["stream_options"] == {"include_usage": True}
    ),
    "assembled_content_is_ordered_concatenation_of_deltas": _concatenated,
    "usage_and_finish_reason_sourced_from_terminal_chunks": _terminal,
    "finish_reason_tool_calls_sourced_from_terminal_content_chunk": _terminal,
    "assembled_response_equals_non_streamed_equivalent": _same_as_whole,
    "streamed_tool_call_arguments_reassemble_and_parse": _calls_parse,
    "reassembled_tool_calls_equal_non_streamed_equivalent": _same_as_whole,
    "reasoning_delta_assembles_into_thinking_block": _thinking,
    "content_delta_assembles_into_text_block": _text_block,
    "streamed_reasoning_response_shape_identical_to_non_streamed": _same_as_whole,
    "stream_unsupported_mapping_rejects_pre_send": _one_refused,
    "rejection_category_is_provider_invalid_request": _one_refused,
    "no_silent_atomic_fallback": lambda seen: not seen.bodies,
    "no_token_events_on_rejected_stream": lambda seen: not seen.deltas,
    "atomic_call_unaffected_by_streaming_rejection": lambda seen: seen.response is not None,
    "base_attempt_uses_caller_config": _overridden,
    "per_attempt_override_applies_to_retries_only": _overridden,
    "caller_config_unmutated": _unchanged,
    "caller_messages_unmutated": _unchanged,
    "reask_makes_structured_output_invalid_retryable": _succeeded_after("structured_output_invalid"),
    "appended_assistant_message_is_exactly_model_output": _pairs,
    "appended_user_correction_is_exactly_builder_output": _pairs,
    "reask_exhausts_max_attempts_budget": lambda seen: len(seen.bodies) == seen.step["retry"]["max_attempts"],
    "final_structured_output_invalid_propagates": lambda seen: seen.error is seen.spans[-1].outcome,
    "structured_output_invalid_not_retried_without_reask": lambda seen: len(seen.bodies) == 1,
    "exactly_one_attempt_issued": lambda seen: len(seen.bodies) == len(seen.spans) == 1,
    "second_mock_response_never_consumed": lambda seen: len(seen.bodies) < len(seen.answers),
    "override_and_reask_compose_on_reask_retries": lambda seen: _overridden(seen) and _pairs(seen),
    "reask_transcript_accumulates_across_retries": lambda seen: _pairs(seen) and len(seen.appended(-1)) > 2,
    "transient_retry_carries_accumulated_reask_transcript": lambda seen: (
        _pairs(seen) and seen.appended(2) == seen.appended(1) and seen.reasons()[2] == "transient"
    ),
    "retry_reason_discriminates_reask_vs_transient_in_one_loop": lambda seen: (
        seen.reasons() == [None, "reask", "transient"]
    ),
    "raw_usage_prompt_tokens_verbatim_malformed": _raw_usage,
    "raw_usage_all_counters_verbatim_malformed": _raw_usage,
    "raw_usage_input_tokens_verbatim_malformed": _raw_usage,
    "terminal_chunk_usage_preserved_verbatim_on_raw": _terminal,
    "malformed_terminal_counter_nulled_on_normalized_usage": lambda seen: (
        seen.response is not None and seen.response.usage.prompt_tokens is None
    ),
    "no_request_issued": lambda seen: not seen.bodies,
    "no_schema_response_format_unmanaged_rides_untouched": _untouched,
    "extras_response_format_on_wire_when_unmanaged": _untouched,
    "non_streaming_stream_options_unmanaged_rides_untouched": _untouched,
    "matching_extras_temperature_no_op": lambda seen: seen.body["temperature"] == seen.extras["temperature"],
    "wire_temperature_is_declared_value_once": lambda seen: (
        seen.body["temperature"] == seen.step["config"]["temperature"]
    ),
    "wire_stop_is_merged_union": _union,
    "wire_stop_sequences_is_merged_union": _union,
    "wire_stopSequences_merged_under_generationConfig": _union,
    "declared_stop_first_in_merge_order": _declared_first,
    "declared_first_in_merge_order": _declared_first,
    "no_scalar_string_coercion_on_anthropic": lambda seen: seen.stops() == ["STOP", "END"],
    "scalar_string_extras_stop_coerced_to_list": lambda seen: seen.extras["stop"] in seen.stops(),
    "matching_extras_stream_no_op": lambda seen: seen.response is not None,
    "matching_extras_stream_false_no_op": lambda seen: seen.response is not None,
    "wire_carries_no_stream_key": lambda seen: "stream" not in seen.body,
    "malformed_extras_stop_treated_as_absent": _declared_only,
    "wire_stop_is_declared_value_only": _declared_only,
    "malformed_list_not_salvaged": _declared_only,
    "no_error_raised_on_malformed_extras": lambda seen: seen.error is None,
    **dict.fromkeys(
        (
            "matching_stop_collapses_to_single_element",
            "matching_stop_sequences_collapses_to_single_element",
            "matching_stopSequences_collapses_to_single_element",
        ),
        _declared_only,
    ),
    **dict.fromkeys(
        (
            "atomic_mapping_extras_stream_conflict_rejected_pre_send",
            "bound_model_not_silently_overridden",
            "conditionally_managed_response_format_conflict_rejected_pre_send",
            "conditionally_managed_stream_options_conflict_rejected_pre_send",
            "declared_scalar_temperature_conflict_rejected_pre_send",
            "declared_temperature_not_silently_overridden",
            "extras_model_neither_dropped_nor_forwarded",
            "extras_response_format_neither_dropped_nor_forwarded",
            "extras_stream_not_smuggled_to_wire",
            "extras_temperature_neither_dropped_nor_forwarded",
            "managed_structural_model_conflict_rejected_pre_send",
            "stream_always_managed_on_unary_side",
            "stream_neither_dropped_nor_forwarded",
            "stream_options_neither_dropped_nor_forwarded",
            "streaming_call_conflicting_stream_rejected_pre_send",
            "unary_call_conflicting_stream_rejected_pre_send",
        ),
        _one_refused,
    ),
}
"""What the fixtures claim by name → how it is seen from outside."""


@dataclass
class MockServer:
    """The fixture's server: answers in order, and fails the run on a request that nobody expects."""

    script: dict[str, Any]
    bodies: list[bytes] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    """The models in the paths of Gemini's requests, which have none in the body."""

    def __post_init__(self) -> None:
        known(self.script, {"responses", "health_endpoint", "capabilities"}, "mock_provider")
        self.answers = list(self.script.get("responses") or ())
        self.left = list(self.answers)

    @property
    def failing(self) -> bool:
        """Whether any answer is a refusal or a broken line, so that an error has something to keep as its cause."""
        answers = [*self.answers, self.script.get("health_endpoint") or {}]
        return any(answer.get("connection_failure") or answer.get("status", 200) >= 400 for answer in answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        health = self.script.get("health_endpoint")
        if request.method == "GET":
            assert health is not None, "a probe that the fixture doesn't expect"
            assert request.url.path == health["path"]
            known(health, {"path", "status", "body", "connection_failure"}, "health_endpoint")
            return self.answer({k: v for k, v in health.items() if k != "path"}, request)
        assert request.method == "POST"
        path = request.url.path
        if path.endswith(":generateContent"):
            self.models.append(path.removeprefix("/v1beta/models/").removesuffix(":generateContent"))
        else:
            assert path in ("/v1/chat/completions", "/v1/messages")
        self.bodies.append(request.content)
        assert self.left, "a request that the fixture doesn't expect"
        return self.answer(self.left.pop(0), request)

    def answer(self, script: dict[str, Any], request: httpx.Request) -> httpx.Response:
        known(script, {"status", "headers", "body", "stream_body", "connection_failure"}, "response")
        if script.get("connection_failure"):
            raise httpx.ConnectError("connection refused", request=request)
        headers = script.get("headers") or {}
        if "stream_body" in script:
            lines = [part if isinstance(part, str) else json.dumps(part) for part in script["stream_body"]]
            body = "".join(f"data: {line}\n\n" for line in lines)
            return httpx.Response(script["status"], headers={"content-type": "text/event-stream", **headers}, text=body)
        answer = script.get("body")
        if isinstance(answer, dict) and isinstance(answer.get("content"), list):
            # "*" stands for the name that the request gave to its tool.
            blocks = [
                {**block, "name": json.loads(request.content)["tools"][0]["name"]}
                if block.get("name") == "*"
                else block
                for block in answer["content"]
            ]
            answer = {**answer, "content": blocks}
        return httpx.Response(script["status"], headers=headers, json=answer)


async def run(case: Case) -> list[str]:
    """Returns what the fixture claims and the harness can't see.

    Raises AssertionError where the provider differs from the fixture, Unclaimed, or UnknownDirective.
    """
    known(case.file, FILE, case.fixture)
    known(case.entry, CASE | WIRE | FILE, case.id)
    mapping = case.file.get("mapping", "openai")
    if mapping not in MAPPINGS:
        raise Unclaimed(f"the {mapping} mapping")
    kind, capable = MAPPINGS[mapping]
    script = case.entry.get("mock_provider") or {}
    server, recorder = MockServer(script), Recorder()
    stated = capabilities(script, capable)
    listed: list[str] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as client:
        provider = kind(
            "http://mock-llm.test", bound_model(case), capabilities=stated, http_client=client, observer=recorder
        )
        for step in steps(case):
            listed += await run_step(provider, server, recorder, step)
    foreseen = sum(len((step.get("expected") or {}).get("wire_requests") or ()) for step in steps(case))
    # A refusal by capability may come before the answer in waiting is used; `wire_requests` may say that some aren't.
    if stated.image_input and len(server.bodies) != foreseen:
        assert not server.left, f"{len(server.left)} answers were never asked for"
    if identical := case.entry.get("expected_wire_bytes_identical"):
        assert len({server.bodies[index] for index in identical["calls"]}) == 1, "the request bodies differ"
    return list(dict.fromkeys(listed))


def steps(case: Case) -> list[dict[str, Any]]:
    """Each call with its expectations; a case with a single `call` has them beside it."""
    if "calls" in case.entry:
        return list(case.entry["calls"])
    call = case.entry.get("call")
    if not isinstance(call, dict):
        raise UnknownDirective(f"{case.id}: neither call nor calls")
    return [{**call, **{key: case.entry[key] for key in WIRE | {"expected"} if key in case.entry}}]


async def run_step(provider: ChatProvider, server: MockServer, recorder: Recorder, step: dict[str, Any]) -> list[str]:
    known(step, CALL | WIRE | {"expected", "retry_middleware"}, "call")
    expected = step.get("expected") or {}
    known(expected, EXPECTED, "expected")
    bodies, spans, answered = len(server.bodies), len(recorder.spans), len(server.answers) - len(server.left)
    arguments = call_arguments(step)
    before = copy.deepcopy(arguments)
    slept: list[float] = []
    error: GatewayError | None = None
    response: Response[Any] | None = None
    try:
        response = await perform(provider, step, arguments, slept)
    except GatewayError as raised:
        error = raised
    assert arguments == before, "complete() changed its arguments"
    sent = [json.loads(body) for body in server.bodies[bodies:]]
    if server.models:
        sent = [{"model": model, **body} for model, body in zip(server.models[bodies:], sent, strict=True)]
    seen = Seen(
        step, arguments, before, sent, server.answers[answered:], recorder.spans[spans:], slept, response, error
    )
    check_outcome(seen, expected, server)
    check_requests(seen, expected)
    check_wire(step, sent)
    check_spans(seen, expected.get("llm_spans"))
    return check_invariants(seen, expected.get("invariants") or {})


def check_outcome(seen: Seen, expected: dict[str, Any], server: MockServer) -> None:
    error, response = seen.error, seen.response
    if "raises" in expected:
        assert error is not None, f"nothing was raised, {expected['raises']['category']} was expected"
        check_error(error, expected["raises"], server.failing)
    elif error is not None:
        raise AssertionError(f"raised {error.category}: {error.message}") from error
    if "response" in expected:
        assert response is not None
        check_response(response, expected["response"])
        if not seen.step.get("stream") and len(seen.bodies) == 1 and "*" not in str(seen.answers[0].get("body")):
            assert response.raw == seen.answers[0].get("body"), "raw is not the server's body"
    if "success" in expected:
        assert expected["success"] is True
        assert seen.step["operation"] == "ready"


def check_requests(seen: Seen, expected: dict[str, Any]) -> None:
    """The requests of all attempts, beyond their literal form."""
    if "provider_call_count" in expected:
        assert len(seen.bodies) == expected["provider_call_count"]
    if expected.get("no_token_events_emitted"):
        assert not seen.deltas, "a refused call gave deltas"
    if (requests := expected.get("wire_requests")) is None:
        return
    assert len(seen.bodies) == len(requests)
    for number, request in enumerate(requests):
        known(request, {"sampling", "appended_messages"}, "wire_requests")
        subset(request.get("sampling", {}), seen.bodies[number], "sampling")
        appended = seen.appended(number)
        assert len(appended) == len(request["appended_messages"])
        for entry, actual in zip(request["appended_messages"], appended, strict=True):
            known(entry, {"role", "content", "content_contains"}, "appended_messages")
            assert actual["role"] == entry["role"]
            assert actual["content"] == entry.get("content", actual["content"])
            assert all(part in actual["content"] for part in entry.get("content_contains", ()))


def check_spans(seen: Seen, expected: Sequence[dict[str, Any]] | None) -> None:
    if expected is None:
        return
    assert len(seen.spans) == len(expected)
    for span, entry in zip(seen.spans, expected, strict=True):
        known(entry, {"attempt_index", "attributes", "attributes_absent", "error_category"}, "llm_spans")
        assert span.attempt.index == entry["attempt_index"]
        assert span.error_category == entry["error_category"]
        subset(entry.get("attributes", {}), span.attributes, "attributes")
        assert not set(entry.get("attributes_absent", ())) & span.attributes.keys()


def check_invariants(seen: Seen, invariants: Mapping[str, Any]) -> list[str]:
    listed = []
    for name, value in invariants.items():
        if (check := INVARIANTS.get(name)) is None:
            listed.append(name)
        else:
            assert check(seen) is value, name
    return listed


async def perform(
    provider: ChatProvider, step: dict[str, Any], arguments: dict[str, Any], slept: list[float]
) -> Response[Any] | None:
    if step["operation"] == "ready":
        await provider.ready()
        return None
    if step["operation"] != "complete":
        raise UnknownDirective(f"operation {step['operation']!r}")
    policy = step.get("retry") or step.get("retry_middleware")
    options = dict(arguments) if policy is None else {**arguments, "retry": retry_policy(policy, slept)}
    if not step.get("stream"):
        whole: Response[Any] = await provider.complete(**options)
        return whole
    async with await provider.complete(**options, stream=True) as stream:
        *events, last = [event async for event in stream]
    assert isinstance(last, Response)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == last.message.text
    return last


def retry_policy(policy: dict[str, Any], slept: list[float]) -> Retry:
    known(policy, RETRY, "retry")
    assert policy.get("classifier", "default") == "default"
    pause = policy.get("backoff", {"type": "deterministic", "seconds": 0})
    assert pause["type"] == "deterministic"

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return Retry(
        max_attempts=policy["max_attempts"],
        backoff=lambda _: float(pause["seconds"]),
        per_attempt_override=[RuntimeConfig(**entry) for entry in policy.get("per_attempt_override", ())],
        reask=reask(policy["reask"]["template"]) if "reask" in policy else None,
        sleep=sleep,
    )


def reask(template: str) -> Callable[[StructuredOutputInvalid], str]:
    def words(error: StructuredOutputInvalid) -> str:
        filled = template.replace("{output_content}", error.output_content or "")
        return filled.replace("{error_message}", error.message)

    return words


def check_error(error: GatewayError, expected: dict[str, Any], failing: bool) -> None:
    known(expected, {"category", "retry_after_seconds", "carries", "message"}, "raises")
    assert error.category == expected["category"], error.message
    if failing and error.category != "provider_invalid_response" and not error.param:
        assert error.__cause__ is not None, "the cause was lost"
    if "retry_after_seconds" in expected:
        assert error.retry_after == expected["retry_after_seconds"]
    if "message" in expected:
        assert expected["message"] in error.message
    for name, value in expected.get("carries", {}).items():
        if name.endswith("_present"):
            assert bool(carried(error, name.removesuffix("_present"))) is value
        elif name.endswith("_mentions"):
            assert value in carried(error, name.removesuffix("_mentions"))
        else:
            subset(value, carried(error, name), name)


def carried(error: GatewayError, name: str) -> Any:
    names = {"response_schema", "output_content", "error_message", "finish_reason", "usage"}
    if name not in names:
        raise UnknownDirective(f"carries.{name}")
    value = getattr(error, "message" if name == "error_message" else name)
    return asdict(value) if name == "usage" else value


def check_response(response: Response[Any], expected: dict[str, Any]) -> None:
    known(expected, {"message", "finish_reason", "usage", "parsed", "raw_check"}, "response")
    check = expected.get("raw_check", {"required_keys": []})
    known(check, {"required_keys"}, "raw_check")
    assert not set(check["required_keys"]) - response.raw.keys()
    message = expected.get("message", {})
    known(message, {"role", "content", "tool_calls"}, "message")
    if "role" in message:
        assert response.message.role == message["role"]
    if "content" in message:
        content = message["content"] or ""  # null and "" are the same content
        assert response.message.content == (tuple(map(answer_block, content)) if isinstance(content, list) else content)
    if "tool_calls" in message:
        assert list(response.message.tool_calls) == [ToolCall(**call) for call in message["tool_calls"] or ()]
    if "finish_reason" in expected:
        assert response.finish_reason == expected["finish_reason"]
    if "usage" in expected:
        subset(expected["usage"], asdict(response.usage), "usage")
    if "parsed" in expected:
        assert response.parsed == expected["parsed"]


def check_wire(step: dict[str, Any], bodies: Sequence[Any]) -> None:
    if not WIRE & step.keys():
        return
    assert len(bodies) == 1, "the fixture describes exactly one request"
    body = bodies[0]
    if "expected_wire_request" in step:
        literal(step["expected_wire_request"], body, "request")
        if (step["expected_wire_request"].get("tool_choice") or {}) == {"type": "tool", "name": "*"}:
            assert body["tool_choice"]["name"] == body["tools"][0]["name"]
    for key in step.get("expected_wire_request_absent_keys", ()):
        assert key not in body
    for check, value in step.get("expected_wire_request_checks", {}).items():
        assert value is True
        if check == "system_message_content_references_schema":
            assert all(name in body["messages"][0]["content"] for name in step["response_schema"]["properties"])
        elif check.endswith("_absent"):
            assert check.removesuffix("_absent") not in body
        else:
            raise UnknownDirective(f"expected_wire_request_checks.{check}")


def bound_model(case: Case) -> str:
    for step in steps(case):
        if model := (step.get("expected_wire_request") or {}).get("model"):
            return str(model)
    for answer in (case.entry.get("mock_provider") or {}).get("responses") or ():
        if isinstance(body := answer.get("body"), dict) and "model" in body:
            return str(body["model"])
    return "test-model"


def capabilities(script: dict[str, Any], mapping: Capabilities) -> Capabilities:
    stated = script.get("capabilities") or {}
    native = ("supports_native_response_format", "supports_native_structured_output")
    known(stated, {"supports_image_input", *native}, "capabilities")
    return Capabilities(
        image_input=stated.get("supports_image_input", True),
        native_response_format=next((stated[name] for name in native if name in stated), None),
        streaming=mapping.streaming,
    )


def call_arguments(step: dict[str, Any]) -> dict[str, Any]:
    if step["operation"] == "ready":
        return {}
    arguments: dict[str, Any] = {"messages": [message(entry) for entry in step["messages"]]}
    if "tools" in step:
        arguments["tools"] = [Tool(**entry) for entry in step["tools"]]
    if "config" in step:
        given = {k: v for k, v in step["config"].items() if k != "extras"}
        extra = {k: v for k, v in given.items() if k not in SAMPLING} | step["config"].get("extras", {})
        arguments["config"] = RuntimeConfig(**{k: v for k, v in given.items() if k in SAMPLING}, extra=extra)
    if "response_schema" in step:
        arguments["response_schema"] = step["response_schema"]
    if "tool_choice" in step:
        arguments["tool_choice"] = tool_choice(step["tool_choice"])
    return arguments


def tool_choice(given: Any) -> ToolChoice:
    if isinstance(given, dict):
        known(given, {"type", "name"}, "tool_choice")
        assert given["type"] == "tool"
        return ToolChoiceForce(given["name"])
    return given  # type: ignore[no-any-return]


def message(entry: dict[str, Any]) -> Message:
    known(entry, {"role", "content", "tool_calls", "tool_call_id"}, "message")
    content = entry.get("content")
    match entry["role"]:
        case "system":
            return SystemMessage(content)  # type: ignore[arg-type]
        case "user":
            return UserMessage([block(part) for part in content] if isinstance(content, list) else content)  # type: ignore[arg-type]
        case "tool":
            return ToolMessage(content, entry["tool_call_id"])  # type: ignore[arg-type]
        case "assistant":
            said = tuple(map(answer_block, content)) if isinstance(content, list) else content or ""
            return AssistantMessage(said, [ToolCall(**call) for call in entry.get("tool_calls") or ()])
    raise UnknownDirective(f"role {entry['role']!r}")


def answer_block(entry: dict[str, Any]) -> AnswerBlock:
    kinds: dict[str, type[AnswerBlock]] = {
        "text": TextBlock,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedThinkingBlock,
    }
    if entry["type"] not in kinds:
        raise UnknownDirective(f"content block {entry['type']!r}")
    return kinds[entry["type"]](**{k: v for k, v in entry.items() if k != "type"})


def block(entry: dict[str, Any]) -> TextBlock | ImageBlock:
    if entry["type"] == "text":
        return TextBlock(entry["text"])
    if entry["type"] != "image":
        raise UnknownDirective(f"content block {entry['type']!r}")
    known(entry, {"type", "source", "media_type", "detail"}, "image block")
    source = {k: v for k, v in entry.get("source", {}).items() if k != "type"}
    kinds: dict[str | None, Any] = {"url": UrlSource, "inline": InlineSource, None: lambda: None}
    kind = entry.get("source", {}).get("type")
    return ImageBlock(kinds[kind](**source), entry.get("media_type"), entry.get("detail"))
