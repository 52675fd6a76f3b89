"""Ollama's own API over the gateway's one stream of chat chunks, for clients that speak only that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Literal, TypeVar

from msgspec import Raw
from msgspec.structs import replace
from starlette.responses import Response

from gateway import __version__
from gateway.api.listing import Listing, Survey
from gateway.api.streaming import LineEncoding, chat_stream, dropped_header, extra_headers
from gateway.config import Model
from gateway.core import Gateway, Route
from gateway.core.in_thread import in_thread_if_large
from gateway.core.permission import check
from gateway.engines import Engine
from gateway.errors import ProviderAuthentication
from gateway.features.ollama.abilities import abilities
from gateway.features.ollama.wire.answer import LineEncoder
from gateway.features.ollama.wire.options import SERVICE, Warning, ignored
from gateway.features.ollama.wire.request import Asked, Chat, Common, Embed, Generate, Named, plain_name, unknown_fields
from gateway.features.vectors.wire.embeddings import CreateEmbedding, Vectors, named, shortened
from gateway.server.asgi import ASGIApp, Headers
from gateway.server.http import JSON, Request
from gateway.wire.chat import UNLIMITED, ChatRequest, encode
from gateway.wire.pieces import pieces

_Wanted = TypeVar("_Wanted", Chat, Generate, Embed)

VERSION = "0.12.6"
"""The version of Ollama whose API this is; clients check that it is new enough for them."""
FOREVER = "9999-12-31T23:59:59Z"
MAX_SECONDS = 1e9
"""A longer stay is shown as this one: Python's years end."""


