"""/llm/factory: rooms from the templates of config.yaml."""

from __future__ import annotations

from typing import Any, NoReturn

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.features.agents.settings import Rooms as Settings
from gateway.features.agents.settings import RoomTemplate
from gateway.features.rooms.endpoints import enveloped, read
from gateway.features.rooms.schemas import Made, Say, Template
from gateway.features.rooms.service import Rooms
from gateway.features.rooms.templates import rented
from gateway.server.http import Request


def _shown(name: str, template: RoomTemplate) -> Template:
    return Template(name=name, description=template.description, room=rented(name, template))


def _named(config: Config, name: str) -> RoomTemplate:
    template = config.section(Settings).templates.get(name)
    if template is None:
        known = ", ".join(config.section(Settings).templates) or "none"
        message = f"no template {name!r}; rooms.templates in config.yaml has: {known}"
        raise ProviderInvalidRequest(message, code="template_not_found", status=404)
    return template


@enveloped
async def templates(rooms: Rooms, request: Request) -> tuple[int, Any]:
    return 200, [
        _shown(name, template) for name, template in request.gateway.config.section(Settings).templates.items()
    ]


@enveloped
async def template(rooms: Rooms, request: Request) -> tuple[int, Any]:
    name = request.path_params["name"]
    return 200, _shown(name, _named(request.gateway.config, name))


@enveloped
async def make(rooms: Rooms, request: Request) -> tuple[int, Any]:
    """Rents a room from the template, and sends its first message if there is one."""
    wanted = await read(request, Made)
    first = Say(content=wanted.content) if wanted.content is not None else None
    if first is not None:
        first.text()
    name = request.path_params["name"]
    rent = rented(name, _named(request.gateway.config, name))
    rent.metadata = {**rent.metadata, **wanted.metadata}
    tenant, user = request.principal.tenant, request.principal.user
    room = await rooms.rent(tenant, user, rent)
    if first is not None:
        await rooms.say(tenant, user, room.id, first)
        room = await rooms.get(tenant, room.id)
    return 201, room


@enveloped
async def runs(rooms: Rooms, request: Request) -> tuple[int, Any]:
    _no_runs()


def _no_runs() -> NoReturn:
    message = (
        "this gateway keeps no runs: plan, issues, verification and review of a run belong to the program that drives "
        "the rooms; POST /llm/factory/NAME makes a room from a template of config.yaml"
    )
    raise ProviderInvalidRequest(message, code="factory_runs_unsupported", status=404)
