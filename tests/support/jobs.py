"""Waiting for a job of the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.patience import PATIENCE

Json = dict[str, Any]


def until(client: httpx.Client, ready: Callable[[Json], bool]) -> Json:
    """The newest job, once it is so."""
    end = time.monotonic() + PATIENCE
    while True:
        job: Json = client.get("/-/jobs").json()["jobs"][0]
        if ready(job):
            return job
        assert time.monotonic() < end, job
        time.sleep(0.02)
