"""kill -9 while a turn's `curl.post` is under way: a post arrives once or is reported as interrupted, never twice."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.agents.web import Asked, Web
from tests.cli.commands import config
from tests.gateway.double import Double, Exchange
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import Json, calls, speaks
from tests.support.kills import LOST, Gateway, Seen, settled

CONFIG = """\
active_model: m
models:
  m: {{runtime: openai, base_url: "http://127.0.0.1:{engine}"}}
state_dir: {folder}/state
rooms: {{tools: {{allow_hosts: ["127.0.0.1:{web}"]}}}}
server: {{port: {port}}}
"""
KILLS = int(os.environ.get("CTXGATE_TEST_POST_KILLS", "5"))
ROOMS = 2
TAKES = 0.2
"""The most seconds that the web server takes for an answer; the gateway is killed within as long."""


class Posts:
    """A web page that counts what is posted to it."""

    def __init__(self, chance: random.Random) -> None:
        self.arrived: Counter[str] = Counter()
        self.came = asyncio.Event()
        self._chance = chance

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        self.arrived[asked.body.decode()] += 1
        self.came.set()
        await asyncio.sleep(self._chance.uniform(0, TAKES))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone")


async def converse(gateway: Gateway, seen: Seen, killing: asyncio.Task[None]) -> None:
    """Messages one after another, each with its own text, until the last kill."""
    url = f"http://127.0.0.1:{gateway.port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as http:
        while not seen.room or not killing.done():
            try:
                if not seen.room:
                    rented = await http.post("/llm/room", json={"tool_policy": {"access": "read"}})
                    seen.room = rented.json()["data"]["id"]
                path = f"/llm/room/{seen.room}"
                said = (await http.post(f"{path}/messages", json={"content": uuid.uuid4().hex})).json()
                if said["code"] == "room_failed":
                    await http.post(f"{path}/wake")
                else:  # one that nobody acknowledged may be queued
                    assert said["success"] or said["code"] == "message_queued", said
            except LOST:
                await asyncio.sleep(0.05)
            else:
                await settled(http, seen)
        await settled(http, seen)


async def kill(gateway: Gateway, posts: Posts, chance: random.Random) -> None:
    for _ in range(KILLS):
        posts.came.clear()
        await posts.came.wait()
        await asyncio.sleep(chance.uniform(0, TAKES))
        await asyncio.to_thread(gateway.kill)
        await gateway.start()


def judged(history: Json, arrived: Counter[str]) -> Counter[str]:
    """How the posts of a room ended."""
    ends: Counter[str] = Counter()
    for message in history["messages"]:
        if message["author_kind"] != "user":
            continue
        told = [event for event in history["events"] if event["message_id"] == message["id"]]
        results = [event["payload"]["result"] for event in told if event["event_type"] == "tool:result"]
        count = arrived[message["content"]]
        assert count <= 1, "a post arrived twice"
        if not results:  # its turn was cut off too often, or not begun
            assert message["status"] in ("failed", "queued"), message
            ends["no result"] += 1
            continue
        (result,) = results
        if "error" in result:
            assert result["error"]["code"] == "tool_interrupted"
            ends["interrupted, " + ("arrived" if count else "not arrived")] += 1
        else:
            assert (count, result["body"]) == (1, "done")
            ends["done"] += 1
    return ends


@pytest.mark.timeout(60 + 30 * KILLS)
async def test_a_post_is_never_sent_twice(tmp_path: Path) -> None:
    """CTXGATE_TEST_POST_KILLS=100 is the whole run."""
    chance = random.Random(9)
    gateway = Gateway(tmp_path, free_port())
    posts = Posts(chance)
    async with Web() as web:
        web.pages["/post"] = posts

        async def engine(exchange: Exchange) -> None:
            said = exchange.json["messages"][-1]
            if said["role"] == "tool":
                await speaks("It is sent.", tokens=3)(exchange)
            else:
                await calls(("curl_post", {"url": f"{web.url}/post", "body": said["content"]}))(exchange)

        async with Double(engine).serve() as double:
            addresses = {"engine": double.address.port, "web": web.port, "port": gateway.port}
            config(tmp_path, CONFIG.format(folder=tmp_path, **addresses))
            seen = [Seen() for _ in range(ROOMS)]
            ends: Counter[str] = Counter()
            try:
                await gateway.start()
                killing = asyncio.create_task(kill(gateway, posts, chance))
                await asyncio.gather(*(converse(gateway, room, killing) for room in seen))
                await killing
                async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
                    for room in seen:
                        url = f"http://127.0.0.1:{gateway.port}/llm/room/{room.room}/history?limit=10000"
                        history = (await http.get(url)).json()["data"]
                        assert not history["more"]
                        ends += judged(history, posts.arrived)
            finally:
                gateway.kill()
    assert ends["interrupted, arrived"], "no kill met a post under way"
    print(f"{KILLS} kills, {sum(posts.arrived.values())} posts arrived: {dict(ends)}")
