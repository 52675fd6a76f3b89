"""Engines follow the queue between `min` and `max`, and end when nobody needs them; with Ray and real engines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import Machines, healthy
from tests.cluster.nodes import nodes, until
from tests.store.postgresql import start

pytest.importorskip("ray", reason="Ray isn't installed: pip install 'ctxgate[cluster]'")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_engines_come_with_the_queue_and_go_with_it(tmp_path: Path) -> None:
    with start() as server, nodes(2) as ray, Machines(ray, server, tmp_path).open() as machines:
        top: dict[str, Any] = {"cluster": {"idle_seconds": 3}}
        one, two = (machines.gateway(name, None, top, replicas={"min": 1, "max": 3}) for name in ("one", "two"))
        until(lambda: len(healthy(one)) == 1, "the least")
        over = threading.Event()
        answers: list[Any] = []

        def ask(who: int) -> None:
            while not over.is_set():
                text = f"I am {who}, and this was answer {len(answers)}. " * 8
                answers.append((one, two)[who % 2].chat([{"role": "user", "content": text}], max_tokens=64))

        # Eight at a time, for engines of two places.
        threads = [threading.Thread(target=ask, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(healthy(one)) == len(healthy(two)) == 3, "the most")
        over.set()
        for thread in threads:
            thread.join()
        assert [each for each in answers if not each or "choices" not in each] == []
        until(lambda: len(healthy(one)) == len(healthy(two)) == 1, "the least again")
        assert one.chat([{"role": "user", "content": "Hi"}])["choices"]
