"""How well and how fast a model works: tests of its tool calls, settings of its engine, gates of a swap."""

from __future__ import annotations

from gateway.feature import Feature, Routes

FEATURE = Feature(
    name="evaluation",
    routes=(
        Routes(
            {
                "/-/evaluations": {"GET": "gateway.features.evaluation.endpoints:evaluations"},
                "/-/evaluations/{id}": {"GET": "gateway.features.evaluation.endpoints:evaluation"},
            }
        ),
    ),
    commands={
        "model-test": (
            "gateway.features.evaluation.commands.model_test:command",
            "Test how well a model calls tools.",
        ),
        "swap": (
            "gateway.features.evaluation.commands.swap:swap",
            "Make another model the active one, unless it calls tools worse.",
        ),
        "tune": (
            "gateway.features.evaluation.commands.tune:tune",
            "Find the fastest settings of a model's engine on this machine.",
        ),
    },
    openapi="gateway.features.evaluation.openapi",
    offers={"model_test": "gateway.features.evaluation.commands.model_test:program"},
)
