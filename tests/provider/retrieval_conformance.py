"""Runs OpenArmature's retrieval-provider fixtures: the fixtures' graphs have one node, which is one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.errors import GatewayError
from gateway.provider import Attempt
from gateway.provider.retrieval import (
    CohereEmbedding,
    CohereRerank,
    EmbeddingResponse,
    EmbeddingRuntimeConfig,
    GatewayRerank,
    JinaEmbedding,
    JinaRerank,
    OpenAIEmbedding,
    RerankResponse,
    RerankRuntimeConfig,
    TEIEmbedding,
    TEIRerank,
)

from .fixtures import Case, Unclaimed, UnknownDirective, known, literal

FILE = {"mapping", "cases"}
CASE = {"name", "description", "state", "entry", "nodes", "edges", "initial_state", "mock_embedding", "mock_rerank"}
CASE |= {"expected", "expected_error", "typed_observers"}
WIRE = {
    "expected_wire_request",
    "expected_wire_request_absent_keys",
    "expected_wire_request_count",
    "expected_wire_headers",
    "expected_wire_url",
}
EMBEDDERS: dict[str, Any] = {
    "openai": OpenAIEmbedding,
    "tei": TEIEmbedding,
    "jina": JinaEmbedding,
    "cohere": CohereEmbedding,
}
RERANKERS: dict[str, Any] = {"openai": GatewayRerank, "tei": TEIRerank, "jina": JinaRerank, "cohere": CohereRerank}
PATHS = {"/v1/embeddings", "/v1/rerank", "/v2/embed", "/v2/rerank", "/embed", "/rerank"}


@dataclass
class Seen:
    """All that one call shows from outside."""

    case: Case
    call: dict[str, Any]
    bound: str
    """The model."""
    requests: list[httpx.Request] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    attempt: Attempt | None = None
    outcome: Any = None
    """As the observer gets it."""
    response: Any = None
    error: GatewayError | None = None
    again: httpx.Request | None = None
    """The request of the same call without a config."""

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    @property
    def body(self) -> Any:
        assert len(self.requests) == 1
        return self.bodies[0]

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.call.get("config") or {})

    @property
    def extras(self) -> dict[str, Any]:
        return dict(self.config.get("extras") or {})

    @property
    def inputs(self) -> list[str]:
        return list(self.call.get("input") or self.call.get("documents") or ())

    @property
    def raws(self) -> list[Any]:
        """Of the answers that the mock gave, in order."""
        return [answer["body"] for answer in self.answers[: len(self.requests)]]

    @property
    def unconfigured(self) -> bytes:
        """The bytes of the same call without a config."""
        assert self.again is not None
        return self.again.content

    def sent(self, number: int) -> list[str]:
        """The texts of a request."""
        body = self.bodies[number]
        return list(next(body[name] for name in ("inputs", "input", "texts", "documents") if name in body))

    @property
    def refused(self) -> bool:
        """Before anything was sent."""
        return self.error is not None and self.error.category == "provider_invalid_request" and not self.requests


class Observer:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def attempt(self, attempt: Attempt) -> Observer:
        assert self._seen.attempt is None
        self._seen.attempt = attempt
        return self

    def delta(self, delta: object) -> None:
        raise AssertionError("retrieval doesn't stream")

    def end(self, outcome: Any) -> None:
        assert self._seen.outcome is None
        self._seen.outcome = outcome


async def run(case: Case) -> list[str]:
    """As `conformance.run`."""
    providers = {k for k in case.file if k.endswith(("_embedding_provider", "_rerank_provider"))}
    known(case.file, FILE | providers, case.fixture)
    known(case.entry, CASE | WIRE, case.id)
    mapping = case.file.get("mapping", "openai")
    if mapping not in EMBEDDERS:
        raise Unclaimed(f"the {mapping} mapping")
    (node,) = case.entry["nodes"].values()
    known(node, {"calls_embed", "calls_rerank"}, "node")
    ((operation, call),) = node.items()
    known(call, {"input", "query", "documents", "top_k", "config", "model", "stores_response_in"}, operation)
    section = f"{mapping}_{'embedding' if operation == 'calls_embed' else 'rerank'}_provider"
    settings = {"base_url": "http://mock.test", "model": "bound-model", **case.file.get(section, {})}
    settings["model"] = call.get("model", settings["model"])
    seen = Seen(case, call, settings["model"])
    left = list(case.entry.get("mock_embedding") or case.entry.get("mock_rerank") or ())
    seen.answers = list(left)

    def serve(request: httpx.Request) -> httpx.Response:
        assert request.url.path in PATHS
        seen.requests.append(request)
        assert left, "a request that the fixture doesn't expect"
        answer = left.pop(0)
        known(answer, {"status", "body"}, "answer")
        return httpx.Response(answer["status"], json=answer["body"])

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        table = EMBEDDERS if operation == "calls_embed" else RERANKERS
        if "input_type_prompt_map" in settings:
            settings["prompt_names"] = settings.pop("input_type_prompt_map")
        provider = table[mapping](**settings, http_client=client, observer=Observer(seen))
        try:
            seen.response = await perform(provider, operation, call)
        except GatewayError as error:
            seen.error = error
        if any("byte_identical" in name for name in (case.entry.get("expected") or {}).get("invariants", {})):
            left += seen.answers
            sent, bare = list(seen.requests), {k: v for k, v in call.items() if k != "config"}
            await perform(table[mapping](**settings, http_client=client), operation, bare)
            seen.again, seen.requests = seen.requests[-1], sent
    assert not left, f"{len(left)} answers were never asked for"
    check_wire(case.entry, seen)
    check_outcome(case.entry, seen)
    return check_invariants(seen, (case.entry.get("expected") or {}).get("invariants") or {})


async def perform(provider: Any, operation: str, call: dict[str, Any]) -> Any:
    given = dict(call.get("config") or {})
    extra = given.pop("extras", {})
    if operation == "calls_embed":
        config = EmbeddingRuntimeConfig(**given, extra=extra) if "config" in call else None
        return await provider.embed(call["input"], config=config)
    if operation == "calls_rerank":
        settings = RerankRuntimeConfig(**given, extra=extra) if "config" in call else None
        return await provider.rerank(call["query"], call["documents"], top_k=call.get("top_k"), config=settings)
    raise UnknownDirective(operation)


def check_wire(entry: dict[str, Any], seen: Seen) -> None:
    if (expected := entry.get("expected_wire_request")) is not None:
        literal(expected, seen.bodies if isinstance(expected, list) else seen.body, "request")
    for body in seen.bodies:
        assert not set(entry.get("expected_wire_request_absent_keys", ())) & body.keys()
    assert len(seen.requests) == entry.get("expected_wire_request_count", len(seen.requests))
    for request in seen.requests:
        assert str(request.url) == entry.get("expected_wire_url", str(request.url))
        for name, value in entry.get("expected_wire_headers", {}).items():
            assert request.headers[name] == value


def check_outcome(entry: dict[str, Any], seen: Seen) -> None:
    if (expected := entry.get("expected_error")) is not None:
        known(expected, {"category", "raised_from"}, "expected_error")
        assert seen.error is not None, f"nothing was raised, {expected['category']} was expected"
        assert seen.error.category == expected["category"], seen.error.message
        assert seen.outcome is seen.error
    elif seen.error is not None:
        raise AssertionError(f"raised {seen.error.category}: {seen.error.message}") from seen.error
    known(entry.get("expected") or {}, {"final_state", "observers", "invariants"}, "expected")
    for name, state in (entry.get("expected") or {}).get("final_state", {}).items():
        assert name == seen.call["stores_response_in"]
        check_state(state, seen.response)
    for observer in (entry.get("expected") or {}).get("observers", {}).values():
        known(observer, {"contains_event"}, "observer")
        check_event(observer["contains_event"], seen)


def check_state(expected: dict[str, Any] | None, response: Any) -> None:
    if expected is None:
        assert response is None
        return
    for name, value in expected.items():
        if name == "results":
            assert len(response.results) == len(value)
            for result, entry in zip(response.results, value, strict=True):
                assert {key: getattr(result, key) for key in entry} == entry
        elif name == "results_length":
            assert len(response.results) == value
        elif name == "vectors":
            assert [list(vector) for vector in response.vectors] == value
        elif name == "vectors_length":
            assert len(response.vectors) == value
        elif name == "inner_vector_lengths_all_equal":
            assert {len(vector) for vector in response.vectors} == {value}
        elif name == "usage":
            assert plain_usage(response.usage, value) == value
        elif name in ("dimensions", "model", "response_id", "raw"):
            assert getattr(response, name) == value, name
        else:
            raise UnknownDirective(f"final_state.{name}")


def plain_usage(usage: Any, like: Mapping[str, Any] | None) -> Any:
    return None if usage is None else {name: getattr(usage, name) for name in like or ()}


def check_event(expected: dict[str, Any], seen: Seen) -> None:
    known(expected, {"event_type", "fields"}, "contains_event")
    kinds = {"EmbeddingEvent": ("embed", EmbeddingResponse), "RerankEvent": ("rerank", RerankResponse)}
    operation, kind = kinds[expected["event_type"]]
    outcome: Any = seen.outcome
    assert seen.attempt is not None
    assert seen.attempt.operation == operation
    assert isinstance(seen.outcome, kind)
    for name, value in expected["fields"].items():
        if name == "node_name":
            assert value in seen.case.entry["nodes"]  # the graph's, which isn't ours
        elif name == "request_params":
            assert seen.attempt.parameters == value
        elif name == "usage":
            assert plain_usage(outcome.usage, value) == value
        elif name == "response_id":
            assert outcome.response_id == value
        else:
            raise UnknownDirective(f"event field {name}")


def check_invariants(seen: Seen, invariants: Mapping[str, Any]) -> list[str]:
    listed = []
    for name, value in invariants.items():
        check = next((check for check, names in INVARIANTS.items() if name in names.split()), None)
        if check is None:
            listed.append(name)
        else:
            assert check(seen) is value, name
    return listed


def _requests(number: int) -> Callable[[Seen], bool]:
    return lambda seen: len(seen.requests) == number


def _ok(seen: Seen) -> bool:
    return seen.error is None and seen.response is not None


def _raised(*categories: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.error is not None and seen.error.category in categories and seen.response is None


def _fixed(name: str, value: Any) -> Callable[[Seen], bool]:
    """Whether every request has the field with that value."""
    return lambda seen: all(name in body and body[name] == value for body in seen.bodies) and bool(seen.bodies)


def _without(*names: str) -> Callable[[Seen], bool]:
    return lambda seen: not any(set(names) & body.keys() for body in seen.bodies) and bool(seen.bodies)


def _slices(*sizes: int) -> Callable[[Seen], bool]:
    def check(seen: Seen) -> bool:
        sent = [seen.sent(number) for number in range(len(seen.requests))]
        return [len(texts) for texts in sent] == list(sizes) and [t for texts in sent for t in texts] == seen.inputs

    return check


def _lengths(seen: Seen) -> bool:
    lengths = {len(vector) for vector in seen.response.vectors}
    return len(seen.response.vectors) == len(seen.inputs) and lengths == {seen.response.dimensions}


def _vectors(seen: Seen) -> bool:
    """Whether the vectors are the server's, in the order of the texts."""
    found: list[Any] = []
    for raw in seen.raws:
        if isinstance(raw, list):
            found += raw
        elif "embeddings" in raw:
            found += raw["embeddings"]["float"]
        else:
            found += [entry["embedding"] for entry in sorted(raw["data"], key=lambda entry: entry["index"])]
    if any(isinstance(vector, str) for vector in found):
        import base64
        import struct

        found = [[n for (n,) in struct.iter_unpack("<f", base64.b64decode(vector))] for vector in found]
    return [list(vector) for vector in seen.response.vectors] == found


