"""Forced and guarded calls of Qwen2.5-Coder: in the layout of its own template, and every one of them readable."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from benchmarks.harness import weights
from gateway.core import Gateway
from gateway.features.evaluation.model_test import commands
from tests.formats.asking import ask
from tests.formats.conftest import Serve, config, external

DUE = [case for case in commands.suites(["smoke"]).cases if case.must_call]
"""Questions whose first answer must be a call."""


@pytest.fixture(scope="module", params=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def coder(request: pytest.FixtureRequest) -> Path:
    try:
        return weights.path(request.param)
    except weights.Unavailable as error:
        pytest.skip(f"no weights of {request.param}: {error}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("choice", ["required", "auto"])
async def test_calls_are_readable(serve: Serve, coder: Path, choice: str) -> None:
    called = 0
    async with Gateway(config(external(serve("xllamacpp", coder, "--ctx-size", "4096"), "hermes"))) as gateway:
        for case in DUE:
            said = await ask(gateway, *case.messages, tools=case.tools, tool_choice=choice, max_tokens=300)
            schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.tools}
            for name, arguments in said.parsed:
                jsonschema.validate(arguments, schemas[name])
            assert said.parsed or choice == "auto", case.id
            called += bool(said.parsed)
    assert called >= (len(DUE) if choice == "required" else len(DUE) // 2)
