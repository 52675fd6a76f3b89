"""One request through a backend and the normaliser, without the gateway around them."""

from __future__ import annotations

import json
from typing import Any

from gateway import backends
from gateway.answer.errors import EngineError
from gateway.answer.normalize import Answer
from gateway.backends import Address
from gateway.config import Model
from gateway.wire.chat import ChatRequest
from normalizers import registry


async def ask(
    model: Model, address: Address | None, request: bytes, format: str = "native_json"
) -> list[dict[str, Any]]:
    """The clean answer, one element, or its chunks. Raises what the gateway would."""
    asked = ChatRequest.parse(request)
    backend = backends.load(model.runtime)(model, address)
    try:
        reply = await backend.open(asked, dict(asked.fields))
        answer = Answer(asked, registry.get(format), reply.fixup)
        try:
            if not asked.stream:
                return [json.loads(answer.whole(await reply.whole()))]
            chunks: list[bytes] = []
            while payloads := await reply.payloads():
                answer.feed(payloads, chunks)
            return [json.loads(chunk) for chunk in [*chunks, *answer.finish(done=reply.done)]]
        except EngineError as error:
            raise backend.error(500, error.payload) from None
        finally:
            reply.close()
    finally:
        await backend.aclose()


def folded(chunks: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]], str]]:
    """Content, calls and finish_reason of each choice, from an answer or its chunks."""
    choices: dict[int, tuple[list[str], list[dict[str, Any]], list[str]]] = {}
    for chunk in chunks:
        for frame in chunk["choices"]:
            content, calls, reasons = choices.setdefault(frame["index"], ([], [], []))
            delta = frame.get("message") or frame.get("delta") or {}
            content.append(delta.get("content") or "")
            for position, call in enumerate(delta.get("tool_calls") or ()):
                index = call.get("index", position)
                assert index <= len(calls), "indices count up"
                if index == len(calls):
                    calls.append({"id": call["id"], "type": call["type"], "name": call["function"]["name"], "text": ""})
                calls[index]["text"] += call["function"]["arguments"]
            if frame.get("finish_reason"):
                reasons.append(frame["finish_reason"])
    for _, _, reasons in choices.values():
        assert len(reasons) == 1, "one finish_reason"
    return [("".join(content), calls, reasons[0]) for content, calls, reasons in choices.values()]
