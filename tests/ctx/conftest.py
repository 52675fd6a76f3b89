"""Short folders: a Unix socket's path has at most 107 bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ctx.served import Tree, tree


@pytest.fixture
def short() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cg"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def module_short() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cg"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def small(test_model: Path) -> dict[str, Any]:
    """The real small model as OpenAI's, so that the paths are those that the ABI prints; and no echo of our own."""
    model = {
        "runtime": "llama.cpp", "path": str(test_model), "context_window": 1024, "tool_call_format": "pythonic",
        "temperature": 0.0, "max_tokens": 64, "capabilities": ["text", "tool_calling"],
    }  # fmt: skip
    chat = ["openai-chat"]
    driver = {"default": chat, "exec": chat, "socket": chat, "agent": ["openai-responses", "openai-chat"]}
    return {
        "active_model": "small",
        "models": {"small": model},
        "ctx": {"models": {"small": {"object": "openai/gpt-4o", "driver": driver}}},
    }


@pytest.fixture(scope="module")
def served(module_short: Path, small: dict[str, Any]) -> Iterator[Tree]:
    """A running gateway with the small model, shared by the tests of a module."""
    with tree(module_short, small) as made:
        yield made
