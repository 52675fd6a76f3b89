"""Nodes that are killed under load, with engines of a real model: what it costs conversations, with shared prompts and
without. Seconds count from the kill to the conversation's next answer, the pause before its next message included."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import Machines, healthy
from tests.cluster.nodes import nodes, until
from tests.cluster.talks import Moved, Talk, Whereabouts
from tests.patience import PATIENCE
from tests.store.postgresql import start

pytest.importorskip("ray", reason="Ray isn't installed: pip install 'ctxgate[cluster]'")

MODEL = Path(__file__).parents[2] / "_models/smollm2-135m-instruct.gguf"
KILLS = int(os.environ.get("CTXGATE_CLUSTER_KILLS", "20"))
KILLS_WITHOUT = max(1, KILLS // 5)
"""Of the run without a share, which shows what the other one gains."""
TALKS, ENGINES = 8, 6
CACHED, WITHIN_SECONDS, MAXIMUM = 0.9, 10.0, 0.9
"""A prompt of which so much is cached needs no reading; it must come within so many seconds, for so many of all."""


@dataclass
class Found:
    """moved: the conversations whose node died. restored: tokens that files gave engines, in all."""

    answered: int = 0
    failed: list[Any] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    restored: int = 0

    @property
    def cached(self) -> list[Moved]:
        return [each for each in self.moved if each.cached >= CACHED and each.seconds <= WITHIN_SECONDS]


def kill_nodes(machines: Machines, prompts: dict[str, Any], kills: int) -> Found:
    """Two gateways, three nodes, six engines, eight conversations; each kill takes the node with most of them."""
    replicas = {"min": ENGINES, "max": ENGINES}
    model: dict[str, Any] = {"path": str(MODEL), "memory": "300 MB", "threads": 1, "batch": 64, "replicas": replicas}
    gateways = [machines.gateway(name, prompts, **model) for name in ("one", "two")]
    until(lambda: len(healthy(gateways[0])) == len(healthy(gateways[1])) == ENGINES, "six engines run", 3 * PATIENCE)
    where = Whereabouts(machines.store)
    talks = [Talk(who, gateways) for who in range(TALKS)]
    found = Found()
    try:
        until(lambda: all(len(talk.answers) > 3 for talk in talks), "all have begun")
        for kill in range(kills):
            moved = _kill(machines, talks, where)
            found.moved += moved
            found.restored = sum(_restored(gateway) for gateway in gateways)
            shares = ", ".join(f"{each.cached:.0%} after {each.seconds:.1f} s" for each in moved)
            print(f"kill {kill}: {len(moved)} moved: {shares}; {found.restored} tokens restored so far", flush=True)
            until(lambda: all(len(healthy(each)) == ENGINES for each in gateways), "six run again", 3 * PATIENCE)
    finally:
        for talk in talks:
            talk.end()
        where.close()
    found.answered = sum(len(talk.answers) for talk in talks)
    found.failed = [answer for talk in talks for answer in talk.failed]
    return found


def _kill(machines: Machines, talks: list[Talk], where: Whereabouts) -> list[Moved]:
    """What became of the conversations on the node with most of them."""
    nodes_of = dict(machines.rows("SELECT id, node FROM cluster_engines"))
    now = max(talk.answers[-1].came for talk in talks) + 1e-9
    on = Counter(nodes_of.get(talk.engine_at(now, where) or "") for talk in talks)
    victim = max(machines.ray.workers, key=lambda node: on[node.node_id])
    dead = {engine for engine, node in nodes_of.items() if node == victim.node_id}
    killed = machines.ray.kill(victim)
    machines.ray.add()
    stood = [talk for talk in talks if talk.engine_at(killed, where) in dead]
    for talk in stood:
        until(lambda: talk.answered_by(killed, dead, where), "another engine answers")  # noqa: B023
    return [moved for talk in stood if (moved := talk.moved(killed, dead, where)) is not None]


def _restored(gateway: Any) -> int:
    (model,) = [each for each in gateway.ask("/-/status")["models"] if each["name"] == "chat"]
    return int(model["restored_tokens"])


def told(what: str, found: Found) -> str:
    seconds = sorted(each.seconds for each in found.moved)
    shares = sorted(each.cached for each in found.moved)
    return (
        f"{what}: {found.answered} answered, {len(found.failed)} failed; {len(found.moved)} conversations lost their "
        f"engine, {len(found.cached)} of them >= {CACHED:.0%} cached within {WITHIN_SECONDS:.0f} s at their next turn. "
        f"Cached: median {shares[len(shares) // 2]:.1%}, least {shares[0]:.1%}. Seconds to the answer: "
        f"median {seconds[len(seconds) // 2]:.1f}, most {seconds[-1]:.1f}. {found.restored} tokens restored"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not MODEL.is_file(), reason=f"no weights: {MODEL.name} is not in _models")
def test_a_share_saves_the_conversations_of_killed_nodes(tmp_path: Path) -> None:
    found = {}
    for share, kills in ((True, KILLS), (False, KILLS_WITHOUT)):
        folder = tmp_path / f"share-{share}"
        folder.mkdir()
        shared = {"save": "each_turn", "min_tokens": 32, "share": str(folder / "share")}
        with start() as server, nodes(3) as ray, Machines(ray, server, folder).open() as machines:
            found[share] = kill_nodes(machines, shared if share else {"save": "off"}, kills)
        print(told("with a share" if share else "without", found[share]), flush=True)
    assert found[True].failed == found[False].failed == []
    assert len(found[True].cached) >= MAXIMUM * len(found[True].moved)
    assert found[True].restored > 0
    assert len(found[False].cached) < (1 - MAXIMUM) * len(found[False].moved)
    assert found[False].restored == 0