def _results(seen: Seen) -> bool:
    """Whether the results are sorted, within bounds and the server's."""
    results = seen.response.results
    indices, scores = [r.index for r in results], [r.relevance_score for r in results]
    within = all(0 <= index < len(seen.inputs) for index in indices) and len(set(indices)) == len(indices)
    theirs: dict[int, float] = {}
    for number, raw in enumerate(seen.raws):
        first = sum(len(seen.sent(before)) for before in range(number))
        for entry in raw if isinstance(raw, list) else raw["results"]:
            theirs[first + entry["index"]] = entry.get("score", entry.get("relevance_score"))
    best = sorted(theirs.values(), reverse=True)[: seen.call.get("top_k")]
    return within and scores == best and all(theirs[r.index] == r.relevance_score for r in results)


def _count(seen: Seen) -> bool:
    return len(seen.response.results) <= min(seen.call.get("top_k") or len(seen.inputs), len(seen.inputs))


def _echoes(seen: Seen) -> bool:
    """Whether each document is what the server sent, and none is made of the input."""
    (raw,) = seen.raws
    theirs: dict[int, Any] = {}
    for entry in raw if isinstance(raw, list) else raw["results"]:
        echo = entry.get("document", entry.get("text"))
        text = echo.get("text") if isinstance(echo, dict) else echo
        theirs[entry["index"]] = text if isinstance(text, str) else None
    return {r.index: r.document for r in seen.response.results} == theirs


