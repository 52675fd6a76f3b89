"""Real Ray nodes on this machine, a real PostgreSQL, gateways as processes, engines of the test model."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.cluster.nodes import Gateway, Nodes, config, nodes, until
from tests.patience import PATIENCE
from tests.store.postgresql import Server, start

pytest.importorskip("ray", reason="Ray isn't installed: pip install 'ctxgate[cluster]'")

HI = [{"role": "user", "content": "Hi"}]


class Machines:
    """Three nodes, and a store; each test has gateways of its own."""

    def __init__(self, ray: Nodes, server: Server, folder: Path) -> None:
        self.ray = ray
        self.server = server
        self.folder = folder
        self.store = server.database()
        self.gateways: list[Gateway] = []

    def gateway(self, name: str, prompts: dict[str, Any] | None = None, **model: Any) -> Gateway:
        settings = config(self.ray.address, self.store, prompts, **{"nodes": {"part": "worker"}, **model})
        made = Gateway(self.folder, name, settings)
        self.gateways.append(made)
        return made

    def rows(self, what: str) -> list[Any]:
        engine = create_engine(self.store.replace("postgresql://", "postgresql+psycopg://"))
        try:
            with engine.connect() as connection:
                return [*connection.execute(text(what))]
        finally:
            engine.dispose()

    def node_of(self, url: str) -> Any:
        ((id,),) = self.rows(f"SELECT node FROM cluster_engines WHERE url = '{url}'")
        return next(node for node in self.ray.workers if node.node_id == id)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with start() as server, nodes(3) as ray:
        made = Machines(ray, server, tmp_path_factory.mktemp("cluster"))
        try:
            yield made
        finally:
            for gateway in made.gateways:
                gateway.close()
                print(gateway.log.read_text())


def healthy(gateway: Gateway) -> list[str]:
    return [engine["url"] for engine in gateway.engines() if engine["healthy"]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_from_its_first_request_to_a_lost_node(machines: Machines) -> None:
    first = machines.gateway("first", replicas={"min": 2, "max": 3})
    second = machines.gateway("second", replicas={"min": 2, "max": 3})

    # Any gateway answers, through engines that neither of them started.
    assert first.chat(HI)["choices"][0]["message"]["content"]
    assert second.chat(HI)["choices"][0]["message"]["content"]
    urls = until(lambda: len(healthy(first)) == 2 and healthy(first), "two engines run")
    until(lambda: sorted(healthy(second)) == sorted(urls), "both gateways know them")
    assert len(machines.rows("SELECT DISTINCT node FROM cluster_engines")) == 2, "spread over the nodes"
    status = until(lambda: (s := first.ask("/-/status")["cluster"]) and len(s["gateways"]) == 2 and s, "they know")
    assert sum(len(node["engines"]) for node in status["nodes"]) == 2
    assert all(node["used"] <= node["memory"] for node in status["nodes"])

    # An engine asks for the cluster's key.
    import httpx

    assert httpx.get(f"{urls[0]}/props", timeout=30).status_code == 401

    # A conversation stays where its prompt was read, whichever gateway gets the next turn.
    talk = [{"role": "user", "content": "Tell me of the sea. " * 20}]
    answer = first.chat(talk)
    talk += [answer["choices"][0]["message"], {"role": "user", "content": "Go on"}]
    time.sleep(1)  # by then the other gateway has heard of it
    cached = second.chat(talk)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= answer["usage"]["prompt_tokens"] * 0.9

    # A node dies under load: what hadn't begun to answer is answered by others.
    answers: list[Any] = []
    over = threading.Event()

    def load(gateway: Gateway, who: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            answers.append(gateway.chat([{"role": "user", "content": f"I am {who}, number {number}"}]))

    threads = [
        threading.Thread(target=load, args=(gateway, who)) for who, gateway in enumerate((first, second, first, second))
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) > 4, "they are asked")
    machines.ray.kill(machines.node_of(urls[0]))
    until(lambda: urls[0] not in healthy(first) + healthy(second), "the dead engine is left out")
    again = until(lambda: len(healthy(first)) == 2 and healthy(first), "the engine came up elsewhere")
    assert urls[1] in again
    over.set()
    for thread in threads:
        thread.join()
    assert [each for each in answers if not each or "choices" not in each] == []

    # Without PostgreSQL chats go on; what needs state says so.
    machines.server.stop()
    try:
        assert first.chat(HI)["choices"]
        refused = first.ask("/v1/responses/resp_1")
        assert refused["status"] == 503, refused
        assert refused["error"]["code"] == "store_unavailable"
    finally:
        machines.server.restart()
    until(lambda: first.ask("/-/status")["cluster"]["store"], "it is back")

    # The placer dies: engines stay, and the next one finds them.
    pid = placer_pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: placer_pid() not in (None, pid), "another placer runs")
    assert first.chat(HI)["choices"]
    time.sleep(2)
    assert sorted(healthy(first)) == sorted(again)


KILLS = int(os.environ.get("CTXGATE_CLUSTER_KILLS", "20"))
CACHED, WITHIN_SECONDS = 0.9, 10.0


class Talk:
    """A conversation that goes on for ever. cached: when each request was sent, when its answer came, and the share of
    its prompt that was cached."""

    def __init__(self, who: int, gateways: list[Gateway]) -> None:
        self.cached: list[tuple[float, float, float]] = []
        self.failed: list[Any] = []
        self._who = who
        self._gateways = gateways
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def warm_after(self, since: float) -> float | None:
        """Seconds until an answer whose prompt was cached, to a request that was sent later; None if there is none."""
        return next((came - since for sent, came, share in [*self.cached] if sent > since and share >= CACHED), None)

    def _run(self) -> None:
        begins = [{"role": "user", "content": f"I am number {self._who}, and this is what I know. " * 16}]
        messages = [*begins]
        for number in itertools.count():
            if self._over.is_set():
                return
            sent = time.monotonic()
            answer = self._gateways[(self._who + number) % 2].chat(messages)
            if not answer or "choices" not in answer:
                self.failed.append(answer)
                continue
            usage = answer["usage"]
            share = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
            self.cached.append((sent, time.monotonic(), share))
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            if len(messages) > 40:
                messages = [*begins]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_nodes_cost_no_request_that_has_not_begun(machines: Machines) -> None:
    """Two gateways, three nodes, six engines, eight conversations; a node is killed again and again under load, and
    what its engines had read comes from the share."""
    while len(machines.ray.workers) < 3:
        machines.ray.add()
    prompts = {"save": "each_turn", "min_tokens": 32, "share": str(machines.folder / "share")}
    gateways = [machines.gateway(name, prompts, replicas={"min": 6, "max": 6}) for name in ("third", "fourth")]
    until(lambda: len(healthy(gateways[0])) == 6, "six engines run", 3 * PATIENCE)
    talks = [Talk(who, gateways) for who in range(8)]
    waits: list[float] = []
    try:
        until(lambda: all(len(talk.cached) > 3 for talk in talks), "all have begun")
        for kill in range(KILLS):
            victim = machines.ray.workers[0]
            killed = time.monotonic()
            machines.ray.kill(victim)
            machines.ray.add(kill=str(kill))
            until(lambda: all(talk.warm_after(killed) is not None for talk in talks), "all are cached again")  # noqa: B023
            waits += [talk.warm_after(killed) or 0.0 for talk in talks]
            failed = sum(len(talk.failed) for talk in talks)
            answered = sum(len(talk.cached) for talk in talks)
            print(
                f"kill {kill}: {answered} answered, {failed} failed, cached after {max(waits[-8:]):.1f} s", flush=True
            )
            until(lambda: len(healthy(gateways[0])) == 6, "six engines run again", 3 * PATIENCE)
    finally:
        for talk in talks:
            talk.end()
    assert [answer for talk in talks for answer in talk.failed] == []
    late = [wait for wait in waits if wait > WITHIN_SECONDS]
    print(f"{KILLS} kills: {len(late)} of {len(waits)} conversations cached again after {WITHIN_SECONDS:.0f} s: {late}")
    assert len(late) <= len(waits) // 10


def placer_pid() -> Any:
    import psutil

    return next(
        (each.pid for each in psutil.process_iter(["cmdline"]) if "ray::Placer" in str(each.info["cmdline"])), None
    )
