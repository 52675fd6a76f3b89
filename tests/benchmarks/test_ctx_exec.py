"""The comparison of executed objects with curl runs; how fast they are is never asserted."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import ctx_exec


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed: there is nothing to compare with")
def test_each_client_is_measured() -> None:
    times = ctx_exec.measure(2)
    expected = {"curl", "Python"} | ({"compiled"} if shutil.which("cc") is not None else set())
    assert times.keys() == expected
    assert all(len(found) == 2 and min(found) > 0 for found in times.values())
