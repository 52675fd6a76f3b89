"""Adds a model: inspects its source, fetches its weights, and writes its entry into config.yaml, in this order.

The file doesn't change before the weights are complete and verified.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.config import Config, Model, PullSource, load
from gateway.config.build import WELL_KNOWN
from gateway.config.edit import with_model, write
from gateway.engines import memory
from gateway.engines.memory import Budget, Footprint
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest
from gateway.features.models.inventory import calls, entry, facts, fit, media, servers
from gateway.features.models.inventory.entry import Line
from gateway.features.models.inventory.facts import Facts
from gateway.features.models.inventory.media import Kind
from gateway.features.models.inventory.source import FORMS, AtURL, Hub, InOllama, Local, Source, parse
from gateway.features.models.pull import pull
from gateway.features.models.pull.hub import places
from gateway.features.models.pull.progress import Progress

if TYPE_CHECKING:
    from gateway.features.models.inventory.hub import Found
    from gateway.features.models.pull.hub import Remote


class Addition(Struct, frozen=True):
    """A model to add.

    written: the source as the user gave it. lines: of the entry, without those that depend on the weights. place: where
    the weights are, or will be; None: on a server. pull: where they come from. there: they are complete. window: tokens
    of the context window. wanted: that many, instead of the largest usual one that fits. need: of memory, None for a
    model on another server; at_least: it is a lower bound. reads_calls: its server parses tool calls. limit: memory
    that engines may use here. kind: of a model that hears, speaks or draws.
    """

    written: str
    name: str
    runtime: str
    facts: Facts
    lines: tuple[Line, ...]
    place: Path | None = None
    pull: PullSource | None = None
    there: bool = True
    window: int | None = None
    wanted: int | None = None
    need: Footprint | None = None
    at_least: bool = False
    reads_calls: bool = False
    limit: Budget | None = None
    kind: Kind | None = None

    def entry(self) -> str:
        """Its text in config.yaml, without indentation. Raises ProviderInvalidRequest for a path that the file can't
        contain."""
        found = self.facts
        lines = [*self.lines]
        if self.window is not None:
            lines.append(Line("context_window", self.window, self._why_window()))
        if found.role == "chat":
            lines.append(entry.dialect(found, self.reads_calls))
            lines += calls.lines(found) if self.runtime == "llama.cpp" else []
        elif found.role == "embedding":
            lines.append(Line("role", found.role, "it makes vectors"))
        elif self.kind is None:
            lines.append(Line("role", found.role, "by its name"))
        if found.role in ("chat", "embedding"):
            lines.append(entry.capabilities(found))
        if self.pull is not None:
            lines.append(Line("pull", _keys(self.pull)))
        return entry.write(self.name, f"Added by `ctxgate add {self.written}`: {self.summary()}.", lines)

    def summary(self) -> str:
        """Size, parameters, quantisation and architecture, as far as they are known."""
        from gateway.features.models.pull.progress import size

        found = self.facts
        known = (
            size(found.size) if found.size else "",
            f"{found.parameters} parameters" if found.parameters else "",
            found.quantization,
            f"architecture {found.architecture}" if found.architecture else "",
        )
        return ", ".join(filter(None, known)) or f"a model behind {self.runtime}"

    def model(self) -> Model:
        return Model(
            name=self.name, runtime=self.runtime, path=self.place, pull=self.pull, role=self.facts.role,
            context_window=self.window,
        )  # fmt: skip

    def _why_window(self) -> str:
        trained = self.facts.context
        if self.need is None:
            return "as its server says"
        cut = f"of the {trained} tokens that it was trained on; " if trained and trained != self.window else ""
        return f"{cut}needs about {_bytes(self.need)} of memory"


def identify(
    config: Config, written: str, *, name: str | None = None, model_name: str | None = None, window: int | None = None
) -> Addition:
    """Inspects the source and prepares its entry. Fetches nothing large, and writes nothing.

    name: for clients; None: after the source. model_name: which model of a server. window: tokens; None: the largest
    usual one that fits. Raises ProviderInvalidRequest, ProviderInvalidModel, ProviderUnavailable, and ConfigError if
    the entry wouldn't be valid.
    """
    source = parse(written)
    if name is not None and name in config.models:
        raise ProviderInvalidRequest(f"config.yaml already has a model {name}: choose another name with --name")
    looks: dict[type[Source], Callable[..., Addition]] = {
        Local: _local, Hub: _hub, InOllama: _ollama, AtURL: _server
    }  # fmt: skip
    found = looks[type(source)](config, source, written, model_name)
    found = replace(found, name=name or entry.name_for(found.name, config.models), wanted=window)
    if found.place is None and window is not None:
        raise ProviderInvalidRequest("--window is for models that the gateway starts; a server has its own window")
    if found.place is not None:
        found = _sized(config, found)
    check(config, found)
    return found


def check(config: Config, addition: Addition) -> None:
    """Raises ConfigError, or ProviderInvalidRequest, if config.yaml can't take the entry."""
    text = with_model(config.source.read_bytes(), addition.entry())
    load(config.source, text=text.decode("utf-8-sig"))


