"""The section, the path and the command."""

from pathlib import Path

import click

from gateway.cli.options import Command, config_option, configuration
from gateway.config import Config
from gateway.config.file import Entry
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request


class Greeting(Entry, frozen=True):
    """How people are greeted."""

    words: str = "Hello"


def greeting(config: Config, name: str) -> str:
    return f"{config.section(Greeting).words}, {name}!"


async def hello(request: Request) -> ASGIApp:
    return JSON({"greeting": greeting(request.gateway.config, request.path_params["name"])})


@click.command(cls=Command)
@config_option
@click.argument("name", help="Whom to greet.")
def greet(config: Path | None, name: str) -> None:
    """Greets somebody."""
    print(greeting(configuration(config), name))
