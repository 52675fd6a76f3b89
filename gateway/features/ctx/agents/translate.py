"""A room's events as the canonical stream of an agent. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gateway.errors import CATEGORIES
from gateway.features.ctx.errors import NotFound
from gateway.features.ctx.errors import code as errno_name
from gateway.features.ctx.events import (
    Delta,
    Done,
    Error,
    Event,
    Message,
    Start,
    Status,
    Text,
    ToolCall,
    ToolResult,
    UsageEvent,
)
from gateway.features.rooms.schemas import Event as RoomEvent

_CURSOR = re.compile(r"event-(\d{1,10})(?:\.(\d{1,3}))?")

LAST = 10_000
"""Stands for the last event that one of the room's events becomes: its id has no second number."""

_ENDED: dict[str, Status] = {"done": "ok", "limited": "ok", "interrupted": "cancelled", "failed": "error"}


def run_id(message_id: str) -> str:
    """The run that answers a message of a room."""
    return f"run-{message_id.replace('-', '')}"


def cursor(id: str | None) -> tuple[int, int]:
    """The place of an event's id, so that places compare; (0, 0) without an id. Raises NotFound."""
    if id is None:
        return 0, 0
    found = _CURSOR.fullmatch(id)
    if found is None:
        raise NotFound(f"no event {id}")
    return int(found[1]), int(found[2] or LAST)


class Translation:
    """Translates a room's events in their order. agent: the object's name. clients: message id → the client's id."""

    def __init__(self, agent: str, clients: dict[str, str] | None = None) -> None:
        self._agent = agent
        self._clients = clients or {}
        self._sent: dict[str, str] = {}
        """Message → the text of the present model call that deltas have brought so far."""

    def feed(self, event: RoomEvent) -> list[tuple[tuple[int, int], Event]]:
        """What the event becomes, each with its place."""
        if event.message_id is None:
            return []
        run = run_id(event.message_id)
        made = list(self._events(event, event.message_id, run, event.payload))
        placed = []
        for number, one in enumerate(made, 1):
            last = number == len(made)
            one.id = f"event-{event.seq}" if last else f"event-{event.seq}.{number}"
            one.run = run
            placed.append(((event.seq, LAST if last else number), one))
        return placed

    def _events(self, event: RoomEvent, message: str, run: str, payload: dict[str, Any]) -> Iterator[Event]:
        match event.event_type:
            case "agent:turn_start":
                yield Start(agent=self._agent, client_id=self._clients.get(message, UNSET))
            case "agent:model_call":
                self._sent[message] = ""
            case "agent:update":
                self._sent[message] = self._sent.get(message, "") + payload["text"]
                yield Delta(text=payload["text"])
            case "agent:message" if payload["content"]:
                text, sent = payload["content"], self._sent.pop(message, "")
                if rest := text.removeprefix(sent):
                    yield Delta(text=rest)
                yield Message(content=[Text(text)])
            case "tool:call":
                yield ToolCall(name=payload["name"], arguments=_raw(payload["arguments"]), call_id=payload["call_id"])
            case "tool:result":
                name, result = payload["name"], _raw(payload["result"])
                yield ToolResult(name=name, result=result, ok=payload["ok"], call_id=payload["call_id"])
            case "tool:refused":
                yield ToolCall(name=payload["name"], arguments=_raw(payload["arguments"]))
                refused = _raw({"error": {"code": "refused", "message": payload["reason"]}})
                yield ToolResult(name=payload["name"], result=refused, ok=False)
            case "agent:turn_end":
                yield from self._end(payload)
            case "error":
                yield Error(code=error_code(payload), message=payload["message"])
                yield Done(status="error")
            case "message:cancelled":
                yield Done(status="cancelled")

    def _end(self, payload: dict[str, Any]) -> Iterator[Event]:
        if (usage := payload.get("usage")) is not None and usage.get("total"):
            yield UsageEvent(input_tokens=usage["input"], output_tokens=usage["output"])
        # An `error` follows a failed turn.
        if payload["status"] != "failed":
            yield Done(status=_ENDED.get(payload["status"], "error"), reason=payload.get("limit") or UNSET)


def error_code(payload: dict[str, Any]) -> str:
    """The errno of a room's error: that of the same error on a model."""
    category, finer = payload.get("category"), payload.get("code")
    if category is None:
        # Rooms of earlier versions recorded the code alone.
        category = "provider_invalid_request" if finer == "context_length_exceeded" else None
    for kind in CATEGORIES.values():
        if category == kind.category or (category is None and finer == kind.default_code):
            return errno_name(kind(""))
    return {"internal_error": "EIO", "turn_cut_off": "EINTR"}.get(str(finer), "EPROTO")


def _raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))
