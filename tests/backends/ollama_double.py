"""A double of Ollama's server, by what a real one (0.33) answered, its documentation and its source (v0.6 to v0.34).

`RECORDED` has the real answers that it gives, each with the version that gave it. Beyond them:

- `/api/chat`: a whole answer is one JSON object, a stream one a line; arguments are objects; the counts stand in the
  last. A prompt above the window is cut in silence unless `truncate` is false: then it is refused in the words of the
  llama.cpp inside. An Ollama before 0.12.6 doesn't know `truncate`. The window is at least `least`, however small
  `num_ctx` is.
- `format`: a schema that becomes a grammar is held to; any other is dropped in silence.
- `/v1/completions`: a prompt above the window is cut in silence; `n` and `logprobs` are ignored.
- `/v1/chat/completions`: a whole answer has a Content-Length; a stream's deltas all repeat the role; each tool call
  comes whole in a chunk of its own, every one with `index` 0; usage only where asked for, in a last chunk.
- What it doesn't know (tool_choice, max_completion_tokens, role `developer`) it ignores.
- Options of LOADING that differ from the last request's reload the model.
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

import jsonschema

from gateway.backends import Address

Json = dict[str, Any]

LOADING = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap")
"""Options with which Ollama loads a model: any other value loads it again."""


@dataclass(frozen=True)
class Recorded:
    """An answer of a real Ollama. version: that gave it; "source": nobody asked one. status: 200 for no error."""

    version: str
    when: str
    status: int
    error: str = ""


RECORDED = {
    "thinking": Recorded("0.33", "any effort, no such capability", 400, '"{model}" does not support thinking'),
    "tools": Recorded("source", "tools, no such capability", 400, "{model} does not support tools"),
    "completion": Recorded("source", "a prompt, a model of vectors alone", 400, '"{model}" does not support generate'),
    "insert": Recorded("source", "a suffix, no such capability", 400, "{model} does not support insert"),
    # Its status wasn't noted.
    "multimodal": Recorded(
        "0.33",
        "an image, no capability vision",
        500,
        "Multimodal data provided, but model does not support multimodal requests.",
    ),
    "embeddings": Recorded(
        "0.33",
        "vectors of a chat model",
        501,
        "This server does not support embeddings. Start it with `--embeddings`",
    ),
    "jinja": Recorded("0.33", "tools, a model made from a bare GGUF", 500, "tools param requires --jinja flag"),
    "eof": Recorded("0.33", "the runner killed while it reads a prompt", 500, "unexpected EOF"),
    "terminated": Recorded("0.33", "the same", 500, "llama-server process has terminated"),
    "dropped schema": Recorded("0.33", "a schema that makes no grammar: free text", 200),
    "no end": Recorded("0.33", "repetition or white space without end: the answer ends without `done`", 200),
    "cut": Recorded("0.33", "5,000 words to /v1/completions: 2,050 tokens of them are read", 200),
    "least window": Recorded("0.33", "num_ctx 600, a prompt of 1,330 tokens: all of them are read", 200),
}
"""What it answered, by a short name. `{model}` is the model's name."""


