"""Asks a running server, or Ollama, which model it has."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from typing import Any

import httpx
from msgspec import Struct

from gateway import backends
from gateway.backends import Address
from gateway.backends.about import About
from gateway.config import Model, address
from gateway.config.build import WELL_KNOWN
from gateway.config.problems import BadValue
from gateway.errors import ProviderAuthentication, ProviderInvalidModel, ProviderInvalidRequest, ProviderUnavailable
from gateway.features.models.inventory import facts, media
from gateway.features.models.inventory.facts import Facts
from gateway.features.models.places import tagged, urls

SECONDS = 10.0
Json = dict[str, Any]


class FoundServer(Struct, frozen=True):
    """What answers at a URL. model_name: the server's own name for its model. window: tokens of its context."""

    runtime: str
    model_name: str
    facts: Facts
    window: int | None = None


def identify(url: str, model_name: str | None) -> FoundServer:
    """model_name: which one of its models; None: its only one.

    Raises ProviderUnavailable (nothing answers), ProviderAuthentication, ProviderInvalidModel (it has another model, or
    several), ProviderInvalidRequest (no URL, or no server that ctxgate knows).
    """
    try:
        place = address.place(url, None)
    except BadValue as error:
        raise ProviderInvalidRequest(f"{url} {error}; {error.cure}") from error
    base = place.base_url or "http://localhost"
    transport = httpx.HTTPTransport(uds=str(place.uds)) if place.uds is not None else None
    with httpx.Client(base_url=base, transport=transport, timeout=SECONDS, trust_env=False) as http:
        props = _get(http, "/props")
        if props is not None and "default_generation_settings" in props:
            name, meta = _one(http, url, model_name)
            window = props["default_generation_settings"].get("n_ctx")
            at = Address(uds=str(place.uds)) if place.uds is not None else Address.parse(base)
            told = _about(Model(name="m", runtime="llama.cpp"), at)
            known = facts.of_about(
                told, size=_count(meta.get("size")), context=_count(meta.get("n_ctx_train")), parameters=_billions(meta)
            )
            return FoundServer("llama.cpp", name, known, _count(window))
        version = _get(http, "/api/version")
        if version is not None and "version" in version and "ctxgate" not in version:
            raise ProviderInvalidRequest(f"{url} is Ollama: name one of its models, as ollama:NAME")
        name, meta = _one(http, url, model_name)
        window = _count(meta.get("max_model_len")) or _count(meta.get("context_length"))
        return FoundServer("openai", name, Facts(context=window, role=media.role_of(name)), window)


def ollama_url(environ: Mapping[str, str] = os.environ) -> str:
    """Ollama's address, from its own environment variable."""
    written = environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    if not written:
        return WELL_KNOWN["ollama"]
    scheme, _, host = written.rpartition("://")
    name, _, port = host.partition(":") if host.count(":") < 2 else (host, "", "")
    return f"{scheme or 'http'}://{name.replace('0.0.0.0', '127.0.0.1') or '127.0.0.1'}:{port or 11434}"  # noqa: S104


def in_ollama(base: str, name: str) -> Facts | None:
    """Ollama's description of its model; None without the model. Raises ProviderUnavailable if Ollama isn't running."""
    with httpx.Client(base_url=base, timeout=SECONDS, trust_env=False) as http:
        try:
            shown = http.post("/api/show", json={"model": name})
            listed = http.get("/api/tags")
        except httpx.HTTPError as error:
            raise ProviderUnavailable(f"Ollama isn't running at {base}: start it with `ollama serve`") from error
    if shown.status_code != 200:
        return None
    said, tags = _object(shown), _object(listed)
    details, info = _mapping(said.get("details")), _mapping(said.get("model_info"))
    architecture = str(info.get("general.architecture") or details.get("family") or "")
    told = About(str(said.get("template") or ""), architecture, source="/api/show")
    able = said.get("capabilities")
    parameters = str(said.get("parameters") or "")
    sizes = [
        entry.get("size")
        for entry in tags.get("models") or ()
        if isinstance(entry, dict) and entry.get("name") == tagged(name)
    ]
    return Facts(
        size=_count(sizes[0]) if sizes else None,
        architecture=facts.printable(architecture),
        parameters=facts.printable(details.get("parameter_size") or ""),
        quantization=facts.printable(details.get("quantization_level") or ""),
        context=_count(info.get(f"{architecture}.context_length")),
        template=bool(told.template),
        tools="tools" in able if isinstance(able, list) else ".Tools" in (told.template or ""),
        role="embedding" if isinstance(able, list) and "embedding" in able else "chat",
        capabilities=tuple(map(facts.printable, able)) if isinstance(able, list) else (),
        window=int(written[1]) if (written := re.search(r"^num_ctx\s+(\d{1,9})$", parameters, re.MULTILINE)) else None,
    )


def drop_from_ollama(model: Model) -> None:
    """Deletes it where the model's own Ollama is. Raises ProviderUnavailable if that isn't running or refuses."""
    uds, name = model.uds, model.upstream_name
    for base in urls(model):
        transport = httpx.HTTPTransport(uds=str(uds)) if uds is not None else None
        try:
            with httpx.Client(base_url=base, transport=transport, timeout=SECONDS, trust_env=False) as http:
                answer = http.request("DELETE", "/api/delete", json={"model": name})
        except httpx.HTTPError as error:
            raise ProviderUnavailable(f"Ollama isn't running at {uds or base}: start it with `ollama serve`") from error
        if answer.status_code not in (200, 404):
            raise ProviderUnavailable(f"Ollama can't delete {name}: it answers {answer.status_code}")


def _one(http: httpx.Client, url: str, wanted: str | None) -> tuple[str, Json]:
    """The name and the server's description of the wanted model, or of its only one."""
    listing = _get(http, "/v1/models")
    data = listing.get("data") if listing is not None else None
    if not isinstance(data, list):
        raise ProviderInvalidRequest(f"{url} answers, but has no /v1/models: it isn't a server that ctxgate supports")
    models = {str(entry["id"]): entry for entry in data if isinstance(entry, dict) and "id" in entry}
    if wanted is None and len(models) == 1:
        wanted = next(iter(models))
    if wanted not in models:
        names = ", ".join(map(facts.printable, models)) or "none"
        what = f"has no {wanted}" if wanted is not None else "doesn't have one model: choose one by --model"
        raise ProviderInvalidModel(f"{url} {what}; it has: {names}")
    return wanted, _mapping(models[wanted].get("meta")) or models[wanted]


def _get(http: httpx.Client, path: str) -> Json | None:
    """The JSON object in a server's answer; None for anything else. Raises ProviderUnavailable if nothing answers."""
    try:
        answer = http.get(path)
    except httpx.HTTPError as error:
        where = str(http.base_url).rstrip("/")
        raise ProviderUnavailable(f"nothing answers at {where} ({error}): start the server first") from error
    if answer.status_code in (401, 403):
        raise ProviderAuthentication(f"{http.base_url} needs a key: write the entry yourself, with api_key")
    return _object(answer) if answer.status_code == 200 else None


def _about(model: Model, at: Address) -> About:
    async def ask() -> About:
        backend = backends.load(model.runtime)(model, at)
        try:
            return await backend.about()
        finally:
            await backend.aclose()

    return asyncio.run(ask())


def _object(answer: httpx.Response) -> Json:
    try:
        return _mapping(answer.json())
    except ValueError:
        return {}


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _billions(meta: Json) -> str:
    count = _count(meta.get("n_params"))
    if count is None:
        return ""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