def _raw(seen: Seen) -> bool:
    return bool(seen.response.raw == (seen.raws[0] if len(seen.raws) == 1 else seen.raws))


def _tokens(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return None
    usage = raw.get("usage") or (raw.get("meta") or {}).get("billed_units") or {}
    return usage.get("prompt_tokens", usage.get("total_tokens", usage.get("input_tokens")))


def _summed(seen: Seen) -> bool:
    return bool(seen.response.usage.input_tokens == sum(_tokens(raw) for raw in seen.raws))


def _no_usage(seen: Seen) -> bool:
    return seen.response.usage is None and seen.outcome.usage is None


def _units(seen: Seen) -> bool:
    return bool(seen.response.usage.search_units == seen.raws[0]["meta"]["billed_units"]["search_units"])


def _no_id(seen: Seen) -> bool:
    return seen.response.response_id is None and seen.outcome.response_id is None


def _id(seen: Seen) -> bool:
    return bool(seen.response.response_id == seen.raws[0]["id"])


def _same_parameters(seen: Seen) -> bool:
    def rest(body: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in body.items() if k not in ("input", "inputs", "texts", "documents")}

    return all(rest(body) == rest(seen.bodies[0]) for body in seen.bodies)


def _prefixed(seen: Seen) -> bool:
    settings = seen.case.file["openai_embedding_provider"]
    prefix = settings[f"{seen.config['input_type']}_prefix"]
    return seen.sent(0) == [prefix + text for text in seen.inputs]


def _merged(seen: Seen) -> bool:
    kinds = seen.body["embedding_types"]
    return bool(kinds[0] == "float") and kinds == list(dict.fromkeys(["float", *seen.extras["embedding_types"]]))


def _parameters(seen: Seen) -> bool:
    assert seen.attempt is not None
    declared = {k: v for k, v in seen.config.items() if k in ("input_type", "dimensions")}
    return seen.attempt.parameters == declared


_malformed_answer = _raised("provider_invalid_response")

INVARIANTS: dict[Callable[[Seen], bool], str] = {
    _requests(1): "exactly_one_embed_request_issued exactly_one_request_issued exactly_one_rerank_request_issued"
    " token_sub_chunker_would_issue_two_requests_and_fail no_retry_loop"
    " multi_input_chunk_sent_as_one_request_not_token_sub_chunked",
    _requests(2): "exactly_two_embed_requests_issued both_chunk_requests_reached_wire_before_raise"
    " over_token_chunk_not_sub_chunked_by_tokens",
    _requests(3): "exactly_three_embed_requests_issued exactly_three_rerank_requests_issued",
    _requests(0): "no_embed_request_issued no_rerank_request_issued"
    " relied_upon_default_reject_no_wire_field_to_intercept",
    _ok: "no_provider_invalid_response_raised no_error_raised_on_malformed_extras mapping_does_not_error_on_input_type"
    " mapping_does_not_error_on_return_documents classification_not_rejected_pre_send clustering_not_rejected_pre_send"
    " matching_extras_truncate_is_noop matching_extras_truncation_is_noop matching_extras_dimensions_no_op",
    lambda seen: seen.error is not None and seen.response is None: "exception_raised_out_of_embed_call"
    " exception_raised_out_of_rerank_call no_embedding_response_stored_on_failure no_truncated_vector_returned"
    " no_truncated_score_returned fails_loud_no_embedding_response_stored whole_call_fails_loud_no_partial_stitch",
    _malformed_answer: "provider_invalid_response_raised out_of_range_index_detected duplicate_index_detected"
    " top_k_violation_detected non_object_scalar_document_echo_detected malformed_base64_not_truncated_or_padded"
    " malformed_base64_raises_provider_invalid_response"
    " non_conforming_embedding_shape_raises_provider_invalid_response",
    _raised("provider_rate_limit"): "rate_limit_not_misclassified_as_unavailable",
    _raised("provider_invalid_request"): "bare_400_maps_to_provider_invalid_request"
    " bare_400_not_misclassified_as_unavailable over_token_400_maps_to_provider_invalid_request",
    lambda seen: seen.refused: "conflicting_managed_truncate_rejected_pre_send"
    " conflicting_managed_truncation_rejected_pre_send conflicting_value_not_forwarded_to_wire"
    " conflicting_value_not_silently_dropped declared_dimensions_conflict_rejected_pre_send"
    " extras_dimensions_neither_dropped_nor_forwarded extras_task_neither_dropped_nor_forwarded"
    " task_managed_while_input_type_set_conflict_rejected_pre_send unrecognized_input_type_rejected_pre_send"
    " not_silently_coerced_to_search_document_default",
    _lengths: "vectors_length_matches_input_length all_vectors_same_dimensionality"
    " dimensions_field_matches_inner_vector_length",
    _vectors: "vectors_in_input_order vectors_concatenated_in_input_order decoded_vectors_in_input_order"
    " vectors_assembled_from_embeddings_float_in_input_order base64_embedding_decoded_to_float_vector"
    " vector_at_index_zero_matches_first_input vector_at_index_one_matches_second_input"
    " vector_at_index_two_matches_third_input",
    _results: "results_sorted_by_relevance_descending each_index_valid_into_input_documents"
    " results_globally_sorted_by_score_descending_across_chunks top_k_honored_after_global_sort"
    " result_indices_are_absolute_into_original_document_list no_duplicate_index_across_stitched_results"
    " chunk_local_indices_rebased_to_absolute_positions",
    _count: "result_count_at_most_document_count result_count_at_most_top_k top_k_exceeding_document_count_permitted",
    lambda seen: len(seen.response.results) == seen.call["top_k"]: "result_count_equals_top_k",
    lambda seen: len(seen.response.results) < seen.call["top_k"]: "result_count_below_top_k_permitted",
    lambda seen: (
        len(seen.response.results) == len(seen.raws[0] if isinstance(seen.raws[0], list) else seen.raws[0]["results"])
    ): "result_count_matches_response",
    _echoes: "absent_echo_surfaced_as_null document_null_when_provider_omits_echo"
    " echo_not_fabricated_from_input_documents echoed_document_preserved_verbatim echoed_documents_preserved_verbatim"
    " echoed_text_preserved_verbatim_on_document empty_string_echo_present_surfaced_as_empty_string"
    " every_document_null_when_cohere_omits_echo imagedoc_maps_document_to_null omitted_echo_left_null_not_autofilled"
    " per_result_document_shape_variance_preserved textdoc_object_unwrapped_to_text",
    _raw: "raw_is_list_of_per_chunk_response_objects raw_is_single_verbatim_response_object_not_list"
    " both_chunk_responses_preserved_verbatim_on_raw_list empty_id_preserved_verbatim_on_raw"
    " extra_precision_preserved_on_raw malformed_first_chunk_id_preserved_verbatim_on_raw"
    " malformed_id_preserved_verbatim_on_raw malformed_value_preserved_verbatim_on_raw"
    " raw_preserves_base64_strings_verbatim verbatim_imagedoc_object_on_raw verbatim_mixed_shapes_on_raw"
    " verbatim_response_preserved_on_raw verbatim_textdoc_object_on_raw",
    _summed: "billed_units_input_tokens_maps_to_input_tokens billed_units_input_tokens_summed_across_chunks"
    " embedding_event_usage_summed_record_mirrors_response input_tokens_summed_across_chunks"
    " prompt_tokens_maps_to_input_tokens stitched_usage_is_sum_of_sound_chunk_figures total_tokens_maps_to_input_tokens"
    " usage_unaffected_by_empty_response_id usage_unaffected_by_malformed_first_chunk_id"
    " usage_unaffected_by_malformed_response_id",
    _no_usage: "embedding_event_usage_null_mirrors_response malformed_chunk_input_tokens_collapses_stitched_usage_null"
    " malformed_input_tokens_not_reported_usage_null malformed_search_units_not_reported_usage_null"
    " rerank_event_usage_null_mirrors_response stitched_usage_not_partial_sum_of_wellformed_chunks"
    " usage_not_clamped_or_fabricated usage_not_coerced_or_fabricated",
    _units: "search_units_maps_to_search_units",
    lambda seen: seen.response.usage.input_tokens is None: "input_tokens_null_when_cohere_omits",
    lambda seen: seen.response.usage.search_units is None: "search_units_null_when_jina_omits",
    _no_id: "embedding_event_response_id_null_mirrors_response empty_string_response_id_nulled"
    " malformed_first_chunk_id_nulled malformed_response_id_nulled no_fall_through_to_later_chunk_id"
    " response_id_empty_string_not_surfaced response_id_not_coerced_to_string response_id_null_openai_surfaces_none"
    " response_id_null_tei_surfaces_none response_id_null_when_jina_omits response_id_null_when_openai_omits",
    _id: "response_id_from_first_chunk_id response_id_from_top_level_id",
    lambda seen: seen.response.model == seen.bound: "model_is_bound_id model_is_bound_id_when_cohere_omits_echo"
    " model_is_bound_id_when_tei_omits_echo",
    lambda seen: all("authorization" in request.headers for request in seen.requests): (
        "authorization_bearer_header_present"
    ),
    lambda seen: seen.requests[0].content == seen.unconfigured: "wire_body_byte_identical_to_default_path"
    " wire_body_byte_identical_to_symmetric_path",
    _same_parameters: "identical_per_call_params_across_chunks",
    lambda seen: len({body["query"] for body in seen.bodies}) == 1: "same_query_on_every_chunk_request",
    _slices(2, 2, 1): "chunk_inputs_sizes_2_2_1_consecutive_slices",
    _slices(4, 4, 1): "chunk_texts_sizes_4_4_1_consecutive_slices",
    _slices(96, 4): "chunk_texts_sizes_96_4_consecutive_slices",
    _slices(2, 1): "chunked_by_count_into_sizes_2_1",
    lambda seen: all(len(seen.sent(n)) < len(seen.inputs) for n in range(len(seen.requests))): (
        "over_cap_request_chunked_not_sent_whole"
    ),
    _without("dimensions", "encoding_format"): "chunk_requests_omit_dimensions_and_encoding_format",
    _without("output_dimension"): "chunk_requests_omit_output_dimension"
    " wire_request_omits_output_dimension_when_dimensions_absent",
    _without("prompt_name", "dimensions"): "chunk_requests_omit_prompt_name_and_dimensions",
    _without("prompt_name"): "wire_request_omits_prompt_name_when_input_type_absent",
    _without("truncate"): "matching_value_omitted_body_stays_minimal truncate_absent_from_wire",
    _without("input_type", "prompt_name", "task"): "wire_request_omits_input_type_field",
    _without("return_documents"): "wire_request_omits_return_documents wire_request_omits_return_documents_field",
    _without("truncation"): "wire_request_omits_truncation",
    _without("top_n"): "wire_request_omits_top_n_when_top_k_absent",
    _without("task"): "wire_request_omits_task_when_input_type_absent",
    lambda seen: "task" not in seen.config and "input_type" not in seen.config: "input_type_absent_no_managed_task",
    lambda seen: seen.body["task"] == seen.extras["task"]: "extras_task_rides_untouched_to_wire"
    " wire_request_carries_task_text_matching",
    lambda seen: seen.body["encoding_format"] == "base64": "encoding_format_base64_forwarded_to_wire",
    lambda seen: seen.body["model"] == seen.bound: "wire_request_carries_model",
    lambda seen: seen.sent(0) == seen.inputs: "wire_request_documents_match_in_order wire_request_is_array_form"
    " wire_request_documents_sent_as_string_array wire_request_input_sent_verbatim"
    " wire_request_texts_match_documents_in_order wire_request_texts_match_in_order",
    _fixed("truncate", False): "wire_request_truncate_false",
    _fixed("truncate", "NONE"): "wire_request_truncate_none wire_truncate_is_managed_none_unduplicated",
    _fixed("truncation", False): "wire_request_truncation_false wire_truncation_is_managed_false_unduplicated",
    _fixed(
        "return_documents", False
    ): "wire_request_return_documents_false wire_request_return_documents_false_explicit"
    " wire_request_overrides_jina_true_default",
    _fixed("return_documents", True): "wire_request_return_documents_true",
    _fixed("return_text", False): "wire_request_return_text_false",
    _fixed("return_text", True): "wire_request_return_text_true",
    _fixed("input_type", "search_document"): "wire_request_carries_input_type_search_document"
    " wire_request_carries_input_type_search_document_when_input_type_absent"
    " wire_request_input_type_search_document_default",
    _fixed("input_type", "search_query"): "wire_request_carries_input_type_search_query",
    _fixed("input_type", "classification"): "wire_request_carries_input_type_classification",
    _fixed("input_type", "clustering"): "wire_request_carries_input_type_clustering",
    _fixed("prompt_name", "query"): "wire_request_carries_prompt_name_query",
    _fixed("prompt_name", "passage"): "wire_request_carries_prompt_name_passage",
    _fixed("task", "retrieval.query"): "wire_request_carries_task_retrieval_query",
    _fixed("task", "retrieval.passage"): "wire_request_carries_task_retrieval_passage",
    _fixed(
        "embedding_types", ["float"]
    ): "wire_request_embedding_types_float wire_request_embedding_types_is_float_only"
    " malformed_extras_embedding_types_treated_as_absent malformed_list_not_salvaged",
    _merged: "wire_request_embedding_types_contains_all_extras_precisions"
    " wire_request_embedding_types_contains_extras_precision wire_request_embedding_types_contains_float"
    " wire_request_embedding_types_contains_float_exactly_once caller_supplied_float_not_duplicated"
    " extras_embedding_types_merged_not_replaced managed_float_not_dropped_by_extras",
    _prefixed: "wire_request_input_carries_document_prefix wire_request_input_carries_query_prefix",
    lambda seen: seen.body["dimensions"] == seen.config["dimensions"]: "wire_dimensions_is_declared_value_once"
    " wire_request_carries_dimensions_field",
    lambda seen: seen.body["output_dimension"] == seen.config["dimensions"]: (
        "wire_request_carries_output_dimension_field"
    ),
    lambda seen: seen.body["top_n"] == seen.call["top_k"]: "wire_request_carries_top_n_from_top_k",
    lambda seen: str(seen.requests[0].url).startswith(seen.case.file["openai_embedding_provider"]["base_url"]): (
        "wire_request_routes_to_base_url"
    ),
    _parameters: "input_type_in_embedding_event_request_params request_params_empty_when_input_type_absent"
    " wire_mandatory_default_not_reflected_onto_event",
}
"""How it is seen from outside → what the fixtures claim by name."""
