"""Answers of other endpoints than chat: unchanged, unless they are errors."""

from __future__ import annotations

import json

import pytest

from gateway.backends import Address
from gateway.backends.openai import OpenAIBackend
from gateway.config import Model
from gateway.core import Passthrough, RequestMeter
from gateway.core.in_thread import LARGE
from gateway.errors import GatewayError, ProviderInvalidResponse
from gateway.observe.request_log import Row
from gateway.prompts.told import ToldPrompts, ToldTurn
from tests.gateway.scripted import Scripted

MODEL = Model(name="m", runtime="openai")
TEXT = json.dumps({"choices": [{"text": "Hello"}]}).encode()
LAST = json.dumps({"choices": [{"text": ""}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()
ERROR = json.dumps({"error": {"message": "out of memory"}}).encode()


def passthrough(*payloads: bytes) -> tuple[Passthrough, RequestMeter, list[Row]]:
    booked: list[Row] = []
    meter = RequestMeter("m", "completions", True, booked.append)
    return Passthrough(Scripted(*payloads), OpenAIBackend(MODEL, Address(port=1)), meter), meter, booked


async def test_a_stream_passes_and_is_counted() -> None:
    stream, meter, booked = passthrough(TEXT, TEXT, LAST)
    got = []
    while payloads := await stream.payloads():
        got += payloads
    assert got == [TEXT, TEXT, LAST]
    meter.end("ok")
    (row,) = booked
    assert row[0:3] == ("m", True, "ok")
    assert (row[6], row[7]) == ({"prompt_tokens": 3, "completion_tokens": 4}, 3)
    assert row[3] <= row[5] <= row[4], "the first payload came between begin and end"


async def test_the_first_payload_alone_sets_its_time() -> None:
    stream, meter, _ = passthrough(TEXT, TEXT)
    assert meter.first == 0
    await stream.payloads()
    meter.first = first = meter.first / 2
    await stream.payloads()
    assert meter.first == first > 0


async def test_an_error_in_place_of_a_stream_is_raised() -> None:
    stream, _, _ = passthrough(ERROR)
    with pytest.raises(GatewayError, match="out of memory"):
        await stream.payloads()


async def test_an_error_in_the_middle_of_a_stream_is_raised_in_its_place() -> None:
    stream, meter, _ = passthrough(TEXT, ERROR, TEXT)
    assert await stream.payloads() == [TEXT]
    with pytest.raises(GatewayError, match="out of memory"):
        await stream.payloads()
    assert meter.chunks == 1, "the client has one payload"


async def test_text_about_errors_is_no_error() -> None:
    about = json.dumps({"choices": [{"text": '{"error": 1}'}], "error": None}).encode()
    stream, _, _ = passthrough(TEXT, about)
    assert [await stream.payloads(), await stream.payloads(), await stream.payloads()] == [[TEXT], [about], []]


async def test_a_stream_that_no_client_could_read_is_an_error() -> None:
    stream, _, _ = passthrough(b"<html>", TEXT)
    with pytest.raises(ProviderInvalidResponse):
        await stream.payloads()


@pytest.mark.parametrize("text", ["", "x" * LARGE], ids=["short", "long"])
async def test_a_whole_answer_passes(text: str) -> None:
    body = LAST.replace(b'"text": ""', b'"text": "%b"' % text.encode())
    whole, meter, _ = passthrough(body)
    assert await whole.whole() == body
    assert meter.usage == {"prompt_tokens": 3, "completion_tokens": 4}


@pytest.mark.parametrize("count", ["1e999", "-1e999", "NaN", "Infinity"])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_count_that_is_no_number_spoils_no_answer(count: str, whole: bool) -> None:
    body = LAST.replace(b'"prompt_tokens": 3', b'"prompt_tokens": %b' % count.encode())
    answer, meter, _ = passthrough(body)
    if whole:
        assert await answer.whole() == body
    else:
        assert [await answer.payloads(), await answer.payloads()] == [[body], []]
    assert meter.usage["completion_tokens"] == 4
    assert meter.usage["prompt_tokens"] in (None, -9999.0)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (ERROR, GatewayError),
        (b"<html>", ProviderInvalidResponse),
        (json.dumps({"error": {"message": "x" * LARGE}}).encode(), GatewayError),
        (b"<html>" * LARGE, ProviderInvalidResponse),
    ],
    ids=["error", "page", "long error", "long page"],
)
async def test_a_whole_answer_that_is_none_is_an_error(body: bytes, error: type[GatewayError]) -> None:
    whole, _, _ = passthrough(body)
    with pytest.raises(error):
        await whole.whole()


async def test_what_the_engine_took_from_a_file_is_booked() -> None:
    body = LAST.replace(b'"prompt_tokens": 3', b'"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}')
    whole, meter, booked = passthrough(body)
    await whole.whole()
    meter.left(ToldTurn(ToldPrompts(), None, restored=2))
    meter.end("ok")
    assert booked[0][6]["restored_tokens"] == 2
