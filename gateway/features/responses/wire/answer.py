"""Encodes a chat answer as OpenAI's response object or stream of events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Raw

from gateway.errors import GatewayError, ProviderInvalidResponse
from gateway.features.responses.wire.custom import InputReader
from gateway.features.responses.wire.errors import error_object
from gateway.features.responses.wire.request import CreateResponse, Item, ToolTable, seal
from gateway.wire.chat import encode
from gateway.wire.pieces import CallArguments, CallStart, Citation, End, Piece, ReasoningPiece, TextPiece, UsagePiece

Event = dict[str, Any]

ERROR_CODES = {"provider_rate_limit": "rate_limit_exceeded", "provider_invalid_request": "invalid_prompt"}
"""Error category → OpenAI's code of a failed response; any other becomes `server_error`."""

PARTS = {
    "message": ("output_text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning": ("reasoning_text", "text"),
}
"""Kind of text → the type of its part, and the part's field."""

RUNNING = ("queued", "in_progress")


def new_id(prefix: str) -> str:
    """A new one sorts behind the older ones, to the microsecond: where there is a quota, the oldest go first."""
    return f"{prefix}_{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def response_object(
    request: CreateResponse, model: str, tools: ToolTable, *, id: str, created_at: int, store: bool
) -> dict[str, Any]:
    """The response object before the answer begins."""
    background = bool(request.background)
    format = request.text.format if request.text is not None else None
    text: dict[str, Any] = {"format": {"type": "text"}}
    if format is not None:
        defaults = {"description": None, "strict": False} if format.type == "json_schema" else {}
        text["format"] = defaults | {key: value for key, value in _fields(format).items() if value is not None}
    if request.text is not None and request.text.verbosity is not None:
        text["verbosity"] = request.text.verbosity
    effort, summary = (request.reasoning.effort, request.reasoning.summed) if request.reasoning else (None, None)
    return {
        "id": id,
        "object": "response",
        "created_at": created_at,
        "status": "queued" if background else "in_progress",
        "background": background,
        "completed_at": None,
        "conversation": None if request.conversation_id is None else {"id": request.conversation_id},
        "error": None,
        "incomplete_details": None,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": summary},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": text,
        "tool_choice": request.tool_choice or "auto",
        # The model can't call dropped tools.
        "tools": [_with_defaults(tool) for tool in request.tools or () if tool.get("type") not in tools.dropped],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
    }


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _with_defaults(tool: Item) -> Item:
    return {"description": None, "strict": None, "parameters": None, **tool} if tool.get("type") == "function" else tool


