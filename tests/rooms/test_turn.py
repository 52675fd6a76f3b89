"""Turns of a room, from the message to the output: the model's requests, the events, and what ends a turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.features.agents.settings import RoomTools
from gateway.features.rooms.schemas import encode
from gateway.features.rooms.transaction import sound
from normalizers import registry
from tests.gateway.double import answers, endless, silence
from tests.operations.running import gateway
from tests.patience import PATIENCE
from tests.rooms.running import calls, house, of_type, speaks
from tests.store.postgresql import start

FULL = {"access": "full"}


async def test_each_step_of_a_turn_has_its_event(tmp_path: Path) -> None:
    async with house(tmp_path, calls(("tool_ls", {"path": "/"})), speaks("Nothing", " here.", tokens=4)) as rooms:
        room = await rooms.rent(agents=[{"agent_id": "a"}], tool_policy={"access": "read"})
        said = await rooms.say(room, "What is there?")
        assert (said["seq"], said["status"], said["author_kind"]) == (1, "queued", "user")
        await rooms.until(room, "room:idle")
        history = await rooms.history(room)
        log = (await rooms.http.get("/-/requests")).json()["requests"]
    assert [(entry["api"], entry["outcome"], entry["completion_tokens"]) for entry in log] == [
        *(("rooms", "ok", 4), ("rooms", "ok", 5)),
    ]
    assert [event["event_type"] for event in history["events"] if event["event_type"] != "agent:update"] == [
        *("room:rented", "room:message", "room:active", "agent:turn_start"),
        *("agent:model_call", "agent:message", "tool:call", "tool:result"),
        *("agent:model_call", "agent:message", "agent:output", "agent:turn_end", "room:idle"),
    ]
    (call,) = of_type(history, "tool:call")
    assert (call["name"], call["arguments"]) == ("tool.ls", {"path": "/"})
    (result,) = of_type(history, "tool:result")
    assert (result["call_id"], result["ok"]) == (call["call_id"], True)
    (end,) = of_type(history, "agent:turn_end")
    assert (end["status"], end["model_calls"], end["tool_calls"]) == ("done", 2, 1)
    assert end["usage"] == {"input": 6, "output": 9, "total": 15}
    task, output = history["messages"]
    assert (task["status"], output["content"], output["kind"], output["author_kind"]) == (
        *("done", "Nothing here.", "output", "agent"),
    )
    assert output["in_reply_to"] == said["id"]
    assert output["seq"] > task["seq"]
    assert all(
        event["message_id"] == said["id"] for event in history["events"] if event["agent_key"] and event["seq"] > 1
    )
    asked = rooms.engine.requests[1].json["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
    names = [tool["function"]["name"] for tool in rooms.engine.requests[0].json["tools"]]
    assert "tool_ls" in names
    assert not [name for name in names if "." in name or name.startswith(("room", "tool_rm", "data_create"))]


async def test_a_room_without_a_policy_has_no_tools_and_knows_its_past(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("One."), speaks("Two.")) as rooms:
        actor = {"agent_id": "a", "instructions": "Be brief.", "skills": ["counting"]}
        room = await rooms.rent(actors=[actor], purpose="count")
        for number in (1, 2):
            after = len(await rooms.types(room))
            await rooms.say(room, f"Say {number}")
            await rooms.until(room, "room:idle", after)
        first, second = (request.json for request in rooms.engine.requests)
    assert "tools" not in first
    assert first["messages"][0] == {
        "role": "system",
        "content": "Be brief.\n\nThe purpose of this room: count\n\nYour skills: counting",
    }
    assert second["messages"][1:] == [
        {"role": "user", "content": "Say 1"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Say 2"},
    ]


HELPER = {"runtime": "llama.cpp", "path": "weights", "context_window": 1024}
ECHO = {"runtime": "echo"}


@pytest.mark.parametrize(
    ("before", "after", "rooms"),
    [
        ({"m": ECHO, "helper": HELPER}, {"m": ECHO}, {}),
        ({"m": ECHO, "helper": HELPER}, {"m": ECHO, "another": HELPER}, {}),
        ({"m": ECHO}, {"n": ECHO}, {}),
        ({"m": ECHO, "helper": ECHO}, {"m": ECHO, "another": ECHO}, {"summary_model": "helper"}),
        ({"m": ECHO}, {"n": ECHO}, {"summary_model": "default"}),
    ],
    ids=["lightest removed", "lightest renamed", "active renamed", "configured renamed", "default"],
)
def test_a_reload_that_takes_the_writer_of_summaries_fails_no_turn(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], rooms: dict[str, str]
) -> None:
    (tmp_path / "_models").mkdir()
    (tmp_path / "_models/weights").write_bytes(b"x")

    def written(models: dict[str, Any]) -> str:
        tools = {**rooms, "summary_model": [*models][-1]} if rooms.get("summary_model") in before else rooms
        return json.dumps({"active_model": next(iter(models)), "models": models, "rooms": {"tools": tools}})

    with gateway(tmp_path, written(before)) as running:
        for reloads in (0, 1):
            if reloads:
                running.save(written(after))
                running.until(lambda status: status["config"]["reloads"] == 1)
            rented = running.http.post("/llm/room", json={}).json()["data"]["id"]
            assert running.http.post(f"/llm/room/{rented}/messages", json={"content": "Hi"}).status_code == 202
            deadline = time.monotonic() + PATIENCE
            while (room := running.http.get(f"/llm/room/{rented}").json()["data"])["status"] not in ("idle", "failed"):
                assert time.monotonic() < deadline, room
                time.sleep(0.02)
            assert (room["status"], room["last_error"]) == ("idle", None)


async def test_the_addressed_actor_answers(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("I am B.")) as rooms:
        room = await rooms.rent(
            agents=[
                {"agent_id": "a"},
                {"agent_id": "b", "model": "m", "provider": "local", "instructions": "You are B."},
            ]
        )
        await rooms.say(room, agent_id="b")
        output = await rooms.until(room, "agent:output")
        assert output["agent_key"] == "b"
        assert rooms.engine.requests[0].json["messages"][0]["content"] == "You are B."
        wrong = await rooms.post(room, "messages", 400, content="x", agent_id="c")
        assert "a, b" in wrong["message"]


INVALID = {
    "unknown tool": (("no_such_tool", {}), "not a tool"),
    "a tool that the policy denies": (("tool_rm", {"path": "/x"}), "not a tool"),
    "arguments that the schema forbids": (("tool_ls", {"path": 7}), "break the tool's schema"),
    "arguments that are no JSON": (("tool_ls", "{nonsense"), "JSON object"),
}


HANDS_OUT_ALL = {
    "custom_format": registry.define({"like": "native_json", "unknown_tools": "forward"}),
    "call_deltas": "always",
}
"""Settings of a model whose calls reach the room whatever they are."""


async def test_a_call_of_no_declared_tool_is_text(tmp_path: Path) -> None:
    async with house(tmp_path, calls(("tool_rm", {"path": "/x"}))) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"})
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        assert (await rooms.history(room))["messages"][-1]["content"] == (
            '{"name": "tool_rm", "arguments": {"path": "/x"}}'
        )


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
async def test_the_model_learns_of_a_refused_call(tmp_path: Path, case: Any) -> None:
    call, reason = case
    async with house(tmp_path, calls(call), speaks("Sorry."), model=HANDS_OUT_ALL) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"})
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        history = await rooms.history(room)
        (refused,) = of_type(history, "tool:refused")
        assert refused["name"] == call[0]
        assert reason in refused["reason"]
        assert reason in rooms.engine.requests[1].json["messages"][-1]["content"]
        assert history["messages"][-1]["content"] == "Sorry."


async def test_a_tool_s_failure_is_a_result(tmp_path: Path) -> None:
    async with house(tmp_path, calls(("tool_cat", {"path": "/nothing"})), speaks("It isn't there.")) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"})
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        (result,) = of_type(await rooms.history(room), "tool:result")
        assert result["ok"] is False
        assert result["result"]["error"]["code"]
        assert "error" in rooms.engine.requests[1].json["messages"][-1]["content"]


LIMITS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "model_calls": ({"model_calls": 2}, (calls(("tool_ls", {"path": "/"})),)),
    "tool_calls": ({"tool_calls": 1}, (calls(("tool_ls", {"path": "/"})),)),
    "output_tokens": ({"output_tokens": 8}, (calls(("tool_ls", {"path": "/"})),)),
    "wall_time": ({"wall_seconds": 3.0}, (endless,)),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_each_bound_ends_a_turn_with_its_own_event(tmp_path: Path, limit: str) -> None:
    bounds, scripts = LIMITS[limit]
    async with house(tmp_path, *scripts) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"}, bounds=bounds)
        await rooms.say(room)
        idle = await rooms.until(room, "room:idle")
        history = await rooms.history(room)
    assert idle["payload"] == {"reason": "limited"}
    assert of_type(history, f"limit:{limit}") == [{"bound": next(iter(bounds.values()))}]
    (end,) = of_type(history, "agent:turn_end")
    assert (end["status"], end["limit"]) == ("limited", limit)
    if limit == "wall_time":
        assert history["messages"][-1]["content"] == "Hello"
    if limit == "output_tokens":
        assert [request.json["max_tokens"] for request in rooms.engine.requests] == [8, 3]


async def test_a_room_can_t_widen_the_bounds_of_the_configuration(tmp_path: Path) -> None:
    async with house(tmp_path, calls(("tool_ls", {"path": "/"})), turn_model_calls=2) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"}, bounds={"model_calls": 50})
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        assert len(rooms.engine.requests) == 2


async def test_an_interrupt_cancels_the_model_upstream(tmp_path: Path) -> None:
    async with house(tmp_path, endless, speaks("Again.")) as rooms:
        room = await rooms.rent()
        assert (await rooms.post(room, "interrupt", 409))["code"] == "no_turn_running"
        await rooms.say(room)
        exchange = await rooms.engine.asked()
        await rooms.post(room, "interrupt", reason="enough")
        await exchange.gone
        idle = await rooms.until(room, "room:idle")
        assert idle["payload"] == {"reason": "interrupted"}
        history = await rooms.history(room)
        assert of_type(history, "agent:interrupted") == [{"reason": "enough"}]
        assert [message["status"] for message in history["messages"]] == ["interrupted"]
        assert (await rooms.post(room, "interrupt", 409))["code"] == "no_turn_running"
        await rooms.say(room)
        await rooms.until(room, "agent:output")


async def test_one_message_waits_and_no_more(tmp_path: Path) -> None:
    async with house(tmp_path, endless, speaks("Second.")) as rooms:
        room = await rooms.rent()
        first = await rooms.say(room, "one")
        await rooms.engine.asked()
        second = await rooms.say(room, "two")
        assert (await rooms.post(room, "messages", 409, content="three"))["code"] == "message_queued"
        shown = await rooms.get(room)
        assert (shown["running_message_id"], shown["queued_message_id"]) == (first["id"], second["id"])
        await rooms.post(room, "interrupt")
        output = await rooms.until(room, "agent:output")
        assert output["payload"]["in_reply_to"] == second["id"]
        await rooms.until(room, "room:idle", output["seq"])


async def test_a_failure_is_recorded_and_a_wake_answers_after_all(tmp_path: Path) -> None:
    async with house(tmp_path, answers({"error": {"message": "out of order"}}, 500), speaks("Better.")) as rooms:
        room = await rooms.rent()
        said = await rooms.say(room)
        await rooms.until(room, "room:failed")
        shown = await rooms.get(room)
        assert shown["status"] == "failed"
        assert "out of order" in shown["last_error"]["message"]
        (error,) = of_type(await rooms.history(room), "error")
        assert error["message"] == shown["last_error"]["message"]
        (entry,) = (await rooms.http.get("/-/requests")).json()["requests"]
        assert (entry["api"], entry["outcome"]) == ("rooms", "provider_unavailable")
        assert (await rooms.post(room, "messages", 409, content="x"))["code"] == "room_failed"
        woken = await rooms.post(room, "wake")
        assert (woken["status"], woken["last_error"]) == ("active", None)
        output = await rooms.until(room, "agent:output")
        assert output["payload"]["in_reply_to"] == said["id"]
        await rooms.until(room, "room:idle")
        assert [message["status"] for message in (await rooms.history(room))["messages"]] == ["done", "done"]


async def test_a_wake_may_give_the_failed_message_up(tmp_path: Path) -> None:
    async with house(tmp_path, answers({"error": {"message": "out of order"}}, 500), speaks("Better.")) as rooms:
        room = await rooms.rent()
        said = await rooms.say(room, "Is it broken?")
        await rooms.until(room, "room:failed")
        assert (await rooms.get(room))["failed_message_id"] == said["id"]
        woken = await rooms.post(room, "wake", retry=False)
        assert (woken["status"], woken["failed_message_id"]) == ("active", None)
        assert (await rooms.until(room, "room:idle"))["payload"] == {"reason": "no_message"}
        await rooms.say(room, "And now?")
        await rooms.until(room, "agent:output")
        assert rooms.engine.requests[1].json["messages"] == [
            {"role": "user", "content": "Is it broken?"},
            {"role": "assistant", "content": "[the turn failed]"},
            {"role": "user", "content": "And now?"},
        ]


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_release_waits_for_a_safe_point(tmp_path: Path, mode: str) -> None:
    """graceful: the turn answers first. immediate: it ends between two steps, here after the first model call."""
    async with house(tmp_path, calls(("tool_ls", {"path": "/"})), speaks("Done.")) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"})
        # The release comes while the engine is being asked.
        held = rooms.engine.scripts[0]

        async def first(exchange: Any) -> None:
            released = await rooms.post(room, "release", mode=mode)
            assert released["status"] == "releasing"
            refused = await rooms.post(room, "messages", 409, content="too late")
            assert refused["code"] == "room_releasing"
            await held(exchange)

        rooms.engine.scripts = (first, *rooms.engine.scripts[1:])
        await rooms.say(room)
        await rooms.until(room, "room:released")
        history = await rooms.history(room)
    assert history["room"]["status"] == "released"
    assert len(rooms.engine.requests) == (2 if mode == "graceful" else 1)
    outputs = [message["content"] for message in history["messages"] if message["kind"] == "output"]
    assert outputs == (["Done."] if mode == "graceful" else [])


async def test_a_release_cancels_the_message_that_waits(tmp_path: Path) -> None:
    async with house(tmp_path, endless) as rooms:
        room = await rooms.rent()
        await rooms.say(room, "one")
        await rooms.engine.asked()
        second = await rooms.say(room, "two")
        await rooms.post(room, "release")
        await rooms.post(room, "interrupt")
        await rooms.until(room, "room:released")
        history = await rooms.history(room)
        assert of_type(history, "message:cancelled") == [{"message_id": second["id"]}]
        assert [message["status"] for message in history["messages"]] == ["interrupted", "cancelled"]
        for verb in ("messages", "wake", "interrupt", "release"):
            body = {"content": "x"} if verb == "messages" else {}
            assert (await rooms.post(room, verb, 409, **body))["code"] == "room_released"


@pytest.mark.parametrize(
    ("tool", "arguments", "last"),
    [
        ("room_idle", {"reason": "tired"}, ["room:idle", "room:sleeping"]),
        ("room_release", {}, ["room:releasing", "room:released"]),
        ("room_release", {"mode": "immediate"}, ["room:releasing", "room:released"]),
    ],
)
async def test_what_the_model_asks_of_its_room(
    tmp_path: Path, tool: str, arguments: dict[str, Any], last: list[str]
) -> None:
    async with house(tmp_path, calls((tool, arguments)), speaks("Bye.")) as rooms:
        room = await rooms.rent(tool_policy=FULL)
        await rooms.say(room)
        await rooms.until(room, last[-1])
        assert (await rooms.types(room))[-2:] == last
        assert len(rooms.engine.requests) == (1 if "mode" in arguments else 2)


@pytest.mark.parametrize(
    ("policy", "last"),
    [
        ({"after_turn": "sleep"}, ["room:idle", "room:sleeping"]),
        ({"after_turn": "release"}, ["room:releasing", "room:released"]),
        ({"idle_seconds": 0.05}, ["room:idle", "room:sleeping"]),
    ],
)
async def test_the_done_policy(tmp_path: Path, policy: dict[str, Any], last: list[str]) -> None:
    async with house(tmp_path, speaks("Bye.")) as rooms:
        room = await rooms.rent(done_policy=policy)
        await rooms.say(room)
        await rooms.until(room, last[-1])
        assert (await rooms.types(room))[-2:] == last


@pytest.mark.parametrize("on_message", [True, False])
async def test_the_wake_policy(tmp_path: Path, on_message: bool) -> None:
    async with house(tmp_path, speaks("Hello.")) as rooms:
        room = await rooms.rent(done_policy={"after_turn": "sleep"}, wake_policy={"on_message": on_message})
        await rooms.say(room)
        asleep = await rooms.until(room, "room:sleeping")
        said = await rooms.say(room)
        if not on_message:
            shown = await rooms.get(room)
            assert (shown["status"], shown["queued_message_id"]) == ("sleeping", said["id"])
            woken = await rooms.post(room, "wake")
            assert woken["status"] == "active"
        output = await rooms.until(room, "agent:output", asleep["seq"])
        assert output["payload"]["in_reply_to"] == said["id"]


async def test_an_empty_answer_ends_the_turn(tmp_path: Path) -> None:
    async with house(tmp_path, speaks()) as rooms:
        room = await rooms.rent()
        await rooms.say(room)
        idle = await rooms.until(room, "room:idle")
        assert idle["payload"] == {"reason": "done"}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_any_text_can_be_stored_and_sent(tmp_path: Path, database: str) -> None:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(start()).database() if database == "postgresql" else None
        async with house(tmp_path, speaks("nul \0, whole \U0001f600"), store=store) as rooms:
            room = await rooms.rent(purpose="a \0 purpose")
            await rooms.say(room, "nul \0")
            output = await rooms.until(room, "agent:output")
            assert output["payload"]["text"] == "nul \0, whole \U0001f600"
            await rooms.until(room, "room:idle")
            history = await rooms.history(room)
            assert [message["content"] for message in history["messages"]] == ["nul \0", output["payload"]["text"]]
            refused = await rooms.call("POST", "/api/user/secrets", 400, {"name": "a\0", "value": "x"})
            assert "name" in refused["message"]


def test_lone_surrogates_are_replaced() -> None:
    """A fetched page may contain lone surrogates; JSON can't."""
    half = "\ud83d"
    told = sound({"text": f"a {half} b", half: [1, None, half], "whole": "\ud83d\ude00"})
    assert told == {"text": "a \ufffd b", "\ufffd": [1, None, "\ufffd"], "whole": "\U0001f600"}
    assert encode(told)


