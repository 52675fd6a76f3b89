"""The endpoints of models that hear, speak, draw and fill in, and `/upstream`.

A request passes to the model's server as its client wrote it, but for the model's name and the settings of config.yaml.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from msgspec import Raw

from gateway.backends import Forward
from gateway.config import Role
from gateway.core import Route
from gateway.core.permission import check, tier_of
from gateway.errors import ProviderInvalidRequest
from gateway.features.media.forwarded import Asked
from gateway.features.media.passed import Passed
from gateway.features.media.requests import CreateImage, CreateSpeech, Named, parser, pictures, texts
from gateway.features.media.uploads import Upload, form, read_body, read_form
from gateway.server.asgi import ASGIApp
from gateway.server.http import Request
from gateway.wire.chat import ApiName, Wanted, encode, tier_in

PATH = "/:@!$&'()*+,;=~"
"""Characters of a path, besides letters and digits, that need no escape."""

READ = ("model", "n", "stream", "service_tier")
"""Fields of a form that the gateway reads."""

speeches, images, others = parser(CreateSpeech), parser(CreateImage), parser(Named)


def _asked(
    request: Request, route: Route, api: ApiName, named: str | None, wanted: Wanted | None = None, **more: Any
) -> Asked:
    """Raises ProviderAuthentication (403) if the caller may not use the model, or not with this tier."""
    check(route.model, request.caller)
    return Asked(route, api, request.caller, tier_of(route.model, request.caller, named, wanted), **more)


# Forms


async def transcribe(request: Request) -> ASGIApp:
    return await _form(request, "/v1/audio/transcriptions", "transcription", "audio", "file")


async def translate(request: Request) -> ASGIApp:
    return await _form(request, "/v1/audio/translations", "transcription", "audio", "file")


async def edit(request: Request) -> ASGIApp:
    return await _form(request, "/v1/images/edits", "image", "images", "image")


async def vary(request: Request) -> ASGIApp:
    return await _form(request, "/v1/images/variations", "image", "images", "image")


async def _form(request: Request, path: str, role: Role, api: ApiName, needed: str) -> ASGIApp:
    """needed: the file that the form must have; several of them have [] behind the name."""

    def allowed(model: str) -> None:
        check(request.gateway.route(model, role).model, request.caller)

    upload = await read_form(request, allowed)
    try:
        if upload.file(needed) is None and upload.file(f"{needed}[]") is None:
            raise ProviderInvalidRequest(f"{needed}: a file is required", param=needed)
        named = upload.field("model")
        route = request.gateway.route(named, role)
        _check_names(route, upload)
        usage = {"pictures": pictures(upload.field("n"))} if api == "images" else {}
        tier = tier_in({"service_tier": Raw(encode(upload.field("service_tier")))})
        stream = upload.field("stream") == "true"
        upload.leave_out(route.model.strip_params)
        asked = _asked(request, route, api, named, tier, stream=stream, usage=usage, hears=role == "transcription")
        return Passed(asked, form(path, _form_fields(route, upload), upload), upload.close)
    except BaseException:
        upload.close()
        raise


def _check_names(route: Route, upload: Upload) -> None:
    """Raises ProviderInvalidRequest for a field that the gateway reads or sets, if only the engine would see it so:
    as a file, or as one of several."""
    known = {*READ, *route.model.force_params}
    listed = [name for name in upload.fields if name.endswith("[]")]
    for name in (*(file.name for file in upload.files), *listed):
        if name.removesuffix("[]") in known:
            raise ProviderInvalidRequest(f"{name}: must be a field of its own, and no file", param=name)


def _form_fields(route: Route, upload: Upload) -> list[tuple[str, str]]:
    """The fields that the engine gets: with its own name for the model, and the model's settings."""
    given = {name: Raw(encode(values[0])) for name, values in upload.fields.items()}
    fields = route.sender.other_fields(given) | {"model": Raw(encode(route.model.upstream_name))}
    forced = route.model.force_params
    several = {name: values for name, values in upload.fields.items() if len(values) > 1 and name not in forced}
    return [(name, value) for name, text in texts(fields).items() for value in several.get(name, [text])]


# JSON


async def speak(request: Request) -> ASGIApp:
    wanted, fields = await request.translated(speeches)
    usage = {"characters": len(wanted.input)}
    return _object(request, "/v1/audio/speech", "speech", "audio", wanted, fields, usage, stream=True)


async def draw(request: Request) -> ASGIApp:
    wanted, fields = await request.translated(images)
    return _object(request, "/v1/images/generations", "image", "images", wanted, fields, {"pictures": wanted.n or 1})


async def infill(request: Request) -> ASGIApp:
    return await _other(request, "/infill", "infill")


async def tokenize(request: Request) -> ASGIApp:
    return await _other(request, "/tokenize")


async def detokenize(request: Request) -> ASGIApp:
    return await _other(request, "/detokenize")


async def apply_template(request: Request) -> ASGIApp:
    return await _other(request, "/apply-template")


async def _other(request: Request, path: str, role: Role | None = None) -> ASGIApp:
    """One of llama.cpp's endpoints. role: None for any model."""
    wanted, fields = await request.translated(others)
    return _object(request, path, role, "infill", wanted, fields)


def _object(
    request: Request,
    path: str,
    role: Role | None,
    api: ApiName,
    wanted: Named,
    fields: dict[str, Raw],
    usage: dict[str, int] | None = None,
    *,
    stream: bool = False,
) -> ASGIApp:
    route = request.gateway.route(wanted.model, role)
    tier = tier_in(fields)
    sent = route.sender.other_fields(fields) if role is not None else fields
    sent = sent | {"model": Raw(encode(route.model.upstream_name))}
    asked = _asked(request, route, api, wanted.model, tier, stream=stream or wanted.stream is True, usage=usage or {})
    owner = request.caller.owner if role == "infill" else None
    return Passed(asked, Forward("POST", path, "application/json", encode(sent), owner=owner))


async def voices(request: Request) -> ASGIApp:
    """The voices of one model; without a name, of the first that speaks."""
    named = request.query_params.get("model")
    route = request.gateway.route(named, "speech")
    return Passed(_asked(request, route, "audio", named), Forward("GET", "/v1/audio/voices"))


# Anything else


async def upstream(request: Request) -> ASGIApp:
    """Any path of a model's own server."""
    path = request.path_params["path"]
    if ".." in path.split("/") or "\\" in path:
        raise ProviderInvalidRequest("a path below /upstream/ can't lead out of it", code="not_found", status=404)
    route = request.gateway.route(request.path_params["name"])
    query = request.scope["query_string"].decode("latin-1")
    target = f"/{quote(path, safe=PATH)}{'?' + query if query else ''}"
    asked = _asked(request, route, "upstream", request.path_params["name"])
    if request.method in ("GET", "HEAD"):
        return Passed(asked, Forward("GET", target, verbatim=True))
    upload = await read_body(request)
    kind = request.headers.get("content-type")
    sent = Forward(
        request.method, target, kind, lambda: upload.pieces(0, upload.size), upload.size, verbatim=True,
        owner=request.caller.owner,
    )  # fmt: skip
    return Passed(asked, sent, upload.close)
