"""A room's past as messages: every provider's order, bounded sizes; and the model that sums it up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import inspect

from gateway.config import Config, Model
from gateway.core.lightest import lightest
from gateway.features.agents.window import PastTurn, opened, shortened, to_fold, weight, with_steps_told
from gateway.features.rooms.history import ENDS, Recorded, past_turn
from gateway.features.rooms.schemas import Event, Message, MessageStatus
from gateway.features.rooms.summary import excerpt
from gateway.features.rooms.tables import METADATA
from gateway.provider import AssistantMessage, Capabilities, SystemMessage, ToolCall, ToolMessage, UserMessage
from gateway.provider.validation import check_messages
from gateway.store import Store

USAGE = {"input": 1, "output": 1, "total": 2}


def message(seq: int, text: str, status: MessageStatus = "done", **more: Any) -> Message:
    given: dict[str, Any] = {"author_kind": "user", "kind": "task", "actor_key": "a", "in_reply_to": None}
    return Message(id=f"m{seq}", seq=seq, content=text, metadata={}, status=status, created_at="", **{**given, **more})


def event(event_type: str, **payload: Any) -> Event:
    return Event(id="", seq=1, event_type=event_type, agent_key="a", message_id="m1", payload=payload, created_at="")


def said(text: str, *calls: str, arguments: Any = None) -> Event:
    made = [{"id": id, "name": "tool_ls", "arguments": arguments or {}} for id in calls]
    return event("agent:message", call=1, content=text, tool_calls=made, finish_reason="stop", usage=USAGE)


def result(id: str, text: str = "x") -> Event:
    return event("tool:result", call_id=id, name="tool.ls", ok=True, result={"content": text})


REFUSED = event("tool:refused", call=1, name="tool_ls", arguments="{", reason="not JSON", text="")
STEPS = st.one_of(
    st.builds(said, st.text(max_size=5)),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).flatmap(
        lambda ids: st.builds(said, st.just("go"), *map(st.just, ids))
    ),
    st.builds(result, st.sampled_from("abc"), st.text(max_size=500)),
    st.just(REFUSED),
    st.builds(lambda text: event("agent:update", call=1, text=text), st.text(max_size=5)),
)
STATUSES: st.SearchStrategy[MessageStatus] = st.sampled_from(["done", *ENDS])


def steps_in_order(events: list[Event]) -> list[Event]:
    """As the record has them: results of calls that wait for one, and no step behind an answer without calls."""
    kept, waiting = [], set[str]()
    for each in events:
        if each.event_type == "tool:result":
            if each.payload["call_id"] not in waiting:
                continue
            waiting.discard(each.payload["call_id"])
        elif each.event_type == "agent:message":
            waiting = {call["id"] for call in each.payload["tool_calls"]}
        elif each.event_type == "tool:refused":
            waiting = set()
        kept.append(each)
        if each.event_type == "agent:message" and not waiting:
            break
    return kept


@given(st.lists(STEPS, max_size=8).map(steps_in_order), STATUSES, st.booleans(), st.booleans())
def test_every_provider_takes_an_earlier_turn(
    events: list[Event], status: MessageStatus, answered: bool, takes: bool
) -> None:
    outputs = [message(2, "The end.", kind="output", in_reply_to="m1")] if answered else []
    turn = past_turn(Recorded(message(1, "Hi", status), outputs, events), lambda call: takes)
    whole = opened("", "", [turn], [UserMessage("And now?")])
    check_messages(whole, {}, Capabilities())
    waiting: set[str] = set()
    for at, each in enumerate(turn.messages):
        if isinstance(each, ToolMessage):
            assert each.tool_call_id in waiting
            assert len(each.content) < 300
            waiting.discard(each.tool_call_id)
        else:
            assert not waiting, "a call without its result"
            waiting = {call.id for call in each.tool_calls} if isinstance(each, AssistantMessage) else set()
            before = turn.messages[at - 1] if at else None
            assert type(each) is not type(before) or isinstance(each, UserMessage)
    assert not waiting
    last = turn.messages[-1]
    assert isinstance(last, AssistantMessage)
    if status in ENDS:
        assert last.text.endswith(ENDS[status])
    if answered:
        assert "The end." in last.text


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(1, 3000), st.integers(1, 80))
def test_folding_makes_room(sizes: list[int], target: int, maximum: int) -> None:
    past = [PastTurn(seq, (UserMessage("x" * size),)) for seq, size in enumerate(sizes)]
    tokens = sum(weight(turn.messages) for turn in past)
    number = to_fold(past, tokens, target, 0, maximum)
    assert 1 <= number <= len(past)
    left = sum(weight(turn.messages) for turn in past[number:])
    assert number == len(past) or left <= target
    assert len(past) - number <= max(maximum, 0) or number == len(past)


@given(st.text(max_size=400), st.integers(0, 300))
def test_what_is_left_out_is_counted(text: str, maximum: int) -> None:
    short = shortened(text, maximum)
    assert short.startswith(text[:maximum])
    assert short == text or f"[{len(text) - maximum:,} more characters]" in short


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=20), st.text(max_size=500))
def test_an_excerpt_is_bounded(texts: list[str], before: str) -> None:
    turns = [PastTurn(seq, (UserMessage(text), AssistantMessage("Yes."))) for seq, text in enumerate(texts)]
    assert len(excerpt(before, turns, 400)) < 400 + 2 * len(turns) + 40


def test_the_steps_of_a_turn_become_lines() -> None:
    calls = [AssistantMessage("", [ToolCall(id, "tool_ls", {"path": f"/{id}"})]) for id in "abc"]
    results = [ToolMessage("x" * 500, id) for id in "abc"]
    turn = [UserMessage("Go"), *(each for pair in zip(calls, results, strict=True) for each in pair)]
    some, every = (with_steps_told(turn, 400, all_steps=all_steps) for all_steps in (False, True))
    assert some[1:] == [calls[2], results[2]]
    assert "path='/a'" in str(some[0].content)
    assert len(every) == 1
    assert "path='/c'" in str(every[0].content)
    assert "[2 earlier ones]" in str(with_steps_told(turn, 150, all_steps=True)[0].content)
    check_messages([SystemMessage("s"), *some], {}, Capabilities())


def test_the_lightest_model(tmp_path: Path) -> None:
    sizes = {"large": 300, "small": 20, "narrow": 10, "vectors": 5}
    models = {name: Model(name=name, runtime="llama.cpp", path=tmp_path / f"{name}.gguf") for name in sizes}
    models["narrow"] = Model(name="narrow", runtime="llama.cpp", path=tmp_path / "narrow.gguf", context_window=1024)
    models["vectors"] = Model(name="vectors", runtime="llama.cpp", role="embedding", path=tmp_path / "vectors.gguf")
    models["missing"] = Model(name="missing", runtime="llama.cpp", path=tmp_path / "missing.gguf")
    models["far"] = Model(name="far", runtime="openai", base_url="http://127.0.0.1:1")
    config = Config(source=tmp_path / "config.yaml", active_model="far", models=models, state_dir=tmp_path)
    assert lightest(config).name == "far"
    for name, size in sizes.items():
        (tmp_path / f"{name}.gguf").write_bytes(b"x" * size)
    assert lightest(config).name == "small"
    for window, name in ((2047, "small"), (2048, "narrow")):
        narrow = Model(name="narrow", runtime="llama.cpp", path=tmp_path / "narrow.gguf", context_window=window)
        assert lightest(replace(config, models={**models, "narrow": narrow})).name == name
    (tmp_path / "small.gguf").unlink()
    (tmp_path / "large.gguf").unlink()
    assert lightest(config).name == "narrow"


async def test_the_tables(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path}/store.sqlite")
    try:
        found = await store.read(lambda connection: inspect(connection).get_table_names())
        indices = await store.read(lambda connection: inspect(connection).get_indexes("room_events"))
    finally:
        await store.aclose()
    assert {"rooms", "room_messages", "room_events"} <= set(METADATA.tables) & set(found)
    assert [index["column_names"] for index in indices] == [["room_id", "message_id"]]
