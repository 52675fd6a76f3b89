"""`ctxgate remove`"""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.options import Command, config_option, configuration
from gateway.cli.text import say

EXAMPLES = """\
examples:
  ctxgate remove qwen3-4b            only its entry in config.yaml
  ctxgate remove qwen3-4b --weights  its files, too
"""


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--weights", is_flag=True, help="Delete its weights, too (for a model in Ollama: from Ollama).")
@click.argument("name", metavar="NAME", help="A model of config.yaml.")
def remove(config: Path | None, weights: bool, name: str) -> None:
    """Removes a model from config.yaml. Comments of other models stay; a running gateway notices the change itself."""
    from gateway.features.models.inventory.remove import remove as removed

    loaded = configuration(config)
    model = loaded.resolve(name)
    files = removed(loaded, model, weights=weights)
    say(f"{loaded.source} has no {model.name} any more")
    for file in files:
        say(f"deleted {file}")
    if not weights and model.path is not None and model.path.exists():
        say(f"its weights stay at {model.path}")
