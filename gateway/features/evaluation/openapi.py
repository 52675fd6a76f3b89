"""The part of `/openapi.json` about results of model tests."""

from __future__ import annotations

from gateway.api.openapi_paths import Json, operations, parameter

PATHS: dict[str, Json] = {
    "/-/evaluations": {"get": operations("evaluations", "Results of model tests")},
    "/-/evaluations/{name}": {"get": operations("evaluation", "One result", parameters=(parameter("name"),))},
}
