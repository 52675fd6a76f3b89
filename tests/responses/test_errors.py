"""Errors of requests that are chats underneath name the fields that the client sent."""

from __future__ import annotations

import httpx
import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses.wire.errors import error_object
from tests.gateway.double import Json, answers
from tests.gateway.running import running
from tests.patience import PATIENCE
from tests.responses.websocket import opened, turn

UNKNOWN: Json = {"type": "unknown"}
TOOL: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
WRONG: dict[str, tuple[Json, str]] = {
    # The first one is the engine's word, the others are the gateway's.
    "more tokens than there are numbers": ({"max_output_tokens": 10**12}, "max_output_tokens"),
    "the schema of a text": (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": UNKNOWN}}}, "text.format.schema",
    ),
    "the schema of a tool": ({"tools": [TOOL | {"parameters": UNKNOWN}]}, "tools[0].parameters"),
    "a penalty": ({"presence_penalty": 9}, "presence_penalty"),
    "a choice": ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_whole(real: str, name: str, path: str) -> None:
    fields, param = WRONG[name]
    answer = httpx.post(real + path, json={"model": "tiny", "input": "Hello", **fields}, timeout=PATIENCE)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["message"].partition(":")[0]) == (param, param)


def test_in_a_stream(real: str) -> None:
    """Before its first event it is an answer of its own; later ones are events."""
    body = {"model": "tiny", "input": "Hello", "tools": [TOOL], "top_logprobs": 2, "stream": True}
    answer = httpx.post(f"{real}/v1/responses", json=body, timeout=PATIENCE)
    assert '"param":"top_logprobs"' in answer.text, answer.text
    assert '"message":"top_logprobs:' in answer.text


async def test_over_a_websocket() -> None:
    async with running(answers()) as gateway, opened(gateway) as client:
        text = {"format": {"type": "json_schema", "name": "x", "schema": UNKNOWN}}
        error = (await turn(client, text=text))[-1]["error"]
    assert (error["param"], error["message"].partition(":")[0]) == ("text.format.schema", "text.format.schema")


@pytest.mark.parametrize(
    ("field", "own"),
    [
        ("max_tokens", "max_output_tokens"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format", "text.format"),
        ("response_format.type", "text.format.type"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("messages", "input"),
        ("messages[3].content[1]", "input"),
        ("tools", "tools"),
        ("tools[12].function.name", "tools[12].name"),
        ("max_tokens_more", "max_tokens_more"),
        ("input[1].content", "input[1].content"),
        (None, None),
    ],
)
def test_names(field: str | None, own: str | None) -> None:
    for said, expected in ((f"{field}: no", f"{own}: no"), ("no", "no"), (f"no {field}", f"no {field}")):
        error = error_object(ProviderInvalidRequest(said, param=field))["error"]
        assert (error["param"], error["message"]) == (own, expected)
