"""Ollama's own API over the gateway's one stream of chat chunks, for clients that speak only that."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from msgspec import Raw

from gateway import __version__
from gateway.api import endpoint
from gateway.api.chat import Client, stand_in
from gateway.api.endpoint import Request, Row
from gateway.core import Route
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.embeddings import CreateEmbedding, Vectors, shortened
from gateway.wire.ollama.answer import LineEncoder, error_object, ndjson
from gateway.wire.ollama.request import Chat, Common, Embed, Generate, Named, plain_name
from gateway.wire.pieces import pieces

VERSION = "0.12.6"
"""Of Ollama, whose API this is; clients look whether it is new enough for them."""
NDJSON = b"application/x-ndjson"
CAPABILITIES = {"tool_calling": "tools", "vision": "vision", "reasoning": "thinking"}


class OllamaFace(endpoint.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (
            ("POST", "/api/chat", self.chat),
            ("POST", "/api/generate", self.generate),
            ("POST", "/api/embed", self.embed),
            ("POST", "/api/embeddings", self.embeddings),
            ("GET", "/api/tags", self.tags),
            ("GET", "/api/ps", self.running),
            ("POST", "/api/show", self.show),
            ("GET", "/api/version", self.version),
        )

    async def chat(self, request: Request, client: Client) -> None:
        asked = Chat.parse(request.body)
        if not asked.messages:
            await self._load(asked, client, generate=False)
            return
        await self._answer(asked, asked.chat_fields(), client, generate=False)

    async def generate(self, request: Request, client: Client) -> None:
        asked = Generate.parse(request.body)
        if not asked.prompt and not asked.images:
            await self._load(asked, client, generate=True)
        elif asked.plain:
            await self._complete(asked, client)
        else:
            await self._answer(asked, asked.chat_fields(), client, generate=True)

    async def _answer(self, asked: Common, fields: dict[str, Any], client: Client, *, generate: bool) -> None:
        route = self._route(asked.model)
        encoder = LineEncoder(asked.model or route.model.name, time.time(), time.time, generate=generate)
        chat = ChatRequest.parse(encode(fields), "ollama")
        if chat.stream:
            await endpoint.lines(self.gateway, chat, _Encoding(encoder), client, NDJSON)
            return
        with await self.gateway.chat(chat) as run:
            lines = encoder.feed(pieces(await run.whole()))
        await endpoint.json(client, encoder.whole([*lines, *encoder.finish()]), stand_in(run))

    async def _complete(self, asked: Generate, client: Client) -> None:
        """A text goes on as one line: who wants it raw has no use for its pieces."""
        route = self._route(asked.model)
        encoder = LineEncoder(asked.model or route.model.name, time.time(), time.time, generate=True)
        wanted = {**asked.completion_fields(), "stream": False}
        wanted.pop("stream_options", None)
        fields = {name: Raw(encode(value)) for name, value in wanted.items() if name != "model"}
        async with route.post("completions", fields, "ollama") as posted:
            lines = encoder.feed(pieces(await posted.whole()))
            last = encoder.whole([*lines, *encoder.finish()])
        if asked.stream is False:
            await endpoint.json(client, last)
        else:
            await client.whole(200, ((b"content-type", NDJSON),), ndjson([last]))

    async def _load(self, asked: Common, client: Client, *, generate: bool) -> None:
        model = self._route(asked.model).model.name
        await self.gateway.ready(model)
        encoder = LineEncoder(asked.model or model, time.time(), time.time, generate=generate)
        await endpoint.json(client, encoder.loaded())

    async def embed(self, request: Request, client: Client) -> None:
        asked = Embed.parse(request.body)
        began = time.time()
        vectors = await self._vectors(asked.model, asked.input)
        body = {
            "model": asked.model,
            "embeddings": [shortened(one.embedding, asked.dimensions) for one in vectors.data],
            "total_duration": int((time.time() - began) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": vectors.usage.prompt_tokens,
        }
        await endpoint.json(client, body)

    async def embeddings(self, request: Request, client: Client) -> None:
        asked = Embed.parse(request.body)
        vectors = await self._vectors(asked.model, asked.prompt or "")
        await endpoint.json(client, {"embedding": vectors.data[0].embedding})

    async def _vectors(self, model: str, texts: str | list[str]) -> Vectors:
        if not texts:
            raise ProviderInvalidRequest("input: at least one text is needed", param="input")
        wanted = CreateEmbedding.parse(encode({"input": texts}))
        route = self.gateway.route(plain_name(model), "embedding")
        async with route.post("embeddings", wanted.fields, "ollama") as posted:
            return Vectors.parse(await posted.whole())

    async def tags(self, request: Request, client: Client) -> None:
        await endpoint.json(client, {"models": [self._entry(route) for route in self.gateway.routes.values()]})

    async def running(self, request: Request, client: Client) -> None:
        routes = self.gateway.routes.values()
        ready = [route for route in routes if route.engine is not None and route.engine.state == "ready"]
        models = [{**self._entry(route), "size_vram": 0, "expires_at": "9999-12-31T23:59:59Z"} for route in ready]
        await endpoint.json(client, {"models": models})

    async def show(self, request: Request, client: Client) -> None:
        asked = Named.parse(request.body)
        model = (route := self.gateway.route(plain_name(asked.model or asked.name))).model
        entry = self._entry(route)
        able = [known for name, known in CAPABILITIES.items() if name in model.capabilities]
        family = entry["details"]["family"]
        info: dict[str, Any] = {"general.architecture": family, "general.basename": model.name}
        if model.context_window is not None:
            info[f"{family}.context_length"] = model.context_window
        body = {
            "license": "",
            "modelfile": f"# {model.name} of config.yaml, served by ctxgate\nFROM {model.name}\n",
            "parameters": "\n".join(f"{name} {value}" for name, value in model.defaults.items()),
            "template": "",
            "details": entry["details"],
            "model_info": info,
            "capabilities": ["embedding"] if model.role == "embedding" else ["completion", *able],
            "modified_at": entry["modified_at"],
        }
        await endpoint.json(client, body)

    async def version(self, request: Request, client: Client) -> None:
        await endpoint.json(client, {"version": VERSION, "ctxgate": __version__})

    def error_body(self, error: GatewayError) -> bytes:
        return encode(error_object(error))

    def _route(self, name: str) -> Route:
        return self.gateway.route(plain_name(name), "chat")

    def _entry(self, route: Route) -> dict[str, Any]:
        """A model as Ollama lists it; its files are not read, so their size is all that is known of them."""
        model, source = route.model, self.gateway.config.source
        path = model.path if model.path is not None and model.path.is_file() else None
        stamp = (path or source).stat().st_mtime if (path or source).exists() else 0
        details = {
            "parent_model": "",
            "format": "gguf" if path is not None and path.suffix == ".gguf" else "",
            "family": model.runtime,
            "families": [model.runtime],
            "parameter_size": "",
            "quantization_level": "",
        }
        return {
            "name": model.name,
            "model": model.name,
            "modified_at": datetime.fromtimestamp(stamp, UTC).isoformat().replace("+00:00", "Z"),
            "size": path.stat().st_size if path is not None else 0,
            "digest": sha256(model.name.encode()).hexdigest(),
            "details": details,
        }


class _Encoding:
    def __init__(self, encoder: LineEncoder) -> None:
        self._encoder = encoder

    def opening(self) -> bytes:
        return b""

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join(ndjson(self._encoder.feed(pieces(payload))) for payload in payloads)

    async def finish(self) -> bytes:
        return ndjson(self._encoder.finish())

    def fail(self, error: GatewayError) -> bytes:
        return ndjson([error_object(error)])
