"""A double of Ollama's server, by its documented wire behaviour and its source (v0.6 to v0.34).

- `/api/chat`: a whole answer is one JSON object, a stream one a line; arguments are objects; the counts stand in the
  last. A prompt above `options.num_ctx` is cut in silence unless `truncate` is false: then it is refused in the words
  of the llama.cpp inside. An Ollama before 0.12.6 doesn't know `truncate`.
- `/v1/chat/completions`: a whole answer has a Content-Length; a stream's deltas all repeat the role; each tool call
  comes whole in a chunk of its own, every one with `index` 0; usage only where asked for, in a last chunk.
- What it doesn't know (tool_choice, max_completion_tokens, role `developer`) it ignores; a prompt above the context
  window it cuts in silence.
- Errors: `{"error": {"message", "type", "param", "code"}}`; under /api a bare string.

A token is a word here. The model is scripted: it calls the declared tool for each capitalised place in the last user
message, else it says what was asked; it answers a tool's result in words. Everything that was asked is kept in
`requests`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.backends import Address

Json = dict[str, Any]


@dataclass
class OllamaDouble:
    """models: name -> capabilities, as /api/show tells them; None: an Ollama that tells none, only the template."""

    models: Mapping[str, list[str] | None]
    version: str = "0.34.0"
    window: int = 4096
    """Tokens of context where a request names none."""
    requests: list[Json] = field(default_factory=list)
    script: Callable[[Json], tuple[str | list[str], list[Json]]] | None = None
    """What the model says and calls, instead; the text as a list comes in those pieces."""
    reason: str | None = None
    """Why the answer ends, instead."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Address]:
        async with await asyncio.start_server(self._connection, "127.0.0.1", 0) as server:
            yield Address(port=server.sockets[0].getsockname()[1])

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                length = re.search(r"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self._answer(writer, method, path, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, path: str, body: bytes) -> None:
        match method, path:
            case "GET", "/api/version":
                _json(writer, 200, {"version": self.version})
            case "GET", "/api/tags":
                _json(writer, 200, {"models": [{"name": name, "model": name} for name in self.models]})
            case "GET", "/v1/models":
                listed = [{"id": name, "object": "model", "created": 1, "owned_by": "library"} for name in self.models]
                _json(writer, 200, {"object": "list", "data": listed})
            case "POST", "/api/show":
                name = json.loads(body)["model"]
                if name not in self.models:
                    _json(writer, 404, {"error": f"model '{name}' not found"})
                else:
                    capabilities = self.models[name]
                    template = (
                        "{{ .Messages }}{{ .Tools }}" if "tools" in (capabilities or ["tools"]) else "{{ .Prompt }}"
                    )
                    told = {} if capabilities is None else {"capabilities": capabilities}
                    _json(writer, 200, {"template": template, "details": {"format": "gguf"}, **told})
            case "POST", "/api/generate":
                request = json.loads(body)
                self.requests.append(request)
                if request["model"] not in self.models:
                    _json(writer, 404, {"error": f"model '{request['model']}' not found"})
                else:
                    reason = "unload" if request.get("keep_alive") == 0 else "load"
                    _json(writer, 200, {"model": request["model"], "response": "", "done": True, "done_reason": reason})
            case "POST", "/v1/chat/completions":
                await self._chat(writer, body)
            case "POST", "/api/chat":
                await self._native(writer, body)
            case _:
                body = b"404 page not found"
                writer.write(b"HTTP/1.1 404 \r\nContent-Type: text/plain\r\nContent-Length: 18\r\n\r\n" + body)
        await writer.drain()

    async def _chat(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        try:
            request = json.loads(body)
        except ValueError as error:
            return _error(writer, 400, f"invalid character: {error}", "invalid_request_error")
        self.requests.append(request)
        if refused := self._refused(request):
            return _error(writer, *refused)
        text, calls = (self.script or _reply)(request)
        words, cut = _limited(text, request.get("max_tokens"))
        reason = self.reason or ("length" if cut else "tool_calls" if calls else "stop")
        usage = {"prompt_tokens": 20, "completion_tokens": len(words), "total_tokens": 20 + len(words)}
        shell = {"id": "chatcmpl-123", "created": 1, "model": request["model"], "system_fingerprint": "fp_ollama"}
        if not request.get("stream"):
            message = {"role": "assistant", "content": "".join(words), **({"tool_calls": calls} if calls else {})}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return _json(writer, 200, {**shell, "object": "chat.completion", "choices": [choice], "usage": usage})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        shell["object"] = "chat.completion.chunk"
        deltas: list[Json] = [{"role": "assistant", "content": word} for word in words]
        deltas += [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
        for delta in deltas:
            await _event(writer, {**shell, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        last = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": reason}
        await _event(writer, {**shell, "choices": [last]})
        if (request.get("stream_options") or {}).get("include_usage"):
            await _event(writer, {**shell, "choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def _native(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        request = json.loads(body)
        self.requests.append(request)
        name, options = request.get("model", ""), request.get("options") or {}
        if name not in self.models:
            return _json(writer, 404, {"error": f"model '{name}' not found"})
        capabilities = self.models[name]
        if request.get("tools") and capabilities is not None and "tools" not in capabilities:
            return _json(writer, 400, {"error": f"registry.ollama.ai/library/{name} does not support tools"})
        for message in request["messages"]:
            if any(not isinstance(call["function"]["arguments"], dict) for call in message.get("tool_calls") or ()):
                return _json(writer, 400, {"error": "json: cannot unmarshal string into Go value of type map"})
            if not isinstance(message["content"], str):
                return _json(writer, 400, {"error": "json: cannot unmarshal array into Go struct field .content"})
            if message["content"] == "break the parser":
                return _json(writer, 500, {"error": "error parsing tool call: raw='{\"name\": f', err=invalid"})
        prompt, window = sum(len(m["content"].split()) + 4 for m in request["messages"]), options.get("num_ctx")
        window = window or self.window
        if prompt >= window:
            if request.get("truncate") is False and _version(self.version) >= (0, 12, 6):
                told = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": prompt, "n_ctx": window}
                message = f"request ({prompt} tokens) exceeds the available context size ({window} tokens)"
                return _json(writer, 400, {"error": json.dumps({"error": {"message": message, **told}})})
            prompt = window // 2
        text, calls = (self.script or _reply)(request)
        words, cut = _limited(text, options.get("num_predict"))
        native = [
            {"id": call["id"], "function": {"index": 0, "name": call["function"]["name"], "arguments": arguments}}
            for call in calls
            for arguments in [json.loads(call["function"]["arguments"])]
        ]
        said: list[Json]
        shell = {"model": name, "created_at": "2026-08-21T18:48:22Z"}
        last = {"done": True, "done_reason": self.reason or ("length" if cut else "stop"), "total_duration": 7}
        last |= {"prompt_eval_count": prompt, "eval_count": len(words)}
        if not request.get("stream", True):
            said = [{"content": "".join(words), **({"tool_calls": native} if native else {})}]
            return _json(writer, 200, {**shell, "message": {"role": "assistant", **said[0]}, **last})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        said = [{"content": word} for word in words]
        said += [{"content": "", "tool_calls": [call]} for call in native]
        for one in said:
            await _line(writer, {**shell, "message": {"role": "assistant", **one}, "done": False})
        await _line(writer, {**shell, "message": {"role": "assistant", "content": ""}, **last})
        writer.write(b"0\r\n\r\n")

    def _refused(self, request: Json) -> tuple[int, str, str] | None:
        name = request.get("model", "")
        if name not in self.models:
            return 404, f'model "{name}" not found, try pulling it first', "not_found_error"
        capabilities = self.models[name]
        if request.get("tools") and capabilities is not None and "tools" not in capabilities:
            return 400, f"registry.ollama.ai/library/{name} does not support tools", "api_error"
        for message in request["messages"]:
            for call in message.get("tool_calls") or ():
                arguments = call["function"].get("arguments")
                if not isinstance(arguments, str):
                    where = "messages.tool_calls.function.arguments of type string"
                    return 400, f"json: cannot unmarshal object into Go struct field {where}", "invalid_request_error"
                try:
                    json.loads(arguments)
                except ValueError:
                    return 400, "invalid tool call arguments", "invalid_request_error"
            if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
                return 400, "invalid message content type: <nil>", "invalid_request_error"
            if message.get("content") == "break the parser":
                return 500, "error parsing tool call: raw='{\"name\": f', err=invalid character 'f'", "api_error"
        if not isinstance(request.get("temperature", 0.0), int | float):
            return 400, "json: cannot unmarshal string into Go struct field temperature", "invalid_request_error"
        return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _limited(text: str | list[str], limit: int | None) -> tuple[list[str], bool]:
    """The words of an answer, and whether there would have been more."""
    words = re.findall(r"\S+\s*", text) if isinstance(text, str) else text
    return (words[:limit], True) if limit is not None and len(words) > limit else (words, False)


def _reply(request: Json) -> tuple[str, list[Json]]:
    *_, last = request["messages"]
    if last.get("role") == "tool":
        return f"The result is {last['content']}.", []
    said = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
    places = re.findall(r"(?:in|and) ([A-Z]\w+)", said)
    if not request.get("tools") or not places:
        return f"You said: {said}", []
    name = request["tools"][0]["function"]["name"]
    return "", [
        {
            "id": f"call_{at}{place.lower()}",
            "index": 0,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"city": place})},
        }
        for at, place in enumerate(places)
    ]


def _error(writer: asyncio.StreamWriter, status: int, message: str, kind: str) -> None:
    _json(writer, status, {"error": {"message": message, "type": kind, "param": None, "code": None}})


def _json(writer: asyncio.StreamWriter, status: int, value: Json) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _line(writer: asyncio.StreamWriter, value: Json) -> None:
    data = json.dumps(value).encode() + b"\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def _event(writer: asyncio.StreamWriter, value: Json) -> None:
    data = f"data: {json.dumps(value)}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()
