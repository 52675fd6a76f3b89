"""Two gateways and one PostgreSQL: a key works at both, whichever machine made it, and ends at both."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from msgspec.json import decode

from gateway.server.keys import FILE
from tests.cli.commands import ctxgate
from tests.cluster.nodes import Gateway, config, until
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.store.postgresql import start


def status(gateway: Gateway, key: str) -> int:
    url = f"http://127.0.0.1:{gateway.port}/v1/models"
    return httpx.get(url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE, trust_env=False).status_code


def post(gateway: Gateway, key: str) -> int:
    answer = gateway.ask(
        "/v1/chat/completions", {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}, key=key
    )
    return int(answer.get("status", 200))


def keys(gateway: Gateway, *args: str, code: int = 0) -> str:
    done = ctxgate("keys", *args, "--config", str(gateway.folder / f"{gateway.name}.yaml"), cwd=gateway.folder)
    assert done.returncode == code, done.stderr
    return done.stdout.strip() or done.stderr


def test_a_key_works_at_every_gateway(tmp_path: Path) -> None:
    with start() as server:
        settings = config(f"127.0.0.1:{free_port()}", server.database())
        (tmp_path / "one").mkdir()
        one, two = (Gateway(tmp_path, name, settings) for name in ("one", "two"))
        try:
            ours, others = keys(one, "add"), keys(two, "add", "--user", "ann", "--scope", "models")
            for gateway in (one, two):
                for key in (ours, others):
                    until(lambda: status(gateway, key) == 200, "it works")  # noqa: B023
                assert status(gateway, "ctxgate_none") == 401
            listed = {each["user"]: each["id"] for each in json.loads(keys(one, "list", "--json"))["keys"]}
            assert listed.keys() == {"local", "ann"}

            keys(one, "revoke", listed["ann"])
            until(lambda: status(two, others) == 401, "it ends everywhere")
            assert status(two, ours) == 200
            assert "digest" in decode((tmp_path / "two" / FILE).read_bytes())["keys"][0]
            assert (tmp_path / "two" / FILE).stat().st_mode & 0o077 == 0

            # Keys go on while PostgreSQL is away, and none is made.
            server.stop()
            try:
                assert status(two, ours) == 200
                assert status(one, others) == 401
                assert "can't be used" in keys(one, "add", code=69)
            finally:
                server.restart()
            assert [each["id"] for each in json.loads(keys(two, "list", "--json"))["keys"]] == [listed["local"]]
        finally:
            one.close()
            two.close()


@pytest.mark.slow
def test_the_limits_of_a_key_hold_for_all_gateways_together(tmp_path: Path) -> None:
    with start() as server:
        settings = config(f"127.0.0.1:{free_port()}", server.database())
        settings["models"]["echo"] = {"runtime": "echo"}
        one, two = (Gateway(tmp_path, name, settings) for name in ("one", "two"))
        try:
            key = keys(one, "add", "--scope", "models", "--limit", "requests/minute=1000")
            until(lambda: status(one, key) == status(two, key) == 200, "it works")
            first = [post(one, key) for _ in range(1001)]
            assert (first.count(200), first.count(429)) == (1000, 1)
            second: list[int] = []

            def refuses() -> bool:
                second.append(post(two, key))
                return second[-1] == 429

            until(refuses, "the other one refuses it, too")
            assert len(second) < 1000
        finally:
            one.close()
            two.close()
