"""How an answer of `/v1/messages` ends, by the stop sequences that were asked for."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.gateway.client import Answer
from tests.gateway.double import Json
from tests.gateway.running import Running

HELLO: list[Json] = [{"role": "user", "content": "Hello"}]
"""The model answers: Hello! How can I help you?"""
TOOL: Json = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}


def ended(answer: Answer | httpx.Response) -> tuple[str, str, str | None]:
    """The text, stop_reason and stop_sequence of an answer of `/v1/messages`, whole or streamed."""
    raw = answer.body if isinstance(answer, Answer) else answer.content
    if raw.startswith(b"{"):
        message = json.loads(raw)
        text = "".join(block.get("text", "") for block in message["content"])
        return text, message["stop_reason"], message["stop_sequence"]
    events = [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n") if line.startswith(b"data: ")]
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    (last,) = (event["delta"] for event in events if event["type"] == "message_delta")
    return text, last["stop_reason"], last["stop_sequence"]


REPORTED: dict[str, tuple[Json, tuple[str, str, str | None]]] = {
    "one": ({"stop_sequences": ["can I"]}, ("Hello! How ", "stop_sequence", "can I")),
    "none comes": ({"stop_sequences": ["zzz"]}, ("Hello! How can I help you?", "end_turn", None)),
    "none is given": ({}, ("Hello! How can I help you?", "end_turn", None)),
    "an empty list": ({"stop_sequences": []}, ("Hello! How can I help you?", "end_turn", None)),
    "the second": ({"stop_sequences": ["zzz", "can I"]}, ("Hello! How ", "stop_sequence", "can I")),
    "the first that comes": ({"stop_sequences": ["help", "How"]}, ("Hello! ", "stop_sequence", "How")),
    "within a word": ({"stop_sequences": ["lo"]}, ("Hel", "stop_sequence", "lo")),
    "the last character": ({"stop_sequences": ["?"]}, ("Hello! How can I help you", "stop_sequence", "?")),
    "the first character": ({"stop_sequences": ["H"]}, ("", "stop_sequence", "H")),
    "tools offered": ({"stop_sequences": ["can I"], "tools": [TOOL]}, ("Hello! How ", "stop_sequence", "can I")),
    "the limit first": ({"stop_sequences": ["help"], "max_tokens": 5}, ("Hello! ", "max_tokens", None)),
}
"""Fields, and how the answer ends."""


async def asked(gateway: Running, **more: Any) -> Answer:
    answer = await gateway.ask({"model": "m", "max_tokens": 40, "messages": HELLO, **more}, "/v1/messages")
    assert answer.status == 200, answer.body
    return answer
