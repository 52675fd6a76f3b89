"""Anthropic's Messages API."""

from __future__ import annotations

from gateway.feature import Feature, Routes

ERRORS, LIMITS = "gateway.features.messages.wire.answer:error_object", "gateway.wire.limits:anthropic_headers"

FEATURE = Feature(
    name="messages",
    routes=(
        Routes(
            {"[/v1]/messages": {"POST": "gateway.features.messages.endpoints:create"}},
            prefixes=("/v1/messages", "/messages"),
            errors=ERRORS,
            limits=LIMITS,
            api="messages",
        ),
        Routes({"[/v1]/messages/count_tokens": {"POST": "gateway.features.messages.endpoints:count_tokens"}}),
    ),
    openapi="gateway.features.messages.openapi",
    offers={"anthropic_model": "gateway.features.messages.wire.models:told"},
)