class ResponseEncoder:
    """Turns pieces into events: `opening`, then `feed` for each batch, then `close` and `last`, or `fail` or `cancel`.

    response: the response so far, after `close` the whole answer. now: seconds since 1970, for `completed_at`.
    """

    def __init__(
        self,
        response: dict[str, Any],
        tools: ToolTable,
        now: Callable[[], float],
        *,
        sealed: bool = False,
        id: Callable[[str], str] = new_id,
    ) -> None:
        """sealed: reasoning items get `encrypted_content`."""
        self.response = response
        self._tools = tools
        self._now = now
        self._sealed = sealed
        self._id = id
        self._sequence = 0
        self._open: _Open | None = None
        self._bare: set[int] = set()
        """Calls that ended without arguments. The end of the chat stream repeats them with `{}`."""
        self._end: End | None = None
        self._remote: dict[str, _OpenRemote] = {}
        """Calls of MCP servers' tools that have no result yet, by the engine's id."""
        self._used = self._before = UsagePiece()

    def opening(self) -> list[Event]:
        created = self._event("response.created", response=self._snapshot())
        self.response["status"] = "in_progress"
        return [created, self._event("response.in_progress", response=self._snapshot())]

    def feed(self, pieces: Iterable[Piece]) -> list[Event]:
        """Raises ProviderInvalidResponse for arguments of a call that has already ended."""
        events: list[Event] = []
        for piece in pieces:
            match piece:
                case TextPiece():
                    self._part(events, "refusal" if piece.refused else "message", piece.text, piece.logprobs)
                case Citation():
                    events.append(self._part(events, "message", "", []).cited(piece))
                case ReasoningPiece():
                    self._part(events, "reasoning", piece.text, [])
                case CallStart():
                    self._call(events, piece)
                case CallArguments():
                    self._arguments(events, piece)
                case End():
                    self._end = piece
                case UsagePiece():
                    self._used = _sum(self._before, piece)
                    self.response["usage"] = usage_object(self._used)
        return events

    def listed(self, label: str, tools: list[dict[str, Any]], error: str | None = None) -> list[Event]:
        """An MCP server's tools, `{name, description, input_schema, annotations}`; error: why there are none."""
        id = self._id("mcpl")
        item: Item = {"id": id, "type": "mcp_list_tools", "server_label": label, "tools": []}
        place = {"item_id": id, "output_index": self._add(item)}
        index = place["output_index"]
        events = [
            self._event("response.output_item.added", output_index=index, item={**item}),
            self._event("response.mcp_list_tools.in_progress", **place),
        ]
        item |= {"tools": tools} if error is None else {"error": error}
        state = "completed" if error is None else "failed"
        events.append(self._event(f"response.mcp_list_tools.{state}", **place))
        return [*events, self._event("response.output_item.done", output_index=index, item={**item})]

    def paused(self) -> list[Event]:
        """The model's answer has ended with calls of MCP servers' tools; after `called`, `feed` gets the next one."""
        events: list[Event] = []
        self._close(events, "completed")
        self._bare.clear()
        self._before = self._used
        return events

    def called(self, call_id: str, output: str | None, error: str | None) -> list[Event]:
        """The result of a call of an MCP server's tool."""
        return self._remote.pop(call_id).result(output, error)

    def close(self, limit: str | None = None) -> list[Event]:
        """Ends the answer: `response` becomes `completed`, or `incomplete` if the engine cut it short.

        limit: why the gateway did.
        """
        events: list[Event] = []
        reason = self._end.reason if self._end is not None else "stop"
        cut = limit or {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reason)
        if not self.response["output"] and self._open is None:
            self._part(events, "message", "", [])
        self._close(events, "incomplete" if cut else "completed")
        self._cut_off(events)
        if cut:
            self.response |= {"status": "incomplete", "incomplete_details": {"reason": cut}}
        else:
            self.response |= {"status": "completed", "completed_at": int(self._now())}
        return events

    def skip(self) -> None:
        """Ends the answer without output."""
        self.response |= {"status": "completed", "completed_at": int(self._now())}

    def last(self) -> Event:
        """The event with the final response."""
        return self._event(f"response.{self.response['status']}", response=self._snapshot())

    def fail(self, error: GatewayError) -> list[Event]:
        """Ends the response with an error. `output` keeps what arrived; an unfinished item becomes `incomplete`."""
        events: list[Event] = []
        self._close(events, "incomplete")
        self._cut_off(events)
        self.response["status"] = "failed"
        known = "context_length_exceeded"  # Codex recognises it here
        code = known if error.code == known else ERROR_CODES.get(error.category, "server_error")
        told = {name: error_object(error)["error"][name] for name in ("code", "message", "param")}
        self.response["error"] = {"code": code, "message": told["message"]}
        # OpenAI's events have these fields themselves, those of Open Responses have them in `error`.
        failure = self._event("error", **told, error={"type": error.type, **told})
        return [*events, failure, self._event("response.failed", response=self._snapshot())]

    def cancel(self) -> None:
        self._close([], "incomplete")
        self._cut_off([])
        self.response["status"] = "cancelled"

    def _part(self, events: list[Event], kind: str, text: str, logprobs: list[Any]) -> _OpenText:
        current = self._open
        if not isinstance(current, _OpenText) or current.kind != kind:
            self._close(events, "completed")
            current = self._open = (_OpenReasoning if kind == "reasoning" else _OpenText)(self, kind)
            events += current.begin()
        if text or logprobs:
            events += current.delta(text, logprobs)
        return current

    def _call(self, events: list[Event], start: CallStart) -> None:
        self._close(events, "completed")
        kind: type[_OpenCall] = _OpenCustom if self._tools.is_custom(start.name) else _OpenCall
        if self._tools.remote(start.name) is not None:
            kind = _OpenRemote
        current = self._open = kind(self, start)
        events += current.begin()

    def _arguments(self, events: list[Event], piece: CallArguments) -> None:
        current = self._open
        if not isinstance(current, _OpenCall) or current.index != piece.index:
            if piece.index in self._bare and piece.json == "{}":
                return
            raise ProviderInvalidResponse(f"the engine sent arguments for call {piece.index}, which has ended")
        events += current.more(piece.json)

    def _close(self, events: list[Event], status: str) -> None:
        current, self._open = self._open, None
        if current is None:
            return
        if isinstance(current, _OpenCall) and current.bare:
            self._bare.add(current.index)
            events += current.more("{}")
        events += current.finish(status)

    def _cut_off(self, events: list[Event]) -> None:
        """Ends the calls of MCP servers' tools that get no result."""
        for call in self._remote.values():
            events += call.finish("incomplete")
        self._remote.clear()

    def _add(self, item: Item) -> int:
        output: list[Item] = self.response["output"]
        output.append(item)
        return len(output) - 1

    def _event(self, type: str, **fields: Any) -> Event:
        event = {"type": type, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _snapshot(self) -> dict[str, Any]:
        return {**self.response, "output": [*self.response["output"]]}


class _Open:
    """The output item that is still growing."""

    prefix: str

    def __init__(self, encoder: ResponseEncoder, item: Item) -> None:
        self.encoder = encoder
        self.item = {"id": encoder._id(self.prefix), **item, "status": "in_progress"}
        self.place = {"item_id": self.item["id"], "output_index": encoder._add(self.item)}

    def begin(self) -> list[Event]:
        return [self._item_event("added")]

    def finish(self, status: str) -> list[Event]:
        self.item["status"] = status
        return [self._item_event("done")]

    def event(self, type: str, **fields: Any) -> Event:
        return self.encoder._event(type, **self.place, **fields)

    def _item_event(self, state: str) -> Event:
        index = self.place["output_index"]
        return self.encoder._event(f"response.output_item.{state}", output_index=index, item={**self.item})


class _OpenText(_Open):
    """A message or reasoning item with one text part. kind: `message`, `refusal` (of a message) or `reasoning`."""

    def __init__(self, encoder: ResponseEncoder, kind: str) -> None:
        self.kind = kind
        self.prefix = "rs" if kind == "reasoning" else "msg"
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []
        """In JSON, without brackets: they are many, each event at the end has all, and they are objects but once."""
        self._annotations: list[Item] = []
        self._visible = kind == "message"
        self._type, self._field = PARTS[kind]
        said = {"type": "message", "role": "assistant"}
        super().__init__(encoder, {**({"type": kind, "summary": []} if kind == "reasoning" else said), "content": []})

    def begin(self) -> list[Event]:
        return [*super().begin(), self.event("response.content_part.added", content_index=0, part=self._part())]

    def delta(self, text: str, logprobs: list[Any]) -> list[Event]:
        self._texts.append(text)
        more: dict[str, Any] = {"logprobs": []} if self._visible else {}
        if self._visible and logprobs:
            json = encode(logprobs)
            self._logprobs.append(json[1:-1])
            more["logprobs"] = Raw(json)
        return [self.event(f"response.{self._type}.delta", content_index=0, delta=text, **more)]

    def cited(self, citation: Citation) -> Event:
        at = {"start_index": citation.start_index or 0, "end_index": citation.end_index or 0}
        annotation = {"type": "url_citation", "url": citation.url, "title": citation.title or "", **at}
        place = {"content_index": 0, "annotation_index": len(self._annotations)}
        self._annotations.append(annotation)
        return self.event("response.output_text.annotation.added", **place, annotation=annotation)

    def finish(self, status: str) -> list[Event]:
        part = self._part()
        self.item["content"] = [part]
        more = {"logprobs": part["logprobs"]} if self._visible else {}
        return [
            self.event(f"response.{self._type}.done", content_index=0, **{self._field: part[self._field]}, **more),
            self.event("response.content_part.done", content_index=0, part=part),
            *self._whole("".join(self._texts)),
            *super().finish(status),
        ]

    def _whole(self, text: str) -> list[Event]:
        """What else the item has, now that its text is whole."""
        return []

    def _part(self) -> Item:
        part = {"type": self._type, self._field: "".join(self._texts)}
        if not self._visible:
            return part
        logprobs = Raw(b"[%b]" % b",".join(self._logprobs)) if self._logprobs else []
        return {**part, "annotations": [*self._annotations], "logprobs": logprobs}


class _OpenReasoning(_OpenText):
    """Its summary, if the client asked for one, is the same text: nobody writes another."""

    def begin(self) -> list[Event]:
        return [*super().begin(), *self._summary("part.added", part=_summary(""))]

    def delta(self, text: str, logprobs: list[Any]) -> list[Event]:
        return [*super().delta(text, logprobs), *self._summary("text.delta", delta=text)]

    def _whole(self, text: str) -> list[Event]:
        if self.encoder._sealed:
            self.item["encrypted_content"] = seal(text)
        if self._summed:
            self.item["summary"] = [_summary(text)]
        return [*self._summary("text.done", text=text), *self._summary("part.done", part=_summary(text))]

    @property
    def _summed(self) -> bool:
        return self.encoder.response["reasoning"]["summary"] is not None

    def _summary(self, what: str, **fields: Any) -> list[Event]:
        return [self.event(f"response.reasoning_summary_{what}", summary_index=0, **fields)] if self._summed else []


def _summary(text: str) -> Item:
    return {"type": "summary_text", "text": text}


class _OpenCall(_Open):
    """A function call."""

    prefix, kind, field = "fc", "function_call", "arguments"

    def __init__(self, encoder: ResponseEncoder, start: CallStart) -> None:
        self.index = start.index
        self._parts: list[str] = []
        namespace, name = encoder._tools.split(start.name)
        item = {"type": self.kind, "call_id": start.id, "name": name, self.field: ""}
        super().__init__(encoder, item if namespace is None else {**item, "namespace": namespace})

    @property
    def bare(self) -> bool:
        """Whether no arguments have arrived."""
        return not self._parts

    def more(self, json: str) -> list[Event]:
        self._parts.append(json)
        return [self.event("response.function_call_arguments.delta", delta=json)]

    def finish(self, status: str) -> list[Event]:
        self.item["arguments"] = arguments = "".join(self._parts)
        done = self.event("response.function_call_arguments.done", name=self.item["name"], arguments=arguments)
        return [done, *super().finish(status)]


class _OpenCustom(_OpenCall):
    """A call of a custom tool, which takes free text."""

    prefix, kind, field = "ctc", "custom_tool_call", "input"

    def __init__(self, encoder: ResponseEncoder, start: CallStart) -> None:
        super().__init__(encoder, start)
        self._input = InputReader()

    def more(self, json: str) -> list[Event]:
        self._parts.append(json)
        text = self._input.feed(json)
        return [self.event("response.custom_tool_call_input.delta", delta=text)] if text else []

    def finish(self, status: str) -> list[Event]:
        self.item["input"] = text = self._input.finish()
        done = self.event("response.custom_tool_call_input.done", input=text)
        return [done, *_Open.finish(self, status)]


class _OpenRemote(_OpenCall):
    """A call of an MCP server's tool. It stays in progress until its result is there."""

    prefix = "mcp"

    def __init__(self, encoder: ResponseEncoder, start: CallStart) -> None:
        self.index = start.index
        self._call_id = start.id
        self._parts: list[str] = []
        label, name = encoder._tools.remote(start.name) or ("", start.name)
        item = {"type": "mcp_call", "server_label": label, "name": name, "arguments": "", "output": None, "error": None}
        _Open.__init__(self, encoder, {**item, "approval_request_id": None})

    def begin(self) -> list[Event]:
        return [*super().begin(), self.event("response.mcp_call.in_progress")]

    def more(self, json: str) -> list[Event]:
        self._parts.append(json)
        return [self.event("response.mcp_call_arguments.delta", delta=json)]

    def finish(self, status: str) -> list[Event]:
        if status == "incomplete":
            self.item["arguments"] = self.item["arguments"] or "".join(self._parts)
            return [*self._ended("failed"), *_Open.finish(self, status)]
        self.item["arguments"] = arguments = "".join(self._parts)
        self.encoder._remote[self._call_id] = self
        return [self.event("response.mcp_call_arguments.done", arguments=arguments)]

    def result(self, output: str | None, error: str | None) -> list[Event]:
        self.item |= {"output": output, "error": error}
        status = "completed" if error is None else "failed"
        return [*self._ended(status), *_Open.finish(self, status)]

    def _ended(self, status: str) -> list[Event]:
        return [self.event(f"response.mcp_call.{status}")]


def _sum(one: UsagePiece, other: UsagePiece) -> UsagePiece:
    return UsagePiece(
        prompt=one.prompt + other.prompt,
        completion=one.completion + other.completion,
        cached=one.cached + other.cached,
        reasoning=one.reasoning + other.reasoning,
    )


def usage_object(usage: UsagePiece) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
