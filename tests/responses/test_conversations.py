"""Conversations through OpenAI's own client: what the model is shown, what is listed, whose they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from sqlalchemy import text

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.errors import ProviderUnavailable
from gateway.features.responses import conversation_store
from gateway.features.responses.conversation_store import ConversationStore
from gateway.features.responses.response_store import ResponseStore
from gateway.features.responses.wire import conversations
from gateway.server.keys import FILE, KeyFile
from gateway.server.principal import LOCAL
from gateway.store import Store
from tests.api.asking import said
from tests.gateway.double import Double, Script, answers, chunk, completion, endless
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve

HI: Any = {"role": "user", "content": "Hi"}
SYSTEM: Any = {"role": "system", "content": "Be brief."}
HO: Any = {"role": "assistant", "content": "Ho"}
UNKNOWN: Any = {"type": "unheard_of"}
TOOLS: list[Any] = [{"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}]


@asynccontextmanager
async def gateway(folder: Path, *scripts: Script, **server: Any) -> AsyncIterator[tuple[str, Double]]:
    """Its URL, and the engine of its model `m`."""
    async with asyncio.timeout(PATIENCE), Double(*scripts).serve() as double:
        config = Config(
            source=folder / "config.yaml",
            active_model="m",
            models={"m": Model(name="m", runtime="openai", base_url=f"http://127.0.0.1:{double.address.port}")},
            server=Server(**NO_COMMENTS, **server),
            state_dir=folder,
        )
        serving = serve(build(config), lifespan="on", http=FAST)
        url = await asyncio.to_thread(serving.__enter__)
        try:
            yield f"{url}/v1", double
        finally:
            await asyncio.to_thread(serving.__exit__, None, None, None)


def of(url: str, key: str = "x") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key=key, max_retries=0)


def texts(items: list[Any]) -> list[str]:
    return [item.content[0].text for item in items]


async def listed(client: AsyncOpenAI, id: str, **query: Any) -> list[Any]:
    return [item async for item in client.conversations.items.list(id, **{"order": "asc", "limit": 2, **query})]


async def test_turns(tmp_path: Path) -> None:
    """Each turn shows the model all before it, called tools included, whether or not the response is stored."""
    called = completion(None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "now"}}])
    scripts = [answers(called), answers(completion("It is noon.")), said(chunk("Yes."))]
    async with gateway(tmp_path, *scripts) as (url, engine), of(url) as client:
        made = await client.conversations.create(metadata={"topic": "time"})
        first = await client.responses.create(input="What time is it?", conversation=made.id, tools=TOOLS)
        assert first.conversation is not None
        assert first.conversation.id == made.id
        output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "12:00"}]
        await client.responses.create(input=output, conversation={"id": made.id}, tools=TOOLS, store=False)
        stream = await client.responses.create(input="Sure?", conversation=made.id, stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"
        asked = (await engine.asked(3)).json["messages"]
        assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
        items = await listed(client, made.id)
        assert [item.type for item in items] == [
            "message", "function_call", "function_call_output", "message", "message", "message",
        ]  # fmt: skip
        assert {item.status for item in items} == {"completed"}
        assert len({item.id for item in items}) == 6
        assert texts([items[0], *items[3:]]) == ["What time is it?", "It is noon.", "Sure?", "Yes."]
        backwards = await listed(client, made.id, order="desc")
        assert [item.id for item in backwards] == [item.id for item in items][::-1]


async def test_items(tmp_path: Path) -> None:
    async with gateway(tmp_path, answers(completion("Hello."))) as (url, engine), of(url) as client:
        made = await client.conversations.create(items=[SYSTEM])
        added = await client.conversations.items.create(made.id, items=[HI, HO])
        shown: list[Any] = added.data
        assert [(item.role, item.content[0].type) for item in shown] == [
            ("user", "input_text"), ("assistant", "output_text"),
        ]  # fmt: skip
        one = await client.conversations.items.retrieve(added.data[0].id or "", conversation_id=made.id)
        assert one.to_dict() == added.data[0].to_dict()
        response = await client.responses.create(input="Well?", conversation=made.id)
        assert texts(await listed(client, made.id)) == ["Be brief.", "Hi", "Ho", "Well?", "Hello."]
        assert [message["content"] for message in (await engine.asked(1)).json["messages"]] == [
            "Be brief.", "Hi", "Ho", "Well?",
        ]  # fmt: skip
        for gone in (added.data[1].id, response.output[0].id):
            left = await client.conversations.items.delete(gone or "", conversation_id=made.id)
            assert left.id == made.id
            with pytest.raises(NotFoundError):
                await client.conversations.items.retrieve(gone or "", conversation_id=made.id)
        assert texts(await listed(client, made.id)) == ["Be brief.", "Hi", "Well?"]
        again: Any = added.data[0].to_dict()
        repeated = await client.conversations.items.create(made.id, items=[again])
        assert repeated.data[0].id != added.data[0].id


async def test_the_life_of_a_conversation(tmp_path: Path) -> None:
    """Deleting a response leaves its items in the conversation; deleting the conversation leaves its responses."""
    async with gateway(tmp_path, answers(completion("Hello."))) as (url, _), of(url) as client:
        made = await client.conversations.create(metadata={"a": "b"})
        assert (await client.conversations.retrieve(made.id)).to_dict() == made.to_dict()
        changed = await client.conversations.update(made.id, metadata={"c": "d"})
        assert changed.to_dict() == {**made.to_dict(), "metadata": {"c": "d"}}
        first, second = [await client.responses.create(input=text, conversation=made.id) for text in ("A", "B")]
        await client.responses.delete(first.id)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(first.id)
        assert texts(await listed(client, made.id)) == ["A", "Hello.", "B", "Hello."]
        await client.conversations.items.create(made.id, items=[HI])
        assert (await client.conversations.delete(made.id)).deleted
        assert (await client.responses.retrieve(second.id)).id == second.id
        for asked in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
            with pytest.raises(NotFoundError):
                await asked(made.id)
        with pytest.raises(NotFoundError):
            await client.responses.create(input="Hi", conversation=made.id)


async def test_what_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, answers()) as (url, _), of(url) as client:
        made = await client.conversations.create()
        response = await client.responses.create(input="Hi")
        with pytest.raises(BadRequestError, match="not together with previous_response_id"):
            await client.responses.create(input="Hi", conversation=made.id, previous_response_id=response.id)
        with pytest.raises(BadRequestError, match="at most 20"):
            await client.conversations.items.create(made.id, items=[HI] * 21)
        with pytest.raises(BadRequestError, match=r"items\[0\]"):
            await client.conversations.create(items=[UNKNOWN])
        with pytest.raises(BadRequestError, match="metadata"):
            await client.conversations.create(metadata={"a": "x" * 513})
    async with gateway(tmp_path, answers(), responses_days=0) as (url, _), of(url) as client:
        with pytest.raises(BadRequestError, match="responses_days"):
            await client.conversations.create()
        with pytest.raises(BadRequestError, match="responses_days"):
            await client.responses.create(input="Hi", background=True)


async def test_each_user_sees_their_own(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / FILE)
    ann, bob = (keys.add(tenant="acme", user=user, scopes=["models"])[1] for user in ("ann", "bob"))
    async with gateway(tmp_path, answers()) as (url, _), of(url, ann) as hers, of(url, bob) as his:
        made = await hers.conversations.create(items=[HI])
        (item,) = await listed(hers, made.id)
        for asked in (
            his.conversations.retrieve(made.id),
            his.conversations.update(made.id, metadata={}),
            his.conversations.items.create(made.id, items=[HI]),
            his.conversations.items.retrieve(item.id, conversation_id=made.id),
            his.conversations.items.delete(item.id, conversation_id=made.id),
            his.responses.create(input="Hi", conversation=made.id),
            his.conversations.delete(made.id),
        ):
            with pytest.raises(NotFoundError):
                await asked
        assert [each.id for each in await listed(hers, made.id)] == [item.id]


async def test_the_least_recently_used_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_store, "MAXIMUM", 2)
    async with gateway(tmp_path, answers()) as (url, _), of(url) as client:
        made = [(await client.conversations.create(items=[HI])).id for _ in range(3)]
        left = []
        for id in made:
            try:
                left.append((await client.conversations.retrieve(id)).id)
            except NotFoundError:
                continue
        assert len(left) == 2


def test_items_with_one_id_get_ids_of_their_own() -> None:
    given = [{"type": "message", "role": "user", "content": "a", "id": "msg_1"}] * 2
    first, second = conversations.with_ids([*given], set())
    assert first["id"] == "msg_1"
    assert second["id"].startswith("msg_")
    assert second["id"] != "msg_1"
    (third,) = conversations.with_ids(given[:1], {"msg_1"})
    assert third["id"] not in ("msg_1", second["id"])


async def test_a_conversation_is_stored_with_its_items_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ProviderUnavailable("the store can't be used")

    store = await Store.open(f"sqlite:///{tmp_path}/store.db")
    try:
        conversations = ConversationStore(store, ResponseStore(store, 2**30))
        with monkeypatch.context() as patched:
            patched.setattr(ResponseStore, "insert", fails)
            with pytest.raises(ProviderUnavailable):
                await conversations.create([dict(HI)], {}, LOCAL)
        rows = await store.read(lambda connection: connection.execute(text("SELECT id FROM conversations")).all())
        assert rows == []
        made = await conversations.create([dict(HI)], {}, LOCAL)
        assert [item["role"] for item in await conversations.items(made["id"], LOCAL)] == ["user"]
    finally:
        await store.aclose()


async def test_any_key_of_a_user_controls_a_background_response(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / FILE)
    narrow, wide = (keys.add(tenant="acme", user="ann", scopes=scopes)[1] for scopes in (["models"], ["*"]))
    async with (
        gateway(tmp_path, endless) as (url, engine),
        AsyncOpenAI(base_url=url, api_key=narrow) as one,
        AsyncOpenAI(base_url=url, api_key=wide) as other,
    ):
        made = await one.responses.create(model="m", input="Hi", background=True)
        exchange = await engine.asked()
        assert (await other.responses.retrieve(made.id)).status in ("queued", "in_progress")
        assert (await other.responses.cancel(made.id)).status == "cancelled"
        await exchange.gone
