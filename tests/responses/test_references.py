"""Items of the input that name stored ones: the model is shown what they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses import item_rows
from gateway.features.responses.response_store import ResponseStore, Stored
from gateway.features.responses.wire.conversations import written
from gateway.server.principal import LOCAL, Principal
from gateway.store import Store
from tests.api.asking import said
from tests.gateway.client import Answer
from tests.gateway.double import Exchange, Json, Script, answers, chunk, completion, endless
from tests.gateway.running import FAST, NO_COMMENTS, Running, running
from tests.patience import PATIENCE
from tests.responses.broken_off import begun, kept
from tests.responses.websocket import ask, opened, rest, turn

HI: Json = {"role": "user", "content": "who are you"}
AND: Json = {"role": "user", "content": "what is your name"}
NOW: Json = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
CALLED: list[Json] = [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
EVERYTHING = completion("Let me see.", tool_calls=CALLED, reasoning_content="Hm.")


async def post(gateway: Running, **fields: Any) -> Answer:
    return await gateway.ask({"model": "m", **fields}, "/v1/responses")


async def get(gateway: Running, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.request(method, gateway.url + path)


def named(id: str, **more: Any) -> Json:
    return {"type": "item_reference", "id": id, **more}


async def shown(gateway: Running, count: int) -> list[Json]:
    found: list[Json] = (await gateway.engine.asked(count)).json["messages"]
    return found


@pytest.mark.parametrize("conversation", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_all_that_was_answered(conversation: bool, stream: bool) -> None:
    """Reasoning, a text and a call: as if the client had sent the items themselves."""
    script = said(chunk("Hi.")) if stream else answers()
    async with running(answers(EVERYTHING), script, script) as gateway:
        more: Json = {"tools": [NOW]}
        if conversation:
            more["conversation"] = (await gateway.ask({}, "/v1/conversations")).json["id"]
        first = (await post(gateway, input=[HI], **more)).json["output"]
        assert [item["type"] for item in first] == ["reasoning", "message", "function_call"]
        result = {"type": "function_call_output", "call_id": first[2]["call_id"], "output": "noon"}
        for items in (first, [named(item["id"]) for item in first]):
            answer = await post(gateway, input=[HI, *items, result, AND], tools=[NOW], stream=stream)
            assert answer.status == 200, answer.body
            assert "x-ctxgate-dropped-items" not in answer.headers
        whole, referred = [exchange.json["messages"] for exchange in gateway.engine.requests[1:]]
        assert referred == whole
        assert [message["role"] for message in whole] == ["user", "assistant", "tool", "user"]


async def test_what_is_named_is_stored() -> None:
    """In its own place, under its own id; so a third turn can name it again, when the first response is gone."""
    async with running(*[answers(completion("I am m."))] * 4) as gateway:
        first = (await post(gateway, input=[HI])).json
        item = first["output"][0]
        second = (await post(gateway, input=[HI, {"id": item["id"]}, AND])).json
        listed = (await get(gateway, f"/v1/responses/{second['id']}/input_items?order=asc")).json()["data"]
        assert listed[1] == item
        assert (await get(gateway, f"/v1/responses/{first['id']}", "DELETE")).status_code == 200
        await post(gateway, input=[named(item["id"]), AND])
        assert [message["content"] for message in await shown(gateway, 3)] == ["I am m.", AND["content"]]
        await post(gateway, input="Sure?", previous_response_id=second["id"])
        assert [message["role"] for message in await shown(gateway, 4)] == [
            "user", "assistant", "user", "assistant", "user",
        ]  # fmt: skip


async def test_items_that_a_client_sent() -> None:
    """Of a conversation, of a response's input; with an id of its own."""
    async with running(*[answers()] * 2) as gateway:
        made = (await gateway.ask({"items": [HI]}, "/v1/conversations")).json["id"]
        (of_conversation,) = (await get(gateway, f"/v1/conversations/{made}/items")).json()["data"]
        first = (await post(gateway, input=[{**AND, "id": "mine"}])).json["id"]
        (of_input,) = (await get(gateway, f"/v1/responses/{first}/input_items")).json()["data"]
        assert of_input["id"] == "mine"
        bare: list[Json] = [{"id": of_conversation["id"]}, {"type": None, "id": "mine"}]
        await post(gateway, input=bare)
        (message,) = await shown(gateway, 2)
        assert message["content"] == f"{HI['content']}\n\n{AND['content']}"


async def test_a_model_sees_each_item_once() -> None:
    """One that is in the conversation already, or named twice."""
    async with running(*[answers(completion("I am m."))] * 4) as gateway:
        first = (await post(gateway, input=[HI])).json
        id = first["output"][0]["id"]
        await post(gateway, input=[named(id), AND], previous_response_id=first["id"])
        await post(gateway, input=[HI, named(id), named(id), AND])
        await post(gateway, input=[HI, first["output"][0], named(id), AND])
        for count in (2, 3, 4):
            roles = [message["content"] for message in await shown(gateway, count)]
            assert roles == [HI["content"], "I am m.", AND["content"]]


