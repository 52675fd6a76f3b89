"""A gateway with the real engine and the real test model in two roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.app import build
from gateway.config import Config, Model, Runtime, Server
from tests.conftest import ROOT
from tests.gateway.running import FAST, NO_COMMENTS
from tests.provider.server import serve


@pytest.fixture(scope="module")
def real(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its base URL without `/v1`. Models: `tiny`, which chats, `vectors`, which embeds, and `echo`."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    tiny = Model(
        name="tiny",
        runtime="llama.cpp",
        path=test_model,
        context_window=1024,
        tool_call_format="pythonic",
        defaults={"temperature": 0, "max_tokens": 256},
        engine=Runtime(threads=1, parallel=1),
    )
    vectors = Model(
        name="vectors",
        role="embedding",
        runtime="llama.cpp",
        path=test_model,
        context_window=512,
        engine=Runtime(threads=1, parallel=1, args=("--pooling", "mean")),
    )
    config = Config(
        source=ROOT / "_models/config.yaml",
        active_model="tiny",
        models={"tiny": tiny, "vectors": vectors, "echo": Model(name="echo", runtime="echo")},
        state_dir=tmp_path_factory.mktemp("state"),
        server=Server(**NO_COMMENTS),
    )
    with ExitStack() as stack:
        yield stack.enter_context(serve(build(config), lifespan="on", http=FAST))