def fetch(config: Config, addition: Addition, progress: Progress) -> Addition:
    """Fetches the weights; returns the addition with what they contain. Raises what `pull` raises."""
    if addition.there:
        return addition
    model = addition.model()
    if addition.runtime == "ollama":
        base = servers.ollama_url()
        pull(replace(model, base_url=base), progress)
        assert addition.pull is not None
        known = servers.in_ollama(base, addition.pull.name)
        return replace(addition, there=True, facts=known if known is not None else addition.facts)
    pull(model, progress)
    assert addition.place is not None
    known = addition.facts if addition.kind is not None else facts.of_path(addition.place)
    return _sized(config, replace(addition, there=True, facts=known))


def add(config: Config, addition: Addition) -> None:
    """Writes the entry. Raises ProviderInvalidRequest if the file changed meanwhile, and ConfigError."""
    before = config.source.read_bytes()
    after = with_model(before, addition.entry())
    write(config.source, before, after, lambda made: {*made.models} == {*config.models, addition.name})


def folder(config: Config) -> Path:
    """Where weights go."""
    return config.models_dir or config.source.parent


def _keys(source: PullSource) -> dict[str, str]:
    named = {source.kind: source.name, "revision": source.version, "file": source.file, "sha256": source.sha256}
    return {key: value for key, value in named.items() if value is not None}


def _sized(config: Config, found: Addition) -> Addition:
    """Adds the context window and the memory need; before the weights are there, a lower bound."""
    limit = fit.budget(config)
    if found.kind is not None:
        if found.wanted is not None:
            raise ProviderInvalidRequest("--window is for models that chat")
        return replace(found, need=found.kind.need(found.facts.size or 0), limit=limit)
    if not found.there:
        least = memory.PROCESS + (found.facts.size or 0)
        need = Footprint(memory.PROCESS, least) if limit.gpu is not None else Footprint(least)
        return replace(found, need=need, at_least=True, limit=limit)
    try:
        window, need = fit.window(found.model(), found.facts.context, limit, found.wanted)
    except OSError as error:
        raise ProviderInvalidRequest(f"{found.place} can't be read: {error}") from error
    return replace(found, window=window, need=need, at_least=False, limit=limit)


def _local(config: Config, source: Local, written: str, model_name: str | None) -> Addition:
    path = source.path.absolute()
    if not path.exists():
        raise ProviderInvalidModel(f"there is no {path}; name {FORMS}")
    for model in config.models.values():
        if model.path is not None and model.path.exists() and model.path.samefile(path):
            raise ProviderInvalidRequest(f"config.yaml already has these weights, as {model.name}")
    if (kind := media.kind_at(path)) is not None:
        size = sum(file.stat().st_size for file in memory.files(path))
        known = Facts(size=size, role=kind.role)
        lines = kind.lines(_shown_path(config, path), size)
        return Addition(written, path.name, kind.runtime, known, lines, place=path, kind=kind)
    runtime = "mlx" if path.is_dir() else "llama.cpp"
    lines = (Line("runtime", runtime), Line("path", _shown_path(config, path)))
    return Addition(written, path.name, runtime, facts.of_path(path), lines, place=path)


