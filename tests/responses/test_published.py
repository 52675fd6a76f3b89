"""Open Responses, the published standard of `/v1/responses`: answers and events by its types, and what it adds.

`openresponses-types` is generated from the standard's schema (2026-04-24).
"""

from __future__ import annotations

import base64
import json

import openresponses_types.types as standard
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from websockets.asyncio.client import connect

from tests.api.asking import frames, said
from tests.gateway.double import Json, Script, answers, chunk, completion, streams
from tests.gateway.running import running
from tests.patience import PATIENCE
from tests.responses.events import CASES, TOOLS

EVENTS: dict[str, type[BaseModel]] = {
    next(iter(kind.model_fields["type"].annotation)).value: kind
    for name, kind in vars(standard).items()
    if name.endswith("StreamingEvent")
}
OPENAIS = ("response.reasoning_text.", "response.custom_tool_call_input.")
"""Events that OpenAI has, and the standard doesn't, or calls otherwise."""
FUNCTIONS = [tool for tool in TOOLS if tool["type"] == "function"]


def check(event: Json) -> bool:
    """Whether the event is one of the standard's, which it then fits."""
    if event["type"].startswith(OPENAIS):
        return False
    EVENTS[event["type"]].model_validate(event)
    return True


def of_openai(name: str) -> bool:
    return name in ("a custom tool", "a tool in a namespace")


BROKEN: dict[str, Script] = {
    "a limit": said(chunk("Hello wor"), reason="length"),
    "a stream that breaks": streams(chunk("Hel"), done=False),
}
SCRIPTS = {**{name: script for name, (script, _) in CASES.items() if not of_openai(name)}, **BROKEN}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_events(name: str) -> None:
    body = {"model": "m", "input": "Hello", "tools": FUNCTIONS, "store": False, "reasoning": {"summary": "auto"}}
    async with running(SCRIPTS[name], SCRIPTS[name]) as gateway:
        found = [event for _, event in frames(await gateway.ask({**body, "stream": True}, "/v1/responses"))]
        async with connect(f"ws://127.0.0.1:{gateway.port}/v1/responses", proxy=None) as client:
            await client.send(json.dumps({**body, "type": "response.create"}))
            for event in found:
                assert json.loads(await client.recv())["type"] == event["type"]
    assert {check(event) for event in found} >= {True}
    standard.ResponseResource.model_validate(found[-1]["response"])


FIELDS: dict[str, Json] = {
    "nothing more": {},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": -0.5},
    "a schema": {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
    "reasoning": {"reasoning": {"effort": "low"}},
    "a chosen tool": {"tool_choice": {"type": "function", "name": "now"}},
    "a stored one": {"store": True, "metadata": {"a": "b"}},
    "a conversation": {"conversation": "made"},
    "many": {"temperature": 0.5, "top_p": 0.5, "max_output_tokens": 9, "instructions": "Be brief.", "user": "ann"},
}


@pytest.mark.parametrize("name", FIELDS)
async def test_answers(name: str) -> None:
    fields = dict(FIELDS[name])
    called = completion(None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "now"}}])
    async with running(answers(called if "tool_choice" in fields else completion('{"a": 1}'))) as gateway:
        if "conversation" in fields:
            fields["conversation"] = (await gateway.ask(b"{}", "/v1/conversations")).json["id"]
        body = {"model": "m", "input": "Hello", "tools": FUNCTIONS, "store": False, **fields}
        answer = await gateway.ask(body, "/v1/responses")
        assert answer.status == 200, answer.body
        given = answer.json
        if "text" in fields:
            # The types allow null alone, while OpenAI's want the schema.
            assert given["text"]["format"].pop("schema") == {"type": "object"}
            given["text"]["format"]["schema"] = None
        made = standard.ResponseResource.model_validate(given)
        assert made.presence_penalty == fields.get("presence_penalty", 0)
        assert made.frequency_penalty == fields.get("frequency_penalty", 0)
        sent = (await gateway.engine.asked()).json
        assert sent.get("presence_penalty") == fields.get("presence_penalty")


async def test_an_error_over_websocket() -> None:
    async with (
        running(answers()) as gateway,
        connect(f"ws://127.0.0.1:{gateway.port}/v1/responses", proxy=None) as client,
    ):
        await client.send('{"type": "response.create", "model": "nobody", "input": "Hi"}')
        standard.WebSocketErrorEvent.model_validate_json(await client.recv())


async def test_compacting() -> None:
    """The user's messages as they were, and a summary that says what it is; a later turn shows it to the model."""
    scripts = answers(completion("It is noon.")), answers(completion("The user asked the time: noon.")), answers()
    async with running(*scripts) as gateway, AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x") as client:
        first = await client.responses.create(model="m", input="What time is it?")
        body = {"previous_response_id": first.id, "input": "Thanks.", "instructions": "Keep times."}
        raw = await client.responses.with_raw_response.compact(model="m", extra_body=body)
        made = json.loads(raw.content)
        asked = gateway.engine.requests[1].json["messages"]
        assert [message["role"] for message in asked] == ["system", "user"]
        assert asked[0]["content"].endswith("Keep times.")
        assert asked[1]["content"] == "user: What time is it?\n\nassistant: It is noon.\n\nuser: Thanks."
        standard.CompactResource.model_validate(made)
        *said_before, summary = made["output"]
        assert [item["content"] for item in said_before] == [
            [{"type": "input_text", "text": "What time is it?"}], [{"type": "input_text", "text": "Thanks."}],
        ]  # fmt: skip
        assert raw.parse().output[-1].type == "compaction"
        assert summary["created_by"] == "m"
        text = base64.b64decode(summary["encrypted_content"].removeprefix("ctxgate:")).decode()
        assert text == "Summary of the conversation so far, written by m:\nThe user asked the time: noon."
        await client.responses.create(model="m", input=[*made["output"], {"role": "user", "content": "And now?"}])
        (shown,) = gateway.engine.requests[2].json["messages"]
        assert shown["content"] == f"What time is it?\n\nThanks.\n\n{text}\n\nAnd now?"


async def test_a_summary_that_was_cut_says_so() -> None:
    async with running(answers(completion("The user", reason="length"))) as gateway:
        made = (await gateway.ask({"model": "m", "input": "Hi"}, "/v1/responses/compact")).json
        text = base64.b64decode(made["output"][-1]["encrypted_content"].removeprefix("ctxgate:")).decode()
        assert text.endswith("The user\n[The summary ends here: its author reached the limit of tokens.]")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "m"}, 400, "invalid_request"),
        ({"model": "nobody", "input": "x"}, 404, "model_not_found"),
        ({"model": "m", "input": "x", "previous_response_id": "resp_x"}, 400, "previous_response_not_found"),
        ({"model": "m", "input": "x"}, 502, "invalid_response"),
    ],
)
async def test_what_cant_be_compacted(body: Json, status: int, code: str) -> None:
    async with running(answers(completion(""))) as gateway:
        answer = await gateway.ask(body, "/v1/responses/compact")
        assert (answer.status, answer.error["code"]) == (status, code)


async def test_compacting_with_the_real_model(real: str) -> None:
    async with AsyncOpenAI(base_url=f"{real}/v1", api_key="x", timeout=PATIENCE) as client:
        made = await client.responses.with_raw_response.compact(model="tiny", input="Hello!")
        assert standard.CompactResource.model_validate_json(made.content).usage.output_tokens > 0
