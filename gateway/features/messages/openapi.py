"""The part of `/openapi.json` about Anthropic's API."""

from __future__ import annotations

from gateway.api.openapi_paths import COUNT, OBJECT, SSE, TEXT, Json, described, list_of, object_of, one_of, operation
from gateway.features.messages.wire.request import CreateMessage

ANSWERS: dict[str, Json] = {
    "AnthropicError": object_of(
        "type error", type=one_of("error"), error=object_of("type message", type=TEXT, message=TEXT)
    ),
    "Message": object_of(
        "id type role model content stop_reason usage", id=TEXT, type=one_of("message"), role=one_of("assistant"),
        model=TEXT, content=list_of(OBJECT), usage=OBJECT,
    ),
    "MessageTokens": object_of("input_tokens", input_tokens=COUNT),
}  # fmt: skip


def _operation(id: str, summary: str, answer: str, stream: str | None = None) -> Json:
    return operation(
        id, summary, answer, request="CreateMessage", error="AnthropicError", stream=stream, tag="Anthropic"
    )


PATHS: dict[str, Json] = {
    "/v1/messages": {"post": _operation("createMessage", "A message", "Message", SSE)},
    "/v1/messages/count_tokens": {"post": _operation("countTokens", "Count the tokens of its prompt", "MessageTokens")},
}


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described({"CreateMessage": CreateMessage})
