"""Errors of the Responses API: they name the fields that its clients send, not those of the chat made of them."""

from __future__ import annotations

import re
from typing import Any

from gateway.errors import GatewayError

NAMES = {
    r"max_(completion_)?tokens": "max_output_tokens",
    r"reasoning_effort": "reasoning.effort",
    r"response_format(\.json_schema)?": "text.format",
    r"logprobs": "top_logprobs",
    # Items become messages, but not one by one.
    r"messages\b.*": "input",
    r"(tools\[\d+\])\.function": r"\1",
}
"""Fields of a chat → those of a response; what follows stays."""


def named(field: str) -> str:
    """The field of a response that a chat's field comes from."""
    for name, own in NAMES.items():
        if (found := re.match(rf"(?:{name})(?=$|[.\[])", field)) is not None:
            return found.expand(own) + field[found.end() :]
    return field


def error_object(error: GatewayError) -> dict[str, Any]:
    """An error in OpenAI's format."""
    body: dict[str, Any] = error.body()
    if error.param is not None:
        body["error"] |= {"param": named(error.param), "message": message(error)}
    return body


def message(error: GatewayError) -> str:
    """Its words, which begin with the field in most cases."""
    param, said = error.param, error.message
    return named(param) + said.removeprefix(param) if param is not None and said.startswith(f"{param}:") else said