async def chat(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted, unknown = await request.translated(partial(_parsed, Chat))
    if not wanted.messages:
        return await _load(request, wanted, generate=False)
    return await _answer(request, wanted, unknown, size, generate=False)


async def generate(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted, unknown = await request.translated(partial(_parsed, Generate))
    if not wanted.prompt and not wanted.images:
        return await _load(request, wanted, generate=True)
    if wanted.plain:
        return await _complete(request, wanted, unknown)
    return await _answer(request, wanted, unknown, size, generate=True)


def _parsed(kind: type[_Wanted], body: bytes) -> tuple[_Wanted, list[Warning]]:
    """The request, and warnings about fields that Ollama's API doesn't have. Raises ProviderInvalidRequest."""
    return kind.parse(body), unknown_fields(kind, body)


async def _answer(
    request: Request, wanted: Chat | Generate, unknown: list[Warning], size: int, *, generate: bool
) -> ASGIApp:
    """size: of the request's body, in bytes."""
    gateway, route = request.gateway, _route(request.gateway, wanted.model)
    warnings = _warnings(wanted, route, unknown)
    more = _keep(request, route, wanted, warnings)

    def translated() -> ChatRequest:
        return ChatRequest.parse(
            encode(_in_window(wanted.chat_fields(_runtime(route.model)), route.model) | more), "ollama", request.caller
        )

    chat = await in_thread_if_large(size, translated)
    if wanted.unlimited:
        chat = replace(chat, fields={**chat.fields, "max_tokens": Raw(UNLIMITED)})
    encoder = _encoder(wanted, route, generate=generate, tier=lambda: chat.serving.tier, warnings=warnings)
    if chat.stream:
        return chat_stream(gateway, chat, LineEncoding(encoder, _dropped(warnings)))
    with await gateway.chat(chat) as run:
        lines = encoder.feed(pieces(await run.whole()))
    return JSON(encoder.whole([*lines, *encoder.finish()]), (*_dropped(warnings), *extra_headers(run)))


async def _complete(request: Request, wanted: Generate, unknown: list[Warning]) -> ASGIApp:
    """Continues a raw prompt. A stream has one line: nobody needs a raw text in pieces."""
    route = _route(request.gateway, wanted.model)
    warnings = _warnings(wanted, route, unknown)
    known = {
        **_in_window(wanted.completion_fields(_runtime(route.model)), route.model),
        **_keep(request, route, wanted, warnings),
    }
    if wanted.unlimited or not {"max_tokens", "max_completion_tokens"} & {*known, *route.model.defaults}:
        known["max_tokens"] = Raw(UNLIMITED)
    known["stream"] = False
    fields = {name: Raw(encode(value)) for name, value in known.items() if name not in ("model", "stream_options")}
    async with route.post("completions", fields, "ollama", request.caller, asked=plain_name(wanted.model)) as answer:
        tier = answer.tier
        encoder = _encoder(wanted, route, generate=True, tier=lambda: tier, warnings=warnings)
        lines = encoder.feed(pieces(await answer.whole()))
        last = encoder.whole([*lines, *encoder.finish()])
    if wanted.stream is False:
        return JSON(last, _dropped(warnings))
    headers = {name.decode(): value.decode() for name, value in _dropped(warnings)}
    return Response(encode(last) + b"\n", media_type="application/x-ndjson", headers=headers)


def _in_window(fields: dict[str, Any], model: Model) -> dict[str, Any]:
    """With the number of tokens in place of -1, which is the whole context for Ollama; llama.cpp refuses it today."""
    if fields.get("repeat_last_n") == -1 and model.context_window is not None and model.runtime != "ollama":
        return {**fields, "repeat_last_n": model.context_window}
    return fields


def _warnings(wanted: Asked, route: Route, unknown: list[Warning]) -> list[Warning]:
    """What the request asks for in vain. unknown: of its fields."""
    return [*unknown, *wanted.warnings(_runtime(route.model), route.model.context_window)]


def _runtime(model: Model) -> str:
    """The runtime whose options the model has."""
    return SERVICE if model.runtime == "openai" and (model.base_url or "").startswith("https:") else model.runtime


def _dropped(warnings: list[Warning]) -> Headers:
    """The header that names the options that have no effect."""
    return dropped_header(b"x-ctxgate-dropped-options", (each["text"].partition(":")[0] for each in warnings))


async def _load(request: Request, wanted: Common, *, generate: bool) -> ASGIApp:
    """The answer to a request without a message and without a prompt."""
    route = _route(request.gateway, wanted.model)
    await _put_in_memory(request, wanted, route)
    return JSON(_encoder(wanted, route, generate=generate).loaded("unload" if wanted.kept_seconds == 0 else "load"))


async def _put_in_memory(request: Request, wanted: Asked, route: Route) -> None:
    """Loads the model, or unloads it if `keep_alive` is 0."""
    kept = wanted.kept_seconds
    check(route.model, request.caller)
    ours = route.engine is not None or route.model.runtime == "ollama"
    if ours and _decides(request):
        await route.server.load(kept)
    elif ours and kept == 0:
        raise ProviderAuthentication(
            "to unload a model, an API key needs the scope operations", code="insufficient_scope", status=403
        )
    else:
        await request.gateway.ready(route.model.name)


def _keep(request: Request, route: Route, wanted: Asked, warnings: list[Warning]) -> dict[str, Any]:
    """Notes how long the engine stays after this request; returns the field that tells an Ollama behind us.

    Adds a warning if nobody heeds it."""
    kept = wanted.kept_seconds
    if kept is None:
        return {}
    if not _decides(request):
        warnings.append(ignored("keep_alive", "the API key lacks the scope operations"))
        return {}
    if route.model.runtime == "ollama":
        return {"keep_alive": wanted.keep_alive}
    if route.engine is None:
        warnings.append(ignored("keep_alive", "the model's server decides itself what it keeps in memory"))
        return {}
    route.engine.keep_alive = kept
    return {}


def _decides(request: Request) -> bool:
    """Whether the caller may say what is in memory: an unloaded model costs others the time to load it."""
    return request.principal.allows("operations")


async def embed(request: Request) -> ASGIApp:
    asked, unknown, wanted = await request.translated(partial(_embedding, of="input"))
    began = time.time()
    if wanted is None:
        await _put_in_memory(request, asked, _vector_route(request.gateway, asked.model))
        return JSON({"model": asked.model, "embeddings": []})
    vectors, told, headers = await _vectors(request, asked, unknown, wanted)
    answer = {
        "model": asked.model,
        "embeddings": [one.embedding for one in vectors.data],
        "total_duration": int((time.time() - began) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": vectors.usage.prompt_tokens,
    }
    return JSON({**answer, **told}, headers)


async def embeddings(request: Request) -> ASGIApp:
    asked, unknown, wanted = await request.translated(partial(_embedding, of="prompt"))
    if wanted is None:
        await _put_in_memory(request, asked, _vector_route(request.gateway, asked.model))
        return JSON({"embedding": []})
    vectors, told, headers = await _vectors(request, asked, unknown, wanted)
    return JSON({"embedding": vectors.data[0].embedding, **told}, headers)


def _embedding(data: bytes, of: Literal["input", "prompt"]) -> tuple[Embed, list[Warning], CreateEmbedding | None]:
    """What was asked, without its texts; fields that nobody knows; the same for OpenAI's API, None without texts.

    of: the texts' field.
    """
    asked, unknown = _parsed(Embed, data)
    texts = asked.input if of == "input" else asked.prompt or ""
    if not texts:
        return asked, unknown, None
    wanted = CreateEmbedding([*texts] if isinstance(texts, list) else texts, service_tier=asked.service_tier)
    return replace(asked, input="", prompt=None), unknown, wanted.checked()


async def _vectors(
    request: Request, asked: Embed, unknown: list[Warning], wanted: CreateEmbedding
) -> tuple[Vectors, dict[str, Any], Headers]:
    """The vectors, and what else the answer says: fields and headers."""
    name, route = plain_name(asked.model), _vector_route(request.gateway, asked.model)
    warnings = _warnings(asked, route, unknown)
    kept = {name: Raw(encode(value)) for name, value in _keep(request, route, asked, warnings).items()}
    fields = {**wanted.fields, **kept}
    async with route.post("embeddings", fields, "ollama", request.caller, asked=name) as answer:
        data = await answer.whole()
        vectors = await in_thread_if_large(len(data), Vectors.parse, data, wanted.count)
        for one in vectors.data:
            # 0 is as good as none: Ollama can't tell them apart.
            one.embedding = shortened(one.embedding, asked.dimensions or None)
        told = {**named(answer.tier), **({"ctxgate": {"warnings": warnings}} if warnings else {})}
        return vectors, told, _dropped(warnings)


async def tags(request: Request) -> ASGIApp:
    all = request.flag("all")
    seen = await request.services.shared(Listing).survey()
    return JSON({"models": [_entry(seen, route.model) for route in seen.listed(all=all)]})


async def running(request: Request) -> ASGIApp:
    seen = await request.services.shared(Listing).survey()
    routes = request.gateway.routes.values()
    ready = [route for route in routes if route.engine is not None and route.engine.state == "ready"]
    return JSON({"models": [{**_entry(seen, route.model), **_stay(route.engine)} for route in ready]})


def _stay(engine: Engine | None) -> dict[str, Any]:
    """How long it stays in memory without further requests."""
    left = engine.unloads_in() if engine is not None else None
    until = FOREVER if left is None else _time(time.time() + min(max(left, 0.0), MAX_SECONDS))
    return {"size_vram": 0, "expires_at": until}


async def show(request: Request) -> ASGIApp:
    wanted = await request.translated(Named.parse)
    route = request.gateway.route(plain_name(wanted.model or wanted.name))
    if (error := await route.server.missing()) is not None:
        raise error
    model, entry = route.model, _entry(await request.services.shared(Listing).survey(), route.model)
    family = entry["details"]["family"]
    info: dict[str, Any] = {"general.architecture": family, "general.basename": model.name}
    if model.context_window is not None:
        info[f"{family}.context_length"] = model.context_window
    return JSON(
        {
            "license": "",
            "modelfile": f"# {model.name} of config.yaml, served by ctxgate\nFROM {model.name}\n",
            "parameters": "\n".join(f"{name} {value}" for name, value in model.shown_defaults.items()),
            "template": "",
            "details": entry["details"],
            "model_info": info,
            "capabilities": await abilities(route),
            "modified_at": entry["modified_at"],
        }
    )


async def version(request: Request) -> ASGIApp:
    return JSON({"version": VERSION, "ctxgate": __version__})


def _route(gateway: Gateway, name: str) -> Route:
    return gateway.route(plain_name(name), "chat")


def _vector_route(gateway: Gateway, name: str) -> Route:
    return gateway.route(plain_name(name), "embedding")


def _encoder(
    wanted: Common,
    route: Route,
    *,
    generate: bool,
    tier: Callable[[], str | None] = lambda: None,
    warnings: Sequence[Warning] = (),
) -> LineEncoder:
    name = wanted.model or route.model.name
    return LineEncoder(name, time.time(), time.time, generate=generate, tier=tier, top=wanted.top, warnings=warnings)


def _entry(seen: Survey, model: Model) -> dict[str, Any]:
    """A model as Ollama lists it. Never reads the model's files, so only their size is known."""
    file = seen.files.get(model.name)
    size, stamp = file or (0, seen.changed)
    gguf = file is not None and model.path is not None and model.path.suffix == ".gguf"
    details = {
        "parent_model": "",
        "format": "gguf" if gguf else "",
        "family": model.runtime,
        "families": [model.runtime],
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _time(stamp),
        "size": size,
        "digest": sha256(model.name.encode()).hexdigest(),
        "details": details,
    }


def _time(stamp: float) -> str:
    return datetime.fromtimestamp(stamp, UTC).isoformat().replace("+00:00", "Z")
