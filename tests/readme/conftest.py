"""The default model, as `scripts/serve` gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.errors import ProviderUnavailable
from tests.readme.examples import ROOT

NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Its name; its weights are in `_models/`, fetched if need be."""
    pull = [sys.executable, "-m", "gateway", "pull", NAME]
    done = subprocess.run(pull, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == ProviderUnavailable.exit_code:
        pytest.skip(f"{NAME} isn't here and can't be fetched: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return NAME
