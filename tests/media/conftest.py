"""Real models that hear and speak; tests that need them skip visibly where they aren't."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.harness import weights

PACKAGES = {"whisper": "faster_whisper", "piper": "piper"}


def weights_of(name: str) -> Path:
    """The folder of one of `weights.FOLDERS`."""
    folder = weights.cache() / name
    if find_spec(PACKAGES[name.partition("-")[0]]) is None:
        pytest.skip("not installed: pip install 'ctxgate[audio]'")
    if not folder.is_dir():
        pytest.skip(f"no weights: python -m benchmarks.harness.weights {name}")
    return folder


@pytest.fixture(scope="session")
def whisper() -> Path:
    return weights_of("whisper-base")


@pytest.fixture(scope="session")
def tiny_whisper() -> Path:
    return weights_of("whisper-tiny.en")


@pytest.fixture(scope="session")
def voice() -> Path:
    return weights_of("piper-joe") / "en_US-joe-medium.onnx"
