"""What a caller without a key learns of a gateway that has keys."""

from __future__ import annotations

import time
from pathlib import Path

from gateway.api.models import SHARED_SECONDS
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


def test_strangers_do_not_spend_the_account(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    """However often they ask whether the model is ready, its provider is asked with the operator's key now and then."""
    config = {**configuration(upstream, tmp_path, test_model), "server": {"api_keys": ["${HOSTILE_KEY}"]}}
    with started(tmp_path, config, HOSTILE_KEY="sk-right") as gateway:
        before, began = upstream.asked, time.monotonic()
        for number in range(60):
            headers = {"Authorization": "Bearer sk-wrong"} if number % 2 else {}
            ready = gateway.ask("HEAD" if number % 3 == 0 else "GET", "/ready", headers=headers)
            assert ready.status == 200, ready
        most = 1 + (time.monotonic() - began) / SHARED_SECONDS
        assert 1 <= upstream.asked - before <= most
        asked = upstream.asked
        for _ in range(3):
            assert gateway.ask("GET", "/ready", headers=KEY).status == 200
        assert upstream.asked == asked + 3, "who has a key is told how it is now"
