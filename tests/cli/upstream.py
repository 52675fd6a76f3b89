"""A server behind `ctxgate chat`: how it streams an answer, and a configuration whose one model it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.commands import config
from tests.models.pull.sources import Source
from tests.ports import free_port


def stream(*deltas: dict[str, Any]) -> tuple[str, bytes]:
    """A streamed answer of an OpenAI-compatible server."""
    finish = "tool_calls" if any("tool_calls" in delta for delta in deltas) else "stop"
    lines = []
    for index, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "finish_reason": finish if index == len(deltas) - 1 else None}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        lines.append(f"data: {json.dumps(chunk)}\n\n")
    return "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode()


def upstream(tmp_path: Path, source: Source) -> None:
    """The one model of the configuration is what `source` serves."""
    model = f'{{runtime: openai, base_url: "{source.url}"}}'
    config(tmp_path, f"active_model: m\nmodels: {{m: {model}}}\nserver: {{port: {free_port()}}}\n")
