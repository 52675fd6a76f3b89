"""The routes: envelope, shapes, refusals, who sees what, and server-sent events."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.server.keys import KeyFile
from tests.gateway.double import endless
from tests.patience import PATIENCE
from tests.rooms.running import House, house, speaks
from tests.store.postgresql import start

ROUTES = [
    ("GET", "/llm/room/{id}", None),
    ("PATCH", "/llm/room/{id}", {"purpose": "theirs"}),
    ("POST", "/llm/room/{id}/messages", {"content": "Hello"}),
    ("POST", "/llm/room/{id}/wake", {}),
    ("GET", "/llm/room/{id}/events?follow=true", None),
    ("GET", "/llm/room/{id}/history", None),
    ("POST", "/llm/room/{id}/interrupt", {}),
    ("POST", "/llm/room/{id}/release", {}),
]
"""Those of the ten that name a room; the other two show and make one's own."""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_no_tenant_sees_another_s_rooms(tmp_path: Path, subtests: pytest.Subtests) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    mine, theirs = (keys.add(tenant=tenant)[1] for tenant in ("acme", "other"))
    async with house(tmp_path, endless) as rooms:
        room = (await rooms.call("POST", "/llm/room", 201, {}, **bearer(mine)))["id"]
        await rooms.call("POST", f"/llm/room/{room}/messages", 202, {"content": "Hi"}, **bearer(mine))
        await rooms.engine.asked()
        before = await rooms.call("GET", f"/llm/room/{room}/history", 200, **bearer(mine))
        for method, path, body in ROUTES:
            with subtests.test(f"{method} {path}"):
                refused = await rooms.call(method, path.format(id=room), 404, body, **bearer(theirs))
                assert refused["code"] == "room_not_found"
                # Another tenant's room looks like a missing one.
                nobody = "00000000-0000-4000-8000-000000000000"
                unknown = await rooms.call(method, path.format(id=nobody), 404, body, **bearer(theirs))
                assert unknown == json.loads(json.dumps(refused).replace(room, nobody))
        assert await rooms.call("GET", "/llm/room", 200, **bearer(theirs)) == []
        assert [shown["id"] for shown in await rooms.call("GET", "/llm/room", 200, **bearer(mine))] == [room]
        assert await rooms.call("GET", f"/llm/room/{room}/history", 200, **bearer(mine)) == before


