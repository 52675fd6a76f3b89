"""Ray nodes, a store, and the gateways of one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine, text

from tests.cluster.nodes import Gateway, Nodes, config
from tests.store.postgresql import Server


class Machines:
    """Nodes, and a store; each test has gateways of its own."""

    def __init__(self, ray: Nodes, server: Server, folder: Path) -> None:
        self.ray = ray
        self.server = server
        self.folder = folder
        self.store = server.database()
        self.gateways: list[Gateway] = []

    def gateway(
        self, name: str, prompts: dict[str, Any] | None = None, top: dict[str, Any] | None = None, **model: Any
    ) -> Gateway:
        """top: further keys of config.yaml; model: of its model `chat`."""
        settings = config(self.ray.address, self.store, prompts, **{"nodes": {"part": "worker"}, **model})
        for key, value in (top or {}).items():
            settings[key] = {**settings.get(key, {}), **value}
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

    def engine_processes(self, node: Any) -> list[psutil.Process]:
        """The engines on a node, without what is beside them."""
        raylets = node.all_processes["raylet"]
        below = [child for each in raylets for child in psutil.Process(each.process.pid).children(recursive=True)]
        return [each for each in below if "--port" in each.cmdline() and "guard.py" not in str(each.cmdline())]

    @contextmanager
    def open(self) -> Iterator[Machines]:
        """Closes the gateways, and prints their logs."""
        try:
            yield self
        finally:
            for gateway in self.gateways:
                gateway.close()
                print(gateway.log.read_text())


def healthy(gateway: Gateway) -> list[str]:
    return [engine["url"] for engine in gateway.engines() if engine["healthy"]]
