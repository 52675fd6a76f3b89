"""Stored items: pages of them, what a model is shown of many, and those that were stored before they had rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, text

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses import item_rows
from gateway.features.responses.conversation_store import ConversationStore
from gateway.features.responses.item_rows import Paging
from gateway.features.responses.response_store import ResponseStore, Stored
from gateway.features.responses.wire.conversations import written
from gateway.server.principal import LOCAL
from gateway.store import Store
from gateway.store.migrate import LOCATION
from tests.conftest import ROOT

NOW = 2**31


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url)
    yield store
    await store.aclose()


def message(id: str, content: str = "Hi") -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content, "id": id}


def response(id: str, *output: dict[str, Any], previous: str | None = None) -> dict[str, Any]:
    return {"id": id, "created_at": NOW, "previous_response_id": previous, "output": [*output]}


def ids(items: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in items]


async def test_pages(store: Store, subtests: pytest.Subtests) -> None:
    """Whatever their size, all pages together are all items, in order."""
    responses = ResponseStore(store, 2**30)
    conversations = ConversationStore(store, responses)
    made = (await conversations.create([message("a"), message("b")], {}, LOCAL))["id"]
    await responses.put(Stored(response("r1", message("d"), message("e")), written([message("c")]), made), LOCAL)
    await responses.put(Stored(response("r2"), written([message("f")]), made), LOCAL)
    await conversations.add(made, [message("g")], LOCAL)
    await conversations.add(made, [message("h")], LOCAL)
    every = [*"abcdefgh"]
    assert ids(await conversations.items(made, LOCAL)) == every
    for ascending in (True, False):
        for limit in (1, 2, 3, 7, 8, 100):
            with subtests.test("page", ascending=ascending, limit=limit):
                found: list[str] = []
                more = True
                while more:
                    asked = Paging(limit, found[-1] if found else None, ascending)
                    page = await conversations.page(made, LOCAL, asked)
                    assert len(page.items) <= limit
                    found += ids(page.items)
                    more = page.more
                assert found == (every if ascending else every[::-1])
    with pytest.raises(ProviderInvalidRequest, match="there is no item 'x'"):
        await conversations.page(made, LOCAL, Paging(1, "x"))
    assert ids((await responses.items("r1", LOCAL, Paging(9))).items) == ["c"], "its own input alone"


async def test_a_page_is_no_larger_than_its_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_rows, "PAGE_BYTES", 950)
    conversations = ConversationStore(store, ResponseStore(store, 2**30))
    items = [message("a", "x" * 2000), message("b", "x" * 400), message("c", "x" * 400), message("d")]
    made = (await conversations.create(items, {}, LOCAL))["id"]
    pages = [await conversations.page(made, LOCAL, Paging(9, after, ascending=True)) for after in (None, "a", "c")]
    assert [(ids(page.items), page.more) for page in pages] == [(["a"], True), (["b", "c"], True), (["d"], False)]


async def test_what_a_model_is_shown_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = ResponseStore(store, 2**30)
    conversations = ConversationStore(store, responses)
    made = (await conversations.create([message("a"), message("b"), message("c")], {}, LOCAL))["id"]
    chain = ("r1", "r2", "r3")
    for before, id in pairwise((None, *chain)):
        assert id is not None
        await responses.put(
            Stored(response(id, message(f"o{id}"), previous=before), written([message(f"i{id}")])), LOCAL
        )
    assert ids(await responses.conversation("r3", LOCAL)) == [f"{put}{id}" for id in chain for put in "io"]
    for name, maximum in (("MAX_ITEMS", 2), ("MAX_BYTES", 420)):
        with monkeypatch.context() as patch:
            patch.setattr(item_rows, name, maximum if name == "MAX_ITEMS" else 130)
            with pytest.raises(ProviderInvalidRequest, match="send truncation: auto"):
                await conversations.items(made, LOCAL)
            assert ids(await conversations.items(made, LOCAL, cut=True)) == ["b", "c"]
            patch.setattr(item_rows, name, maximum)
            with pytest.raises(ProviderInvalidRequest, match="send truncation: auto"):
                await responses.conversation("r3", LOCAL)
            assert ids(await responses.conversation("r3", LOCAL, cut=True)) == ["ir2", "or2", "ir3", "or3"]


async def test_a_removed_item_is_gone_from_its_response(store: Store) -> None:
    responses = ResponseStore(store, 2**30)
    conversations = ConversationStore(store, responses)
    made = (await conversations.create([], {}, LOCAL))["id"]
    await responses.put(Stored(response("r1", message("b"), message("c")), written([message("a")]), made), LOCAL)
    for gone in ("a", "b"):
        await conversations.remove(made, gone, LOCAL)
        with pytest.raises(ProviderInvalidRequest, match="there is no item"):
            await conversations.item(made, gone, LOCAL)
    assert (
        ids((await responses.get("r1", LOCAL)).response["output"])
        == ids(await conversations.items(made, LOCAL))
        == ["c"]
    )
    await responses.put(Stored(response("r1", message("c"), message("d")), written([message("a")]), made), LOCAL)
    assert ids(await conversations.items(made, LOCAL)) == ["c", "d"], "a new state of a response has its new output"
    await responses.delete("r1", LOCAL)
    await conversations.remove(made, "c", LOCAL)
    assert ids(await conversations.items(made, LOCAL)) == ["d"]


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:").replace("/folder/", "/"))
    with engine.connect() as connection, connection.begin():
        yield connection
    engine.dispose()


def migrate(connection: Connection, how: Any, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(LOCATION))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", str(ROOT / "gateway/features/responses/migrations"))
    config.attributes |= {"connection": connection, "version_table": "v"}
    how(config, revision)


def all_items(connection: Connection) -> list[tuple[str, int, str, Any]]:
    found = connection.execute(text("SELECT response, place, id, item FROM response_items ORDER BY response, place"))
    return [(row.response, row.place, row.id, json.loads(row.item)) for row in found]


def test_items_that_had_no_rows(connection: Connection) -> None:
    """Up, and down again."""
    rows = [
        ("r1", json.dumps(response("r1", message("b"))), [message("a", "é\n\u2028")], "conv_1"),
        ("r2", json.dumps(response("r2", message("d"))), [message("c")], None),
        ("items_1", "", [message("e"), {"type": "message"}], "conv_1"),
    ]
    migrate(connection, command.upgrade, "responses_0003")
    for id, held, items, conversation in rows:
        connection.execute(
            text(
                "INSERT INTO responses (id, tenant, owner, created_at, response, items, conversation) "
                "VALUES (:id, 't', 'o', 1, :response, :items, :conversation)"
            ),
            {"id": id, "response": held, "items": json.dumps(items), "conversation": conversation},
        )
    migrate(connection, command.upgrade, "responses_0004")
    before = [
        ("items_1", 0, "e", message("e")),
        ("items_1", 1, "", {"type": "message"}),
        ("r1", 0, "a", message("a", "é\n\u2028")),
        ("r1", item_rows.OUTPUTS, "b", message("b")),
        ("r2", 0, "c", message("c")),
    ]
    assert all_items(connection) == before
    migrate(connection, command.upgrade, "responses_0005")
    assert all_items(connection) == [*before, ("r2", item_rows.OUTPUTS, "d", message("d"))]
    migrate(connection, command.downgrade, "responses_0004")
    assert all_items(connection) == before
    migrate(connection, command.downgrade, "responses_0003")
    kept = connection.execute(text("SELECT id, items FROM responses")).all()
    assert {row.id: json.loads(row.items) for row in kept} == {id: items for id, _, items, _ in rows}


def test_references_that_were_stored(connection: Connection) -> None:
    """They would hide what they name, since they have its id; what only speaks of them stays."""
    reference = {"type": "item_reference", "id": "b"}
    rows = [
        ("r1", response("r1", message("b")), [message("a", json.dumps(reference))], None),
        ("r2", response("r2", message("d")), [reference, message("c")], None),
        # Its conversation was deleted, so what the model wrote has rows already.
        ("r3", response("r3", message("f")), [message("e")], "conv_1"),
    ]
    migrate(connection, command.upgrade, "responses_0004")
    for id, held, items, conversation in rows:
        every = [*enumerate(items), *(enumerate(held["output"], item_rows.OUTPUTS) if conversation else ())]
        connection.execute(
            text(
                "INSERT INTO responses (id, tenant, owner, created_at, response, size) VALUES (:id, 't', 'o', 1, :r, 9)"
            ),
            {"id": id, "r": json.dumps(held)},
        )
        for place, item in every:
            connection.execute(
                text(
                    "INSERT INTO response_items (response, place, id, size, item) VALUES (:id, :place, :of, 1, :item)"
                ),
                {"id": id, "place": place, "of": item["id"], "item": json.dumps(item)},
            )
    migrate(connection, command.upgrade, "responses_0005")
    assert [(id, place, of) for id, place, of, _ in all_items(connection)] == [
        ("r1", 0, "a"), ("r1", item_rows.OUTPUTS, "b"),
        ("r2", 1, "c"), ("r2", item_rows.OUTPUTS, "d"),
        ("r3", 0, "e"), ("r3", item_rows.OUTPUTS, "f"),
    ]  # fmt: skip
    sizes = {row.id: row.size for row in connection.execute(text("SELECT id, size FROM responses"))}
    added = len(json.dumps(message("b"), separators=(",", ":")))
    assert sizes == {"r1": 9 + added, "r2": 9 + added, "r3": 9}
