"""What a caller without a key learns of a gateway that has keys."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.running import Upstream, configuration, started

KEY = {"Authorization": "Bearer sk-right"}


def test_health_and_readiness(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    config = {**configuration(upstream, tmp_path, test_model), "server": {"api_keys": ["${HOSTILE_KEY}"]}}
    with started(tmp_path, config, HOSTILE_KEY="sk-right") as gateway:
        for wrong in ({}, {"Authorization": "Bearer sk-wrong"}, {"X-Api-Key": "x"}):
            health = gateway.ask("GET", "/health", headers=wrong)
            assert (health.status, health.json) == (200, {"status": "ok", "active_model": None})
            ready = gateway.ask("GET", "/ready", headers=wrong)
            assert (ready.status, ready.json) == (200, {"ready": True})
        for path in ("/v1/health", "/ready/m", "/v1/ready"):
            assert gateway.ask("GET", path).status == 401, path
        told = gateway.ask("GET", "/health", headers=KEY).json
        assert told["active_model"] == "m"
        assert told["version"]
        assert gateway.ask("GET", "/ready", headers=KEY).json["id"] == "m"
