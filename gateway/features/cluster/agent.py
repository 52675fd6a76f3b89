"""A gateway's connection to Ray, in a process of its own: Ray's driver ends the process if it loses Ray.

    python -P -m gateway.features.cluster.agent

Standard input carries `Settings`, pickled, each after its length in 8 bytes; its end ends the agent. Makes sure that
the placer runs, and has the newest settings. Standard output says whether Ray's head answers: lines HERE and AWAY.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import ray
import ray.exceptions

from gateway.features.cluster.placer import Placer
from gateway.features.cluster.values import AWAY, HERE, NAMESPACE, PLACER, Settings

CHECK_SECONDS = 2.0
RPC_SECONDS = 10.0
CONNECT_SECONDS = 2.0

log = logging.getLogger("ctxgate.agent")


class _Newest:
    """The newest settings received."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.came = threading.Event()

    def read(self) -> None:
        stream = sys.stdin.buffer
        while len(size := stream.read(8)) == 8:
            self.settings = pickle.loads(stream.read(int.from_bytes(size, "little")))  # noqa: S301 - our parent wrote it
            self.came.set()
        os._exit(0)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    newest = _Newest()
    threading.Thread(target=newest.read, name="settings", daemon=True).start()
    newest.came.wait()
    assert newest.settings is not None
    if newest.settings.cluster.ray != "auto":
        _wait_for(*_head(newest.settings.cluster.ray))
    ray.init(
        address=newest.settings.cluster.ray,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.WARNING,
        configure_logging=False,
    )
    log.info("connected to Ray")
    head = _head(newest.settings.cluster.ray)
    placer, told = None, HERE
    _tell(told)
    while True:
        # Ray's own calls would wait for its head, for a minute or longer.
        if (state := HERE if _answers(*head) else AWAY) != told:
            _tell(told := state)
        if state == AWAY:
            newest.came.wait(CHECK_SECONDS)
            continue
        try:
            if placer is None or newest.came.is_set() or not ray.get(placer.ping.remote(), timeout=RPC_SECONDS):
                newest.came.clear()
                placer = _placer(newest.settings)
                ray.get(placer.configure.remote(newest.settings), timeout=3 * RPC_SECONDS)
        except ray.exceptions.RayError as error:
            log.warning("the placer doesn't answer: %s", type(error).__name__)
            placer = None
        newest.came.wait(CHECK_SECONDS)


def _wait_for(host: str, port: int) -> None:
    if not _answers(host, port):
        _tell(AWAY)
        while not _answers(host, port):
            time.sleep(CHECK_SECONDS)


def _tell(state: str) -> None:
    sys.stdout.write(f"{state}\n")
    sys.stdout.flush()


def _head(address: str) -> tuple[str, int]:
    """Host and port of Ray's head."""
    if address == "auto":
        address = ray.get_runtime_context().gcs_address
    url = urlsplit(address if "//" in address else f"//{address}")
    return url.hostname or "", url.port or 0


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
        return True
    return False


def _placer(settings: Settings):  # type: ignore[no-untyped-def]  # Ray's handles have no type of their own
    return (
        ray.remote(Placer)
        .options(
            name=PLACER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=100,
        )
        .remote(settings)
    )


if __name__ == "__main__":
    main()
