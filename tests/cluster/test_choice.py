"""`gateway.backends.choice`, against what it replaces: a look at every server."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends import choice as choice_module
from gateway.backends.choice import MAX_COMPARED, MAX_PREFIXES, SLACK, UNKNOWN, BalancedServer, ServerChoice

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.lists(st.integers(0, 6), max_size=4), st.integers(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("heal"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("come"), st.integers(0, 5), st.just(0)),
    ),
    max_size=60,
)


def worth(server: BalancedServer, prefixes: list[int]) -> int:
    return next((at for at in range(len(prefixes), 0, -1) if prefixes[at - 1] in server.prefixes), 0)


def expected(present: list[BalancedServer], prefixes: list[int]) -> tuple[bool, int, int] | None:
    """Health, worth and load of the best server."""
    left = [server for server in present if server.healthy] or present
    if not left:
        return None
    if not left[0].healthy:
        return False, 0, min(server.load for server in left)
    least = min(server.load for server in left)
    idle = [server for server in left if server.load < server.slots]
    free = [server for server in idle or left if server.load < least + SLACK]
    best = min(free, key=lambda server: (-worth(server, prefixes), server.load))
    return True, worth(best, prefixes), best.load


@given(ACTIONS, st.sampled_from((1, 2, UNKNOWN)))
def test_it_chooses_as_a_look_at_every_server_does(actions: list[tuple[str, object, int]], slots: int) -> None:
    servers = [BalancedServer() for _ in range(6)]
    for server in servers:
        server.slots = slots
    present = servers[:3]
    choice: ServerChoice[BalancedServer] = ServerChoice()
    for server in present:
        choice.add(server)
    asked: list[BalancedServer] = []
    for kind, value, _ in actions:
        if kind == "ask":
            assert isinstance(value, list)
            picked = choice.pick(value)
            best = expected(present, value)
            assert (picked is None) == (best is None)
            if picked is not None and best is not None:
                found = worth(picked, value) if picked.healthy else 0
                assert (picked.healthy, found, picked.load) == best
                choice.change(picked, 1)
                choice.remember(picked, value)
                asked.append(picked)
            continue
        assert isinstance(value, int)
        if kind == "end" and asked:
            choice.change(asked.pop(value % len(asked)), -1)
        server = servers[value % 6]
        if kind in ("fail", "heal"):
            choice.judge(server, healthy=kind == "heal")
        elif kind == "leave" and server in present:
            present.remove(server)
            choice.remove(server)
        elif kind == "come" and server not in present:
            present.append(server)
            choice.add(server)
        assert len(choice) == len(present)


def test_a_full_server_is_asked_for_what_it_has_read_only_if_all_are_full() -> None:
    home, other = BalancedServer(), BalancedServer()
    home.slots = other.slots = 1
    choice: ServerChoice[BalancedServer] = ServerChoice()
    for server in (home, other):
        choice.add(server)
    choice.remember(home, [1])
    choice.change(home, 1)
    assert choice.pick([1]) is other
    choice.change(other, 1)
    assert choice.pick([1]) is home


def test_it_never_picks_one_that_was_tried() -> None:
    choice: ServerChoice[BalancedServer] = ServerChoice()
    servers = [BalancedServer() for _ in range(5)]
    for server in servers:
        choice.add(server)
    choice.remember(servers[2], [1])
    choice.judge(servers[4], healthy=False)
    tried: list[BalancedServer] = []
    while (picked := choice.pick([1], tried)) is not None:
        assert picked not in tried
        tried.append(picked)
    assert tried[0] is servers[2]
    assert tried[-1] is servers[4]
    assert len(tried) == 5


def test_it_remembers_no_more_than_it_may() -> None:
    choice: ServerChoice[BalancedServer] = ServerChoice()
    server, other = BalancedServer(), BalancedServer()
    choice.add(server)
    choice.add(other)
    tracemalloc.start()
    try:
        choice.remember(server, range(MAX_PREFIXES))
        full = held()
        choice.remember(server, range(MAX_PREFIXES, 8 * MAX_PREFIXES))
        assert held() < 1.1 * full
        assert len(server.prefixes) == MAX_PREFIXES
        choice.change(server, 1)
        assert choice.pick([7 * MAX_PREFIXES - 1]) is other
        assert choice.pick([7 * MAX_PREFIXES]) is server
        choice.remove(server)
        server.prefixes.clear()
        assert held() < 0.1 * full
    finally:
        tracemalloc.stop()


def held() -> int:
    """How many objects that `choice` has made are still there. Their bytes say less: a dict that was large stays so."""
    made = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, choice_module.__file__)])
    return sum(found.count for found in made.statistics("filename"))


def test_a_prefix_that_all_hold_costs_few_looks() -> None:
    choice: ServerChoice[BalancedServer] = ServerChoice()
    servers = [BalancedServer() for _ in range(20 * MAX_COMPARED)]
    for server in servers:
        choice.add(server)
        choice.remember(server, [1])
    picked = choice.pick([1])
    assert picked is not None
    assert picked.load == 0
