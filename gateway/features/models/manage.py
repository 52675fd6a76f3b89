"""`/-/jobs`, `/-/hub`, `/-/models`: what the page needs to manage models, for any program with the scope operations.

They fetch files, start programs and write config.yaml: of all web pages, only the gateway's own may ask for that.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gateway.config import Config, ConfigError, Model
from gateway.config.edit import with_active_model, with_keys, write
from gateway.engines import memory
from gateway.engines.memory import Footprint
from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidRequest,
    ProviderRateLimit,
    ProviderUnavailable,
)
from gateway.features.models.inventory import facts, fit, hub
from gateway.features.models.inventory.source import Hub, InOllama, parse
from gateway.features.models.jobs import Job, Jobs
from gateway.features.operations.endpoints import reloader_of
from gateway.features.operations.replay import Replays, formats, replayed
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.services import Services
from gateway.wire import body
from gateway.wire.chat import encode

Json = dict[str, Any]

MAX_TEMPLATE = 64 * 1024
"""Characters of a chat template that are shown."""
MAX_CALLS = 5
"""Calls of one reading that are shown."""
MAX_RECORDING = 1024 * 1024
"""Bytes of a recorded answer that is read as every format."""
MAX_BYTES = 64 * 1024
"""Of a request's body."""
HUB_SECONDS = 60.0
"""How long the hub may take for one question."""
HUB_AT_ONCE = 2

T = TypeVar("T")


class _Begin(Struct, kw_only=True):
    """model: a name in config.yaml; for a download also hf:org/repo[:quant] or ollama:name. suite: of model-test.
    minutes: for the trials of tune."""

    kind: Literal["download", "tune", "evaluate"]
    model: str
    suite: Literal["smoke", "core"] = "smoke"
    minutes: float = 6.0


class _Named(Struct, kw_only=True):
    model: str


class _Format(Struct, kw_only=True):
    tool_call_format: str


_begin = msgspec.json.Decoder(_Begin)
_named = msgspec.json.Decoder(_Named)
_format = msgspec.json.Decoder(_Format)


