"""Maps each model to its object in `/ctx`, and resolves the aliases. Pure: touches no file."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zlib import crc32

from gateway.config.address import is_loopback
from gateway.features.ctx.settings import Ctx

if TYPE_CHECKING:
    from gateway.config import Config, Model

LONGEST = 64
COMPONENT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._+-]{0,63}")
"""A path component of the object ABI; it also may not end in a RESERVED suffix."""
RESERVED = (".sock", ".d")
_OUTSIDE = re.compile(r"[^a-zA-Z0-9._+-]")
NAMING = "letters, digits and . _ + -, at most 64, the first a letter or digit, no .sock or .d at the end"

ECHO = "debug/echo"
"""Built in; the file can't remove it."""

LOCAL = "local"
"""The provider of a model on this machine whose maker isn't known."""

MAIN, HELPER = "main", "helper"

NATIVE_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "google",
}

MAKERS = (
    ("gpt", "openai"),
    ("claude", "anthropic"),
    ("gemini", "google"),
    ("gemma", "google"),
    ("functiongemma", "google"),
    ("lfm", "liquidai"),
    ("smollm", "huggingfacetb"),
    ("llama", "meta-llama"),
    ("qwen", "qwen"),
    ("qwq", "qwen"),
    ("mistral", "mistralai"),
    ("mixtral", "mistralai"),
    ("codestral", "mistralai"),
    ("devstral", "mistralai"),
    ("magistral", "mistralai"),
    ("ministral", "mistralai"),
    ("deepseek", "deepseek-ai"),
    ("phi", "microsoft"),
    ("granite", "ibm-granite"),
    ("kimi", "moonshotai"),
    ("minimax", "minimaxai"),
    ("glm", "zai-org"),
    ("olmo", "allenai"),
    ("seed-oss", "bytedance-seed"),
    ("nemotron", "nvidia"),
)
"""Prefixes of model names, with the maker: the provider of a model that runs on this machine."""


def is_component(name: str) -> bool:
    return COMPONENT.fullmatch(name) is not None and not name.endswith(RESERVED)


def is_model_id(name: str) -> bool:
    """`provider/model`"""
    parts = name.split("/")
    return len(parts) == 2 and all(map(is_component, parts))


def fitted(name: str) -> str:
    """A name as a path component: `-` for each character that can't be in one. "" if nothing is left."""
    fits = _OUTSIDE.sub("-", name).lstrip("._+-")[:LONGEST]
    for suffix in RESERVED:
        if fits.endswith(suffix):
            fits = f"{fits.removesuffix(suffix)}-{suffix[1:]}"
    return fits


def _derived(provider: str, name: str, taken: Mapping[str, str | None]) -> str:
    """The object of a model that has no `object` of its own: a model's name must never make the file invalid."""
    fits = name if is_component(name) else fitted(name) or "model"
    wanted = f"{provider}/{fits}"
    if wanted in taken and fits != name:
        wanted = f"{provider}/{fits[: LONGEST - 9]}-{crc32(name.encode()):08x}"
    return wanted


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something that can't be projected. at: its place in the file, as keys."""

    at: tuple[str, ...]
    message: str
    cure: str


@dataclass(frozen=True, slots=True)
class Projection:
    """objects: `provider/model` → the file's model, None for the built-in echo. aliases, users: alias → object."""

    objects: dict[str, str | None] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    users: dict[int, dict[str, str]] = field(default_factory=dict)
    misfits: list[Misfit] = field(default_factory=list)

    def object_of(self, model: str) -> str | None:
        return next((name for name, of in self.objects.items() if of == model), None)


def projection(config: Config) -> Projection:
    """Never raises: `misfits` lists everything that doesn't fit."""
    made = Projection()
    # Names that fit keep theirs, whatever stands before them in the file.
    for name, model in sorted(config.models.items(), key=lambda item: not is_component(item[0])):
        settings = config.section(Ctx).models.get(name)
        given = settings.object if settings is not None else None
        wanted = given or _derived(provider(model), name, made.objects)
        at = ("ctx", "models", name, "object") if given else ("models", name)
        if not is_model_id(wanted):
            cure = f"name it in ctx.models.{name}.object, as provider/model; each of {NAMING}"
            made.misfits.append(Misfit(at, f"{name} can't be an object of /ctx as {wanted}", cure))
        elif (other := made.objects.get(wanted)) is not None:
            cure = f"give one of them another ctx.models.NAME.object, as provider/model; each of {NAMING}"
            made.misfits.append(Misfit(at, f"{name} and {other} would both be {wanted} in /ctx", cure))
        else:
            made.objects[wanted] = name
    made.objects.setdefault(ECHO, None)
    made.aliases.update(_aliases(config, made))
    for user, aliases in config.section(Ctx).users.items():
        made.users[user] = dict(_resolved(config, made, aliases, ("ctx", "users", str(user))))
    return made


def provider(model: Model) -> str:
    """A model's provider: its maker if it runs on this machine, else the server's host.

    What isn't known doesn't become the engine: the name stays when another one runs the model.
    """
    if model.runtime == "echo":
        return "debug"
    host = urlsplit(model.base_url).hostname if model.base_url is not None else None
    if host is not None and (model.runtime == "openai" or not is_loopback(host)):
        return NATIVE_HOSTS.get(host, _normal(host))
    for name in (model.name, model.upstream_name.rpartition("/")[2]):
        for prefix, maker in MAKERS:
            if name.lower().startswith(prefix):
                return maker
    return LOCAL


def _normal(host: str) -> str:
    """A host name, without a port, as a path component."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            return host.rstrip(".").encode("idna").decode().lower()
        except UnicodeError:
            return host
    return address.exploded.replace(":", "-")


def _aliases(config: Config, made: Projection) -> Iterator[tuple[str, str]]:
    main = made.object_of(config.active_model)
    if main is not None:
        yield MAIN, main
        yield HELPER, main
    yield from _resolved(config, made, config.section(Ctx).aliases, ("ctx", "aliases"))


def _resolved(
    config: Config, made: Projection, aliases: Mapping[str, str], at: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    providers = {name.partition("/")[0] for name in made.objects}
    for alias, target in aliases.items():
        found = target if target in made.objects else made.object_of(target)
        if not is_component(alias):
            made.misfits.append(Misfit((*at, alias), f"{alias!r} can't be an alias of /ctx", f"use {NAMING}"))
        elif alias in providers and at == ("ctx", "aliases"):
            cure = f"choose a name other than the providers: {', '.join(sorted(providers))}"
            made.misfits.append(Misfit((*at, alias), f"the alias {alias} is a provider's folder in /ctx", cure))
        elif found is None and target not in config.models:
            cure = f"name a model, or an object: {', '.join([*config.models, *made.objects])}"
            made.misfits.append(Misfit((*at, alias), f"the alias {alias}: there is no model {target}", cure))
        elif found is not None:
            yield alias, found
