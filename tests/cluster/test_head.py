"""Ray's head is gone, and PostgreSQL: engines that run go on serving, and what can't be done is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import Machines, healthy
from tests.cluster.nodes import MODEL, Gateway, nodes, until
from tests.store.postgresql import start

pytest.importorskip("ray", reason="Ray isn't installed: pip install 'ctxgate[cluster]'")

HI = [{"role": "user", "content": "Hi"}]
OTHER = {"runtime": "llama.cpp", "path": str(MODEL), "context_window": 512, "memory": "50 MB"}


def two(machines: Machines) -> list[Gateway]:
    """Gateways with a model that runs, and one that doesn't."""
    top: dict[str, Any] = {"models": {"other": OTHER}}
    return [machines.gateway(name, None, top, replicas={"min": 2, "max": 2}) for name in ("one", "two")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_engines_go_on_without_the_head_and_without_postgresql(tmp_path: Path) -> None:
    with start() as server, nodes(2) as ray, Machines(ray, server, tmp_path).open() as machines:
        gateways = two(machines)
        for gateway in gateways:
            until(lambda: len(healthy(gateway)) == 2, "two engines run")  # noqa: B023
        engines = sorted(healthy(gateways[0]))

        ray.kill_head()
        for gateway in gateways:
            until(lambda: not gateway.ask("/-/status")["cluster"]["ray"], "it knows")  # noqa: B023
            assert gateway.chat(HI)["choices"]
            # No engine can be started, which it says at once.
            refused = gateway.chat(HI, model="other")
            assert refused["status"] == 503, refused
            assert refused["error"]["code"] == "ray_unavailable"
            assert "none of its engines runs, and none can be started: Ray's head doesn't answer" in str(refused)

        server.stop()
        try:
            for gateway in gateways:
                for _ in range(4):
                    assert gateway.chat(HI)["choices"]
                for path, body in (
                    ("/v1/responses/resp_1", None),
                    ("/v1/responses", {"model": "chat", "input": "Hi"}),
                    ("/v1/batches", None),
                    ("/v1/files", None),
                    ("/llm/room", None),
                ):
                    refused = gateway.ask(path, body)
                    assert refused["status"] == 503, (path, refused)
                    code = refused["code"] if path.startswith("/llm") else refused["error"]["code"]
                    assert code == "store_unavailable", (path, refused)
        finally:
            server.restart()
        for gateway in gateways:
            until(lambda: gateway.ask("/-/status")["cluster"]["store"], "it is back")  # noqa: B023
            assert gateway.ask("/v1/files")["data"] == []
            assert sorted(healthy(gateway)) == engines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_engines_end_with_their_actor_and_their_node(tmp_path: Path) -> None:
    with start() as server, nodes(2) as ray, Machines(ray, server, tmp_path).open() as machines:
        gateway = machines.gateway("one", None, replicas={"min": 2, "max": 2})
        urls = until(lambda: len(healthy(gateway)) == 2 and healthy(gateway), "two engines run")
        for node in ray.workers[:1]:
            (engine,) = machines.engine_processes(node)
            # As a crash of Ray's own process on a machine that lives on.
            node.kill_raylet()
            until(lambda: not engine.is_running(), "the engine ends, too")  # noqa: B023
        gone = until(lambda: {*urls} - {*healthy(gateway)}, "the gateway knows")
        until(lambda: len(healthy(gateway)) == 2, "the other node has two")
        assert not gone & {*healthy(gateway)}
