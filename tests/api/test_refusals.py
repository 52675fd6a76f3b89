"""A server's refusal and the pages that it cites: every API has them in its own words, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.published import check
from tests.gateway.double import Exchange, Json, Script, answers, chunk, completion, streams
from tests.gateway.running import Running, running

NO = "I can't help with that."
SAY: Json = {"messages": [{"role": "user", "content": "Hi"}]}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMED: Json = {"name": "w", "schema": SCHEMA}
CALL: Json = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "Ollama": "/api/chat",
}
PLAIN: Mapping[str, Json] = {
    "chat": SAY,
    "responses": {"input": "Hi"},
    "messages": {"max_tokens": 9, **SAY},
    "Ollama": SAY,
}
MORE: Mapping[str, Mapping[str, Json]] = {
    "chat": {
        "plain": {},
        "a schema": {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        "an object": {"response_format": {"type": "json_object"}},
        "a call": {"tools": [CALL], "tool_choice": "required"},
        "tools": {"tools": [CALL]},
    },
    "responses": {"plain": {}, "a schema": {"text": {"format": {"type": "json_schema", **NAMED}}}},
    "messages": {"plain": {}, "a schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}},
    "Ollama": {"plain": {}, "a schema": {"format": SCHEMA}},
}


def engine(message: Json, *chunks: Json, reason: str = "stop") -> Script:
    """Answers in the words that the request asks for."""
    whole = answers(completion(**{"content": None, **message}, reason=reason))
    stream = streams(chunk("", role="assistant"), *chunks, chunk(reason=reason))

    async def script(exchange: Exchange) -> None:
        await (stream if exchange.json.get("stream") else whole)(exchange)

    return script


async def asked(gateway: Running, api: str, more: Json, *, stream: bool) -> list[Json]:
    """The whole answer, or the payloads of its stream, each of them sound for the API's own package."""
    body = {"model": "m", "stream": stream, **PLAIN[api], **more}
    answer = await gateway.ask(body, PATHS[api])
    assert answer.status == 200, answer.body
    lines = [line.removeprefix("data: ") for line in answer.body.decode().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    types = {
        "chat": ("openai.types.chat:ChatCompletion", "openai.types.chat:ChatCompletionChunk"),
        "responses": ("openai.types.responses:Response", "openai.types.responses:ResponseStreamEvent"),
        "messages": ("anthropic.types:Message", "anthropic.types:RawMessageStreamEvent"),
    }
    for each in found:
        if api in types and each.get("type") != "ping":
            check(types[api][stream], each)
    return found


def refusal(api: str, found: list[Json]) -> Any:
    """What a client reads as the refusal."""
    match api:
        case "chat":
            said = [choice.get("message") or choice["delta"] for each in found for choice in each["choices"]]
            assert not any(one.get("content") for one in said)
            return "".join(one.get("refusal") or "" for one in said)
        case "responses":
            if len(found) > 1:
                assert "".join(each["delta"] for each in found if each["type"] == "response.refusal.delta") == NO
                [done] = [each for each in found if each["type"] == "response.refusal.done"]
                assert done["refusal"] == NO
            last = found[-1].get("response", found[-1])
            assert last["status"] == "completed"
            [item] = last["output"]
            [part] = item["content"]
            return part["refusal"] if part["type"] == "refusal" else part
        case "messages":
            ended = [each.get("delta", each).get("stop_reason") for each in found]
            assert [*filter(None, ended)] == ["refusal"]
            texts = [block.get("text", "") for each in found for block in each.get("content", [])]
            return "".join(texts + [(each.get("delta") or {}).get("text", "") for each in found])
    return "".join(each["message"]["content"] for each in found)


@pytest.mark.parametrize(("api", "more"), [(api, name) for api, names in MORE.items() for name in names])
async def test_a_refusal_comes_at_once_in_the_words_of_the_api(api: str, more: str) -> None:
    parts = [chunk(refusal=NO[:7]), chunk(refusal=NO[7:])]
    async with running(engine({"refusal": NO}, *parts)) as gateway:
        for stream in (False, True):
            assert refusal(api, await asked(gateway, api, MORE[api][more], stream=stream)) == NO, stream
        assert len(gateway.engine.requests) == 2, "nobody asks again for what is refused"


@pytest.mark.parametrize("api", PATHS)
async def test_what_is_no_refusal(api: str) -> None:
    """Servers put all kinds of things in its place."""
    odds: list[Any] = [None, "", {}, False, []]
    for odd in odds:
        async with running(engine({"content": "Hi", "refusal": odd}, chunk("Hi", refusal=odd))) as gateway:
            for stream in (False, True):
                answer = await gateway.ask({"model": "m", "stream": stream, **PLAIN[api]}, PATHS[api])
                assert answer.status == 200
                assert b"Hi" in answer.body
                assert b'"type":"refusal"' not in answer.body
                assert b'"stop_reason":"refusal"' not in answer.body


@pytest.mark.parametrize("runtime", ["llama.cpp", "llama-cpp-python", "mlx"])
@pytest.mark.parametrize("content", [None, "", [{"type": "refusal", "refusal": NO}]])
async def test_a_past_refusal_is_text_for_templates(runtime: str, content: Any) -> None:
    """Also as the answer had it, which clients send back."""
    past = {"role": "assistant", "content": content, "refusal": None if isinstance(content, list) else NO}
    answered = {"role": "assistant", "content": "Hi", "refusal": None}
    say = {"model": "m", "messages": [*SAY["messages"], answered, *SAY["messages"], past, *SAY["messages"]]}
    async with running(answers(), runtime=runtime, tool_call_format="native_json") as gateway:
        assert (await gateway.ask(say)).status == 200
        [sent] = [each.json["messages"] for each in gateway.engine.requests if "messages" in (each.json or {})]
        texts = [one["content"] for one in sent]
        assert [one if isinstance(one, str) else one[0]["text"] for one in texts] == ["Hi", "Hi", "Hi", NO, "Hi"]


def cite(number: int, **more: Any) -> Json:
    page = {"url": f"https://a.example/{number}", "title": "A", "start_index": 0, "end_index": 5, **more}
    return {"type": "url_citation", "url_citation": page}


CITED = [cite(1), cite(2)]


def cited(api: str, found: list[Json]) -> list[str]:
    """The pages in the answer, in order."""
    match api:
        case "chat":
            said = [choice.get("message") or choice["delta"] for each in found for choice in each["choices"]]
            return [one["url_citation"]["url"] for each in said for one in each.get("annotations") or ()]
        case "responses":
            last = found[-1].get("response", found[-1])
            pages = [note["url"] for note in last["output"][0]["content"][0]["annotations"]]
            added = [each for each in found if each.get("type") == "response.output_text.annotation.added"]
            if len(found) > 1:
                assert [each["annotation"]["url"] for each in added] == pages
                assert [each["annotation_index"] for each in added] == [*range(len(pages))]
            return pages
    deltas = [each["delta"] for each in found if each.get("type") == "content_block_delta"]
    blocks = [block for each in found for block in each.get("content", [])]
    notes = [note for block in blocks for note in block.get("citations", [])]
    notes += [delta["citation"] for delta in deltas if delta["type"] == "citations_delta"]
    assert {note["cited_text"] for note in notes} == {"Paris"}
    return [note["url"] for note in notes]


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_cited_pages_arrive(api: str) -> None:
    """Ollama's API has no place for them."""
    parts = [chunk("Paris"), chunk(annotations=CITED[:1]), chunk(annotations=CITED[1:])]
    async with running(engine({"content": "Paris", "annotations": CITED}, *parts)) as gateway:
        for stream in (False, True):
            found = cited(api, await asked(gateway, api, {}, stream=stream))
            assert found == ["https://a.example/1", "https://a.example/2"], stream


@pytest.mark.parametrize("api", ["responses", "messages", "Ollama"])
async def test_annotations_that_cite_no_page_are_left_out(api: str) -> None:
    cases: list[Any] = [
        None, {}, [], "x", 7, [None], [{}], [{"type": "file_path", "file_id": "a"}],
        [cite(1, url=None)], [cite(1, title=7)], [{"type": "url_citation", "url_citation": None}],
    ]  # fmt: skip
    for odd in cases:
        more = {"annotations": odd}
        async with running(engine({"content": "Paris", **more}, chunk("Paris", **more))) as gateway:
            for stream in (False, True):
                answer = await gateway.ask({"model": "m", "stream": stream, **PLAIN[api]}, PATHS[api])
                assert answer.status == 200, (odd, answer.body)
                assert b"a.example" not in answer.body
                assert b"Paris" in answer.body


async def test_a_cited_page_without_a_place_or_title() -> None:
    bare = [cite(1, title=None, start_index=None, end_index=None)]
    async with running(engine({"content": "Paris", "annotations": bare})) as gateway:
        [found] = await asked(gateway, "responses", {}, stream=False)
        [note] = found["output"][0]["content"][0]["annotations"]
        page = {"url": "https://a.example/1", "title": "", "start_index": 0, "end_index": 0}
        assert note == {"type": "url_citation", **page}