async def test_other_requests_that_take_items() -> None:
    """Counting, compacting, and the items of a conversation."""
    async with running(*[answers(completion("I am m."))] * 3) as gateway:
        item = (await post(gateway, input=[HI])).json["output"][0]
        made = (await gateway.ask({"items": [HI, named(item["id"])]}, "/v1/conversations")).json["id"]
        path = f"/v1/conversations/{made}/items"
        added = (await gateway.ask({"items": [{"id": item["id"]}]}, path)).json["data"]
        assert [one["content"] for one in added] == [item["content"]]
        listed = (await get(gateway, f"{path}?order=asc")).json()["data"]
        assert [one["role"] for one in listed] == ["user", "assistant", "assistant"]
        assert listed[1] == item
        compacted = await gateway.ask({"input": [HI, named(item["id"])]}, "/v1/responses/compact")
        assert compacted.status == 200, compacted.body
        assert "assistant: I am m." in (await shown(gateway, 2))[1]["content"]
        counted = [
            (await gateway.ask({"input": [HI, one]}, "/v1/responses/input_tokens")).json["input_tokens"]
            for one in (item, named(item["id"]))
        ]
        assert counted[0] == counted[1]


UNKNOWN: dict[str, tuple[str, Json, int, str]] = {
    "nothing": ("/v1/responses", {"input": [HI, named("msg_1")]}, 404, "input[1]"),
    "nothing, in a stream": ("/v1/responses", {"input": [HI, named("msg_1")], "stream": True}, 404, "input[1]"),
    "without a type": ("/v1/responses", {"input": [{"id": "msg_1"}, HI]}, 404, "input[0]"),
    "an id that none can have": ("/v1/responses", {"input": [named("a\0b"), HI]}, 404, "input[0]"),
    "an endless id": ("/v1/responses", {"input": [named("a" * 300), HI]}, 404, "input[0]"),
    "without an id": ("/v1/responses", {"input": [{"type": "item_reference"}, HI]}, 400, "input[0].id"),
    "an id that is no text": ("/v1/responses", {"input": [named("x") | {"id": [1]}, HI]}, 400, "input[0].id"),
    "counted": ("/v1/responses/input_tokens", {"input": [HI, named("msg_1")]}, 404, "input[1]"),
    "compacted": ("/v1/responses/compact", {"input": [HI, named("msg_1")]}, 404, "input[1]"),
    "a conversation's": ("/v1/conversations", {"items": [HI, named("msg_1")]}, 404, "items[1]"),
    "neither reference nor message": ("/v1/responses", {"input": [{"id": "a", "content": "b"}]}, 400, "input[0]"),
}


async def test_names_of_nothing(subtests: pytest.Subtests) -> None:
    async with running(answers()) as gateway:
        for name, (path, body, status, param) in UNKNOWN.items():
            with subtests.test(name):
                answer: Answer = await gateway.ask({"model": "m", **body} if "input" in body else body, path)
                assert (answer.status, answer.error["param"]) == (status, param), answer.body
                if status == 404:
                    assert answer.error["code"] == "item_not_found"
        assert gateway.engine.requests == []
        # An id of any kind names nothing else.
        assert (await post(gateway, input=[{**HI, "id": ["x"]}])).status == 200


async def breaks(exchange: Exchange) -> None:
    """A script: one delta, then the connection is gone."""
    await exchange.start()
    await exchange.event(chunk("Hello"))
    exchange.reset()


ENDS: dict[str, tuple[Script, str]] = {"the client": (endless, "cancelled"), "the engine": (breaks, "failed")}


async def check_kept(gateway: Running, response: Json, status: str) -> None:
    """What was written of the response can be named, and its client asks on."""
    (item,) = (stored := await kept(gateway, response["id"]))["output"]
    assert (stored["status"], item["status"], item["content"][0]["text"]) == (status, "incomplete", "Hello")
    for count in (2, 3):
        answer = await post(gateway, input=[HI, named(item["id"]), AND])
        assert answer.status == 200, answer.body
        assert [message["content"] for message in await shown(gateway, count)] == [
            HI["content"], "Hello", AND["content"],
        ]  # fmt: skip
    answer = await post(gateway, input=[AND], previous_response_id=response["id"])
    assert [message["role"] for message in await shown(gateway, 4)] == ["user", "assistant", "user"]


@pytest.mark.parametrize("http", [FAST, "httptools"])
@pytest.mark.parametrize("who", ENDS)
async def test_a_stream_that_was_broken_off(who: str, http: str) -> None:
    """By its client, as every chat's stop button does, or by the engine."""
    script, status = ENDS[who]
    async with running(script, answers(), http=http) as gateway:
        response = await begun(gateway, {"input": [HI]}, at="Hello" if who == "the client" else None)
        await check_kept(gateway, response, status)


