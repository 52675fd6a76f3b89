"""Real Ray nodes on this machine, a real PostgreSQL, gateways as processes, engines of the test model."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.machines import Machines, healthy
from tests.cluster.nodes import Gateway, nodes, until
from tests.store.postgresql import start

pytest.importorskip("ray", reason="Ray isn't installed: pip install 'ctxgate[cluster]'")

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with start() as server, nodes(3) as ray, Machines(ray, server, tmp_path_factory.mktemp("cluster")).open() as made:
        yield made


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


def placer_pid() -> Any:
    import psutil

    return next(
        (each.pid for each in psutil.process_iter(["cmdline"]) if "ray::Placer" in str(each.info["cmdline"])), None
    )
