"""Where engines go, and how many: pure decisions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Engines
from gateway.config.values import Spread
from gateway.engines.admission import Resident
from gateway.engines.memory import Budget, Footprint
from gateway.features.cluster.placement import Placed, Wish, place
from gateway.features.cluster.scaling import Replica, surplus, wanted
from gateway.features.cluster.values import Failed, Load, Node, decode, joined, shortened, split
from gateway.wire.limits import Used

LIMITS = Engines()


def node(id: str, ram: int = 100, needs: int = 40, **labels: str) -> Node:
    return Node(id, f"host-{id}", labels, Budget(ram, strict=True), {"m": Footprint(needs), "n": Footprint(needs)})


def wish(key: str = "m 0", since: float = 0.0, **spread: object) -> Wish:
    return Wish(key, key.partition(" ")[0], Spread(**spread), since)  # type: ignore[arg-type]


def resident(id: str, model: str = "m", held: int = 40, **how: object) -> Resident:
    return Resident(id, model, how.pop("state", "ready"), Footprint(held), **how)  # type: ignore[arg-type]


def test_engines_of_a_model_spread_over_the_nodes_or_are_packed() -> None:
    nodes = [node("a"), node("b"), node("c")]
    wishes = [wish(f"m {number}") for number in range(3)]
    assert {at for at, _ in place(nodes, [], wishes, LIMITS, 0).starts.values()} == {"a", "b", "c"}
    packed = [wish(f"m {number}", placing="pack") for number in range(3)]
    on = [at for at, _ in place(nodes, [], packed, LIMITS, 0).starts.values()]
    assert len({*on}) == 2, "two fit on a node"


def test_labels_choose_the_nodes() -> None:
    nodes = [node("a"), node("b", disk="ssd")]
    (start,) = place(nodes, [], [wish(nodes={"disk": "ssd"})], LIMITS, 0).starts.values()
    assert start == ("b", Footprint(40))
    refused = place(nodes, [], [wish(nodes={"disk": "tape"})], LIMITS, 0).refused
    assert refused == {"m 0": "no node has the labels disk=tape"}


def test_weights_that_are_there_win() -> None:
    bare = Node("a", "host-a", {}, Budget(1000, strict=True))
    (start,) = place([bare, node("b")], [], [wish()], LIMITS, 0).starts.values()
    assert start == ("b", Footprint(40))
    # Where no other node has room, the size that others tell counts.
    (start,) = place([bare, node("b", ram=41)], [Placed("b", resident("x"))], [wish()], LIMITS, 0).starts.values()
    assert start == ("a", Footprint(40))


def test_an_idle_engine_gives_way_where_no_node_has_room() -> None:
    nodes = [node("a", ram=60), node("b", ram=60)]
    placed = [Placed("a", resident("busy", "n", in_flight=1)), Placed("b", resident("idle", "n"))]
    found = place(nodes, placed, [wish(since=99.0)], LIMITS, 100)
    assert not found.starts
    assert found.drains == {"idle"}
    assert "idle" not in found.waits["m 0"], "people read the model's name"
    assert found.waits["m 0"] == "n hold the memory of host-b"


def test_what_never_fits_is_refused_with_its_size() -> None:
    found = place([node("a", needs=400)], [], [wish()], LIMITS, 0)
    assert "needs 1 MB, which is more than engines may hold" in found.refused["m 0"]
    assert place([], [], [wish()], LIMITS, 0).refused == {"m 0": "the cluster has no node that can"}


@given(
    st.lists(st.integers(10, 200), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=12),
)
def test_no_node_gets_more_than_it_holds(rams: list[int], wanted: list[tuple[int, bool]]) -> None:
    needs = {f"model{number}": Footprint(need) for number, (need, _) in enumerate(wanted)}
    nodes = [Node(str(number), "h", {}, Budget(ram, strict=True), needs) for number, ram in enumerate(rams)]
    wishes = [wish(f"model{number} 0", placing="pack" if pack else "spread") for number, (_, pack) in enumerate(wanted)]
    found = place(nodes, [], wishes, LIMITS, 0)
    for each in nodes:
        held = sum(need.ram for at, need in found.starts.values() if at == each.id)
        assert held <= each.budget.ram
    assert found.starts.keys() | found.refused.keys() | found.waits.keys() == {each.key for each in wishes}


def count(replicas: list[Replica], waiting: int = 0, least: int = 0, maximum: int = 3, ttl: float | None = None) -> int:
    spread = Spread(min=least, max=maximum)
    return wanted(spread, replicas, waiting, 2, idle_seconds=300, ttl=ttl)


def test_replicas_follow_the_queue() -> None:
    assert count([]) == 0
    assert count([], least=2) == 2
    assert count([], waiting=1) == 1
    assert count([], waiting=5) == 3
    assert count([Replica("a", 2, 2, 0)]) == 1
    assert count([Replica("a", 2, 3, 0)]) == 2
    assert count([Replica("a", 2, 30, 0)]) == 3


def test_replicas_follow_idle_time() -> None:
    busy, fresh, old = Replica("a", 2, 1, 0), Replica("b", 2, 0, 10), Replica("c", 2, 0, 301)
    assert count([busy, fresh, old]) == 2
    assert count([old]) == 1, "the last one stays without a ttl"
    assert count([old], ttl=300) == 0
    assert count([fresh], ttl=5) == 0
    assert count([old], ttl=600) == 1
    assert surplus([busy, fresh, old], 2) == ["c"]
    assert surplus([busy, fresh, old], 1) == ["c", "b"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1000)), max_size=6), st.integers(0, 50), st.integers(0, 3),
    st.integers(0, 3), st.none() | st.floats(1, 500),
)  # fmt: skip
def test_never_fewer_than_min_nor_more_than_max(
    loads: list[tuple[int, float]], waiting: int, least: int, more: int, ttl: float | None
) -> None:
    replicas = [Replica(str(at), 2, busy, 0 if busy else idle) for at, (busy, idle) in enumerate(loads)]
    maximum = max(1, least + more)
    found = count(replicas, waiting, least, maximum, ttl)
    assert least <= found <= maximum
    if waiting and maximum > len(replicas):
        assert found > 0


@given(
    st.dictionaries(st.text("abc-", min_size=1, max_size=8), st.integers(0, 9), max_size=40),
    st.dictionaries(
        st.text("abc-", min_size=1, max_size=8), st.lists(st.integers(), max_size=3).map(tuple), max_size=9
    ),
    st.dictionaries(st.text("xyz-", min_size=1, max_size=8), st.tuples(*[st.integers(0, 9)] * 3), max_size=40),
    st.dictionaries(st.text("mn-", min_size=1, max_size=8), st.integers(1, 9), max_size=40),
    st.integers(400, 1000),
)
def test_messages_fit_postgresql_and_say_the_same(
    busy: dict[str, int], read: dict[str, tuple[int, ...]], used: dict[str, Used], waiting: dict[str, int], maximum: int
) -> None:
    clamp = {name: tuple(value % (1 << 63) for value in prompts) for name, prompts in read.items()}
    load = Load("g", "http://g", busy, waiting, clamp, used, whole=True)
    messages = [decode(data) for data in split(load, maximum)]
    assert all(len(msgspec.json.encode(message)) <= maximum for message in messages)
    found = [message for message in messages if isinstance(message, Load)]
    assert {name: count for each in found for name, count in each.busy.items()} == busy
    assert {name: prompts for each in found for name, prompts in each.read.items()} == clamp
    assert {key: one for each in found for key, one in each.used.items()} == used
    assert [each.whole for each in found] == [True] + [False] * (len(found) - 1)
    known = Load("g", "http://g", {"gone": 1}, {"gone": 1})
    for each in found:
        known = joined(known, each)
    assert (known.busy, known.waiting, known.read) == (busy, waiting, {})
    known = joined(known, Load("g", "http://g", {"e": 2}, {"other": 1}))
    assert (known.busy, known.waiting) == ({**busy, "e": 2}, {"other": 1})


def test_a_message_that_cant_be_split_is_sent_without_prompts() -> None:
    name = "e" * 500
    (data,) = split(Load("g", "http://g", read={name: (1, 2, 3)}), 400)
    assert decode(data) == Load("g", "http://g")
    (data,) = split(Load("g", "http://g", busy={name: 1}, read={name: (1,)}), 400)
    assert decode(data) == Load("g", "http://g", busy={name: 1})


@pytest.mark.parametrize("why", ["short", "x" * 9000, "ü" * 5000, "\x00" * 4000, "\U0001f600" * 3000])
def test_reasons_fit_postgresql(why: str) -> None:
    data = shortened(Failed("m", why, "no_memory"), 7900)
    found = decode(data)
    assert len(data) <= 7900
    assert isinstance(found, Failed)
    assert why.startswith(found.why)
    assert len(found.why) > min(len(why) - 1, 800)
    assert (found.model, found.code) == ("m", "no_memory")