@pytest.mark.parametrize("who", ENDS)
async def test_a_websocket_s_response_that_was_broken_off(who: str) -> None:
    script, status = ENDS[who]
    async with running(script, answers()) as gateway:
        async with opened(gateway) as client:
            await ask(client, input=[HI])
            response = json.loads(await client.recv())["response"]
            if who == "the engine":
                assert (await rest(client))[-1]["type"] in ("response.failed", "error")
            else:
                while json.loads(await client.recv())["type"] != "response.output_text.delta":
                    pass
        await check_kept(gateway, response, status)


async def test_what_is_not_stored_is_not_kept() -> None:
    """Neither without a store, nor in a conversation, to which the client will send the turn again."""
    async with running(breaks, breaks, breaks, answers()) as gateway:
        response = await begun(gateway, {"input": [HI], "store": False})
        assert (await get(gateway, f"/v1/responses/{response['id']}")).status_code == 404
        made = (await gateway.ask({}, "/v1/conversations")).json["id"]
        for more in ({}, {"store": False}):
            await begun(gateway, {"input": [HI], "conversation": made, **more})
        assert (await get(gateway, f"/v1/conversations/{made}/items")).json()["data"] == []
        await post(gateway, input=[AND], conversation=made)
        assert [message["content"] for message in await shown(gateway, 4)] == [AND["content"]]


async def test_a_gateway_that_stores_nothing_leaves_references_out() -> None:
    """Else a client that sends them could never go on. It is told."""
    streamed = said(chunk("Hello"))
    scripts = answers(), answers(), streamed, answers(), streamed
    async with running(*scripts, progress={**NO_COMMENTS, "responses_days": 0}) as gateway:
        bodies: list[Json] = [
            {"input": [HI, named("msg_1"), AND]},
            {"input": [HI, {"id": "msg_1"}, named("a\0b"), AND], "truncation": "auto"},
            {"input": [HI, named("msg_1"), AND], "stream": True},
        ]
        for count, body in enumerate(bodies, 1):
            answer = await post(gateway, **body)
            assert (answer.status, answer.headers["x-ctxgate-dropped-items"]) == (200, "item_reference"), answer.body
            (message,) = await shown(gateway, count)
            assert message["content"] == f"{HI['content']}\n\n{AND['content']}"
        for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
            answer = await gateway.ask({"model": "m", "input": [HI, named("msg_1")]}, path)
            assert answer.status == 200, answer.body
        assert (await post(gateway, input=[HI, {"type": "item_reference"}])).status == 400
        async with opened(gateway) as client:
            first = (await turn(client, input=[HI, named("msg_1")]))[-1]["response"]
            for more in ({"previous_response_id": first["id"]}, {}):
                assert (await turn(client, input=[named("msg_1"), AND], **more))[-1]["type"] == "response.completed"


async def test_openai_s_library_raises_what_it_raises_for_openai() -> None:
    async with running(answers()) as gateway, AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x") as client:
        with pytest.raises(NotFoundError, match="there is no item 'msg_1'"):
            await client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_1"}])


async def test_a_connection_s_last_response_need_not_be_stored() -> None:
    async with running(*[said(chunk("I am m."))] * 3) as gateway, opened(gateway) as client:
        first = (await turn(client, input=[HI], store=False))[-1]["response"]
        asked = [HI, named(first["output"][0]["id"]), AND]
        assert (await turn(client, input=asked, store=False))[-1]["type"] == "response.completed"
        assert [message["role"] for message in await shown(gateway, 2)] == ["user", "assistant", "user"]
        assert (await turn(client, input=[named("msg_1")], store=False))[-1]["error"]["param"] == "input[0]"
        assert (await post(gateway, input=asked)).status == 404, "another connection knows nothing of it"


async def test_everybody_has_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of those with one id; and no more than a model may be shown."""
    store = await Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    try:
        kept = ResponseStore(store, 2**20)
        for number in range(2):
            message = {"type": "message", "role": "user", "content": str(number), "id": "a"}
            said = {"type": "message", "role": "assistant", "content": str(number), "id": f"b{number}"}
            response = {"id": f"resp_{number}", "created_at": 2**31 + number, "output": [said]}
            await kept.put(Stored(response, written([message])), LOCAL)
        found = await kept.named({"a", "b0", "b1", "c"}, LOCAL)
        assert {id: item["content"] for id, item in found.items()} == {"a": "1", "b0": "0", "b1": "1"}
        other = Principal(tenant="local", user="other", scopes=frozenset({"*"}))
        assert await kept.named({"a", "b0"}, other) == {}
        monkeypatch.setattr(item_rows, "AT_ONCE", 1)
        assert await kept.named({"a", "b0", "b1", "c"}, LOCAL) == found
        for name, maximum in (("MAX_ITEMS", 1), ("MAX_BYTES", len(json.dumps(found["a"])) + 9)):
            with monkeypatch.context() as patch:
                patch.setattr(item_rows, name, maximum)
                assert len(await kept.named({"a"}, LOCAL)) == 1
                with pytest.raises(ProviderInvalidRequest, match="refer to fewer"):
                    await kept.named({"a", "b0"}, LOCAL)
    finally:
        await store.aclose()
