"""Responses that are kept: conversations, looking up, deleting, the background, cancelling; and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.responses import background
from gateway.features.responses.conversation_store import ConversationStore
from gateway.features.responses.response_store import ResponseStore, Stored
from gateway.features.responses.wire.conversations import with_ids, written
from gateway.features.responses.wire.request import CreateResponse, ToolTable, chat_fields
from gateway.server.principal import LOCAL, Principal
from gateway.store import Store
from gateway.wire.allowed_tools import choice_of
from tests.api.asking import frames, said
from tests.gateway.backend import RUNTIME
from tests.gateway.client import Answer
from tests.gateway.double import Json, Script, answers, chunk, completion, endless
from tests.gateway.running import Running, running
from tests.patience import PATIENCE

TOOLS: list[Json] = [{"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}]


async def post(gateway: Running, **fields: Any) -> Answer:
    return await gateway.ask({"model": "m", **fields}, "/v1/responses")


async def get(gateway: Running, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.request(method, gateway.url + path)


async def test_a_conversation() -> None:
    """The engine is shown all that was said and called; instructions count for their own turn alone."""
    called = completion(None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "now"}}])
    async with running(answers(called), answers(completion("It is noon.")), answers(completion("Yes."))) as gateway:
        first = (await post(gateway, input="What time is it?", tools=TOOLS, instructions="Be brief.")).json
        (item,) = first["output"]
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "12:00"}
        second = (await post(gateway, input=[output], previous_response_id=first["id"], tools=TOOLS)).json
        third = (await post(gateway, input="Sure?", previous_response_id=second["id"])).json
        asked = (await gateway.engine.asked(3)).json["messages"]
        assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
        assert asked[1]["tool_calls"][0]["id"] == asked[2]["tool_call_id"] == item["call_id"]
        assert [asked[0]["content"], asked[3]["content"], asked[4]["content"]] == [
            "What time is it?", "It is noon.", "Sure?",
        ]  # fmt: skip
        assert third["previous_response_id"] == second["id"]


async def test_looking_up_and_deleting() -> None:
    async with running(answers()) as gateway, AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x") as client:
        made = await client.responses.create(model="m", input="Hello", metadata={"a": "b"})
        assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
        items = await client.responses.input_items.list(made.id)
        assert [item.to_dict()["content"] for item in items.data] == [[{"type": "input_text", "text": "Hello"}]]
        await client.responses.delete(made.id)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(NotFoundError):
            await client.responses.delete(made.id)
        with pytest.raises(BadRequestError) as raised:
            await client.responses.create(model="m", input="Hello", previous_response_id=made.id)
        assert raised.value.code == "previous_response_not_found"


async def test_a_stream_is_stored_before_its_last_event() -> None:
    async with running(said(chunk("Hello"))) as gateway:
        last = frames(await post(gateway, input="Hi", stream=True))[-1][1]["response"]
        assert (await get(gateway, f"/v1/responses/{last['id']}")).json() == last


async def test_pages_of_items() -> None:
    said_before = [{"role": "user", "content": f"{number}"} for number in range(5)]
    async with running(answers()) as gateway:
        made = (await post(gateway, input=said_before)).json
        path = f"/v1/responses/{made['id']}/input_items?order=asc&limit=2"
        first = (await get(gateway, path)).json()
        second = (await get(gateway, f"{path}&after={first['last_id']}")).json()
        found = [item["content"][0]["text"] for item in (*first["data"], *second["data"])]
        assert found == ["0", "1", "2", "3"]
        assert (first["has_more"], second["has_more"]) == (True, True)
        assert (await get(gateway, f"{path}&after=nobody")).status_code == 400
        assert (await get(gateway, f"{path.replace('limit=2', 'limit=x')}")).status_code == 400


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,eA==", "detail": "low"}
EASY: dict[str, tuple[Json, Json]] = {
    "a user's text": (
        {"role": "user", "content": "q", "type": None},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}], "status": "completed"},
    ),
    "an answer's text": (
        {"role": "assistant", "content": "q"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "q"}],
            "status": "completed",
        },
    ),
    "an answer's bare part": (
        {"role": "assistant", "content": [{"type": "output_text", "text": "q"}, {"type": "text", "text": "r"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "annotations": [], "logprobs": [], "text": "q"},
                {"type": "output_text", "annotations": [], "logprobs": [], "text": "r"},
            ],
            "status": "completed",
        },
    ),
    "chat's parts, and a picture": (
        {"role": "user", "content": [{"type": "text", "text": "q"}, IMAGE]},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "q"}, IMAGE],
            "status": "completed",
        },
    ),
    "a call": (
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}", "status": "completed"},
    ),
    "its result": (
        {"type": "function_call_output", "call_id": "c", "output": "noon"},
        {"type": "function_call_output", "call_id": "c", "output": "noon", "status": "completed"},
    ),
    "reasoning": (
        {"type": "reasoning", "encrypted_content": "gAAAA"},
        {"type": "reasoning", "encrypted_content": "gAAAA", "summary": [], "status": "completed"},
    ),
}


async def test_input_items_are_shown_as_openai_shows_them(subtests: pytest.Subtests) -> None:
    """However short they were sent, and as their conversation shows them."""
    async with running(*[answers()] * len(EASY)) as gateway:
        for name, (given, shown) in EASY.items():
            with subtests.test(name):
                made = (await gateway.ask({}, "/v1/conversations")).json["id"]
                items = [given, {"role": "user", "content": "Go on."}]
                response = (await post(gateway, input=items, conversation=made)).json["id"]
                for path in (f"responses/{response}/input_items", f"conversations/{made}/items"):
                    found = (await get(gateway, f"/v1/{path}?order=asc")).json()["data"][0]
                    assert found.pop("id")
                    assert found == shown, path


async def test_store_false_stores_nothing(tmp_path: Path) -> None:
    async with running(answers()) as gateway:
        made = (await post(gateway, input="Hello", store=False)).json
        assert made["store"] is False
        assert (await get(gateway, f"/v1/responses/{made['id']}")).status_code == 404


async def wait_for(gateway: Running, id: str, *statuses: str) -> Json:
    async with asyncio.timeout(PATIENCE):
        while True:
            found: Json = (await get(gateway, f"/v1/responses/{id}")).json()
            if found["status"] in statuses:
                return found
            await asyncio.sleep(0.02)


async def test_a_background_response() -> None:
    async with running(said(chunk("Hel"), chunk("lo"))) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        assert made["status"] in ("queued", "in_progress")
        found = await wait_for(gateway, made["id"], "completed")
        assert found["output"][0]["content"][0]["text"] == "Hello"
        # Its stream can still be had, from any place.
        events = (await get(gateway, f"/v1/responses/{made['id']}?stream=true")).text
        numbers = [json.loads(line[6:])["sequence_number"] for line in events.splitlines() if line.startswith("data: ")]
        assert numbers == [*range(len(numbers))]
        later = (await get(gateway, f"/v1/responses/{made['id']}?stream=true&starting_after=3")).text
        assert later == events[events.index("event: ", events.index('"sequence_number":3,')) :]


async def test_a_streamed_background_response() -> None:
    async with running(said(chunk("Hello"))) as gateway:
        events = frames(await post(gateway, input="Hi", background=True, stream=True))
        assert (events[0][0], events[-1][0]) == ("response.created", "response.completed")


async def test_cancelling() -> None:
    """The engine notices, what had come is kept."""
    async with running(endless) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        exchange = await gateway.engine.asked()
        await wait_for(gateway, made["id"], "in_progress")
        cancelled = (await get(gateway, f"/v1/responses/{made['id']}/cancel", "POST")).json()
        assert cancelled["status"] == "cancelled"
        async with asyncio.timeout(PATIENCE):
            await exchange.gone
        assert (await get(gateway, f"/v1/responses/{made['id']}")).json()["status"] == "cancelled"
        again = await get(gateway, f"/v1/responses/{made['id']}/cancel", "POST")
        assert again.json()["status"] == "cancelled"


async def test_deleting_a_running_response() -> None:
    """It stays deleted, however many ask for it at once."""
    async with running(endless) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        exchange = await gateway.engine.asked()
        path = f"/v1/responses/{made['id']}"
        asked = [get(gateway, path, "DELETE") for _ in range(4)]
        assert sorted(answer.status_code for answer in await asyncio.gather(*asked)) == [200, 404, 404, 404]
        async with asyncio.timeout(PATIENCE):
            await exchange.gone
        assert (await get(gateway, path)).status_code == 404


async def test_concurrent_cancellations() -> None:
    async with running(endless) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        await gateway.engine.asked()
        asked = [get(gateway, f"/v1/responses/{made['id']}/cancel", "POST") for _ in range(8)]
        assert {answer.json()["status"] for answer in await asyncio.gather(*asked)} == {"cancelled"}


async def test_a_refused_background_response_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the store nor in its conversation; a place that a failed store left is free again."""
    monkeypatch.setattr(background, "MAXIMUM", 1)
    put = ResponseStore.put

    async def fails(*_: Any, **__: Any) -> None:
        raise ProviderUnavailable("the store can't be used")

    async with running(endless) as gateway:
        conversation = (await gateway.ask({}, "/v1/conversations")).json["id"]
        monkeypatch.setattr(ResponseStore, "put", fails)
        assert (await post(gateway, input="Hi", background=True, conversation=conversation)).status == 503
        monkeypatch.setattr(ResponseStore, "put", put)
        made = await post(gateway, input="Hi", background=True)
        assert made.status == 200
        await wait_for(gateway, made.json["id"], "in_progress")
        assert (await post(gateway, input="Book me a flight", background=True, conversation=conversation)).status == 429
        assert (await get(gateway, f"/v1/conversations/{conversation}/items")).json()["data"] == []


