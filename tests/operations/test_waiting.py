"""What waits before a server that isn't ours, as a person and Prometheus see it: a gateway as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from tests.cli.commands import ctxgate
from tests.hostile.conftest import scripted as scripted  # a fixture
from tests.hostile.conftest import upstream as upstream  # a fixture
from tests.hostile.running import Gateway, Upstream, configuration, started
from tests.support.flex import flex_waits, status


@pytest.fixture(scope="module")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("waiting")
    with started(folder, configuration(scripted, folder, test_model)) as running:
        yield running


def metrics(gateway: Gateway) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, sample.labels["model"], *(sample.labels[name] for name in sample.labels if name == "tier")): (
            sample.value
        )
        for family in families(gateway.ask("GET", "/metrics").body.decode())
        for sample in family.samples
        if family.name in ("ctxgate_queue_length", "ctxgate_requests_waiting", "ctxgate_answers_put_aside")
    }


def test_flex_requests_that_wait_before_another_server(gateway: Gateway, upstream: Upstream) -> None:
    with flex_waits(gateway, upstream, 2):
        model = status(gateway)
        assert model["waiting_tiers"] == {"priority": 0, "default": 0, "flex": 2}
        assert (model["waits_for"], model["put_aside"], model["held_by"]) == ("place", 0, [])
        assert status(gateway)["waited"] > model["waited"] > 0
        shown = ctxgate("status", "--url", gateway.url, cwd=gateway.folder)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "\nm: 2 requests wait for a free slot, the first for " in shown.stdout
        assert " s: 2 flex\n" in shown.stdout
        found = metrics(gateway)
        assert found["ctxgate_queue_length", "m"] == found["ctxgate_requests_waiting", "m", "flex"] == 2
        assert found["ctxgate_requests_waiting", "m", "default"] == found["ctxgate_answers_put_aside", "m"] == 0
    model = status(gateway)
    assert (model["waiting"], model["waits_for"], model["waited"]) == (0, None, 0)
    assert "requests wait" not in ctxgate("status", "--url", gateway.url, cwd=gateway.folder).stdout
    assert metrics(gateway)["ctxgate_requests_waiting", "m", "flex"] == 0
