"""Rooms: agents that live on the server."""

from __future__ import annotations

from gateway.feature import Background, Feature, Routes

ROUTES = Routes(
    prefixes=("/llm", "/api/user"),
    errors="gateway.features.rooms.endpoints:error_object",
    finishes=True,
    paths={
        "/llm/room[/]": {
            "GET": "gateway.features.rooms.endpoints:visible", "POST": "gateway.features.rooms.endpoints:rent",
        },
        "/llm/room/{id}[/]": {
            "GET": "gateway.features.rooms.endpoints:get", "PATCH": "gateway.features.rooms.endpoints:update",
        },
        "/llm/room/{id}/messages[/]": {"POST": "gateway.features.rooms.endpoints:say"},
        "/llm/room/{id}/wake[/]": {"POST": "gateway.features.rooms.endpoints:wake"},
        "/llm/room/{id}/events[/]": {"GET": "gateway.features.rooms.endpoints:events"},
        "/llm/room/{id}/history[/]": {"GET": "gateway.features.rooms.endpoints:history"},
        "/llm/room/{id}/interrupt[/]": {"POST": "gateway.features.rooms.endpoints:interrupt"},
        "/llm/room/{id}/release[/]": {"POST": "gateway.features.rooms.endpoints:release"},
        "/llm/room/{id}/files[/]": {"GET": "gateway.features.rooms.files:listed"},
        "/llm/room/{id}/files/{path:path}": {
            "GET": "gateway.features.rooms.files:content", "PUT": "gateway.features.rooms.files:upload",
            "DELETE": "gateway.features.rooms.files:delete",
        },
        "/llm/room/{id}/zip[/]": {"GET": "gateway.features.rooms.files:zipped"},
        "/llm/factory[/]": {"GET": "gateway.features.rooms.factory:templates"},
        "/llm/factory/runs[/]": {
            "GET": "gateway.features.rooms.factory:runs", "POST": "gateway.features.rooms.factory:runs",
        },
        "/llm/factory/{name}[/]": {
            "GET": "gateway.features.rooms.factory:template", "POST": "gateway.features.rooms.factory:make",
        },
        "/llm/describe[/]": {"GET": "gateway.features.rooms.records:models"},
        "/llm/describe/{model}[/]": {
            "GET": "gateway.features.rooms.records:describe", "PUT": "gateway.features.rooms.records:define",
        },
        "/llm/data/{model}[/]": {
            "GET": "gateway.features.rooms.records:listed", "POST": "gateway.features.rooms.records:create",
        },
        "/llm/data/{model}/{id}[/]": {
            "GET": "gateway.features.rooms.records:get", "PATCH": "gateway.features.rooms.records:update",
            "DELETE": "gateway.features.rooms.records:delete",
        },
        "/llm/find/{model}[/]": {"POST": "gateway.features.rooms.records:find"},
        "/llm/aggregate/{model}[/]": {"POST": "gateway.features.rooms.records:aggregate"},
        "/api/user/secrets[/]": {
            "GET": "gateway.features.rooms.endpoints:secrets", "POST": "gateway.features.rooms.endpoints:add_secret",
        },
        "/api/user/secrets/{id}[/]": {"DELETE": "gateway.features.rooms.endpoints:delete_secret"},
    },
)  # fmt: skip

FEATURE = Feature(
    name="rooms",
    sections={"rooms": "gateway.features.agents.settings:Rooms"},
    at_start=("rooms",),
    settle="gateway.features.rooms.settle:settle",
    routes=(ROUTES,),
    commands={
        "room": ("gateway.features.rooms.commands.room:room", "Rent a room, talk to it, watch it, release it."),
        "records": (
            "gateway.features.rooms.commands.records:records", "Define the models of records that rooms use.",
        ),
    },
    # Resumes rooms that were active when the gateway ended.
    background=(
        Background(
            "gateway.features.rooms.endpoints:resume",
            lambda config: "cluster" in config.sections or (config.state_dir / "rooms.open").exists(),
        ),
    ),
    prunes=("gateway.features.rooms.expiry:prune",),
    migrations="gateway.features.rooms.migrations",
    openapi="gateway.features.rooms.openapi",
    offers={"record_views": "gateway.features.rooms.views:VIEWS"},
)  # fmt: skip
