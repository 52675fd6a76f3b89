"""Descriptions of all paths, for programs and for language models."""

from __future__ import annotations

from gateway.feature import Feature, Routes

ROUTES = Routes({
    "/openapi.json": {"GET": "gateway.features.descriptions.openapi:describe"},
    "/llms.txt": {"GET": "gateway.features.descriptions.llms_txt:show"},
})  # fmt: skip

FEATURE = Feature(name="descriptions", routes=(ROUTES,), openapi="gateway.features.descriptions.openapi")
