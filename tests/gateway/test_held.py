"""Checked answers, held back until they conform and asked for again, on the fast protocol and on plain ASGI."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.gateway.accumulator import from_stream
from tests.gateway.client import Answer, chat
from tests.gateway.double import Exchange, Json, Script, chunk, completion, endless, streams
from tests.gateway.running import running

SCHEMA: Json = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BY_SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
GOOD, FENCED, CUT = '{"n": 1}', '```json\n{"n": 1}\n```', '{"n": '
WEATHER: Json = {"type": "function", "function": {"name": "weather", "parameters": {"required": ["city"]}}}
NOW: Json = {"type": "function", "function": {"name": "now", "parameters": {}}}
STRICT: Json = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


def says(text: str, *calls: tuple[str, str], reason: str = "stop", choices: int = 1) -> Script:
    """A script: that answer, whole or streamed as it is asked for."""
    made = [
        {"index": at, "id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]

    async def script(exchange: Exchange) -> None:
        if not exchange.json.get("stream"):
            body = completion(text, reason=reason, **({"tool_calls": made} if made else {}))
            body["choices"] = [{**body["choices"][0], "index": at} for at in range(choices)]
            await exchange.whole(body)
            return
        await exchange.start()
        for index in range(choices):
            await exchange.event(chunk("", role="assistant", index=index))
            for letter in text:
                await exchange.event(chunk(letter, index=index))
            if made:
                await exchange.event(chunk(tool_calls=made, index=index))
            await exchange.event(chunk(reason=reason, index=index))
        await exchange.end()

    return script


def folded(answer: Answer) -> tuple[str, list[tuple[str, str]], Json]:
    """Content and calls of the first choice, and what the answer says of its enforcement."""
    if answer.headers["content-type"] == "application/json":
        message = answer.json["choices"][0]["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
        return message.get("content") or "", calls, answer.json["ctxgate"]["enforced"]
    *payloads, done = answer.events
    assert done == b"[DONE]"
    last = [json.loads(payload) for payload in payloads if b"ctxgate" in payload]
    said = from_stream(payloads)[0]
    return said.content, [(c.name, c.arguments) for c in said.calls], last[-1]["ctxgate"]["enforced"]


PROSE = says("It is one.")


async def test_the_examples_in_the_docs() -> None:
    lines = (ROOT / "docs/guarantees.md").read_text("utf-8").splitlines()
    async with running(PROSE, says(GOOD)) as gateway:
        answer = await gateway.ask(chat(response_format=BY_SCHEMA))
    assert f"x-ctxgate-enforced: {answer.headers['x-ctxgate-enforced']}" in lines
    assert json.dumps({"ctxgate": answer.json["ctxgate"]}) in lines


CONFORMING: dict[str, tuple[Json, list[Script], str, list[tuple[str, str]], int]] = {
    "at once": ({"response_format": BY_SCHEMA}, [says(GOOD)], GOOD, [], 1),
    "the second time": ({"response_format": BY_SCHEMA}, [PROSE, says(GOOD)], GOOD, [], 2),
    "the third time": ({"response_format": BY_SCHEMA}, [PROSE, says('{"n": "x"}'), says(GOOD)], GOOD, [], 3),
    "in a fence": ({"response_format": BY_SCHEMA}, [says(FENCED)], GOOD, [], 1),
    "no object": ({"response_format": {"type": "json_object"}}, [says("[1]"), says(GOOD)], GOOD, [], 2),
    "cut, and that told": ({"response_format": BY_SCHEMA}, [says(CUT, reason="length")], CUT, [], 1),
    "prose, cut": ({"response_format": BY_SCHEMA}, [says("It is", reason="length"), says(GOOD)], GOOD, [], 2),
    "required": (
        {"tools": [WEATHER], "tool_choice": "required"},
        [PROSE, says("", ("weather", "{}"))],
        "",
        [("weather", "{}")],
        2,
    ),
    "named": (
        {"tools": [WEATHER, NOW], "tool_choice": {"type": "function", "function": {"name": "now"}}},
        [says("", ("weather", "{}")), says("", ("now", ""))],
        "",
        [("now", "{}")],
        2,
    ),
    "strict": (
        {"tools": [STRICT], "tool_choice": "required"},
        [says("", ("weather", "{}")), says("", ("weather", '{"city":1}'))],
        "",
        [("weather", '{"city":1}')],
        2,
    ),
    "JSON or a call": (
        {"tools": [WEATHER], "response_format": BY_SCHEMA},
        [PROSE, says("", ("weather", "{}"))],
        "",
        [("weather", "{}")],
        2,
    ),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CONFORMING)
async def test_an_answer_conforms_and_says_how_often_it_was_asked_for(http: str, name: str, stream: bool) -> None:
    fields, scripts, content, calls, attempts = CONFORMING[name]
    async with running(*scripts, http=http) as gateway:
        answer = await gateway.ask(chat(stream=stream, **fields))
        assert folded(answer) == (content, calls, {"by": "checked", "attempts": attempts})
        assert len(gateway.engine.requests) == attempts
        if not stream:
            told = answer.headers["x-ctxgate-enforced"]
            assert told == ("checked" if attempts == 1 else f"checked; attempts={attempts}")


async def test_what_the_model_is_told_when_it_is_asked_again(http: str) -> None:
    async with running(PROSE, says('{"n": "x"}'), says(GOOD), http=http) as gateway:
        await gateway.ask(chat("One?", response_format=BY_SCHEMA))
        first, second, third = (exchange.json for exchange in gateway.engine.requests)
    # A server that isn't known may hold to it by itself.
    assert first["response_format"] == second["response_format"] == BY_SCHEMA
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == "It is one."
    assert "it is not JSON" in second["messages"][2]["content"]
    assert json.dumps(SCHEMA, separators=(",", ":")) in second["messages"][2]["content"]
    # Only the last answer is shown.
    assert len(third["messages"]) == 3
    assert "/n: 'x' is not of type 'integer'" in third["messages"][2]["content"]


UNMET: dict[str, tuple[Json, Script, int, str, str]] = {
    "json": ({"response_format": BY_SCHEMA}, PROSE, 422, "structured_output_invalid", "it is not JSON"),
    "call": ({"tools": [WEATHER], "tool_choice": "required"}, PROSE, 400, "tool_choice_unmet", "no tool was called"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", UNMET)
async def test_a_model_that_never_conforms_is_an_error(http: str, name: str, stream: bool) -> None:
    fields, script, status, code, words = UNMET[name]
    async with running(script, http=http) as gateway:
        answer = await gateway.ask(chat(stream=stream, **fields))
        assert (answer.status, answer.error["code"], answer.error["attempts"]) == (status, code, 3)
        assert words in answer.error["message"]
        assert len(gateway.engine.requests) == 3
        assert (await gateway.ask(chat())).status == 200


async def test_every_choice_has_to_conform(http: str) -> None:
    async with running(says("No.", choices=2), says(FENCED, choices=2), http=http) as gateway:
        answer = await gateway.ask(chat(stream=True, n=2, response_format=BY_SCHEMA))
        said = from_stream(answer.events[:-1])
        assert [said[index].content for index in (0, 1)] == [GOOD, GOOD]


async def test_a_held_stream_says_meanwhile_what_it_waits_for(http: str) -> None:
    go = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await go.wait()
        await says(GOOD)(exchange)

    progress = {"progress_after_seconds": 0.05, "keep_alive_seconds": 0.05}
    async with running(PROSE, slow, http=http, progress=progress) as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True, response_format=BY_SCHEMA))
        assert (await client.head())[1] == 200
        while b"asking-again attempt=2 of=3 waiting" not in (part := await client.part()):
            assert part.startswith(b": ctxgate ")
        go.set()
        rest = b"".join([part async for part in client.parts()])
        assert b"It is one" not in rest
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_who_leaves_while_the_model_is_asked_again_frees_the_engine(http: str) -> None:
    async def hangs(exchange: Exchange) -> None:
        await exchange.gone

    async with running(PROSE, hangs, http=http) as gateway:
        client = await gateway.connect()
        await client.post(chat(response_format=BY_SCHEMA))
        exchange = await gateway.engine.asked(2)
        client.leave()
        await exchange.gone


TRUSTED: dict[str, tuple[Json, list[Script], str, list[tuple[str, str]], int]] = {
    "at once": ({"response_format": BY_SCHEMA}, [says(GOOD)], GOOD, [], 1),
    "behind white space": ({"response_format": BY_SCHEMA}, [says(f"  {GOOD}")], GOOD, [], 1),
    "an object": ({"response_format": {"type": "json_object"}}, [says(GOOD)], GOOD, [], 1),
    "cut, and that told": ({"response_format": BY_SCHEMA}, [says(CUT, reason="length")], CUT, [], 1),
    "words": ({"response_format": BY_SCHEMA}, [PROSE, says(GOOD)], GOOD, [], 2),
    "words twice": ({"response_format": BY_SCHEMA}, [PROSE, PROSE, says(GOOD)], GOOD, [], 3),
    "a fence": ({"response_format": BY_SCHEMA}, [says(FENCED)], GOOD, [], 1),
    "nothing": ({"response_format": BY_SCHEMA}, [says(""), says(GOOD)], GOOD, [], 2),
    "a number": ({"response_format": BY_SCHEMA}, [says("1"), says(GOOD)], GOOD, [], 2),
    "required": (
        {"tools": [WEATHER], "tool_choice": "required"},
        [says("", ("weather", "{}"))],
        "",
        [("weather", "{}")],
        1,
    ),
    "no call": (
        {"tools": [WEATHER], "tool_choice": "required"},
        [PROSE, says("", ("weather", "{}"))],
        "",
        [("weather", "{}")],
        2,
    ),
    "JSON or a call": (
        {"tools": [WEATHER], "response_format": BY_SCHEMA},
        [says("", ("weather", "{}"))],
        "",
        [("weather", "{}")],
        1,
    ),
}
"""What a server that is trusted says, and the client gets."""


@pytest.mark.some(3)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", TRUSTED)
async def test_a_server_that_is_trusted_is_checked_at_the_end(http: str, name: str, stream: bool) -> None:
    fields, scripts, content, calls, attempts = TRUSTED[name]
    async with running(*scripts, http=http, enforcement="engine") as gateway:
        answer = await gateway.ask(chat(stream=stream, **fields))
        assert answer.status == 200
        assert len(gateway.engine.requests) == attempts
    if not stream:
        assert answer.headers["x-ctxgate-enforced"] == ("engine" if attempts == 1 else f"engine; attempts={attempts}")
    if attempts > 1:
        assert folded(answer) == (content, calls, {"by": "engine", "attempts": attempts})
    elif stream:
        said = from_stream(answer.events[:-1])[0]
        assert (
            said.content.strip("`json\n ") + CUT[-1] * (content == CUT),
            [(c.name, c.arguments) for c in said.calls],
        ) == (content, calls)
        assert b"enforced" not in answer.body
    else:
        message = answer.json["choices"][0]["message"]
        assert [c["function"]["name"] for c in message.get("tool_calls") or ()] == [name for name, _ in calls]
        assert (message["content"] or "") == content


WRONG_AT_THE_END: dict[str, str] = {
    "a wrong type": '{"n": "x"}',
    "a missing property": "{}",
    "an array": "[1, 2]",
    "half of it": '{"n": ',
    "more behind it": '{"n": 1} That is all.',
    "no number": '{"n": None}',
    "two values": '{"n": 1}{"n": 2}',
    "bad nesting": '{"n": [1}',
}


@pytest.mark.parametrize("name", WRONG_AT_THE_END)
async def test_a_stream_that_goes_wrong_after_it_began_ends_in_an_error(http: str, name: str) -> None:
    async with running(says(WRONG_AT_THE_END[name]), http=http, enforcement="engine") as gateway:
        answer = await gateway.ask(chat(stream=True, response_format=BY_SCHEMA))
        assert len(gateway.engine.requests) == 1
    *payloads, last, done = answer.events
    assert (json.loads(last)["error"]["code"], done) == ("structured_output_invalid", b"[DONE]")
    chunks = [json.loads(payload) for payload in payloads]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == WRONG_AT_THE_END[name]
    assert not any(c["choices"][0]["finish_reason"] for c in chunks)


@pytest.mark.parametrize("name", WRONG_AT_THE_END)
async def test_a_whole_answer_that_is_wrong_is_asked_for_again(http: str, name: str) -> None:
    async with running(says(WRONG_AT_THE_END[name]), says(GOOD), http=http, enforcement="engine") as gateway:
        answer = await gateway.ask(chat(response_format=BY_SCHEMA))
    assert folded(answer) == (GOOD, [], {"by": "engine", "attempts": 2})


async def test_a_trusted_stream_is_not_held_back(http: str) -> None:
    go = asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("", role="assistant"), chunk('{"n"'))
        await go.wait()
        await exchange.event(chunk(": 1}"), chunk(reason="stop"))
        await exchange.end()

    async with running(slowly, http=http, enforcement="engine") as gateway, await gateway.connect() as client:
        await client.post(chat(stream=True, response_format=BY_SCHEMA))
        await client.head()
        seen = b""
        while b'{\\"n\\"' not in seen:
            seen += await client.part()
        go.set()
        rest = b"".join([part async for part in client.parts()])
        assert rest.endswith(b"data: [DONE]\n\n")


# A server that holds to `response_format` and ignores `tool_choice`

ANY: Json = {"tools": [WEATHER, NOW], "tool_choice": "required"}
NAMED: Json = {"tools": [WEATHER, NOW], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
BY_TEXT = says('{"name": "weather", "arguments": {"city": 1}}')
CALLED = [("weather", '{"city": 1}')]


async def refuses(exchange: Exchange) -> None:
    await exchange.whole({"error": {"message": "response_format is not supported"}}, status=400)


def names_sent(exchange: Exchange) -> tuple[bool, bool]:
    """Whether it was asked by a format of calls, and by `tool_choice`."""
    format = exchange.json.get("response_format") or {}
    return format.get("json_schema", {}).get("name") == "call", "tool_choice" in exchange.json


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fields", [ANY, NAMED], ids=["any", "named"])
async def test_what_forces_calls_is_learnt(http: str, fields: Json, stream: bool) -> None:
    scripts = (PROSE, BY_TEXT, BY_TEXT, says(GOOD))
    async with running(*scripts, http=http) as gateway:
        first = await gateway.ask(chat(stream=stream, **fields))
        second = await gateway.ask(chat(**fields))
        third = await gateway.ask(chat(response_format=BY_SCHEMA))
        sent = [names_sent(exchange) for exchange in gateway.engine.requests]
    assert folded(first)[1:] == (CALLED, {"by": "checked", "attempts": 2})
    assert sent == [(False, True), (True, False), (True, False), (False, False)]
    assert second.headers["x-ctxgate-enforced"] == third.headers["x-ctxgate-enforced"] == "engine"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("second", [refuses, PROSE], ids=["refused", "ignored"])
async def test_and_so_is_what_does_not(http: str, second: Script, stream: bool) -> None:
    called = says("", ("weather", '{"city": 1}'))
    scripts = (PROSE, second, called, PROSE, called)
    async with running(*scripts, http=http) as gateway:
        first = await gateway.ask(chat(stream=stream, **ANY))
        again = await gateway.ask(chat(stream=stream, **ANY))
        sent = [names_sent(exchange) for exchange in gateway.engine.requests]
    assert folded(first)[1] == folded(again)[1] == CALLED
    assert sent == [(False, True), (True, False), (False, True), (False, True), (False, True)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fields", [ANY, NAMED], ids=["any", "named"])
async def test_config_can_say_so_at_once(http: str, fields: Json, stream: bool) -> None:
    async with running(BY_TEXT, http=http, enforcement="response_format") as gateway:
        answer = await gateway.ask(chat(stream=stream, **fields))
        assert names_sent(gateway.engine.requests[0]) == (True, False)
    if stream:
        assert [(c.name, c.arguments) for c in from_stream(answer.events[:-1])[0].calls] == CALLED
    else:
        assert answer.headers["x-ctxgate-enforced"] == "engine"
        assert answer.json["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_without_constraints_says_nothing_of_them(http: str) -> None:
    async with running(PROSE, http=http) as gateway:
        for fields in ({}, {"response_format": {"type": "text"}}, {"tools": [NOW], "tool_choice": "auto"}):
            answer = await gateway.ask(chat(**fields))
            assert "x-ctxgate-enforced" not in answer.headers
            assert answer.json == completion("It is one.")


MALFORMED: dict[str, tuple[Json, str, str]] = {
    "no such type": ({"response_format": {"type": "yaml"}}, "response_format.type", "no 'yaml'"),
    "no object": ({"response_format": "json"}, "response_format", "expected `object"),
    "no schema": (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema.schema",
        "a JSON Schema is needed",
    ),
    "a schema that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "int"}}}},
        "response_format.json_schema.schema",
        "not a valid JSON Schema: $.type: 'int'",
    ),
    "a reference to elsewhere": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/a"}}}},
        "response_format.json_schema.schema",
        "leads nowhere inside it",
    ),
    "no such choice": ({"tools": [NOW], "tool_choice": "always"}, "tool_choice", "no 'always'"),
    "no such tool": (
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "then"}}},
        "tool_choice",
        "no tool 'then'",
    ),
    "allowed tools that are no list": (
        {"tools": [NOW], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": 5}}},
        "tool_choice.allowed_tools.tools",
        "must be a list",
    ),
    "no tools": ({"tool_choice": "required"}, "tool_choice", "no tools are declared"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_constraint_that_is_none_is_refused_by_its_name(name: str) -> None:
    fields, param, words = MALFORMED[name]
    async with running(says(GOOD)) as gateway:
        answer = await gateway.ask(chat(**fields))
        assert (answer.status, answer.error["param"]) == (400, param)
        assert words in answer.error["message"]
        assert not gateway.engine.requests


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_another_model_might_have_given_is_handed_out(http: str, stream: bool) -> None:
    async with running(PROSE, says(GOOD), http=http, retries=1, fallbacks=("echo",)) as gateway:
        answer = await gateway.ask(chat(stream=stream, response_format=BY_SCHEMA))
        assert folded(answer) == (GOOD, [], {"by": "checked", "attempts": 2})


async def test_a_faulty_schema_is_refused_before_the_engine_is_asked(http: str) -> None:
    async def knows_no_dialect(exchange: Exchange) -> None:
        if exchange.path == "/props":
            await exchange.whole({"chat_template": "{{ messages }} {{ tools }}"})
        else:
            await endless(exchange)

    async with running(knows_no_dialect, http=http, runtime="llama.cpp") as gateway:
        faulty = {"type": "json_schema", "json_schema": {"schema": {"type": "int"}}}
        answer = await gateway.ask(chat(stream=True, tools=[NOW], response_format=faulty))
        assert (answer.status, answer.error["param"]) == (400, "response_format.json_schema.schema")
        assert {request.path for request in gateway.engine.requests} <= {"/props"}


async def test_a_dialect_that_could_not_be_asked_for_once_is_asked_for_again(http: str) -> None:
    template = "<|tool_list_start|>{{ tools }}<|tool_list_end|> <|tool_call_start|>[pythonic]<|tool_call_end|>"

    async def answers_late(exchange: Exchange) -> None:
        if exchange.path != "/props":
            path = exchange.path == "/apply-template"
            await (exchange.whole({"prompt": "Hi"}) if path else streams({"choices": []})(exchange))
        elif len(gateway.engine.requests) == 1:
            exchange.reset()
        else:
            await exchange.whole({"chat_template": template})

    async with running(answers_late, http=http, runtime="llama.cpp") as gateway:
        fields: Json = {"tools": [NOW], "tool_choice": "required"}
        assert (await gateway.ask(chat(**fields))).status == 502
        await gateway.ask(chat(**fields))
        assert "grammar" in gateway.engine.requests[-1].json


EVIL: Json = {"type": "object", "properties": {"n": {"type": "string", "pattern": "(a+)+$"}}}
PATTERNED: dict[str, Json] = {
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": EVIL}}},
    "a strict tool": {
        "tools": [{"type": "function", "function": {"name": "now", "parameters": EVIL, "strict": True}}],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize(("name", "stream"), [("response_format", True), ("a strict tool", False)])
async def test_a_pattern_that_would_match_for_ever_is_given_up(name: str, stream: bool) -> None:
    said = json.dumps({"n": "a" * 40 + "!"})
    script = says("", ("now", said)) if "tool" in name else says(said)
    # Judging takes as long as patterns may: a comment would begin the stream.
    async with running(script, says("Hi."), progress={"progress_comments": False}) as gateway:
        answer = await gateway.ask(chat(stream=stream, **PATTERNED[name]))
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert "it takes longer than 0.5 s" in answer.error["message"]
        assert len(gateway.engine.requests) == 1
        assert (await gateway.ask(chat())).status == 200


async def test_allowed_tools_are_all_that_is_declared(http: str) -> None:
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "now"}]}}
    async with running(streams(chunk("Hi", role="assistant"), chunk(reason="stop")), http=http) as gateway:
        await gateway.ask(chat(stream=True, tools=[WEATHER, NOW], tool_choice=choice))
        (exchange,) = gateway.engine.requests
    assert exchange.json["tools"] == [NOW]
    assert exchange.json["tool_choice"] == "auto"
