"""The clients that the gateway knows: `ctxgate launch` starts them with a model of this machine."""

from __future__ import annotations

from gateway.feature import Feature

FEATURE = Feature(
    name="clients",
    commands={
        "launch": (
            "gateway.features.clients.commands.launch:launch",
            "Start a coding agent with a model of this machine.",
        )
    },
)
