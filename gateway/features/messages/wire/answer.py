"""Encodes a chat answer as Anthropic's message object or stream of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any
from uuid import uuid4

import msgspec

from gateway.errors import GatewayError, ProviderInvalidResponse
from gateway.wire.anthropic import ERROR_TYPES, STOP_REASONS
from gateway.wire.chat import decode
from gateway.wire.pieces import CallArguments, CallStart, Citation, End, Piece, ReasoningPiece, TextPiece, UsagePiece

Event = dict[str, Any]

TIERS = {"priority": "priority", "flex": "batch"}
"""Service tiers → Anthropic's names; any other becomes `standard`."""


def new_id() -> str:
    return f"msg_{uuid4().hex}"


def error_object(error: GatewayError) -> Event:
    """An error in Anthropic's format, plus the other fields of `GatewayError`."""
    known = {"code": error.code, "category": error.category, "param": error.param, **error.details}
    more = {name: value for name, value in known.items() if value is not None}
    kind = ERROR_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": _message(error), **more}}


def _message(error: GatewayError) -> str:
    """The error for a prompt that is too long in Anthropic's wording, from which clients parse both numbers."""
    if error.code != "context_length_exceeded":
        return error.message
    prompt, window = error.details.get("prompt_tokens"), error.details.get("context_window")
    sizes = f": {prompt} tokens > {window} maximum" if prompt is not None and window is not None else ""
    return f"prompt is too long{sizes}; shorten the messages, or raise the model's context_window"


class MessageEncoder:
    """Turns pieces into events: `opening`, then `feed` for each batch, then `finish` or `fail`.

    message: the message so far, after `finish` the whole answer. thinking: include the model's reasoning; omitted:
    include its blocks without their text.
    """

    def __init__(self, model: str, *, thinking: bool, omitted: bool = False, id: Callable[[], str] = new_id) -> None:
        self.message: dict[str, Any] = {
            "id": id(),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(UsagePiece()),
        }
        self._thinking = thinking
        self._omitted = omitted
        self._open = False
        self._call: int | None = None
        self._bare: set[int] = set()
        """Calls that ended without arguments. The end of the chat stream repeats them with `{}`."""
        self._texts: list[str] = []
        self._end = End("stop")
        self._refused = False
        self._tier: dict[str, str] = {}

    def name_tier(self, tier: str | None) -> None:
        """tier: the chat request's; Anthropic's answers have names of their own. None: say none. Call it first."""
        if tier is not None:
            self._tier = {"service_tier": TIERS.get(tier, "standard")}
            self.message["usage"] |= self._tier

    def read(self, prompt: int, cached: int) -> None:
        """The prompt's tokens, `cached` ones among them, if they are known before `opening`."""
        self.message["usage"] = _usage(UsagePiece(prompt=prompt, cached=cached)) | self._tier

    def opening(self) -> list[Event]:
        return [{"type": "message_start", "message": {**self.message, "content": []}}, {"type": "ping"}]

    def feed(self, pieces: Iterable[Piece]) -> list[Event]:
        """Raises ProviderInvalidResponse for arguments of a call that has already ended."""
        events: list[Event] = []
        for piece in pieces:
            match piece:
                case TextPiece() if piece.text:
                    self._refused = self._refused or piece.refused
                    self._ensure_block(events, "text", {"text": ""})
                    self._add_delta(events, piece.text, {"type": "text_delta", "text": piece.text})
                case Citation():
                    self._ensure_block(events, "text", {"text": ""})
                    self._cite(events, piece)
                case ReasoningPiece() if self._thinking:
                    self._ensure_block(events, "thinking", {"thinking": "", "signature": ""})
                    if not self._omitted:
                        self._add_delta(events, piece.text, {"type": "thinking_delta", "thinking": piece.text})
                case CallStart():
                    self._begin(events, {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
                    self._call = piece.index
                case CallArguments():
                    if self._call != piece.index and piece.index in self._bare and piece.json == "{}":
                        continue
                    if self._call != piece.index:
                        raise ProviderInvalidResponse(
                            f"the engine sent arguments for call {piece.index}, which has ended"
                        )
                    self._add_delta(events, piece.json, {"type": "input_json_delta", "partial_json": piece.json})
                case End():
                    self._end = piece
                case UsagePiece():
                    self.message["usage"] = _usage(piece) | self._tier
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if not self.message["content"]:
            self._begin(events, {"type": "text", "text": ""})
        self._close(events)
        # Whoever reads `stop_sequence` runs no tool, so calls go first.
        stop = self._end.stop if self._end.reason == "stop" else None
        finish = "content_filter" if self._refused and self._end.reason == "stop" else self._end.reason
        reason = "stop_sequence" if stop is not None else STOP_REASONS.get(finish, "end_turn")
        ending = {"stop_reason": reason, "stop_sequence": stop}
        self.message |= ending
        return [
            *events,
            {"type": "message_delta", "delta": ending, "usage": self.message["usage"]},
            {"type": "message_stop"},
        ]

    def fail(self, error: GatewayError) -> list[Event]:
        return [error_object(error)]

    def _ensure_block(self, events: list[Event], kind: str, empty: dict[str, Any]) -> None:
        """Makes sure that the open block is of that kind."""
        if not self._open or self.message["content"][-1]["type"] != kind:
            self._begin(events, {"type": kind, **empty})

    def _begin(self, events: list[Event], block: dict[str, Any]) -> None:
        self._close(events)
        self.message["content"].append(block)
        self._open = True
        events.append({"type": "content_block_start", "index": self._index, "content_block": {**block}})

    def _add_delta(self, events: list[Event], text: str, delta: dict[str, Any]) -> None:
        self._texts.append(text)
        events.append({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _cite(self, events: list[Event], piece: Citation) -> None:
        citation = {
            "type": "web_search_result_location",
            "cited_text": "".join(self._texts)[piece.start_index or 0 : piece.end_index or 0],
            "encrypted_index": "",
            "title": piece.title,
            "url": piece.url,
        }
        self.message["content"][-1].setdefault("citations", []).append(citation)
        delta = {"type": "citations_delta", "citation": citation}
        events.append({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self, events: list[Event]) -> None:
        if not self._open:
            return
        block = self.message["content"][-1]
        text, self._texts = "".join(self._texts), []
        if block["type"] == "tool_use":
            block["input"] = _input(text, cut=self._end.reason == "length")
            if not text and self._call is not None:
                self._bare.add(self._call)
        elif block["type"] == "thinking":
            block["thinking"] = text
            # Clients expect a signature and send it back.
            block["signature"] = sha256(text.encode()).hexdigest()
            delta = {"type": "signature_delta", "signature": block["signature"]}
            events.append({"type": "content_block_delta", "index": self._index, "delta": delta})
        else:
            block["text"] = text
        events.append({"type": "content_block_stop", "index": self._index})
        self._open, self._call = False, None

    @property
    def _index(self) -> int:
        return len(self.message["content"]) - 1


def _input(arguments: str, *, cut: bool) -> Any:
    """Decodes a call's arguments; none are left of a call that the answer's length cut.

    Raises ProviderInvalidResponse for invalid JSON.
    """
    if not arguments:
        return {}
    try:
        return decode(arguments)
    except (msgspec.DecodeError, RecursionError) as error:
        if cut:
            return {}
        raise ProviderInvalidResponse(
            f"the model wrote tool call arguments that are not valid JSON: {error}"
        ) from error


def _usage(usage: UsagePiece) -> dict[str, Any]:
    """Anthropic counts cached tokens separately."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
