"""Feeds `normalize.Answer`, batch by batch."""

from __future__ import annotations

import json
from typing import Any

from gateway.answer.normalize import Answer
from gateway.wire.chat import ChatRequest
from gateway.wire.engine import Fixup
from normalizers import registry
from tests.gateway.client import chat

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "fs.list_dir", "parameters": {"type": "object", "properties": {}}}},
]


def answer(format: str = "native_json", fixup: Fixup | None = None, *, guarded: bool = False, **fields: Any) -> Answer:
    request = ChatRequest.parse(json.dumps(chat(tools=TOOLS, **fields)).encode())
    return Answer(request, registry.get(format), fixup, guarded=guarded)


def fed(one: Answer, *payloads: bytes) -> list[bytes]:
    out: list[bytes] = []
    one.feed(list(payloads), out)
    return out


def streamed(one: Answer, batches: list[list[bytes]], *, done: bool = True) -> list[bytes]:
    return [clean for batch in batches for clean in fed(one, *batch)] + one.finish(done=done)
