"""What a feature is, and which ones there are.

A feature is a part of the gateway that serving a chat of OpenAI's API doesn't need: other APIs, rooms, the cluster. It
keeps to one folder, or to a package of its own, and its `Feature` names everything that the gateway has to know of it.
Nothing else in the gateway imports it. Everything is named by import strings, `package.module:name`, which are imported
when they are first used.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gateway.wire.chat import ApiName

FEATURES = (
    "gateway.features.messages.feature:FEATURE",
    "gateway.features.ollama.feature:FEATURE",
    "gateway.features.responses.feature:FEATURE",
    "gateway.features.completions.feature:FEATURE",
    "gateway.features.vectors.feature:FEATURE",
    "gateway.features.media.feature:FEATURE",
    "gateway.features.clients.feature:FEATURE",
    "gateway.features.operations.feature:FEATURE",
    "gateway.features.keys.feature:FEATURE",
    "gateway.features.share.feature:FEATURE",
    "gateway.features.traces.feature:FEATURE",
    "gateway.features.descriptions.feature:FEATURE",
    "gateway.features.checks.feature:FEATURE",
    "gateway.features.cluster.feature:FEATURE",
    "gateway.features.models.feature:FEATURE",
    "gateway.features.agents.feature:FEATURE",
    "gateway.features.rooms.feature:FEATURE",
    "gateway.features.ctx.feature:FEATURE",
    "gateway.features.batches.feature:FEATURE",
    "gateway.features.evaluation.feature:FEATURE",
    "gateway.features.service.feature:FEATURE",
    "gateway.features.page.feature:FEATURE",
)
"""The features that come with the gateway. Where two name the same thing, the earlier one counts. Their background work
starts in this order and ends in the opposite one."""

GROUP = "ctxgate.features"
"""The group of entry points by which other packages name their features."""

OPENAI_ERRORS = "gateway.errors:GatewayError.body"

log = logging.getLogger("ctxgate")


class Routes(NamedTuple):
    """Paths and the handlers of their methods.

    paths: brackets enclose what a path may leave out; a handler is a `gateway.server.http.Handler`. prefixes: below
    them, unknown paths and refused keys, too, are answered in the format of `errors`. A path takes its format from the
    longest prefix, of any `Routes`, that it begins with; that of /v1/ is OpenAI's. errors: below the prefixes: a
    function, GatewayError → JSON value. limits: likewise, a function of `gateway.wire.limits` that writes what is left
    of a key's limits. api: these paths ask a model; POST requests that are refused are in the request log under this
    name. finishes: the handlers run to their end even if their clients leave. uploads: the handlers read the bodies
    themselves, piece by piece.
    """

    paths: Mapping[str, Mapping[str, str]]
    prefixes: tuple[str, ...] = ()
    errors: str = OPENAI_ERRORS
    limits: str = "gateway.wire.limits:openai_headers"
    api: ApiName | None = None
    finishes: bool = False
    uploads: bool = False


class Background(NamedTuple):
    """What runs beside the APIs while the gateway serves.

    factory: `gateway.services.Services` → async context manager. wanted: whether the configuration asks for it.
    """

    factory: str
    wanted: Callable[[Any], bool]


class Extra(NamedTuple):
    """An extra of a package, such as `ctxgate[cluster]`, and modules that it installs."""

    name: str
    modules: tuple[str, ...]
    package: str = "ctxgate"


class Feature(NamedTuple):
    """Everything that the gateway has to know of one feature.

    sections: key of config.yaml → a subclass of `gateway.config.file.Entry`, the class of its value. `Config.sections`
    has the values.
    at_start: keys of these sections, as `rooms` or `ctx.root`, that only a restart of the gateway applies.
    settle: a function, `gateway.config.source.Document` and `gateway.config.Config` → `Config`, for a file with one of
    the sections. It reports conflicts between a section and the rest of the file as problems of the document.
    websockets: path → a function of `gateway.services.Services`, `gateway.server.bodies.Bodies` and an ASGI connection
    of that type, with its receive and send. It is imported with its first client.
    commands: name → function of click, and its purpose in the help of `ctxgate`.
    prunes: see `gateway.store.retention.Prune`.
    migrations: the dotted name of a folder with revisions of alembic, a branch of their own; see
    `gateway.store.migrate`.
    openapi: a module with `PATHS`, path → OpenAPI path item, and where needed `schemas()`, name → JSON Schema, and
    `ABOUT`, a tag of its operations → sentence for /llms.txt. It adds schemas, and can't extend those of others.
    offers: what other parts ask for by name, see `offered`.
    extra: what the sections need.
    """

    name: str
    sections: Mapping[str, str] = {}
    at_start: tuple[str, ...] = ()
    settle: str | None = None
    routes: tuple[Routes, ...] = ()
    websockets: Mapping[str, str] = {}
    commands: Mapping[str, tuple[str, str]] = {}
    background: tuple[Background, ...] = ()
    prunes: tuple[str, ...] = ()
    migrations: str | None = None
    openapi: str | None = None
    offers: Mapping[str, str] = {}
    extra: Extra | None = None


def imported(name: str) -> Any:
    """What an import string names."""
    module, _, attributes = name.partition(":")
    found: Any = import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


@cache
def ours() -> tuple[Feature, ...]:
    """The features that come with the gateway."""
    return tuple(imported(name) for name in FEATURES)


@cache
def others() -> tuple[Feature, ...]:
    """The features of other packages. One that can't be loaded is left out, and the log says so."""
    found = {feature.name: feature for feature in ours()}
    if any(_names_features(folder) for folder in sys.path):
        from importlib.metadata import entry_points

        for entry in entry_points(group=GROUP):
            try:
                feature = entry.load()
                if not isinstance(feature, Feature):
                    raise TypeError(f"{entry.value} is no gateway.feature.Feature")
                if feature.name in found:
                    raise ValueError(f"there is another feature {feature.name}")
            except Exception as error:  # noqa: BLE001 - code of others must not keep the gateway from starting
                log.error("the feature %s can't be loaded: %s: %s", entry.value, type(error).__name__, error)
            else:
                found[feature.name] = feature
    return tuple(found.values())[len(ours()) :]


