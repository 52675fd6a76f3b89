"""OpenAI's older API: a model continues a text."""

from __future__ import annotations

from gateway.feature import Feature, Routes

FEATURE = Feature(
    name="completions",
    routes=(
        Routes({"[/v1]/completions": {"POST": "gateway.features.completions.endpoints:create"}}, api="completions"),
    ),
    openapi="gateway.features.completions.openapi",
)
