"""Rooms that outgrow their model's window: the oldest turns become a summary, and nothing drops in silence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.features.agents.window import ASKED
from gateway.features.rooms.summary import INSTRUCTION
from tests.gateway.double import Exchange, Script, answers, completion, endless
from tests.rooms.running import House, Json, calls, house, of_type, real_house, speaks

WINDOW = 1024


def tokens(body: Json) -> int:
    """Three characters a token: more than the gateway estimates."""
    return sum(len(str(message)) for message in body["messages"]) // 3


def window(talk: Script, *, maximum: int = WINDOW, summary: str | None = "They spoke.", told: bool = True) -> Script:
    """An engine with so large a window, which writes this summary. told: whether its refusal has the sizes."""

    async def script(exchange: Exchange) -> None:
        asked = exchange.json
        if (size := tokens(asked)) > maximum:
            sizes = f"request ({size} tokens) exceeds the available context size ({maximum} tokens)"
            text = sizes if told else "input length exceeds the context length"
            await exchange.whole({"error": {"message": text}}, 400)
        elif asked["messages"][0]["content"] == INSTRUCTION:
            if summary is None:
                await exchange.whole({"error": {"message": "out of order"}}, 500)
            else:
                await exchange.whole(completion(f"{summary} {len(exchange.connection.double.requests)}"))
        else:
            await talk(exchange)

    return script


def talks(exchange: Exchange) -> list[Json]:
    """The conversation without a system message."""
    return [message for message in exchange.json["messages"] if message["role"] != "system"]


async def converse(rooms: House, room: str, turns: int, say: Callable[[int], str]) -> Json:
    """So many turns, one after another. Returns the history."""
    after = len(await rooms.types(room))
    for number in range(turns):
        await rooms.say(room, say(number))
        after = (await rooms.until(room, "room:idle", after))["seq"]
    history: Json = await rooms.call("GET", f"/llm/room/{room}/history?limit=10000", 200)
    return history


def holds(history: Json, turns: int) -> list[Json]:
    """No turn failed by length, and the compactions follow one another without a gap. Returns them."""
    tasks = [message for message in history["messages"] if message["kind"] == "task"]
    assert [message["status"] for message in tasks] == ["done"] * turns
    assert of_type(history, "error") == []
    compacted = of_type(history, "history:compacted")
    places = [message["seq"] for message in tasks]
    folded: list[int] = []
    summary = ""
    for event in compacted:
        assert event["before"] == summary, "a summary was lost"
        summary = event["summary"]
        part = [seq for seq in places if event["from_seq"] <= seq <= event["through_seq"]]
        assert len(part) == event["turns"]
        folded += part
    assert folded == places[: len(folded)], "a turn was folded twice, or never"
    return compacted


async def test_the_oldest_turns_become_a_summary(tmp_path: Path) -> None:
    talk = window(speaks("Yes: ", "o" * 60))
    async with house(tmp_path, talk, model={"context_window": WINDOW}) as rooms:
        room = await rooms.rent(agents=[{"agent_id": "a", "instructions": "Be brief."}])
        history = await converse(rooms, room, 40, lambda number: f"Question {number}: {'x' * 80}")
        compacted = holds(history, 40)
        assert len(compacted) > 2
        assert {event["by"] for event in compacted} == {"model"}
        assert all(event["tokens_after"] <= event["tokens_before"] for event in compacted)
        last = rooms.engine.requests[-1].json["messages"]
        assert [message["content"] for message in last[:3]] == ["Be brief.", ASKED, compacted[-1]["summary"]]
        assert last[-1]["content"].startswith("Question 39")
        # Every message is kept, word for word.
        assert len(history["messages"]) == 80
        assert history["room"]["summary_text"] == compacted[-1]["summary"]
        # A person corrects what the model knows.
        await rooms.call("PATCH", f"/llm/room/{room}", 200, {"summary_text": "They like tea."})
        await converse(rooms, room, 1, lambda _: "Hi")
        assert rooms.engine.requests[-1].json["messages"][2] == {"role": "assistant", "content": "They like tea."}


@pytest.mark.parametrize("told", [True, False])
async def test_an_engine_with_a_smaller_window_than_configured(tmp_path: Path, told: bool) -> None:
    """The gateway learns from the refusals, once: later turns fit at the first attempt."""
    async with house(tmp_path, window(speaks("o" * 60), told=told), model={"context_window": 4096}) as rooms:
        room = await rooms.rent()
        history = await converse(rooms, room, 40, lambda number: f"Question {number}: {'x' * 80}")
        holds(history, 40)
        refused = [exchange for exchange in rooms.engine.requests if tokens(exchange.json) > WINDOW]
        assert 1 <= len(refused) <= 4


async def test_a_long_summary_text_is_no_obstacle(tmp_path: Path) -> None:
    async with house(tmp_path, window(speaks("Fine.")), model={"context_window": WINDOW}) as rooms:
        room = await rooms.rent()
        await rooms.call("PATCH", f"/llm/room/{room}", 200, {"summary_text": "s" * 20_000})
        history = await converse(rooms, room, 3, lambda _: "m" * 300)
        assert of_type(history, "error") == []
        assert of_type(history, "history:compacted") or of_type(history, "history:shortened")


async def test_a_message_that_fills_the_window_goes_alone(tmp_path: Path) -> None:
    async with house(tmp_path, window(speaks("Fine.")), model={"context_window": WINDOW}) as rooms:
        room = await rooms.rent()
        await converse(rooms, room, 2, lambda _: "Hi")
        history = await converse(rooms, room, 1, lambda _: "long " * 580)
        assert of_type(history, "error") == []
        assert [message["content"] for message in talks(rooms.engine.requests[-1])] == ["long " * 580]
        (left_out,) = of_type(history, "history:shortened")
        assert left_out["summary"] == len(history["room"]["summary_text"])
        # It is too long by itself: the room fails, and goes on without it.
        await rooms.say(room, "long " * 900)
        await rooms.until(room, "room:failed")
        assert (await rooms.get(room))["last_error"]["code"] == "context_length_exceeded"
        await rooms.post(room, "wake", retry=False)
        await rooms.until(room, "room:idle", len(await rooms.types(room)) - 2)
        await rooms.say(room, "Hello again")
        output = await rooms.until(room, "agent:output", len(await rooms.types(room)) - 1)
        assert output["payload"]["text"] == "Fine."


@pytest.mark.parametrize("told", [True, False])
async def test_a_message_that_fits_in_no_window_shortens_no_other_room(told: bool, tmp_path: Path) -> None:
    async with house(tmp_path, window(speaks("Fine."), told=told), model={"context_window": WINDOW}) as rooms:
        first, second = await rooms.rent(), await rooms.rent()
        await rooms.say(first, "long " * 4000)
        await rooms.until(first, "room:failed")
        history = await converse(rooms, second, 2, lambda _: "m" * (WINDOW // 2))
        assert {event["event_type"] for event in history["events"]}.isdisjoint(
            {"error", "history:compacted", "history:shortened"}
        )


async def test_without_a_summary_model_the_summary_is_cut_together(tmp_path: Path) -> None:
    async with house(tmp_path, window(speaks("o" * 60), summary=None), model={"context_window": WINDOW}) as rooms:
        room = await rooms.rent()
        history = await converse(rooms, room, 25, lambda number: f"Question {number}: {'x' * 80}")
        compacted = holds(history, 25)
        assert {event["by"] for event in compacted} == {"excerpt"}
        assert "out of order" in compacted[0]["problem"]
        assert re.search(r"user: Question 7: x{10,}… \[\d+ more characters\]", compacted[0]["summary"])


async def test_tool_results_of_earlier_turns_stay_in_short_form(tmp_path: Path) -> None:
    files = [("tool_mkdir", {"path": f"/folder-with-a-long-name-{number:03}"}) for number in range(12)]
    scripts = (calls(*files), speaks("Made."), calls(("tool_ls", {})), speaks("Twelve."), speaks("I know."))
    async with house(tmp_path, *scripts) as rooms:
        room = await rooms.rent(tool_policy={"access": "edit"})
        await converse(rooms, room, 3, lambda number: ("Make them", "List them", "And now?")[number])
        past = talks(rooms.engine.requests[-1])
    roles = [message["role"] for message in past]
    assert roles == [
        "user",
        "assistant",
        *["tool"] * 12,
        "assistant",
        *("user", "assistant", "tool", "assistant", "user"),
    ]
    listing = past[-3]["content"]
    assert listing.startswith('{"path":"/","entries":[{"path":"/folder-with-a-long-name-000"')
    assert re.search(r"… \[[\d,]+ more characters\]$", listing)
    assert past[-2]["content"] == "Twelve."


async def test_results_of_the_running_turn_are_shortened_and_told(tmp_path: Path) -> None:
    made = [("tool_mkdir", {"path": f"/{'folder-with-a-long-name' * 3}-{number:03}"}) for number in range(30)]
    scripts = [calls(*made[:15]), calls(*made[15:]), *[calls(("tool_ls", {}))] * 5, speaks("Many.")]

    async def talk(exchange: Exchange) -> None:
        await scripts.pop(0)(exchange)

    engine = window(talk, maximum=2048)
    policy = {"access": "edit", "allow": ["tool.ls", "tool.mkdir"]}
    async with house(tmp_path, engine, model={"context_window": 2048}, turn_tool_calls=100) as rooms:
        room = await rooms.rent(tool_policy=policy)
        history = await converse(rooms, room, 1, lambda _: "Make them and list them")
    assert of_type(history, "error") == []
    assert history["messages"][-1]["content"] == "Many."
    told = of_type(history, "history:shortened")
    assert told
    assert "steps" in told[-1]


async def test_an_interrupted_turn_is_part_of_the_next_one_s_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.features.agents.turn.UPDATE_SECONDS", 0.0)
    async with house(tmp_path, endless, speaks("Yes.")) as rooms:
        room = await rooms.rent()
        await rooms.say(room, "Tell me a story")
        await rooms.until(room, "agent:update")
        await rooms.post(room, "interrupt")
        idle = await rooms.until(room, "room:idle")
        await rooms.say(room, "Did you stop?")
        await rooms.until(room, "room:idle", idle["seq"])
        assert talks(rooms.engine.requests[-1]) == [
            {"role": "user", "content": "Tell me a story"},
            {"role": "assistant", "content": "Hello [interrupted]"},
            {"role": "user", "content": "Did you stop?"},
        ]


async def test_a_failure_that_passes_is_survived(tmp_path: Path) -> None:
    busy = answers({"error": {"message": "busy"}}, 503, b"Retry-After: 0\r\n")
    async with house(tmp_path, busy, busy, speaks("Here."), turn_retries=2) as rooms:
        room = await rooms.rent()
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        history = await rooms.history(room)
    failed = of_type(history, "agent:model_failed")
    assert [event["call"] for event in failed] == [1, 2]
    assert "busy" in failed[0]["message"]
    assert history["messages"][-1]["content"] == "Here."
    assert len(rooms.engine.requests) == 3


async def test_retries_end(tmp_path: Path) -> None:
    busy = answers({"error": {"message": "busy"}}, 503, b"Retry-After: 0\r\n")
    async with house(tmp_path, busy, turn_retries=1) as rooms:
        room = await rooms.rent()
        await rooms.say(room)
        await rooms.until(room, "room:failed")
        assert len(rooms.engine.requests) == 2
        assert (await rooms.get(room))["last_error"]["category"] == "provider_unavailable"


async def test_a_failure_of_the_last_model_call_is_told(tmp_path: Path) -> None:
    busy = answers({"error": {"message": "busy"}}, 503, b"Retry-After: 0\r\n")
    async with house(tmp_path, busy, turn_retries=3) as rooms:
        room = await rooms.rent(bounds={"model_calls": 1})
        await rooms.say(room)
        await rooms.until(room, "room:failed")
        assert len(rooms.engine.requests) == 1
        assert "busy" in (await rooms.get(room))["last_error"]["message"]


async def test_actors_compact_for_their_own_windows(tmp_path: Path) -> None:
    engine = window(speaks("o" * 60), maximum=8192)
    async with house(tmp_path, engine, model={"context_window": 8192}) as rooms:
        room = await rooms.rent(agents=[{"agent_id": "small", "context_window": 1024}, {"agent_id": "large"}])
        await converse(rooms, room, 30, lambda number: f"Question {number}: {'x' * 80}")
        await rooms.say(room, "And you?", agent_id="large")
        await rooms.until(room, "agent:output", len(await rooms.types(room)) - 1)
        asked = talks(rooms.engine.requests[-1])
        history = await rooms.call("GET", f"/llm/room/{room}/history?limit=10000", 200)
    assert {event["agent_id"] for event in of_type(history, "history:compacted")} == {"small"}
    assert len(asked) == 61


async def real(tmp_path: Path, test_model: Path, turns: int) -> None:
    """The test model, whose engine enforces its window of 1,024 tokens."""
    async with real_house(tmp_path, test_model, "rooms: {idle_seconds: 0.2}") as rooms:
        room = await rooms.rent(bounds={"output_tokens": 64}, done_policy={"idle_seconds": 60})
        after = 0
        for number in range(turns):
            await rooms.say(room, f"Say blue penguin number {number} and the yellow lighthouse keeper")
            after = await idle(rooms, room, after)
        history = await everything(rooms, room)
    for message in history["messages"]:
        message["status"] = "done" if message["status"] == "limited" else message["status"]
    compacted = holds(history, turns)
    assert len(compacted) >= turns // 40
    assert {event["payload"]["code"] for event in history["events"] if event["event_type"] == "error"} == set()
    asked = of_type(history, "agent:message")
    assert max(event["usage"]["input"] for event in asked) <= WINDOW
    print(
        f"{turns} turns, {len(compacted)} compactions, {sum(event['by'] == 'model' for event in compacted)} by a model"
    )


async def idle(rooms: House, room: str, after: int) -> int:
    return int((await rooms.until(room, "room:idle", after))["seq"])


async def everything(rooms: House, room: str) -> Json:
    history: Json = await rooms.call("GET", f"/llm/room/{room}/history?limit=10000", 200)
    page = history
    while page["more"]:
        last = {"event": history["events"][-1]["seq"], "message": history["messages"][-1]["seq"]}
        query = f"limit=10000&after_event={last['event']}&after_message={last['message']}"
        page = await rooms.call("GET", f"/llm/room/{room}/history?{query}", 200)
        history["events"] += page["events"]
        history["messages"] += page["messages"]
    return history


@pytest.mark.slow
async def test_forty_turns_of_a_real_model(tmp_path: Path, test_model: Path) -> None:
    await real(tmp_path, test_model, 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_five_hundred_turns_of_a_real_model(tmp_path: Path, test_model: Path) -> None:
    await real(tmp_path, test_model, 500)