def full_from(monkeypatch: pytest.MonkeyPatch, *statuses: str, once: bool = False) -> None:
    """The store takes no response in these states. once: only the first time."""
    put, left = ResponseStore.put, [*statuses]

    async def puts(store: ResponseStore, stored: Stored, principal: Principal, *, again: bool = False) -> None:
        if (status := stored.response["status"]) in left:
            if once:
                left.remove(status)
            raise ProviderUnavailable("the store can't be used: database or disk is full")
        await put(store, stored, principal, again=again)

    monkeypatch.setattr(ResponseStore, "put", puts)


ENDS: dict[str, tuple[Script, Json, list[str]]] = {
    "answered": (said(chunk("Hello")), {"status": "completed"}, ["completed"]),
    "answered, and full since it began": (said(chunk("Hello")), {"status": "completed"}, ["in_progress", "completed"]),
    "failed": (answers({"error": {"message": "broken"}}, status=500), {"status": "failed"}, ["failed"]),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_background_response_waits_for_the_store(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    script, end, refused = ENDS[name]
    full_from(monkeypatch, *refused, once=True)
    async with running(script) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        found = await wait_for(gateway, made["id"], "completed", "failed", "cancelled")
        assert found["status"] == end["status"]
        events = frames(Answer("", 200, {}, (await get(gateway, f"/v1/responses/{made['id']}?stream=true")).content))
        assert events[-1][1]["response"] == found
        assert "stopped" not in str(found["error"])


async def test_a_cancelled_response_that_the_store_cant_take(monkeypatch: pytest.MonkeyPatch) -> None:
    full_from(monkeypatch, "cancelled")
    async with running(endless) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        await gateway.engine.asked()
        cancelled = (await get(gateway, f"/v1/responses/{made['id']}/cancel", "POST")).json()
        assert cancelled["status"] == "cancelled"
        assert (await get(gateway, f"/v1/responses/{made['id']}")).json() == cancelled


@pytest.mark.parametrize("killed", [True, False])
async def test_a_background_response_that_ends_with_its_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, killed: bool
) -> None:
    """It has failed, and whoever asks is told so, also who cancels it."""
    if killed:  # nothing of its end gets into the store
        full_from(monkeypatch, "failed", "cancelled")
    store = f"sqlite:///{tmp_path}/kept.db"
    async with running(endless, store=store) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        await wait_for(gateway, made["id"], "in_progress")
    async with running(store=store) as gateway:
        found = (await get(gateway, f"/v1/responses/{made['id']}")).json()
        cancelled = (await get(gateway, f"/v1/responses/{made['id']}/cancel", "POST")).json()
    for told in (found, cancelled):
        assert told["status"] == "failed"
        assert told["error"]["message"] == "the gateway was stopped before the response was complete"


@pytest.mark.parametrize("kept", [False, True])
async def test_a_deleted_response_is_not_stored_again(tmp_path: Path, kept: bool) -> None:
    """When it ends on another gateway; its items stay in its conversation, once."""
    store = await Store.open(f"sqlite:///{tmp_path}/store.db")
    try:
        responses = ResponseStore(store, 2**30)
        conversations = ConversationStore(store, responses)
        id = (await conversations.create([], {}, LOCAL))["id"] if kept else None
        said = written(with_ids([{"role": "user", "content": "Hi"}], set()))
        stored = Stored({"id": "resp_1", "created_at": 1, "output": []}, said, id)
        await responses.put(stored, LOCAL)
        await responses.put(stored, LOCAL, again=True)
        await responses.get("resp_1", LOCAL)
        await responses.delete("resp_1", LOCAL)
        await responses.put(stored, LOCAL, again=True)
        with pytest.raises(ProviderInvalidRequest):
            await responses.get("resp_1", LOCAL)
        if id is not None:
            assert len(await conversations.items(id, LOCAL)) == 1
    finally:
        await store.aclose()


async def test_only_background_responses_can_be_cancelled() -> None:
    async with running(answers()) as gateway:
        made = (await post(gateway, input="Hi")).json
        answer = await get(gateway, f"/v1/responses/{made['id']}/cancel", "POST")
        assert answer.status_code == 400


async def test_a_background_response_that_fails() -> None:
    async with running(answers({"error": {"message": "broken"}}, status=500)) as gateway:
        made = (await post(gateway, input="Hi", background=True)).json
        found = await wait_for(gateway, made["id"], "failed")
        assert "broken" in found["error"]["message"]


async def test_a_bug_ends_a_background_response_for_its_followers(caplog: pytest.LogCaptureFixture) -> None:
    fail = {"fail": {"with": "bug", "at": "later"}}
    async with running(runtime=RUNTIME, base_url=None, defaults=fail) as gateway:
        events = frames(await post(gateway, input="Hi", background=True, stream=True))
        assert (events[0][0], events[-1][0]) == ("response.created", "response.failed")
        found = (await get(gateway, f"/v1/responses/{events[0][1]['response']['id']}")).json()
        assert (found["status"], found["error"]["message"]) == ("failed", "ctxgate failed; its log tells why")
        assert "secret: 42" in caplog.text


REFUSED: dict[str, tuple[Json | bytes, int, str | None]] = {
    "no JSON": (b"{", 400, None),
    "no input": ({}, 400, "input"),
    "an item of another kind": ({"input": [{"type": "hologram_call"}]}, 400, "input[0]"),
    "a file": (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, 400, "input[0].content[0]",
    ),
    "a call without an id": ({"input": [{"type": "function_call", "name": "f"}]}, 400, "input[0].call_id"),
    "an unknown role": ({"input": [{"role": "robot", "content": "x"}]}, 400, "input[0].role"),
    "no such conversation": ({"input": "x", "conversation": "conv_1"}, 404, "conversation"),
    "two conversations": (
        {"input": "x", "conversation": "conv_1", "previous_response_id": "resp_1"}, 400, "conversation",
    ),
    "a prompt template": ({"input": "x", "prompt": {"id": "p"}}, 400, "prompt"),
    "the background unstored": ({"input": "x", "background": True, "store": False}, 400, "background"),
    "a tool nobody can run": ({"input": "x", "tool_choice": {"type": "web_search"}}, 400, "tool_choice"),
    "required, and no tool": ({"input": "x", "tool_choice": "required"}, 400, "tool_choice"),
    "a wrong type": ({"input": "x", "temperature": "hot"}, 400, "temperature"),
    "no such model": ({"input": "x", "model": "gpt-5"}, 404, "model"),
}  # fmt: skip


async def test_what_is_refused(subtests: pytest.Subtests) -> None:
    async with running(answers()) as gateway:
        for name, (body, status, param) in REFUSED.items():
            with subtests.test(name):
                answer = await gateway.ask(body, "/v1/responses")
                assert (answer.status, answer.error["param"]) == (status, param), answer.body


CHOICES: dict[str, tuple[Any, Any, list[str]]] = {
    "a function": ({"type": "function", "name": "a"}, {"type": "function", "function": {"name": "a"}}, ["a", "b"]),
    "a custom tool": ({"type": "custom", "name": "b"}, {"type": "function", "function": {"name": "b"}}, ["a", "b"]),
    "some of them": (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]},
        choice_of(["a"], "auto"),
        ["a", "b"],
    ),
    "required": ("required", "required", ["a", "b"]),
    "none": ("none", "none", ["a", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_which_tools_may_be_called(name: str) -> None:
    choice, expected, names = CHOICES[name]
    tools = [{"type": "function", "name": "a"}, {"type": "custom", "name": "b"}, {"type": "web_search"}]
    request = CreateResponse.parse(json.dumps({"input": "x", "tools": tools, "tool_choice": choice}).encode())
    fields = chat_fields(request, request.items, ToolTable(request.tools))
    assert [tool["function"]["name"] for tool in fields["tools"]] == names
    assert fields["tool_choice"] == expected


async def test_tools_that_nobody_can_run_are_left_out_and_that_is_told() -> None:
    tools = [{"type": "function", "name": "a"}, {"type": "web_search"}]
    async with running(answers()) as gateway:
        answer = await post(gateway, input="x", tools=tools, store=False)
        assert answer.headers["x-ctxgate-dropped-tools"] == "web_search"
        assert [tool["name"] for tool in answer.json["tools"]] == ["a"]
        assert [tool["function"]["name"] for tool in (await gateway.engine.asked()).json["tools"]] == ["a"]


def codex(*more: Json) -> list[Json]:
    """What Codex sends before the conversation: two developers and two users in a row."""
    return [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are Codex."}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Skills."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]},
        *more,
    ]


