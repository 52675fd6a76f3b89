"""The description is complete, and nothing that fits it, or doesn't, makes the gateway fail."""

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

from gateway.api.ollama import OllamaFace
from gateway.api.openapi import description
from gateway.app import FACES, build
from gateway.config import Config, Model, Rooms
from gateway.core import Gateway
from gateway.services import Services
from tests.gateway.running import LANE
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
        rooms=Rooms(secret_key_file=state / "key"),
    )
    with ExitStack() as stack:
        yield stack.enter_context(serve(build(config), lifespan="on", http=LANE))


def test_every_path_of_a_face_is_described() -> None:
    described = {path.partition("/{")[0] for path in description()["paths"]}
    for prefix in FACES:
        if prefix.startswith(("/v1/", "/api")) and prefix != "/api/user":
            assert any(path.startswith(prefix) for path in described), prefix
    config = Config(
        source=Path("config.yaml"), active_model="echo", models={"echo": Model(name="echo", runtime="echo")}
    )
    of_ollama = {path for _, path, _ in OllamaFace(Services(Gateway(config))).rows()}
    assert of_ollama == {path for path in described if path.startswith("/api/") and "/user/" not in path}


def test_every_reference_leads_somewhere() -> None:
    schemas = description()["components"]["schemas"]
    text = repr(description())
    assert set(re.findall(r"#/components/schemas/([\w.]+)", text)) <= set(schemas)


def test_every_operation_is_there(url: str) -> None:
    """A path that is described and unknown, or known by another method, would be a 404 or 405 of ours."""
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
