"""`ctxgate prompts`"""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import quote

import click

from gateway.cli.client import RunningGateway
from gateway.cli.options import Group, config_option, configuration, json_option, url_option
from gateway.cli.text import say
from gateway.prompts.folder import Folder
from gateway.prompts.index import Saved
from gateway.wire.text import printable

EXAMPLES = """\
examples:
  ctxgate prompts ls                        the saved prompts, the last used first
  ctxgate prompts rm 20261122-190213-fa37b022
  ctxgate prompts rm --model qwen2.5-32b    all of one model
  ctxgate prompts rm --all
  ctxgate prompts why                       what made engines read prompts again
"""


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def prompts(config: Path | None) -> None:
    """Lists and removes saved prompts. Their files contain whole conversations.

    Engines save the prompts that they have read, so that nobody has to wait for them again after a swap or a restart
    (prompts in config.yaml). Needs no running gateway.
    """


@prompts.command("ls")
@config_option
@json_option
def ls(config: Path | None, as_json: bool) -> None:
    """Lists the saved prompts, the last used first."""
    found = sorted(_folder(config).list().values(), key=lambda saved: saved.used, reverse=True)
    if as_json:
        say(json.dumps({"prompts": [_shown(saved) for saved in found]}, indent=2))
        return
    from gateway.cli.table import show, table

    head = ("NAME", "MODEL", "TOKENS", "SIZE", "SAVED", "USED")
    rows = [
        (
            saved.name,
            saved.model,
            str(saved.tokens),
            f"{saved.size / 1e6:.1f} MB",
            _time(saved.saved),
            _time(saved.used),
        )
        for saved in found
    ]
    show(table(head, rows, right=("TOKENS", "SIZE")))


@prompts.command("rm")
@config_option
@click.argument("names", nargs=-1, metavar="[NAME]...", help="As `ctxgate prompts ls` shows it.")
@click.option("--model", metavar="MODEL", help="All prompts of this model.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
def rm(config: Path | None, names: tuple[str, ...], model: str | None, everything: bool) -> None:
    """Removes saved prompts. The next request with such a prompt has to read it again."""
    folder = _folder(config)
    found = folder.list()
    if not (names or model is not None or everything):
        raise click.UsageError("name the prompts to remove, or use --model or --all")
    if unknown := [name for name in names if name not in found]:
        raise click.UsageError(f"there is no saved prompt {unknown[0]}; `ctxgate prompts ls` lists them")
    gone = [saved for saved in found.values() if everything or saved.name in names or saved.model == model]
    for saved in gone:
        folder.remove(saved.name)
    say(f"removed {len(gone)} of {len(found)} saved prompts, {_size(sum(saved.size for saved in gone))}")


@prompts.command("why")
@config_option
@url_option
@click.argument("id", required=False, metavar="[ID]", help="A request's id, as in /-/requests.")
def why(config: Path | None, url: str | None, id: str | None) -> None:
    """Shows where a prompt first differed from the previous turn, so that its engine had to read it again.

    Without an ID, all requests in the log of the running gateway whose prompts did.
    """
    with RunningGateway(config, url) as gateway:
        if id is not None:
            entries = [gateway.ask("GET", f"/-/requests/{quote(id, safe='')}")["request"]]
        else:
            entries = [entry for entry in gateway.ask("GET", "/-/requests")["requests"] if entry["prefix"]]
    for entry in entries:
        cached = f"{entry['cached_tokens']} of {entry['prompt_tokens']} tokens cached"
        say(f"request {entry['id']}: {entry['model']}, {cached}")
        for finding in entry["prefix"]:
            say(f"  {printable(finding)}")
        if not entry["prefix"]:
            say("  continues the previous turn, starts a new conversation, or is too short to tell")
    if not entries:
        say("no prompt in the log differs from the previous turn")


def _folder(config: Path | None) -> Folder:
    return Folder(configuration(config).state_dir / "prompts")


def _shown(saved: Saved) -> dict[str, object]:
    return {
        "name": saved.name, "model": saved.model, "tokens": saved.tokens, "bytes": saved.size,
        "saved_at": saved.saved, "used_at": saved.used,
    }  # fmt: skip


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
