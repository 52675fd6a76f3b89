"""The gateway as a service of systemd or launchd."""

from __future__ import annotations

from gateway.feature import Feature

FEATURE = Feature(
    name="service",
    commands={
        "service": (
            "gateway.features.service.commands.service:service",
            "Keep the gateway running: install it for systemd or launchd.",
        )
    },
)
