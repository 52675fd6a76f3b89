"""What the person who runs the gateway sees and changes while it serves."""

from __future__ import annotations

from gateway.feature import Feature, Routes

SHOWN = Routes({
    "/metrics": {"GET": "gateway.features.operations.endpoints:metrics"},
    "/-/status": {"GET": "gateway.features.operations.endpoints:status"},
    "/-/plan": {
        "GET": "gateway.features.operations.endpoints:plan", "POST": "gateway.features.operations.endpoints:plan",
    },
    "/-/reload": {"POST": "gateway.features.operations.endpoints:reload"},
    "/-/usage": {"GET": "gateway.features.operations.usage:usage"},
    "/-/events": {"GET": "gateway.features.operations.live:events"},
    "/-/formats": {"GET": "gateway.features.operations.endpoints:formats"},
    "/-/logs/{name:path}": {"GET": "gateway.features.operations.endpoints:logs"},
    "/-/requests": {"GET": "gateway.features.operations.endpoints:requests"},
    "/-/requests/{key:path}": {"GET": "gateway.features.operations.endpoints:request"},
})  # fmt: skip

RECORDED = Routes({"/-/chat/completions": {"POST": "gateway.features.operations.recorded:create"}}, api="chat")

FEATURE = Feature(
    name="operations",
    routes=(SHOWN, RECORDED),
    commands={
        "plan": ("gateway.features.operations.commands.plan:plan", "Show what a changed config.yaml would change."),
        "status": ("gateway.features.operations.commands.status:status", "Show what the running gateway does."),
        "usage": (
            "gateway.features.operations.commands.usage:usage",
            "Show how much each key, model and program used.",
        ),
        "logs": ("gateway.features.operations.commands.logs:logs", "Show the output of a model's engine."),
        "replay": (
            "gateway.features.operations.commands.replay:replay",
            "Parse a recorded answer as another tool-call format.",
        ),
        "load": ("gateway.features.operations.commands.load:load", "Load a model into memory."),
        "unload": ("gateway.features.operations.commands.load:unload", "Unload a model from memory."),
        "chat": ("gateway.features.operations.commands.chat:chat", "Try a model in the terminal."),
        "prompts": ("gateway.features.operations.commands.prompts:prompts", "List and remove saved prompts."),
    },
    prunes=("gateway.features.operations.usage:prune",),
    migrations="gateway.features.operations.migrations",
    openapi="gateway.features.operations.openapi",
    offers={
        "add_usage": "gateway.features.operations.usage_table:add_totals",
        "tokens_today": "gateway.features.operations.usage_table:tokens_today",
    },
)
