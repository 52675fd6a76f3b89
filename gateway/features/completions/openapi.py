"""The part of `/openapi.json` about `/v1/completions`."""

from __future__ import annotations

from gateway.api.openapi_paths import OBJECT, SSE, Json, described, list_of, object_of, operation
from gateway.wire.completions import Known

PATHS: dict[str, Json] = {
    "/v1/completions": {
        "post": operation("createCompletion", "Continue a text", "Completion", request="CreateCompletion", stream=SSE)
    },
}


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return {"Completion": object_of("choices", choices=list_of(OBJECT)), **described({"CreateCompletion": Known})}
