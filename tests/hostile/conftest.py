"""A gateway that strangers attack, and the assertion that nobody else is hurt meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.hostile.running import Gateway, Upstream, configuration, polite, started, warm, watching

Unharmed = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="session")
def scripted() -> Iterator[Upstream]:
    with Upstream().serve() as upstream:
        yield upstream


@pytest.fixture(scope="module", autouse=True)
def _left_polite(scripted: Upstream) -> Iterator[None]:
    """The next file's gateway is warmed by a polite engine, whatever this one's was told to say."""
    yield
    scripted.script = polite


@pytest.fixture
def upstream(scripted: Upstream) -> Iterator[Upstream]:
    """The engine behind model `m` of `gateway`; it is polite again after each test."""
    yield scripted
    scripted.script = polite


@pytest.fixture(scope="session")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests of a file, which has answered on every API. For settings of its own a test uses `started`."""
    folder = tmp_path_factory.mktemp("gateway")
    with started(folder, configuration(scripted, folder, test_model)) as running:
        warm(running)
        yield running


@pytest.fixture
def unharmed(request: pytest.FixtureRequest) -> Unharmed:
    """`with unharmed(): ...` around what a stranger does to `gateway`; `with unharmed(another):` around what happens to
    another gateway. Fails if meanwhile /health answers late or wrongly, or the gateway's memory grows: `watching`."""

    def watch(of: Gateway | None = None, body: int | None = None) -> AbstractContextManager[None]:
        return watching(of if of is not None else request.getfixturevalue("gateway"), body)

    return watch