async def test_unfinished_text_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.features.agents.turn.UPDATE_SECONDS", 0.0)
    async with house(tmp_path, speaks("One ", "two ", "three.")) as rooms:
        room = await rooms.rent()
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        pieces = of_type(await rooms.history(room), "agent:update")
        assert "".join(piece["text"] for piece in pieces) == "One two three."


async def test_a_restarted_gateway_resumes_its_turns(tmp_path: Path) -> None:
    async with house(tmp_path, calls(("tool_mkdir", {"path": "/a"})), silence) as rooms:
        room = await rooms.rent(tool_policy=FULL)
        said = await rooms.say(room)
        await rooms.engine.asked(2)
        idle = await rooms.rent()
        await rooms.post(idle, "wake")
        await rooms.until(idle, "room:idle")
    assert (tmp_path / "rooms.open").exists()
    async with house(tmp_path, speaks("It is made.")) as rooms:
        # The gateway resumes the turn without any request.
        asked = (await rooms.engine.asked()).json["messages"]
        assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
        output = await rooms.until(room, "agent:output")
        assert output["payload"]["in_reply_to"] == said["id"]
        await rooms.until(room, "room:idle", output["seq"])
        history = await rooms.history(room)
        assert of_type(history, "agent:turn_resumed") == [{"message_id": said["id"], "attempt": 2}]
        assert len(of_type(history, "tool:call")) == 1
        (end,) = of_type(history, "agent:turn_end")
        assert (end["status"], end["model_calls"], end["tool_calls"]) == ("done", 3, 1)
        assert (await rooms.get(idle))["status"] == "sleeping"
        await rooms.post(room, "release")
    assert not (tmp_path / "rooms.open").exists()


