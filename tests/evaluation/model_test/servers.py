"""Servers that fail, each in its own way: real sockets, real HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from gateway.features.evaluation.model_test.answers import ModelAnswer
from gateway.features.evaluation.model_test.fake import chunks, served, whole
from tests.patience import PATIENCE

RIGHT = ModelAnswer(content="Ready.", finish="stop")
HALF = "\ud83d"
DEEP: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "[" * 100_000}}
ODD: dict[str, dict[str, Any]] = {
    "half an emoji": {"content": HALF},
    "half an emoji in a call": {
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": HALF, "arguments": json.dumps({"a": HALF})}}
        ],
    },
    "nested deeply": {"content": None, "tool_calls": [DEEP]},
    "a list as content": {"content": [{"type": "text", "text": "Ready."}]},
}
"""Messages that OpenAI wouldn't send, or no model should write."""


@contextmanager
def listening() -> Iterator[int]:
    """Accepts connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def failing(trouble: str) -> Iterator[str]:
    """A base URL.

    half-broken: every second question is answered with a 500      500: every one
    cut: streams end in the middle     html: 200 with a page       late: the preflight passes, then silence
    gone: the preflight passes, then connections are closed        bad-list: /v1/models is no list
    reproducible: one question gets a 500 each time, the others are answered, by what says it is a ctxgate
    refuses: the same with a 400        overflow: everything beyond the preflight is context_length_exceeded
    two: has two models, neither of which it calls active       those of ODD: answers with that message
    """
    stop = threading.Event()

    class Handler(_Handler):
        kind = trouble
        stopped = stop
        count = 0
        lock = threading.Lock()

    with served(Handler) as url:
        try:
            yield url
        finally:
            stop.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kind: ClassVar[str]
    stopped: ClassVar[threading.Event]
    count: ClassVar[int]
    lock: ClassVar[threading.Lock]

    def do_GET(self) -> None:
        model: dict[str, Any] = {"id": "m", "object": "model"}
        if self.kind in ("reproducible", "refuses"):
            model["tool_call_format"] = "hermes"
        if self.kind == "late" and type(self).count > 3:
            self.stopped.wait(PATIENCE)
            return
        models = [model, {**model, "id": "n"}] if self.kind == "two" else [model]
        self._send(200, {"wrong": True} if self.kind == "bad-list" else {"object": "list", "data": models})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            type(self).count += 1
            number = self.count
        begun = number > 3
        poisoned = "Oslo" in json.dumps(request["messages"])
        match self.kind:
            case "500":
                self._send(500, {"error": {"message": "boom"}})
            case "half-broken" if begun and number % 2:
                self._send(500, {"error": {"message": "boom"}})
            case "reproducible" if poisoned:
                self._send(500, {"error": {"message": "boom"}})
            case "refuses" if poisoned:
                self._send(400, {"error": {"message": "this grammar can't be made"}})
            case "overflow" if begun:
                self._send(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
            case "html" if begun:
                self._raw(200, b"<html>a proxy's page</html>")
            case "late" if begun:
                self.stopped.wait(PATIENCE)
            case "gone" if begun:
                self.close_connection = True
            case kind if begun and kind in ODD:
                self._odd(ODD[kind], stream=request["stream"])
            case _ if request.get("stream"):
                self._stream(request["model"])
            case _:
                self._send(200, whole(RIGHT, request["model"]))

    def _odd(self, message: dict[str, Any], *, stream: bool) -> None:
        finish = "tool_calls" if "tool_calls" in message else "stop"
        calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", ()))]
        part = {"delta": {**message, "tool_calls": calls}} if stream else {"message": message}
        body = json.dumps({"choices": [{"index": 0, "finish_reason": finish, **part}], "usage": [1]})
        self._raw(200, f"data: {body}\n\ndata: [DONE]\n\n".encode() if stream else body.encode())

    def _stream(self, model: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(RIGHT, model)] + ["data: [DONE]\n\n"]
        kept = events[:-2] if self.kind == "cut" and self.count > 3 else events
        self.wfile.write("".join(kept).encode())
        self.close_connection = True

    def _send(self, status: int, body: Any) -> None:
        self._raw(status, json.dumps(body).encode())

    def _raw(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""