async def test_scopes_and_missing_keys(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    reads, chats = keys.add(scopes=["rooms:read"])[1], keys.add(scopes=["models"])[1]
    async with house(tmp_path, speaks("Hi")) as rooms:
        assert await rooms.call("GET", "/llm/room", 200, **bearer(reads)) == []
        for key, method in ((reads, "POST"), (chats, "POST"), (chats, "GET")):
            refused = await rooms.call(method, "/llm/room", 403, {}, **bearer(key))
            assert refused["code"] == "insufficient_scope"
        for headers in ({}, bearer("wrong"), {"authorization": "Basic x"}):
            assert (await rooms.call("GET", "/llm/room", 401, **headers))["code"] == "invalid_api_key"
        ask = {"json": {"messages": [{"role": "user", "content": "x"}]}}
        refusal = await rooms.http.post("/v1/chat/completions", headers=bearer(reads), **ask)  # type: ignore[arg-type]
        assert refusal.status_code == 403
        allowed = await rooms.http.post("/v1/chat/completions", headers=bearer(chats), **ask)  # type: ignore[arg-type]
        assert allowed.status_code in (200, 502)  # the engine of this test streams whatever it is asked


REFUSED: dict[str, tuple[str, str, Any, int, str, str]] = {
    "no JSON": ("POST", "", b"{", 400, "invalid_request", "not valid JSON"),
    "no object": ("POST", "", [], 400, "invalid_request", "object"),
    "unknown field": ("POST", "", {"purpos": "x"}, 400, "invalid_request", "purpos"),
    "no agents": ("POST", "", {"agents": []}, 400, "invalid_request", "agents"),
    "two agents of one name": ("POST", "", {"agents": [{}, {}]}, 400, "invalid_request", "agent_id of its own"),
    "agents and other actors": (
        *("POST", "", {"agents": [{"agent_id": "a"}], "actors": [{"agent_id": "b"}]}),
        *(400, "invalid_request", "two names for the same list"),
    ),
    "unknown model": ("POST", "", {"agents": [{"model": "gpt"}]}, 404, "model_not_found", "gpt"),
    "not for chat": ("POST", "", {"agents": [{"model": "vectors"}]}, 400, "wrong_role", "embedding"),
    "unknown provider": ("POST", "", {"agents": [{"provider": "pi"}]}, 400, "provider_unknown", "local"),
    "bad access": (
        *("POST", "", {"tool_policy": {"access": "root"}}),
        *(400, "invalid_request", "tool_policy.access: invalid enum value 'root'; allowed: edit, full, read"),
    ),
    "policy a word": ("POST", "", {"tool_policy": "full"}, 400, "invalid_request", "tool_policy: expected"),
    "policy's key": ("POST", "", {"tool_policy": {"acess": "full"}}, 400, "invalid_request", "field `acess`"),
    "policy's globs a word": ("POST", "", {"tool_policy": {"allow": "*"}}, 400, "invalid_request", "tool_policy.allow"),
    "policy's glob empty": ("POST", "", {"tool_policy": {"deny": [""]}}, 400, "invalid_request", "tool_policy.deny[0]"),
    "too many globs": ("POST", "", {"tool_policy": {"deny": ["x"] * 101}}, 400, "invalid_request", "tool_policy.deny"),
    "bad end of turns": (
        *("POST", "", {"done_policy": {"after_turn": "go"}}),
        *(400, "invalid_request", "done_policy.after_turn: invalid enum value 'go'; allowed: idle, release, sleep"),
    ),
    "bad bound": ("POST", "", {"bounds": {"model_calls": 0}}, 400, "invalid_request", "bounds.model_calls"),
    "long metadata": ("POST", "", {"metadata": {"x": "y" * 40_000}}, 400, "invalid_request", "metadata"),
    "bad status": ("GET", "?status=gone", None, 400, "invalid_request", "rented"),
    "bad limit": ("GET", "?limit=0", None, 400, "invalid_request", "limit"),
    "no content": ("POST", "/{id}/messages", {}, 400, "invalid_request", "content"),
    "empty content": ("POST", "/{id}/messages", {"content": ""}, 400, "invalid_request", "content"),
    "bad kind": ("POST", "/{id}/messages", {"content": "x", "kind": "order"}, 400, "invalid_request", "allowed: task"),
    "bad part": (
        *("POST", "/{id}/messages", {"content": [{"type": "image"}]}),
        *(400, "invalid_request", "content[0].type: invalid value 'image'; allowed: text"),
    ),
    "bad mode": (
        *("POST", "/{id}/release", {"mode": "now"}),
        *(400, "invalid_request", "mode: invalid enum value 'now'; allowed: graceful, immediate"),
    ),
    "bad follow": ("GET", "/{id}/events?follow=maybe", None, 400, "invalid_request", "follow"),
    "method": ("DELETE", "/{id}", None, 405, "method_not_allowed", "GET or PATCH"),
    "no such verb": ("POST", "/{id}/sleep", {}, 404, "not_found", "no such endpoint"),
    "no such prefix": ("GET", "/{id}/events/more", None, 404, "not_found", "no such endpoint"),
}


async def test_refusals_name_the_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent()
        before = await rooms.history(room)
        for name, (method, path, body, status, code, words) in REFUSED.items():
            with subtests.test(name):
                content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
                answer = await rooms.http.request(method, f"/llm/room{path}".format(id=room), content=content)
                assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
                assert words in answer.json()["message"]
        assert await rooms.history(room) == before


async def test_other_methods(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent()
        refused = await rooms.http.delete(f"/llm/room/{room}")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, PATCH")
        for path in (f"/llm/room/{room}", f"/llm/room/{room}/events?follow=true"):
            head = await rooms.http.head(path)
            assert (head.status_code, head.content) == (200, b"")


async def test_the_bound_of_a_body_follows_config_yaml(tmp_path: Path) -> None:
    """A changed `server.max_body_bytes` takes effect without a restart."""
    models = {"echo": Model(name="echo", runtime="echo")}
    config = Config(source=tmp_path / "config.yaml", active_model="echo", models=models, state_dir=tmp_path)
    app = build(config)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        codes = []
        for limit in (1000, 50):
            app.chat.gateway.apply(replace(config, server=Server(max_body_bytes=limit)))
            codes.append((await client.post("/llm/room", content=b"x" * 100)).json()["code"])
    assert codes == ["invalid_request", "request_too_large"]


@pytest.mark.parametrize("name", ["agents", "actors"])
async def test_both_names_of_the_actors(tmp_path: Path, name: str) -> None:
    actor = {"agent_id": "demo-agent", "role": "assistant", "adapter": "codex", "skills": []}
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent(**{name: [actor]}, purpose="try", metadata={"name": "demo"})
        shown = await rooms.get(room)
        assert shown["agents"] == shown["actors"]
        assert actor.items() <= shown["agents"][0].items()
        assert (shown["purpose"], shown["metadata"]) == ("try", {"name": "demo"})


async def test_what_can_be_changed(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent(purpose="one")
        changes = {
            "purpose": None,
            "metadata": {"name": "x"},
            "actors": [{"agent_id": "b"}],
            "tool_policy": {"access": "read", "allow": ["tool.*"], "deny": []},
            "wake_policy": {"on_message": False},
            "done_policy": {"after_turn": "sleep", "idle_seconds": 5.0},
            "bounds": {"wall_seconds": 1.5, "model_calls": 1, "tool_calls": 0, "output_tokens": 7},
            "summary_text": "so far",
        }
        changed = await rooms.call("PATCH", f"/llm/room/{room}", 200, changes)
        for field, value in changes.items():
            if field != "actors":
                assert changed[field] == value
        assert [actor["agent_id"] for actor in changed["agents"]] == ["b"]
        assert await rooms.get(room) == changed
        assert await rooms.call("PATCH", f"/llm/room/{room}", 200, {}) == changed
        history = await rooms.history(room)
        assert [event["payload"] for event in history["events"][1:]] == [{"fields": sorted(changes)}]


async def test_a_tenant_s_rooms_are_bounded(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi"), max_rooms=2) as rooms:
        first, _ = await rooms.rent(), await rooms.rent()
        assert (await rooms.call("POST", "/llm/room", 429, {}))["code"] == "too_many_rooms"
        await rooms.post(first, "release")
        await rooms.rent()
        released = await rooms.call("GET", "/llm/room?status=released", 200)
        assert len(released) == 1
        rest = await rooms.call("GET", "/llm/room?status=open&limit=1000", 200)
        assert released[0] not in rest
        assert len(rest) + 1 == len(await rooms.call("GET", "/llm/room?limit=1000", 200))
        assert len(await rooms.call("GET", "/llm/room?limit=1&offset=1", 200)) == 1


async def test_messages_of_parts(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent()
        parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
        said = await rooms.post(room, "messages", 202, content=parts, kind="task", metadata={"source": "test"})
        assert (said["content"], said["metadata"]) == (parts, {"source": "test"})
        await rooms.until(room, "room:idle")
        assert rooms.engine.requests[0].json["messages"][-1]["content"] == "one two"


async def test_no_web_page_changes_a_room_unasked(tmp_path: Path) -> None:
    """A browser lets any page send a POST of plain text without asking first."""
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent()
        for method, path, body in [("POST", "/llm/room", {}), *((m, p, b) for m, p, b in ROUTES if m != "GET")]:
            refused = await rooms.call(method, path.format(id=room), 403, body, origin="https://evil.example")
            assert refused["code"] == "origin_not_allowed"
        assert await rooms.types(room) == ["room:rented"]


# Events


async def seqs(rooms: House, room: str, after: int, *, tail: bool) -> list[int]:
    return [event["seq"] async for event in rooms.follow(room, after, tail=tail)]


async def test_events_replay_from_anywhere_and_end_with_the_worker(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent(done_policy={"after_turn": "sleep"})
        assert await seqs(rooms, room, 0, tail=False) == [1]
        following = asyncio.create_task(seqs(rooms, room, 0, tail=True))
        await rooms.say(room)
        everything = await following
        assert everything == list(range(1, len(everything) + 1))
        for after in (0, 3, len(everything), 1000):
            for tail in (False, True):
                assert await seqs(rooms, room, after, tail=tail) == everything[after:]
        answer = await rooms.http.get(f"/llm/room/{room}/events?after={len(everything) - 1}")
        assert answer.text.startswith("retry: 1000\n\nid: ")
        assert answer.text.count("data: ") == 1


async def test_many_followers_of_one_room_see_the_same(tmp_path: Path) -> None:
    async with house(tmp_path, speaks(*(["word "] * 20))) as rooms:
        room = await rooms.rent(done_policy={"after_turn": "release"})
        followers = [asyncio.create_task(seqs(rooms, room, 0, tail=True)) for _ in range(20)]
        await rooms.say(room)
        seen = await asyncio.gather(*followers)
        assert all(one == list(range(1, len(seen[0]) + 1)) for one in seen)


async def test_a_quiet_stream_is_kept_alive(tmp_path: Path) -> None:
    async with house(tmp_path, endless, keep_alive=0.05) as rooms:
        room = await rooms.rent()
        async with (
            asyncio.timeout(PATIENCE),
            rooms.http.stream("GET", f"/llm/room/{room}/events?follow=true") as stream,
        ):
            comments = 0
            async for line in stream.aiter_lines():
                comments += line == ": keep-alive"
                if comments == 3:
                    break
            assert comments == 3


async def test_a_follower_that_takes_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.http.SLOW_SECONDS", 0.05)
    async with house(tmp_path, speaks(*(["w" * 1_000_000] * 4), tokens=1)) as rooms:
        room = await rooms.rent(done_policy={"after_turn": "release"})
        reader, writer = await asyncio.open_connection("127.0.0.1", rooms.http.base_url.port, limit=1024)
        writer.write(f"GET /llm/room/{room}/events?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            await rooms.say(room)
            # More comes than any buffer between takes.
            while (await rooms.get(room))["status"] != "released":  # noqa: ASYNC110  nobody else may follow
                await asyncio.sleep(0.05)
            unmoved, held = 0, -1
            while not held > 0 or unmoved < 10:  # as long as a slow client takes, and the server had time, too
                before, held = held, unread(rooms.http.base_url.port, writer)
                unmoved = unmoved + 1 if held == before else 0
                await rooms.get(room)
                await asyncio.sleep(0.05)
            # The others still get every event.
            monkeypatch.setattr("gateway.server.http.SLOW_SECONDS", 60.0)
            events = [event["event_type"] async for event in rooms.follow(room)]
            assert events[-1] == "room:released"
            # The server ended the connection without the end of the answer.
            last = b""
            while data := await reader.read(2**20):
                last = data
        assert not last.endswith(b"0\r\n\r\n")
        writer.close()


def unread(port: int | None, client: asyncio.StreamWriter) -> int:
    """Bytes between that port and a client that neither has taken."""
    ends = f":{port:04X}", f":{client.get_extra_info('sockname')[1]:04X}"
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        if (here[-5:], there[-5:]) in (ends, ends[::-1]):
            found += sum(int(queue, 16) for queue in queues.split(":"))
    return found


async def test_two_gateways_do_not_share_rooms(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'rooms.db'}"
    async with house(tmp_path / "b", speaks("Hello."), store=store) as second:
        async with house(tmp_path / "a", endless, store=store) as first:
            room = await first.rent()
            await first.say(room)
            await first.until(room, "agent:turn_start")
            refused = await second.call("GET", "/llm/room", 503)
            assert refused["code"] == "store_claimed"
            assert f"pid {os.getpid()} on " in refused["message"]
            assert "store: in config.yaml" in refused["message"]
            assert (await first.get(room))["status"] == "active"
        # The second gateway resumes the turn of the first.
        assert (await second.get(room))["status"] == "active"
        await second.until(room, "agent:output")


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_no_database_fails_to_look_for_what_can_t_be_there(database: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(start()).database() if database == "postgresql" else None
        async with house(tmp_path, speaks("Fine."), store=store) as rooms:
            room = await rooms.rent()
            for method, path in (
                *(("GET", f"/llm/{path}") for path in ("room/%00", "room/%00/history", "describe/a%00", "data/a/%00")),
                ("DELETE", "/api/user/secrets/%00"),
                ("GET", f"/llm/room/{room}/files/x%00y"),
            ):
                await rooms.call(method, path, 404)
            assert (await rooms.http.get("/v1/responses/resp_%00")).status_code == 404
            for path in ("history?after_event={}", "history?after_message={}", "events?after={}"):
                await rooms.call("GET", f"/llm/room/{room}/{path.format(2**31)}", 400)
                assert (await rooms.http.get(f"/llm/room/{room}/{path.format(2**31 - 1)}")).status_code == 200
            assert [event async for event in rooms.follow(room, after=999_999_999_999, tail=False)] == []
