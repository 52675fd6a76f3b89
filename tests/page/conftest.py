"""A gateway as a process of its own, before the real engine and a scripted one, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.hostile.conftest import scripted as scripted  # a fixture
from tests.hostile.conftest import upstream as upstream  # a fixture
from tests.hostile.running import Gateway, Json, Upstream, configuration, started
from tests.page.browser import CHROMIUM, Page, browser

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
QUESTION: Json = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is the weather in Paris in celsius?"}],
    "tools": [WEATHER],
    "temperature": 0,
}
"""The test model answers it with a call of get_weather, in LFM2's pythonic format."""

needs_engine = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")


@pytest.fixture(scope="module")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests of a file; it records nothing unless it is asked to."""
    folder = tmp_path_factory.mktemp("page")
    with started(folder, configuration(scripted, folder, test_model)) as running:
        yield running


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Page]:
    if not CHROMIUM:
        pytest.skip("no Chromium: apt-get install chromium")
    with browser() as page:
        yield page


@pytest.fixture
def page(one_browser: Page) -> Iterator[Page]:
    """A tab without a past. After each test: nothing that it did broke the content policy or raised an error."""
    one_browser.look()
    one_browser.open("about:blank")
    one_browser.requests.clear()
    one_browser.refused.clear()
    yield one_browser
    assert one_browser.refused == []