async def _asked(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises ProviderInvalidRequest."""
    return body.read(decoder, await request.short_body(MAX_BYTES, "the limit of requests that manage models"))


async def jobs(request: Request) -> ASGIApp:
    """The newest first, with their progress."""
    return JSON({"jobs": await request.services.shared(Jobs).listed()})


async def begin(request: Request) -> ASGIApp:
    """Begins a job, and answers at once."""
    _own_page(request)
    wanted = await _asked(request, _begin)
    return JSON(await _begun(request, wanted), status=202)


async def stop(request: Request) -> ASGIApp:
    _own_page(request)
    return JSON(await request.services.shared(Jobs).stop(request.path_params["id"]))


async def _begun(request: Request, wanted: _Begin) -> Job:
    """Raises ProviderInvalidRequest, ProviderInvalidModel, and ProviderRateLimit while another one runs."""
    jobs = request.services.shared(Jobs)
    if wanted.kind == "download" and wanted.model not in request.gateway.config.models:
        source = parse(wanted.model)
        if not isinstance(source, Hub | InOllama):
            raise ProviderInvalidRequest(
                f"{wanted.model[:100]}: name a model of config.yaml, hf:org/repo[:quant] or ollama:name", param="model"
            )
        return await jobs.download(_written(source))
    model = request.gateway.config.resolve(wanted.model)
    if wanted.kind == "download":
        return await jobs.download(model.name)
    if wanted.kind == "tune":
        if not 0.05 <= wanted.minutes <= 120:
            raise ProviderInvalidRequest("minutes: must be from 0.05 to 120", param="minutes")
        return await jobs.tune(model.name, wanted.minutes)
    return await jobs.evaluate(model.name, wanted.suite, _key(request))


def _written(source: Hub | InOllama) -> str:
    if isinstance(source, InOllama):
        return f"ollama:{source.name}"
    revision, quant = source.revision and f"@{source.revision}", source.quant and f":{source.quant}"
    return f"hf:{source.repo}{revision or ''}{quant or ''}"


def _key(request: Request) -> str | None:
    """The caller's own: a measurement may do no more than its caller."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return given or request.headers.get("x-api-key") or request.headers.get("api-key")


async def search(request: Request) -> ASGIApp:
    """Repositories of the hub, the most downloaded first."""
    words = request.query_params.get("q", "").strip()
    if not words or len(words) > 200:
        raise ProviderInvalidRequest("q: name a few words to search for", param="q")
    found = await _of_hub(request, lambda: hub.search(words))
    return JSON({"found": [asdict(one) for one in found]})


async def offer(request: Request) -> ASGIApp:
    """What a repository of the hub has, and which of it fits into this machine's memory."""
    source = parse(f"hf:{request.path_params['repo']}")
    if not isinstance(source, Hub):
        raise ProviderInvalidRequest("name a repository as org/repo", param="repo")
    config = request.gateway.config

    def offered() -> Json:
        limit = fit.budget(config)
        found = hub.offer(source)
        there = {model.pull.file for model in config.models.values() if model.pull and model.pull.name == source.repo}
        variants = []
        for each in found.variants:
            least = memory.PROCESS + each.size
            need = Footprint(memory.PROCESS, least) if limit.gpu is not None else Footprint(least)
            variants.append({**asdict(each), "need": least, "fits": limit.holds(need)})
        return {
            "repo": found.repo,
            "about": _facts(found.facts),
            "budget": limit.gpu or limit.ram,
            "variants": variants,
            "there": sorted(filter(None, there)),
        }

    return JSON(await _of_hub(request, offered))


async def model(request: Request) -> ASGIApp:
    """One model: what its files say of it, its memory, and what tuning found."""
    route, config = request.gateway.route(request.path_params["name"]), request.gateway.config
    known = await asyncio.to_thread(_described, config, route.model)
    found = route.sender.capability
    return JSON({**known, "tool_call_format": found.reader.name, "evidence": found.evidence})


async def make_default(request: Request) -> ASGIApp:
    """Writes `active_model` into config.yaml and applies it."""
    _own_page(request)
    name = (await _asked(request, _named)).model
    config = request.gateway.config
    chosen = config.resolve(name, "chat").name
    await _edit(request, lambda text: with_active_model(text, chosen), lambda made: made.active_model == chosen)
    return JSON({"model": chosen, "active": True})


async def set_format(request: Request) -> ASGIApp:
    """Writes a model's `tool_call_format` into config.yaml and applies it."""
    _own_page(request)
    wanted = (await _asked(request, _format)).tool_call_format
    if wanted not in ("auto", *formats()):
        raise ProviderInvalidRequest(f"there is no format {wanted[:100]!r}", param="tool_call_format")
    name = request.gateway.route(request.path_params["name"]).model.name
    await _edit(
        request,
        lambda text: with_keys(text, name, {"tool_call_format": wanted}, comment="chosen by what the model wrote"),
        lambda made: made.models[name].tool_call_format == wanted,
    )
    return JSON({"model": name, "tool_call_format": wanted})


async def readings(request: Request) -> ASGIApp:
    """A recorded answer as each format reads it: those that find calls in it."""
    key = request.query_params.get("request", "")
    found = request.gateway.request_log.find(key)
    if found is None or found[1] is None:
        raise ProviderInvalidRequest(f"no recorded request {key[:60]}", param="request", code="not_found", status=404)
    row, recording = found[0], found[1]
    if sum(len(payload) for payload in recording.raw) > MAX_RECORDING:
        raise ProviderInvalidRequest("this answer is too long to try every format on it")
    fields, raw = encode(recording.request), recording.raw

    def read(left: Callable[[], bool]) -> list[Json]:
        tried = []
        for format in itertools.takewhile(lambda _: not left(), formats()):
            with suppress(GatewayError):
                calls = _calls(replayed(fields, raw, format, row.stream, recording.reasoning_open))
                if calls:
                    tried.append({"format": format, "calls": calls[:MAX_CALLS]})
        return tried

    tried = await request.services.shared(Replays).read(read)
    return JSON({"request": row.id, "format": recording.tool_call_format, "readings": tried})


def _calls(payloads: list[bytes]) -> list[Json]:
    """Names and arguments of the calls in the first choice of an answer, whole or streamed."""
    found: dict[int, Json] = {}
    for payload in payloads:
        try:
            choices = msgspec.json.decode(payload).get("choices") or []
        except (ValueError, AttributeError):
            continue
        for choice in choices[:1]:
            part = choice.get("delta") or choice.get("message") or {}
            for at, call in enumerate(part.get("tool_calls") or ()):
                known = found.setdefault(call.get("index", at), {"name": "", "arguments": ""})
                function = call.get("function") or {}
                known["name"] += function.get("name") or ""
                known["arguments"] += function.get("arguments") or ""
    return [*found.values()]


def _described(config: Config, model: Model) -> Json:
    """Reads the model's files, which takes up to a second."""
    there = model.path is not None and model.path.exists()
    known: facts.Facts | None = None
    template: str | None = None
    fits: Json | None = None
    if there and model.path is not None:
        from gateway.backends.about import about

        with suppress(GatewayError):
            known = facts.of_path(model.path)
        template = about(model.path).template
        with suppress(OSError, GatewayError):
            limit = fit.budget(config)
            need = memory.estimate(model, on_gpu=limit.gpu is not None)
            fits = {"need": need.ram + need.gpu, "budget": limit.gpu or limit.ram, "fits": limit.holds(need)}
    return {
        "name": model.name,
        "display_name": model.display_name,
        "path": str(model.path) if model.path is not None else None,
        "there": there,
        "pull": f"{model.pull.kind}: {model.pull.name}" if model.pull is not None else None,
        "can_tune": there and model.runtime == "llama.cpp" and model.engine.command is None and model.role == "chat",
        "about": _facts(known) if known is not None else None,
        "template": template[:MAX_TEMPLATE] if template is not None else None,
        "memory": fits,
        "tuned": _tuned(config, model),
    }


def _tuned(config: Config, model: Model) -> Json | None:
    """What `ctxgate tune` found last."""
    from gateway.features.evaluation.tune import kept
    from gateway.features.evaluation.tune.scores import ratio
    from gateway.features.evaluation.tune.settings import changed, described

    with suppress(OSError):
        found = kept.read(kept.path_of(config.state_dir, model.name))
        if found is not None:
            base, chosen = found.results[0], found.results[found.chosen]
            times = ratio(chosen, base)
            return {
                "at": found.at,
                "tried": len(found.results),
                "setting": described(changed(chosen.keys, base.keys)),
                "times": times.mean if times is not None else 1.0,
            }
    return None


def _facts(found: facts.Facts) -> Json:
    known = found.dialect
    return {
        "size": found.size,
        "architecture": found.architecture,
        "parameters": found.parameters,
        "quantization": found.quantization,
        "context": found.context,
        "tools": found.tools,
        "role": found.role,
        "format": known.format if known is not None else None,
        "evidence": [*known.evidence] if known is not None else [],
    }


async def _edit(request: Request, change: Callable[[bytes], bytes], holds: Callable[[Config], bool]) -> None:
    """Changes config.yaml and applies it. Raises ProviderInvalidRequest, also for mistakes that the file has."""
    reloader, source = reloader_of(request.services), request.gateway.config.source

    def edit() -> None:
        before = source.read_bytes()
        write(source, before, change(before), holds)

    try:
        await asyncio.to_thread(edit)
        await reloader.reload()
    except ConfigError as error:
        raise ProviderInvalidRequest(str(error), code="invalid_configuration", status=422) from error


class _Hub:
    """Bounds how many questions the hub is asked at a time."""

    def __init__(self, services: Services) -> None:
        self.free = HUB_AT_ONCE

    async def aclose(self) -> None:
        """Nothing: questions end by themselves."""


async def _of_hub(request: Request, ask: Callable[[], Any]) -> Any:
    """Raises what the hub's client does, as GatewayErrors; ProviderUnavailable without that client."""
    reloader_of(request.services)  # what it finds could be added nowhere
    line = request.services.shared(_Hub)
    if line.free <= 0:
        raise ProviderRateLimit("the hub is being asked already: try again", code="hub_busy", retry_after=2)
    line.free -= 1
    asking = asyncio.ensure_future(asyncio.to_thread(ask))

    def ended(_: object) -> None:
        line.free += 1
        if not asking.cancelled():
            asking.exception()  # whoever asked may have left

    asking.add_done_callback(ended)
    try:
        async with asyncio.timeout(HUB_SECONDS):
            return await asyncio.shield(asking)
    except TimeoutError:
        raise ProviderUnavailable(f"the hub doesn't answer within {HUB_SECONDS:g} s", code="offline") from None


def _own_page(request: Request) -> None:
    """Raises ProviderAuthentication for other web pages' requests, whatever `server.cors_origins` allows."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = request.headers.get("host", "")
    if site in (None, "none", "same-origin") and origin in (None, f"http://{host}", f"https://{host}"):
        return
    raise ProviderAuthentication(
        "of web pages, only the gateway's own may do that", code="origin_not_allowed", status=403
    )
