"""The examples of README.md: found, run, and written back with what they gave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.cli.commands import answering, serving
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
ADDRESS = "127.0.0.1:4000"
VARIES = "<!-- The words of a real model: another processor may choose others. -->\n"

_CONSOLE = rf"(?P<varies>{re.escape(VARIES)})?```console\n\$ (?P<command>(?:.*\\\n)*.*\n)(?P<printed>(?s:.*?))```\n"
_PYTHON = r"```python\n(?P<program>(?s:.*?))```\n\n```text\n(?P<result>(?s:.*?))```\n"
_EXAMPLE = re.compile(f"^(?:{_CONSOLE}|{_PYTHON})", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A command or a program of the page, and what the page says that it prints. varies: only its shape is certain."""

    kind: Literal["console", "python"]
    source: str
    printed: str
    varies: bool = False

    def run(self, address: str) -> str:
        source = self.source.replace(ADDRESS, address)
        argv = ["sh", "-c", source] if self.kind == "console" else [sys.executable, "-c", source]
        env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


def examples(page: str) -> list[Example]:
    return [_example(match) for match in _EXAMPLE.finditer(page)]


def _example(match: re.Match[str]) -> Example:
    if match["command"] is not None:
        return Example("console", match["command"], match["printed"], match["varies"] is not None)
    return Example("python", match["program"], match["result"])


def rewritten(page: str, run: Callable[[Example], str]) -> str:
    """The page with what its examples print now."""

    def replace(match: re.Match[str]) -> str:
        group = "printed" if match["command"] is not None else "result"
        start, end = (at - match.start() for at in match.span(group))
        return match[0][:start] + run(_example(match)) + match[0][end:]

    return _EXAMPLE.sub(replace, page)


@contextmanager
def gateway(home: Path, config: Path = ROOT / "_models/config.yaml") -> Iterator[str]:
    """The address of a gateway with that configuration."""
    port = free_port()
    with serving(home, "--config", config, "--port", str(port)), answering(port):
        yield f"127.0.0.1:{port}"
