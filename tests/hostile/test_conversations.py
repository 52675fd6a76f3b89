"""A stored conversation that is far larger than any body."""

from __future__ import annotations

from gateway.features.responses.item_rows import MAX_BYTES, PAGE_BYTES
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway

ITEM_BYTES = 1_400_000
TIMES, ITEMS = 3, 20
"""Requests that make it, each with as many items: 84 MB."""


def test_a_large_conversation(gateway: Gateway, unharmed: Unharmed) -> None:
    path = f"/v1/conversations/{gateway.ask('POST', '/v1/conversations', {}).json['id']}"
    item = {"type": "message", "role": "user", "content": "x" * ITEM_BYTES}
    for _ in range(TIMES):
        answer = gateway.ask("POST", f"{path}/items", {"items": [item] * ITEMS})
        assert answer.status == 200
    last = answer.json["last_id"]
    with unharmed(body=PAGE_BYTES):
        for query in ("", "&order=asc", f"&after={last}"):
            page = gateway.ask("GET", f"{path}/items?limit=100{query}").json
            assert (len(page["data"]), page["has_more"]) == (PAGE_BYTES // ITEM_BYTES, True)
        one = gateway.ask("GET", f"{path}/items/{last}").json
        assert (one["id"], len(one["content"][0]["text"])) == (last, ITEM_BYTES)
        assert gateway.ask("POST", f"{path}/items", {"items": [{**item, "content": "Hi", "id": last}]}).status == 200
        assert gateway.ask("DELETE", f"{path}/items/{last}").status == 200
        asked = {"input": "Hi", "conversation": path.rpartition("/")[2], "store": False}
        answer = gateway.ask("POST", "/v1/responses", asked)
        assert (answer.status, answer.json["error"]["code"]) == (400, "conversation_too_large")
    with unharmed(body=MAX_BYTES):
        assert gateway.ask("POST", "/v1/responses", {**asked, "truncation": "auto"}).status == 200
    assert gateway.ask("DELETE", path).status == 200