async def test_strict_chat_templates_can_read_what_codex_sends() -> None:
    later = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Stop soon."}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    image = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "seen"}, image]}
    seen = {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"}
    script: Script = answers()
    async with running(script) as gateway:
        await post(gateway, input=codex(answer, later, seen, result), store=False)
        sent = (await gateway.engine.asked()).json["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user", "assistant", "tool", "user"]
    assert sent[0]["content"] == "You are Codex.\n\nSkills."
    assert sent[1]["content"] == "<environment/>\n\nDo it."
    assert sent[3]["content"] == "Stop soon."
    assert sent[5]["content"] == "seen"
    assert sent[6]["content"] == [{"type": "image_url", "image_url": {"url": image["image_url"]}}]


async def test_everybody_has_their_own(tmp_path: Path) -> None:
    """Another user's key finds nothing."""
    from gateway.errors import ProviderInvalidRequest
    from gateway.features.responses.response_store import ResponseStore, Stored
    from gateway.server.principal import LOCAL, Principal
    from gateway.store import Store

    store = await Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    try:
        kept = ResponseStore(store, 2**20)
        response = {"id": "resp_1", "created_at": 2**31, "previous_response_id": None, "output": []}
        await kept.put(Stored(response), LOCAL)
        assert (await kept.get("resp_1", LOCAL)).response == response
        other = Principal(tenant="local", user="other", scopes=frozenset({"*"}))
        for look in (kept.get, kept.conversation, kept.delete):
            with pytest.raises(ProviderInvalidRequest):
                await look("resp_1", other)
    finally:
        await store.aclose()
