"""Decides on which node an engine starts and which engines make room: `admission.plan` for each node. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gateway.config import Engines
from gateway.config.values import Spread
from gateway.engines.admission import Claim, Plan, Resident, Snapshot, plan
from gateway.engines.memory import Footprint
from gateway.features.cluster.values import Node
from gateway.wire.chat import DEFAULT


class Wish(Struct, frozen=True):
    """One more engine. key: identifies it. since: when it was first wanted, by the clock of `place`'s `now`."""

    key: str
    model: str
    spread: Spread
    since: float
    group: str | None = None
    rank: int = DEFAULT


class Placed(Struct, frozen=True):
    """An engine that holds memory on a node; its resident's key is its id."""

    node: str
    resident: Resident


class Placement(Struct, frozen=True):
    """starts: wish → node and memory there. drains: engines that give way. waits: wish → why it gets no node yet, for
    people. refused: wish → why it never will as things are."""

    starts: Mapping[str, tuple[str, Footprint]] = field(default_factory=dict)
    drains: frozenset[str] = frozenset()
    waits: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def place(
    nodes: Sequence[Node], placed: Sequence[Placed], wishes: Sequence[Wish], limits: Engines, now: float
) -> Placement:
    """Places older wishes first; each sees the memory that earlier ones took."""
    there = {node.id: [each.resident for each in placed if each.node == node.id] for node in nodes}
    starts: dict[str, tuple[str, Footprint]] = {}
    waits: dict[str, str] = {}
    refused: dict[str, str] = {}
    drains: set[str] = set()
    needs = _largest(nodes)
    for wish in sorted(wishes, key=lambda wish: (wish.rank, wish.since, wish.key)):
        fitting = [node for node in nodes if _fits_labels(node, wish)]
        if not fitting:
            labels = ", ".join(f"{name}={value}" for name, value in wish.spread.nodes.items())
            refused[wish.key] = f"no node has the labels {labels}" if labels else "the cluster has no node that can"
            continue
        plans = {
            node.id: _plan(node, there[node.id], wish, node.needs.get(wish.model, needs.get(wish.model)), limits, now)
            for node in fitting
        }
        granted = [node for node in fitting if wish.key in plans[node.id].grants]
        if granted:
            node = min(granted, key=lambda node: _order(node, there[node.id], wish))
            need = _need(node, wish, needs)
            starts[wish.key] = (node.id, need)
            there[node.id].append(Resident(wish.key, wish.model, "starting", need, group=wish.group))
            continue
        open_to = [node for node in fitting if wish.key not in plans[node.id].refusals]
        if not open_to:
            refused[wish.key] = str(next(iter(plans[fitting[0].id].refusals.values())))
            continue
        node = min(open_to, key=lambda node: _trouble(node, there[node.id], plans[node.id]))
        drains |= {str(key) for key in plans[node.id].drains}
        holders = plans[node.id].waits_for.get(wish.key, ())
        waits[wish.key] = f"{', '.join(map(str, holders)) or 'other engines'} hold the memory of {node.host}"
    return Placement(starts, frozenset(drains), waits, refused)


def _plan(node: Node, there: list[Resident], wish: Wish, need: Footprint | None, limits: Engines, now: float) -> Plan:
    claim = Claim(wish.key, wish.model, need or Footprint(), wish.group, wish.rank, wish.since)
    waits = limits.swap_after_seconds, limits.flex_max_wait_seconds
    return plan(Snapshot(node.budget, (claim,), tuple(there), limits.excludes, *waits), now)


def _largest(nodes: Sequence[Node]) -> dict[str, Footprint]:
    """A model's need on a node that can't tell: the largest of all nodes."""
    found: dict[str, Footprint] = {}
    for node in nodes:
        for model, need in node.needs.items():
            found[model] = found.get(model, Footprint()).largest(need)
    return found


def _need(node: Node, wish: Wish, needs: Mapping[str, Footprint]) -> Footprint:
    return node.needs.get(wish.model, needs.get(wish.model, Footprint()))


def _fits_labels(node: Node, wish: Wish) -> bool:
    return all(node.labels.get(name) == value for name, value in wish.spread.nodes.items())


def _order(node: Node, there: list[Resident], wish: Wish) -> tuple[bool, int, int, int, str]:
    """Sort key of nodes: those that have the weights first, then by the model's `placement`."""
    same = sum(each.name == wish.model for each in there)
    free = node.budget.ram - sum(each.held.ram for each in there)
    lacking = wish.model not in node.needs
    if wish.spread.placing == "pack":
        return (lacking, -same, -len(there), free, node.id)
    return (lacking, same, len(there), -free, node.id)


def _trouble(node: Node, there: list[Resident], found: Plan) -> tuple[bool, bool, int, str]:
    """Sort key of nodes: those where engines drain already, then where some can drain now, the fewest first."""
    draining = any(each.state == "draining" for each in there)
    return (not draining, not found.drains, len(found.drains), node.id)