def _hub(config: Config, source: Hub, written: str, model_name: str | None) -> Addition:
    from gateway.features.models.inventory import hub

    found = hub.identify(source)
    for model in config.models.values():
        there = model.pull
        if there is not None and (there.kind, there.name, there.file) == ("hub", found.repo, found.file):
            raise ProviderInvalidRequest(
                f"config.yaml already has it, as {model.name}: `ctxgate pull {model.name}` fetches its weights"
            )
    runtime = "mlx" if found.file is None else "llama.cpp"
    base = (found.file or found.repo).rpartition("/")[2]
    place = folder(config) / base
    if any(model.path == place for model in config.models.values()):
        raise ProviderInvalidRequest(f"another model of config.yaml has its weights at {place}")
    if (taken := _taken(found, place)) is not None:
        raise ProviderInvalidRequest(f"{taken} is there already: add that by its path, or move it away first")
    came_from = PullSource(kind="hub", name=found.repo, version=found.commit, file=found.file, sha256=found.sha256)
    shown = _shown_path(config, place)
    lines: tuple[Line, ...] = (Line("runtime", runtime), Line("path", shown))
    if found.kind is not None:
        runtime, lines = found.kind.runtime, found.kind.lines(shown, found.facts.size or 0)
    return Addition(
        written, base, runtime, found.facts, lines, place=place, pull=came_from, there=False, kind=found.kind
    )


def _taken(found: Found, place: Path) -> Path | None:
    """What lies where a pull would put its files, and would then pass for them, but is something else: what an earlier
    one has put there may stay. Of a single file with a hash, the pull finds out whether it is the same."""
    if found.file is None:
        return place if os.path.lexists(place) and not _is_copy(found.files, place) else None
    needed = places(found.file, place)
    if len(needed) == 1 and found.sha256 is not None:
        return None
    by_name = {PurePosixPath(file.path).name: file for file in found.files}
    return next((each for each in needed if os.path.lexists(each) and not by_name[each.name].lies_at(each)), None)


def _is_copy(files: Sequence[Remote], place: Path) -> bool:
    """Whether the folder has these files and no other."""
    there = {str(each.relative_to(place)) for each in place.rglob("*") if each.is_symlink() or not each.is_dir()}
    return there == {file.path for file in files} and all(file.lies_at(place / file.path) for file in files)


def _ollama(config: Config, source: InOllama, written: str, model_name: str | None) -> Addition:
    for model in config.models.values():
        if model.runtime == "ollama" and model.upstream_name == source.name:
            raise ProviderInvalidRequest(f"config.yaml already has it, as {model.name}")
    base = servers.ollama_url()
    known = servers.in_ollama(base, source.name)
    lines = [Line("runtime", "ollama"), Line("model_name", source.name)]
    if base != WELL_KNOWN["ollama"]:
        lines.insert(1, Line("base_url", base))
    # What is there already may be the user's own, which no pull brings back.
    came_from = PullSource(kind="ollama", name=source.name) if known is None else None
    return Addition(
        written, source.name.replace(":", "-"), "ollama", known or Facts(), tuple(lines), pull=came_from,
        there=known is not None, reads_calls=True,
    )  # fmt: skip


def _server(config: Config, source: AtURL, written: str, model_name: str | None) -> Addition:
    found = servers.identify(source.url, model_name)
    lines: list[Line] = [Line("runtime", found.runtime), Line("base_url", source.url)]
    if found.runtime == "openai" or model_name is not None:
        lines.append(Line("model_name", found.model_name, "as the server calls it"))
    reads_calls = found.runtime == "openai"
    return Addition(
        written, found.model_name, found.runtime, found.facts, tuple(lines), window=found.window,
        reads_calls=reads_calls,
    )  # fmt: skip


def _shown_path(config: Config, path: Path) -> str:
    """Relative to the models' folder if it is inside."""
    home = folder(config)
    return str(path.relative_to(home) if path.is_relative_to(home) else path)


def _bytes(need: Footprint) -> str:
    from gateway.features.models.pull.progress import size

    return size(need.ram + need.gpu)


def residents(status: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The engines of a running gateway, from its `/-/status`; none without one."""
    models = (status or {}).get("models") or []
    return [model["engine"] for model in models if model.get("engine")]