async def test_a_turn_cut_off_too_often_fails(tmp_path: Path) -> None:
    async with house(tmp_path, silence) as rooms:
        room = await rooms.rent()
        await rooms.say(room)
        await rooms.engine.asked()
    for _ in range(2):
        async with house(tmp_path, silence) as rooms:
            await rooms.engine.asked()
    async with house(tmp_path, silence) as rooms:
        await rooms.until(room, "room:failed")
        assert (await rooms.get(room))["last_error"]["code"] == "turn_cut_off"
        assert rooms.engine.requests == []


async def test_a_read_that_was_cut_off_runs_again_as_the_second_attempt(tmp_path: Path) -> None:
    asked, answering = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with contextlib.suppress(ConnectionError):
            if answering.is_set():
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi")
            await reader.read()  # until the client has gone
        writer.close()

    async with asyncio.timeout(PATIENCE), await asyncio.start_server(serve, "127.0.0.1", 0) as web:
        host = f"127.0.0.1:{web.sockets[0].getsockname()[1]}"
        tools = RoomTools(allow_hosts=(host,))
        async with house(tmp_path, calls(("curl_get", {"url": f"http://{host}/"})), tools=tools) as rooms:
            room = await rooms.rent(tool_policy={"access": "read"})
            await rooms.say(room)
            await asked.wait()
        answering.set()
        async with house(tmp_path, speaks("It says hi."), tools=tools) as rooms:
            await rooms.until(room, "agent:output")
            history = await rooms.history(room)
    first, second = of_type(history, "tool:call")
    assert first["call_id"] == second["call_id"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    (result,) = of_type(history, "tool:result")
    assert (result["ok"], result["result"]["body"]) == (True, "hi")
