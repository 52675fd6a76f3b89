"""Names of Anthropic's API that the gateway's endpoint writes and the provider reads."""

from __future__ import annotations

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""OpenAI's finish_reason → Anthropic's stop_reason; any other becomes `end_turn`."""

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    410: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""HTTP status → error type; any other becomes `api_error`."""
