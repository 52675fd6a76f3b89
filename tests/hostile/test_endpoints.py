"""Every endpoint of the routes table with requests that are long, wide, deep and slow: nobody else waits for them.

The suite is generated: the endpoints come from `gateway.api.routes`, the bodies from an example of what each takes
(`tests.hostile.endpoints`), and an endpoint without one fails it. CI sends about 2,900 requests, in which each part of
each example is grown in one way. `--slow` sends some 7,000, each part grown in every way, and then larger ones until
ten minutes are over.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gateway.api.routes import spellings, websockets
from tests.hostile.endpoints import MESSAGES_BY_WEBSOCKET, ROWS, SCHEMA
from tests.hostile.grown import grown
from tests.hostile.running import LAG_SECONDS, Upstream, configuration, keep_watching, polite, started, warm
from tests.hostile.suite import ENDPOINTS, Act, Case, House, bodies, by_part, engine, heads, long_texts, once, valid
from tests.patience import PATIENCE

SIZE = 2_000_000
"""Bytes of a body."""
LARGE = 20_000_000
"""Of texts, and of those that `--slow` sends in the end. Smaller bodies could be copied ten times within the limit."""
WITH_LARGE = (
    "POST [/v1]/chat/completions",
    "POST [/v1]/completions",
    "POST [/v1]/messages",
    "POST [/v1]/responses[/]",
    "POST [/v1]/responses/input_tokens",
    "POST [/v1]/conversations[/]",
    "POST [/v1]/conversations/{id}/items",
    "POST /api/chat",
)
"""Endpoints that take a conversation."""
SLOW_SECONDS = 600.0
LAST = ("response.completed", "response.failed", "error")
TRICKLES = 40
"""Pieces of each slow body."""


@pytest.fixture(scope="module")
def house(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("endpoints")
    config = configuration(scripted, folder, test_model)
    server = config["models"]["m"]
    config["models"] |= {"vectors": {**server, "role": "embedding"}, "ranks": {**server, "role": "rerank"}}
    config["models"]["media"] = {**server, "role": ["transcription", "speech", "image", "infill"]}
    config["rooms"] = {
        "templates": {"reader": {"purpose": "answer", "prompt": "Be brief."}},
        "secret_key_file": str(folder / "key"),
    }
    scripted.script = engine
    with started(folder, config) as gateway:
        warm(gateway)
        assert gateway.ask("PUT", "/llm/describe/place", {"schema": SCHEMA}).status == 200
        with keep_watching(gateway) as watcher:
            house = House(gateway, scripted, watcher)
            yield house
    scripted.script = polite
    print(f"{house.sent} requests")


def acts(house: House, key: str, size: int, *, all: bool) -> list[Act]:
    place = house.place(key)
    found = [*heads(place)]
    if place.has_body:
        found += [*bodies(place, size), *valid(place, size, all=all)]
    return [Act(case.name, partial(house.send, place, case)) for case in found]


def test_each_endpoint_has_a_row() -> None:
    with_body = {key for key in ENDPOINTS if not key.startswith("GET ")}
    assert ROWS.keys() == with_body, "tests/hostile/endpoints.py needs an example of what it takes"
    assert websockets().keys() == MESSAGES_BY_WEBSOCKET.keys()


@pytest.mark.parametrize("key", ROWS)
def test_the_examples_are_valid(key: str, house: House) -> None:
    for example in ROWS[key].examples or ({},):
        place = house.place(key)
        sent = house.send(place, Case("", place.target, json.dumps(example).encode))
        assert sent.status in place.row.statuses, sent.answer[-2000:]


@pytest.mark.parametrize("key", once())
def test_endpoint(key: str, house: House) -> None:
    house.tried(acts(house, key, SIZE, all=False))


@pytest.mark.parametrize("key", WITH_LARGE)
def test_large_texts(key: str, house: House) -> None:
    place = house.place(key)
    texts = [Case(each.name, place.target, each.make) for each in long_texts(key, LARGE)]
    house.tried([Act(case.name, partial(house.send, place, case)) for case in texts])


@pytest.mark.parametrize("path", websockets())
def test_messages_over_websocket(path: str, house: House) -> None:
    url = f"ws://127.0.0.1:{house.gateway.port}{next(spellings(path))}"
    late = []
    for each in by_part(grown(MESSAGES_BY_WEBSOCKET[path], SIZE)):
        house.watcher.late()
        with connect(url, proxy=None, open_timeout=PATIENCE, max_size=None, compression=None) as client:
            try:
                client.send(each.make(), text=True)
                while json.loads(client.recv(PATIENCE))["type"] not in (
                    "response.completed",
                    "response.failed",
                    "error",
                ):
                    pass
            except ConnectionClosed:
                pass  # what it takes for no message
        house.upstream.double.requests.clear()
        late += [(each.name, look) for look in house.watcher.late() if look.later_than(LAG_SECONDS)]
    assert not late


def test_slow_bodies(house: House) -> None:
    """All endpoints at once, a byte at a time."""
    house.watcher.late()
    with ExitStack() as stack:
        clients = []
        for key in ROWS:
            place, row = house.place(key), ROWS[key]
            # Some refuse a body of another type before they read it.
            kind = next(iter(row.others.values()))[0] if row.others and not row.examples else "application/json"
            case = Case("", place.target, bytes, kind)
            client = stack.enter_context(socket.create_connection(("127.0.0.1", house.gateway.port), PATIENCE))
            client.sendall(case.head(place.method, SIZE))
            clients.append(client)
        for _ in range(TRICKLES):
            for client in clients:
                client.sendall(b"[")
            assert house.gateway.ask("GET", "/health").status == 200
    assert not [look for look in house.watcher.late() if look.later_than(LAG_SECONDS)]


@pytest.mark.slow
@pytest.mark.timeout(SLOW_SECONDS * 3)
def test_all_and_larger(house: House) -> None:
    ends = time.monotonic() + SLOW_SECONDS
    for key in ENDPOINTS:
        house.tried(acts(house, key, SIZE, all=True))
    chosen = random.Random(39)
    while time.monotonic() < ends:
        key = chosen.choice([*ROWS])
        found = acts(house, key, LARGE, all=True)
        house.tried(chosen.sample(found, min(len(found), 5)))


def test_the_log_has_no_traceback(house: House) -> None:
    assert "Traceback" not in house.gateway.log(), house.gateway.log()[-5000:]
    assert house.gateway.chat().status == 200
