"""The OpenAPI document is complete, and no request, valid or not, makes the gateway fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from uvicorn.importer import import_from_string

from gateway.api import chat, health, routes
from gateway.app import build
from gateway.config import Config, Model
from gateway.feature import Routes
from gateway.features.agents.settings import Rooms
from gateway.features.descriptions.openapi import description
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

EXAMPLES = 4
"""For each operation; `test_full` asks for more."""
FULL = 100

OPERATIONS = [
    (method.upper(), path)
    for path, item in description()["paths"].items()
    for method in item
    if method in ("get", "post", "put", "patch", "delete")
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    echo = Model(name="echo", runtime="echo", context_window=4096)
    state = tmp_path_factory.mktemp("state")
    config = Config(
        source=Path("config.yaml"),
        active_model="echo",
        models={"echo": echo, "vectors": Model(name="vectors", role="embedding", runtime="echo")},
        state_dir=state,
        # This machine may have no keychain.
        sections={"rooms": Rooms(secret_key_file=state / "key")},
    )
    with ExitStack() as stack:
        yield stack.enter_context(serve(build(config), lifespan="on", http=FAST))


def test_every_path_is_described_and_no_other() -> None:
    described = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in OPERATIONS}
    tables = [routes.DIRECT, *(known.paths for known in routes.routes())]
    known = [(method, path) for table in tables for path, handlers in table.items() for method in handlers]
    for method, path in known:
        ways = {(method, re.sub(r"\{[\w:]+\}", "{}", spelling)) for spelling in routes.spellings(path)}
        # The answer at `/` is for people.
        assert len(ways & described) == (path != "[/v1]/"), (method, path)
        described -= ways
    assert described == set()


@pytest.mark.parametrize("table", routes.routes())
def test_every_handler_can_be_imported(table: Routes) -> None:
    names = [table.errors, *(name for handlers in table.paths.values() for name in handlers.values())]
    assert all(callable(import_from_string(name)) for name in names)


def test_paths_answered_without_starlette_are_in_the_table() -> None:
    direct = {spelling for path in routes.DIRECT for spelling in routes.spellings(path)}
    assert direct == {*chat.PATHS, *health.PATHS}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a", ["/a"]),
        ("[/v1]/a", ["/v1/a", "/a"]),
        ("[/v1]/a[/]", ["/v1/a/", "/v1/a", "/a/", "/a"]),
    ],
)
def test_spellings(path: str, found: list[str]) -> None:
    assert [*routes.spellings(path)] == found


def test_every_reference_leads_somewhere() -> None:
    schemas = description()["components"]["schemas"]
    text = repr(description())
    assert set(re.findall(r"#/components/schemas/([\w.]+)", text)) <= set(schemas)


def test_every_operation_is_there(url: str) -> None:
    """A described path that the router lacks would be a 404, one with other methods a 405."""
    for method, path in OPERATIONS:
        answer = httpx.request(method, url + re.sub(r"\{\w+\}", "x", path), content=b"{", timeout=PATIENCE)
        assert answer.status_code != 405, (method, path)
        if answer.status_code == 404:
            assert "no such endpoint" not in answer.text, (method, path)


def check(url: str, method: str, path: str, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    def fits(case: Any) -> None:
        case.call_and_validate(timeout=PATIENCE, checks=[not_a_server_error])

    given(case=schema[path][method].as_strategy())(fits)()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_server_error(url: str, method: str, path: str) -> None:
    check(url, method, path, EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_full(url: str, method: str, path: str) -> None:
    check(url, method, path, FULL)
