"""A gateway with one echo, whose model has a name to be known by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.commands import config, serving
from tests.ports import free_port


@contextmanager
def gateway(folder: Path, server: str = "", name: str = "mine", *args: str, **environ: str) -> Iterator[str]:
    """server: more keys of config.yaml's server. Yields the address that it says."""
    made = f"active_model: {name}\nmodels: {{{name}: {{runtime: echo}}}}\nserver: {{port: {free_port()}{server}}}\n"
    folder.mkdir(exist_ok=True)
    config(folder, made)
    with serving(folder, *args, **environ) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[1]
