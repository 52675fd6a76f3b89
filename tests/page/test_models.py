"""A model from the hub to the default in Chromium, on a hub's double: found, torn, resumed, measured, at any width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.config import load
from gateway.features.models.pull.download import ATTEMPTS
from tests.engines.served import served
from tests.models.pull.sources import Source, serving
from tests.page import axe
from tests.page.browser import Page
from tests.page.conftest import needs_engine
from tests.patience import PATIENCE
from tests.support.hub import REPO, hub
from tests.support.jobs import until

MINUTES = """
window.before = window.before || window.fetch;
window.fetch = (url, how = {}) => window.before(url, how.body && String(url) === "/-/jobs"
  ? {...how, body: JSON.stringify({...JSON.parse(how.body), minutes: %s})} : how); 0
"""
"""A shorter tuning."""


@pytest.fixture(scope="module")
def source(test_model: Path) -> Iterator[Source]:
    pytest.importorskip("huggingface_hub", reason="the extra `hub` isn't installed")
    with serving(hub(test_model.read_bytes(), gguf={"architecture": "llama", "context_length": 1024})) as source:
        yield source


@pytest.fixture(scope="module")
def place(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("managed")
    config = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}, "state_dir": "state"}
    environ = {"HF_ENDPOINT": source.url, "HF_HOME": str(folder / "hf"), "NO_PROXY": "127.0.0.1"}
    with served(config, folder, **environ) as gateway:
        yield gateway.url, folder / "config.yaml"


def tune(page: Page, url: str) -> None:
    """In three seconds; on a machine that has other work to do, in a minute and a half."""

    def ended_within(minutes: float) -> bool:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            last = client.get("/-/jobs").json()["jobs"][0]["id"]
            page.js(MINUTES % minutes)
            page.click("button", "Tune")
            ended = until(client, lambda job: job["id"] != last and job["state"] != "running")
        return bool(ended["state"] == "done")

    assert ended_within(0.05) or ended_within(1.5)


@needs_engine
def test_from_the_hub_to_a_measured_default(
    page: Page, source: Source, place: tuple[str, Path], subtests: pytest.Subtests
) -> None:
    url, config = place
    page.look(360, 760)
    page.open(f"{url}/#/models")
    page.wait("Boolean(document.querySelector('[role=search] input'))")
    page.js("document.querySelector('[role=search] input').focus()")
    page.type("tiny")
    page.press("Enter")
    page.reads("12 345")
    page.click("td a", REPO)
    page.reads("fits", "llama")
    axe.check(page, subtests, "the hub")
    source.cuts = [1000] + [0] * ATTEMPTS
    page.click("td button", "Download")
    page.reads("failed", "continues where this one stopped")
    source.asked.clear()
    source.hold.clear()
    page.click(".job button", "Resume")
    page.wait("Boolean(document.querySelector('.job progress'))")
    # Nobody looks, and it goes on.
    page.open("about:blank")
    page.open(f"{url}/#/models")
    page.wait("Boolean(document.querySelector('.job progress'))")
    assert page.js("document.documentElement.scrollWidth") <= 360
    axe.check(page, subtests, "a download")
    source.hold.set()
    page.reads("done")
    assert any(line.endswith("tiny.gguf bytes=1000-") for line in source.asked)
    page.click(".job a", "tiny")
    page.reads("Its calls are read as pythonic", "trained on", "Chat template")
    page.click("button", "Make default")
    page.wait("document.querySelector('h1 .badge').textContent === 'default'")
    assert load(config, {}).active_model == "tiny"
    axe.check(page, subtests, "a model")
    assert page.js("document.documentElement.scrollWidth") <= 360

    page.open(f"{url}/#/models?id=tiny")
    page.click("button", "Evaluate")
    page.reads("Evaluate tiny done")
    page.click(".job a", "the result")
    page.reads("By category", "smoke")
    page.open(f"{url}/#/models?id=tiny")
    page.reads("right")
    page.wait("Boolean(document.querySelector('main h1'))")
    tune(page, url)
    page.reads("Tune tiny done")
    page.reads("settings")
    page.click("button", "Look at what it writes")
    page.reads("It wrote", "get_weather", "in use")
    httpx.post(f"{url}/-/models/tiny/format", json={"tool_call_format": "hermes"}, timeout=PATIENCE)
    page.open(f"{url}/#/models?id=tiny")
    page.reads("Its calls are read as hermes")
    page.click("button", "Look at what it writes")
    page.click("button", "Use pythonic")
    page.reads("tool_call_format: pythonic now")
    assert load(config, {}).models["tiny"].tool_call_format == "pythonic"
    assert json.loads((config.parent / "state" / "jobs.json").read_bytes())[0]["kind"] == "tune"
