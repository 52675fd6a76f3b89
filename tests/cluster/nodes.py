"""A cluster on this machine: real Ray nodes, a real PostgreSQL, gateways as processes, engines of the test model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.patience import PATIENCE
from tests.ports import free_port

MODEL = Path(__file__).parents[2] / "_models/test/ctxgate-test-tools.gguf"
MB = 1024 * 1024


RAY = {"RAY_worker_niceness": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
"""As docs/cluster.md says: engines aren't nice, and outlive Ray's head."""


class Nodes:
    """Ray's head, which runs no engine, and workers that do."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.update(RAY)
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": 80 * MB,
                # The head runs no engine, but the placer, which needs no memory of Ray's.
                "labels": {"part": "head"},
            },
        )
        self.workers: list[Any] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **labels: str) -> Any:
        node = self.cluster.add_node(
            num_cpus=1, memory=1000 * MB, object_store_memory=80 * MB, labels={"part": "worker", **labels}
        )
        self.workers.append(node)
        return node

    def kill(self, node: Any) -> float:
        """`kill -9` of all that runs on the node, engines too, as a power cut does; returns when, by time.monotonic."""
        self.workers.remove(node)
        killed = _kill(node)
        self.cluster.remove_node(node, allow_graceful=False)
        return killed

    def kill_head(self) -> None:
        _kill(self.cluster.head_node)

    def close(self) -> None:
        self.cluster.shutdown()
        for name in RAY:
            os.environ.pop(name, None)


def _kill(node: Any) -> float:
    doomed: list[psutil.Process] = []
    for info in node.all_processes.values():
        for each in info:
            process = psutil.Process(each.process.pid)
            doomed += [process, *process.children(recursive=True)]
    killed = time.monotonic()
    for process in doomed:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return killed


class Gateway:
    """A gateway process of the cluster."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        self.port = free_port()
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        file = folder / f"{name}.yaml"
        config = {**config, "state_dir": str(folder / name)}
        config["cluster"] = {**config["cluster"], "gateway_url": f"http://{{host}}:{self.port}"}
        file.write_text(yaml.safe_dump(config))
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(self.port)],
                stdout=out,
                stderr=out,
            )
        until(self._serves, f"{name} serves")

    def _serves(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.ask("/health") is not None

    def ask(self, path: str, body: object = None, seconds: float = PATIENCE, key: str = "") -> Any:
        """The JSON of the answer; None if nobody answers."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        call = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(call, timeout=seconds) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.loads(error.read())}
        except OSError:
            return None
        return json.loads(text) if text else {}

    def chat(self, messages: list[dict[str, str]], **fields: Any) -> Any:
        return self.ask(
            "/v1/chat/completions", {"model": "chat", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
        )

    def engines(self) -> list[dict[str, Any]]:
        (model,) = [each for each in self.ask("/-/status")["models"] if each["name"] == "chat"]
        found: list[dict[str, Any]] = model["replicas"]
        return found

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def until(found: Callable[[], object], what: str, seconds: float = PATIENCE) -> Any:
    """What `found` returns once that is true."""
    end = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.05)
    return result


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    made = Nodes()
    try:
        for number in range(count):
            made.add(number=str(number))
        yield made
    finally:
        made.close()


def config(ray: str, store: str, prompts: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    chat = {"runtime": "llama.cpp", "path": str(MODEL), "context_window": 4096, "parallel": 2, "memory": "50 MB"}
    return {
        "active_model": "chat",
        "store": store,
        "cluster": {"ray": ray},
        "prompts": prompts or {"save": "off"},
        "models": {"chat": {**chat, **model}},
    }
