"""The lines of input and output files, and what a batch may be: without a gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.batches.objects import (
    EXPIRY_SECONDS,
    LONGEST_ID,
    UNANSWERED,
    CreateBatch,
    Fault,
    Line,
    LineReader,
    answered,
    batch_object,
    check_expiry,
    unanswered,
)
from gateway.wire.stored import LONGEST_KEY, LONGEST_VALUE, MAX_METADATA, check_metadata, page

Json = dict[str, Any]

CHAT: Json = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "n": 1}}


def line(**more: Any) -> bytes:
    return json.dumps({**CHAT, **more}).encode()


def read(data: bytes, maximum: int = 9, size: int = 1000) -> list[Line | Fault]:
    reader = LineReader("/v1/chat/completions", maximum)
    found = [each for at in range(0, len(data), size) for each in reader.feed(data[at : at + size])]
    return found + reader.finish()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\n  \n"])
def test_lines_are_numbered_as_in_the_file(size: int, end: bytes) -> None:
    """Blank ones count; and a request of a batch is a flex request, whatever it says itself."""
    body = {"model": "m\0", "service_tier": "priority"}
    first, second = read(b"\n" + line() + b"\n \n" + line(custom_id="b", body=body) + end, size=size)
    assert isinstance(first, Line)
    assert isinstance(second, Line)
    assert (first.number, first.custom_id, first.model) == (2, "a", "m")
    assert json.loads(first.request) == {"custom_id": "a", "body": {"model": "m", "n": 1, "service_tier": "flex"}}
    assert (second.number, second.custom_id, second.model) == (4, "b", "m")
    assert json.loads(second.request)["body"] == {"model": "m\0", "service_tier": "flex"}


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": 7}])
def test_a_line_without_a_model_is_left_to_the_endpoint(body: Json) -> None:
    (found,) = read(line(body=body))
    assert isinstance(found, Line)
    assert found.model == ""


FAULTS: dict[str, tuple[bytes, str, str | None]] = {
    "no JSON": (b"{", "invalid_json_line", None),
    "no object": (b"[]", "invalid_json_line", None),
    "no body": (json.dumps({**CHAT, "body": None}).encode(), "invalid_json_line", "body"),
    "an empty id": (line(custom_id=""), "invalid_custom_id", "custom_id"),
    "a long id": (line(custom_id="x" * (LONGEST_ID + 1)), "invalid_custom_id", "custom_id"),
    "another method": (line(method="GET"), "invalid_method", "method"),
    "another endpoint": (line(url="/v1/completions"), "invalid_url", "url"),
    "a stream": (line(body={"stream": True}), "invalid_request", "body.stream"),
    "a background response": (line(body={"background": True}), "invalid_request", "body.background"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_the_line_and_the_field(name: str) -> None:
    text, code, param = FAULTS[name]
    good, fault = read(line(custom_id="first") + b"\n" + text)
    assert isinstance(good, Line)
    assert isinstance(fault, Fault)
    assert (fault.code, fault.param, fault.line) == (code, param, 2)
    assert "the request body" not in fault.message


def test_an_id_may_be_as_long_as_the_limit_but_stands_once() -> None:
    text = line(custom_id="x" * LONGEST_ID, body={"stream": False})
    good, fault = read(text + b"\n" + text)
    assert isinstance(good, Line)
    assert isinstance(fault, Fault)
    assert (fault.code, fault.line) == ("duplicate_custom_id", 2)


def test_too_many_lines_are_one_fault() -> None:
    reader = LineReader("/v1/chat/completions", 2)
    found = reader.feed(b"".join(line(custom_id=f"{at}") + b"\n" for at in range(5)))
    assert [type(each) for each in found] == [Line, Line, Fault]
    fault = found[-1]
    assert isinstance(fault, Fault)
    assert (fault.code, fault.line) == ("too_many_requests", 3)
    assert (reader.finish(), reader.total) == ([], 5)


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_a_file_without_requests_is_a_fault_of_the_whole(data: bytes) -> None:
    (fault,) = read(data)
    assert isinstance(fault, Fault)
    assert (fault.code, fault.line, fault.param) == ("empty_file", None, None)


BATCH: Json = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}


def test_a_new_batch() -> None:
    made = batch_object(CreateBatch.parse(json.dumps({**BATCH, "metadata": {"a": "b"}}).encode()), "batch_1", 1000)
    told = {name: value for name, value in made.items() if value is not None}
    assert told == {
        **BATCH,
        "id": "batch_1",
        "object": "batch",
        "status": "validating",
        "created_at": 1000,
        "expires_at": 1000 + 86400,
        "metadata": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"completion_window": "1h"}, "completion_window"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"metadata": {"a": "x" * (LONGEST_VALUE + 1)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ],
)
def test_a_batch_that_is_refused_names_the_field(fields: Json, param: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        CreateBatch.parse(json.dumps({**BATCH, **fields}).encode())
    assert caught.value.param == param


def test_the_limits_of_metadata() -> None:
    longest = {"k" * LONGEST_KEY: "v" * LONGEST_VALUE}
    full = {f"{at}": "" for at in range(MAX_METADATA)}
    for good in (None, {}, longest, full):
        check_metadata(good)
    for bad in ({**full, "more": ""}, {"k" * (LONGEST_KEY + 1): ""}, {"": "v" * (LONGEST_VALUE + 1)}):
        with pytest.raises(ProviderInvalidRequest) as caught:
            check_metadata(bad)
        assert caught.value.param == "metadata"
    assert (MAX_METADATA, LONGEST_KEY, LONGEST_VALUE) == (16, 64, 512), "OpenAI's"


def test_the_bounds_of_an_expiry() -> None:
    least, maximum = EXPIRY_SECONDS
    assert (least, maximum) == (3600, 2_592_000), "OpenAI's: an hour and 30 days"
    assert [check_expiry(seconds, "expires_after") for seconds in (least, maximum)] == [least, maximum]
    for seconds in (least - 1, maximum + 1):
        with pytest.raises(ProviderInvalidRequest) as caught:
            check_expiry(seconds, "expires_after")
        assert caught.value.param == "expires_after"


def test_a_page_says_whether_there_is_more() -> None:
    found: list[Json] = [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    assert page(found, 2) == {
        "object": "list", "data": found[:2], "first_id": "a", "last_id": "b", "has_more": True,
    }  # fmt: skip
    assert (page(found, 3)["last_id"], page(found, 3)["has_more"]) == ("c", False)
    assert page([], 2) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_the_lines_of_an_output_file() -> None:
    good = json.loads(answered("a", 200, b'{"id" : 1}'))
    assert good.pop("id").startswith("batch_req_")
    assert good["response"].pop("request_id").startswith("req_")
    assert good == {"custom_id": "a", "response": {"status_code": 200, "body": {"id": 1}}, "error": None}
    for code, message in UNANSWERED.items():
        bad = json.loads(unanswered("a", code))
        del bad["id"]
        assert bad == {"custom_id": "a", "response": None, "error": {"code": code, "message": message}}


def test_a_reader_stops_at_the_faults_that_are_shown() -> None:
    reader = LineReader("/v1/chat/completions", 10**6)
    assert len(reader.feed(b"x\n" * 200_000)) == 100
    assert (reader.feed(line() + b"\n"), reader.finish(), reader.total) == ([], [], 100)
