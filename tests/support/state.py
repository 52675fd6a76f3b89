"""A configuration whose state lies in a folder of the test, and a day in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.config import Config, Model

DAY = 86400.0


def config(state: Path, **settings: Any) -> Config:
    return Config(
        source=state / "config.yaml",
        active_model="echo",
        models={"echo": Model(name="echo", runtime="echo")},
        state_dir=state,
        **settings,
    )
