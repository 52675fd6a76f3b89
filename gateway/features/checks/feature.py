"""Checks of the installation, of what serving needs, and of a model's tool-call format."""

from __future__ import annotations

from gateway.feature import Feature

FEATURE = Feature(
    name="checks",
    commands={
        "doctor": (
            "gateway.features.checks.commands.doctor:doctor",
            "Check everything that serving needs, and try a client's requests.",
        ),
        "self": (
            "gateway.features.checks.commands.self_check:itself",
            "Check that this installation of ctxgate is complete.",
        ),
        "formats": (
            "gateway.features.checks.commands.formats:formats",
            "List the tool-call formats, or detect a model's.",
        ),
    },
)