@dataclass
class OllamaDouble:
    """models: name -> capabilities, as /api/show tells them; None: an Ollama that tells none, only the template."""

    models: Mapping[str, list[str] | None]
    version: str = "0.33.0"
    window: int = 4096
    """Tokens of context where a request names none."""
    least: int = 2048
    """Tokens of context that it uses at least."""
    requests: list[Json] = field(default_factory=list)
    script: Callable[[Json], tuple[str | list[str], list[Json]]] | None = None
    """What the model says and calls, instead; the text as a list comes in those pieces."""
    reason: str | None = None
    """Why the answer ends, instead."""
    bare: frozenset[str] = frozenset()
    """Models that were made from a bare GGUF, without a TEMPLATE."""
    endless: Callable[[Json], bool] = lambda request: False
    """Whether the model repeats itself in its answer to a request, so that Ollama breaks it off, without `done`."""
    failures: list[str] = field(default_factory=list)
    """Names of RECORDED with which it answers the next requests for text."""
    tokens: Mapping[str, int] = field(default_factory=lambda: {"hello": 1, "<|im_start|>": 3, "<|im_end|>": 3})
    """The vocabulary: each token's text and type, 3 for control tokens."""
    shown: list[str] = field(default_factory=list)
    """The models that it was asked about."""
    loads: list[Json] = field(default_factory=list)
    """The options with which it has loaded a model, each time it did."""

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
                _json(
                    writer,
                    200,
                    {"models": [{"name": name, "model": name, "size": 397_821_319} for name in self.models]},
                )
            case "GET", "/api/ps":
                _json(
                    writer, 200, {"models": [{"context_length": self.loads[-1].get("num_ctx")}] if self.loads else []}
                )
            case "GET", "/v1/models":
                listed = [{"id": name, "object": "model", "created": 1, "owned_by": "library"} for name in self.models]
                _json(writer, 200, {"object": "list", "data": listed})
            case "POST", "/api/show":
                self._show(writer, json.loads(body))
            case "POST", "/api/generate":
                await self._generate(writer, json.loads(body))
            case "POST", "/v1/completions":
                self._completion(writer, json.loads(body))
            case "POST", "/api/embed" | "/v1/embeddings":
                self._embed(writer, path, json.loads(body))
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

    def _show(self, writer: asyncio.StreamWriter, request: Json) -> None:
        name = request["model"]
        self.shown.append(name)
        if name not in self.models:
            return _json(writer, 404, {"error": f"model '{name}' not found"})
        capabilities = self.models[name]
        template = "{{ .Messages }}{{ .Tools }}" if "tools" in (capabilities or ["tools"]) else "{{ .Prompt }}"
        told = {} if capabilities is None else {"capabilities": capabilities}
        info: Json = {"general.architecture": "qwen2", "qwen2.context_length": 32768}
        vocabulary = {"tokenizer.ggml.tokens": [*self.tokens], "tokenizer.ggml.token_type": [*self.tokens.values()]}
        # Without `verbose` it names them, and says nothing of them.
        info |= vocabulary if request.get("verbose") else dict.fromkeys(vocabulary)
        details = {"format": "gguf", "family": "qwen2", "parameter_size": "494.03M", "quantization_level": "Q4_K_M"}
        return _json(writer, 200, {"template": template, "details": details, "model_info": info, **told})

    def _fault(self, request: Json) -> tuple[int, str] | None:
        """Why it can't answer at all: the status and the error."""
        name = request.get("model", "")
        if name not in self.models:
            return 404, f"model '{name}' not found"
        options = {key: value for key, value in (request.get("options") or {}).items() if key in LOADING}
        if not self.loads or self.loads[-1] != options:
            self.loads.append(options)
        fault = self.failures.pop(0) if self.failures else None
        able = self.models[name]
        if fault is None and able is not None:
            wants = {
                "thinking": request.get("think") not in (None, False),
                "tools": bool(request.get("tools")) and name not in self.bare,
                "insert": bool(request.get("suffix")),
            }
            fault = next((kind for kind, wanted in wants.items() if wanted and kind not in able), None)
            images = any(message.get("images") for message in request.get("messages") or ())
            if fault is None and images and "vision" not in able:
                fault = "multimodal"
        if fault is None and request.get("tools") and name in self.bare:
            fault = "jinja"
        if fault is None:
            return None
        recorded = RECORDED[fault]
        # Of thinking it says the name as it was asked, of the others the whole one.
        whole = name if fault == "thinking" else f"registry.ollama.ai/library/{name}"
        return recorded.status, recorded.error.format(model=whole)

    def _fits(self, request: Json, prompt: int) -> tuple[int, Json | None]:
        """How much of the prompt it reads, and the error if it refuses to."""
        window = max(self.least, (request.get("options") or {}).get("num_ctx") or self.window)
        if prompt < window:
            return prompt, None
        if request.get("truncate") is False and _version(self.version) >= (0, 12, 6):
            told = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": prompt, "n_ctx": window}
            message = f"request ({prompt} tokens) exceeds the available context size ({window} tokens)"
            return 0, {"error": json.dumps({"error": {"message": message, **told}})}
        return window // 2 + 2, None

    def _says(self, request: Json) -> tuple[list[str], list[Json], bool]:
        """The words and calls of an answer, and whether a limit cut it. A `format` that makes a grammar is held to."""
        wanted = request.get("format")
        if isinstance(wanted, dict) and not makes_grammar(wanted, wanted):
            request = {name: value for name, value in request.items() if name != "format"}
            wanted = None
        text, calls = (self.script or _reply)(request)
        schema = {"type": "object"} if wanted == "json" else wanted
        # What repeats itself without end has only begun to conform.
        if isinstance(schema, dict) and not self.endless(request) and not _conforms("".join(text), schema):
            text, calls = json.dumps(instance(schema, schema)), []
        words, cut = _limited(text, (request.get("options") or {}).get("num_predict"))
        return words, calls, cut

    def _embed(self, writer: asyncio.StreamWriter, path: str, request: Json) -> None:
        self.requests.append(request)
        if (fault := self._fault(request)) is not None:
            return _json(writer, fault[0], {"error": fault[1]})
        if not request.get("input"):
            return _json(writer, 200, {"model": request["model"], "embeddings": []})
        able = self.models[request["model"]]
        if able is not None and "embedding" not in able:
            recorded = RECORDED["embeddings"]
            return _json(writer, recorded.status, {"error": recorded.error})
        texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
        read = [self._fits(request, len(text.split())) for text in texts]
        if (refusal := next((error for _, error in read if error is not None), None)) is not None:
            return _json(writer, 400, refusal)
        tokens, vectors = sum(size for size, _ in read), [[float(len(text)), 0.5] for text in texts]
        if path == "/api/embed":
            return _json(writer, 200, {"model": request["model"], "embeddings": vectors, "prompt_eval_count": tokens})
        data = [{"object": "embedding", "embedding": vector, "index": at} for at, vector in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json(writer, 200, {"object": "list", "data": data, "model": request["model"], "usage": usage})

    def _completion(self, writer: asyncio.StreamWriter, request: Json) -> None:
        """OpenAI's, whole: it cuts, and knows neither `n` nor `logprobs`."""
        self.requests.append(request)
        if (fault := self._fault(request)) is not None:
            return _error(writer, *fault, "api_error")
        read, _ = self._fits({**request, "truncate": True}, len(request["prompt"].split()))
        words, _ = _limited(f"You said: {request['prompt']}", request.get("max_tokens"))
        usage = {"prompt_tokens": read, "completion_tokens": len(words), "total_tokens": read + len(words)}
        choice = {"index": 0, "text": "".join(words), "finish_reason": "stop", "logprobs": None}
        shell = {"id": "cmpl-123", "object": "text_completion", "created": 1, "model": request["model"]}
        return _json(writer, 200, {**shell, "choices": [choice], "usage": usage})

    async def _generate(self, writer: asyncio.StreamWriter, request: Json) -> None:
        self.requests.append(request)
        if (fault := self._fault(request)) is not None:
            return _json(writer, fault[0], {"error": fault[1]})
        able, unloads = self.models[request["model"]], not request.get("prompt") and request.get("keep_alive") == 0
        if able is not None and "completion" not in able and not unloads:
            recorded = RECORDED["completion"]
            return _json(writer, recorded.status, {"error": recorded.error.format(model=request["model"])})
        if not request.get("prompt"):
            reason = "unload" if unloads else "load"
            return _json(writer, 200, {"model": request["model"], "response": "", "done": True, "done_reason": reason})
        prompt, refusal = self._fits(request, len(request["prompt"].split()))
        if refusal is not None:
            return _json(writer, 400, refusal)
        asked = {**request, "messages": [{"role": "user", "content": request["prompt"]}]}
        words, _, cut = self._says(asked)
        said = [{"response": word} for word in words]
        await self._answers(writer, request, said, {"response": ""}, (prompt, len(words)), cut)

    async def _native(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        request = json.loads(body)
        self.requests.append(request)
        if (fault := self._fault(request)) is not None:
            return _json(writer, fault[0], {"error": fault[1]})
        for message in request["messages"]:
            if any(not isinstance(call["function"]["arguments"], dict) for call in message.get("tool_calls") or ()):
                return _json(writer, 400, {"error": "json: cannot unmarshal string into Go value of type map"})
            if not isinstance(message["content"], str):
                return _json(writer, 400, {"error": "json: cannot unmarshal array into Go struct field .content"})
            if message["content"] == "break the parser":
                return _json(writer, 500, {"error": "error parsing tool call: raw='{\"name\": f', err=invalid"})
        prompt, refusal = self._fits(request, sum(len(m["content"].split()) + 4 for m in request["messages"]))
        if refusal is not None:
            return _json(writer, 400, refusal)
        words, calls, cut = self._says(request)
        native = [
            {"id": call["id"], "function": {"index": 0, "name": call["function"]["name"], "arguments": arguments}}
            for call in calls
            for arguments in [json.loads(call["function"]["arguments"])]
        ]
        said: list[Json] = [{"message": {"role": "assistant", "content": word}} for word in words]
        said += [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}} for call in native]
        if not request.get("stream", True):
            whole = {"role": "assistant", "content": "".join(words), **({"tool_calls": native} if native else {})}
            said = [{"message": whole}]
        end = {"message": {"role": "assistant", "content": ""}}
        await self._answers(writer, request, said, end, (prompt, len(words)), cut)

    async def _answers(
        self,
        writer: asyncio.StreamWriter,
        request: Json,
        said: list[Json],
        end: Json,
        counts: tuple[int, int],
        cut: bool,
    ) -> None:
        """Writes an answer: one object, or a line for each of `said` and one for its end. counts: of both texts."""
        shell = {"model": request["model"], "created_at": "2026-08-21T18:48:22Z"}
        last = {"done": True, "done_reason": self.reason or ("length" if cut else "stop"), "total_duration": 7}
        last |= {"prompt_eval_count": counts[0], "eval_count": counts[1]}
        if endless := self.endless(request):
            last = {"done": False}
        if not request.get("stream", True):
            text = "".join(one.get("response", "") for one in said)
            return _json(writer, 200, {**shell, **({"response": text} if "response" in end else said[0]), **last})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        for one in said:
            await _line(writer, {**shell, **one, "done": False})
        if not endless:
            await _line(writer, {**shell, **end, **last})
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


TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def makes_grammar(schema: Any, root: Json) -> bool:
    """Whether Ollama can turn a schema into a grammar; else it drops the schema without a word."""
    if not isinstance(schema, dict):
        return True
    kinds: Any = schema.get("type") or []
    if any(kind not in TYPES for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if "not" in schema or "uniqueItems" in schema or ("$ref" in schema and _resolved(schema["$ref"], root) is None):
        return False
    within = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for several in ("anyOf", "oneOf", "allOf", "prefixItems"):
        within += schema.get(several) or ()
    return all(makes_grammar(one, root) for one in within)


def _resolved(ref: str, root: Json) -> Any:
    found: Any = root if ref.startswith("#") else None
    for step in filter(None, ref.removeprefix("#").split("/")):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _conforms(text: str, schema: Json) -> bool:
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


def instance(schema: Any, root: Json) -> Any:
    """What a model without an opinion writes under the grammar of a schema."""
    if not isinstance(schema, dict):
        return "x"
    if "$ref" in schema:
        return instance(_resolved(schema["$ref"], root), root)
    for several in ("anyOf", "oneOf"):
        if schema.get(several):
            return instance(schema[several][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kinds: Any = schema.get("type", "object" if "properties" in schema else "string")
    match kinds[0] if isinstance(kinds, list) else kinds:
        case "object":
            known = schema.get("properties") or {}
            return {
                name: instance(known.get(name, {}), root)
                for name in (known if schema.get("required") is None else schema["required"])
            }
        case "array":
            return [instance(schema.get("items", {}), root)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
    return "x" * max(1, schema.get("minLength", 1))


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
