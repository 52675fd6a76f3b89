"""What a client's process sees: none of the person's who runs the tests."""

from __future__ import annotations

import os
from pathlib import Path


def installed() -> Path:
    """The folder that scripts/clients fills."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CTXGATE_CLIENTS") or Path(cache) / "ctxgate/clients")


def environment_of(home: Path) -> dict[str, str]:
    """Nothing of this process's but the PATH. No telemetry, no updates, nothing but loopback."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "LLM_USER_PATH": str(home / "llm"),
        "TERM": "dumb",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
        "DISABLE_TELEMETRY": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ANONYMIZED_TELEMETRY": "False",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_TRACING_ENABLED": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
