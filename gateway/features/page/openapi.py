"""The part of `/openapi.json` about the page."""

from __future__ import annotations

from gateway.api.openapi_paths import Json, operations, parameter

PATHS: dict[str, Json] = {
    "/ui/{file}": {
        "get": operations("page", "A file of the page", stream="text/html", parameters=(parameter("file"),))
    },
    "/-/clients": {
        "get": operations(
            "clients",
            "How clients are configured",
            parameters=(parameter("model", "query"), parameter("address", "query")),
        )
    },
}
