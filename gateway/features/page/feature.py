"""The page that shows the gateway at work."""

from __future__ import annotations

from gateway.feature import Feature, Routes

FEATURE = Feature(
    name="page",
    routes=(
        Routes(
            {
                "/ui/{file:path}": {"GET": "gateway.features.page.endpoints:file"},
                "/-/clients": {"GET": "gateway.features.page.clients:clients"},
            }
        ),
    ),
    openapi="gateway.features.page.openapi",
    offers={"page": "gateway.features.page.endpoints:index"},
)