def installed() -> tuple[Feature, ...]:
    """All features, in the order in which they count."""
    return (*ours(), *others())


def offered(name: str) -> Any:
    """What a feature offers under that name. Raises LookupError if none does.

    Those who ask say what it must be: `engine_pool` in `gateway.app`, `hear`, `describer` and `traces` in
    `gateway.core.gateway`, `anthropic_model` in `gateway.api.models`, `spoken_chats` in `gateway.api.chat`, `limiter`
    in `gateway.api.dispatch`, `sound_server` in `gateway.engines.recipe`, `share` in `gateway.prompts.sharing`,
    `add_usage` and `tokens_today` in `gateway.services`, `page` in `gateway.api.health`, `fetch_weights` in
    `gateway.cli.serve`, `model_test` in `gateway.cli.model_test`; and, of features, `key_file` in
    `gateway.features.keys.commands.keys`, `remote_tools` in `gateway.features.responses.endpoints`, `agent_provider` in
    `gateway.features.rooms.turns`, `record_views` in `gateway.features.agents.tools.data`.
    """
    for feature in installed():
        if name in feature.offers:
            return imported(feature.offers[name])
    raise LookupError(f"no feature offers {name}")


def lacking(feature: Feature) -> str:
    """Which packages of the feature's extra aren't installed, and what installs them; "" if none is missing."""
    if (extra := feature.extra) is None or not (missing := [name for name in extra.modules if find_spec(name) is None]):
        return ""
    return f"not installed: {', '.join(missing)}; pip install '{extra.package}[{extra.name}]'"


def _names_features(folder: str) -> bool:
    """Whether a package installed there has entry points of GROUP.

    `importlib.metadata` finds that out, too, but its import takes longer than the rest of a start.
    """
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith("-info"):
                with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if GROUP.encode() in file.read():
                        return True
    return False
