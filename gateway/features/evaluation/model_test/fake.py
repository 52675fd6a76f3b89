"""Servers without a model, to test the benchmark itself: each answers in one known way.

oracle        right, always                    never         talks, never calls
noisy:0.1     wrong in that share of cases     always        calls the first tool, always
leaky         calls as a dialect's text        broken-json   arguments that are no JSON
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateway.features.evaluation.model_test import oracle
from gateway.features.evaluation.model_test.answers import ModelAnswer
from gateway.features.evaluation.model_test.cases import Case, Json

MODES = ("oracle", "never", "always", "noisy", "leaky", "broken-json")
CASE_HEADER = "x-model-test-case"
"""`id/step`: only sent to a fake, which can't read."""


class BadMode(ValueError):
    pass


class Fake:
    """Which answer a mode gives to which case. Raises BadMode."""

    def __init__(self, mode: str, cases: Sequence[Case]) -> None:
        self.mode, _, share = mode.partition(":")
        if self.mode not in MODES or bool(share) != (self.mode == "noisy"):
            raise BadMode(f"{mode} is none of oracle, never, always, noisy:SHARE, leaky, broken-json")
        try:
            self.share = float(share or 0)
        except ValueError:
            self.share = -1
        if not 0 <= self.share <= 1:
            raise BadMode(f"{share} is no share: 0 to 1")
        self._cases: Mapping[str, Case] = {case.id: case for case in cases}

    def answer(self, place: str) -> ModelAnswer:
        id, _, step = place.rpartition("/")
        case = self._cases[id]
        right = oracle.answer(case, case.steps[int(step)])
        match self.mode:
            case "never":
                return oracle.never()
            case "always":
                return oracle.always(case)
            case "leaky":
                return oracle.leaky(right)
            case "broken-json":
                return oracle.broken_json(right)
            case "noisy":
                chance = int.from_bytes(hashlib.sha256(id.encode()).digest()[:4]) / 2**32
                if chance < self.share:
                    return oracle.never() if right.calls else oracle.always(case)
        return right


@contextmanager
def serving(mode: str, cases: Sequence[Case]) -> Iterator[str]:
    """The base URL of a fake on this machine, with /v1."""
    fake = Fake(mode, cases)

    class Handler(_Handler):
        answers = fake

    with served(Handler) as url:
        yield url


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The base URL, with /v1, of a server on this machine whose requests `handler` answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answers: Fake

    def do_GET(self) -> None:
        model = {"id": f"fake-{self.answers.mode}", "object": "model", "created": 0, "owned_by": "model-test"}
        self._send({"object": "list", "data": [model]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        place = self.headers.get(CASE_HEADER)
        answer = self.answers.answer(place) if place else ModelAnswer(content="Ready.", finish="stop")
        if not request.get("stream"):
            self._send(whole(answer, request["model"]))
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for chunk in chunks(answer, request["model"]):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the progress bar is there."""


def whole(answer: ModelAnswer, model: str) -> Json:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or None}
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": answer.finish}
    head = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 0, "model": model}
    return {**head, "choices": [choice], "usage": _usage(answer)}


def chunks(answer: ModelAnswer, model: str) -> Iterator[Json]:
    """The same as a stream: text in pieces of 12 characters, arguments of 8."""
    head = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": None})
    for at in range(0, len(answer.content), 12):
        yield chunk({"content": answer.content[at : at + 12]})
    for index, call in enumerate(answer.calls):
        function = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        for at in range(0, len(call.arguments), 8):
            piece = {"arguments": call.arguments[at : at + 8]}
            yield chunk({"tool_calls": [{"index": index, "function": piece}]})
    yield chunk({}, answer.finish)
    yield {**head, "choices": [], "usage": _usage(answer)}


def _usage(answer: ModelAnswer) -> Json:
    tokens = 1 + (len(answer.content) + sum(len(call.arguments) for call in answer.calls)) // 4
    return {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
