"""Makes the tree match the configuration.

`sync` owns the paths in its manifest and nothing else. It creates, changes and removes those, each file atomically. It
leaves what a person has created or changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.config import Config
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnavailable
from gateway.features.agents.settings import Rooms
from gateway.features.ctx.agents.projected import control_files as agent_files
from gateway.features.ctx.agents.projected import metadata as agent_metadata
from gateway.features.ctx.control import Session, defaults_text
from gateway.features.ctx.launcher import runner, shebang
from gateway.features.ctx.metadata import Projected, capabilities, echo, projected
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.projection import MAIN, Projection, projection
from gateway.features.ctx.readme import readme
from gateway.features.ctx.settings import Ctx
from gateway.features.ctx.tools.known import known
from gateway.features.ctx.tools.projected import control_files as tool_files
from gateway.features.ctx.tools.projected import metadata as tool_metadata
from gateway.features.ctx.tree import MANIFEST, README, RUNNER, STATE, locked, prepare, read_control, write

LIVE, FOLDER, SOCKET = "live", "folder", "socket"
"""Marks in the manifest: a file that the running gateway writes, a folder, a socket. The mark of any other file is its
hash, of a symlink `-> target`."""


@dataclass(slots=True)
class Report:
    """What `sync` did, as paths below the root. kept: left alone, since someone else has changed them."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: str
    """`file`, `link`, or one of the manifest's marks."""
    content: bytes = b""
    mode: int = 0o600


def sync(root: Path, config: Config) -> Report:
    """Makes the tree match the configuration.

    Raises ProviderInvalidRequest if models can't become objects or the root isn't safe, ProviderUnavailable if the tree
    can't be written.
    """
    wanted_tree = projection(config)
    if wanted_tree.misfits:
        message = "\n".join(f"{misfit.message}\n    {misfit.cure}" for misfit in wanted_tree.misfits)
        raise ProviderInvalidRequest(message)
    try:
        prepare(root)
        with locked(root / STATE / "sync.lock"):
            work = _Sync(root)
            return work.run(_wanted(root, config, wanted_tree, work.ours))
    except OSError as error:
        raise ProviderUnavailable(f"the tree at {root} can't be written: {error}") from error


def _wanted(root: Path, config: Config, made: Projection, ours: Callable[[str], bool]) -> dict[str, _Wanted]:
    """Every path of the tree, folders before their entries. ours: whether a path is as we have made it."""
    wanted = {path: _Wanted(FOLDER) for path in ("bin", "model", "home", "shared")}
    wanted[RUNNER] = _Wanted("file", runner(root, compile=config.section(Ctx).compile), 0o500)
    wanted[README] = _Wanted("file", readme().encode())
    wanted["status"] = _Wanted(LIVE, b"offline\n")
    for name, of in made.objects.items():
        wanted.setdefault(f"model/{name.partition('/')[0]}", _Wanted(FOLDER))
        it = _project(config, name, of)
        session = f"{it.name}.d/session"
        untouched = ours(session) or not (root / session).exists()
        declared = it if untouched else _as_declared(root, it, config, of)
        wanted |= _object(root, declared, it.session)
    known_tools = known(root, config)
    for kind in ("agent", "tool"):
        wanted[kind] = _Wanted(FOLDER)
    for tool in known_tools:
        files = tool_files(tool, config.section(Ctx).tools)
        wanted |= _files_of(f"tool/{tool.name}", tool_metadata(tool, shebang(root)), files)
    for name, agent in config.section(Ctx).agents.items():
        files = agent_files(agent, config.section(Rooms), known_tools)
        entry = f"agent/{name}"
        wanted |= _files_of(entry, agent_metadata(name, agent, shebang(root)), files)
        wanted[f"{entry}.sock"] = _Wanted(SOCKET)
    own = os.geteuid()
    aliases = {"model": made.aliases}
    users: dict[int, dict[str, str]] = {own: {}}
    for user, names in (users | made.users).items():
        wanted[f"home/{user}"] = wanted[f"home/{user}/model"] = _Wanted(FOLDER)
        aliases[f"home/{user}/model"] = ({MAIN: made.aliases[MAIN]} if user == own else {}) | names
    for folder, names in aliases.items():
        for alias, target in names.items():
            path = root / folder / alias
            # A person's own alias of that name has no other half of ours.
            foreign = os.path.lexists(path) and not ours(f"{folder}/{alias}")
            for suffix in ("",) if foreign else (".d", ".sock", ""):
                if f"model/{target}{suffix}" in wanted:
                    wanted[f"{folder}/{alias}{suffix}"] = _Wanted("link", os.fsencode(root / f"model/{target}{suffix}"))
    return wanted


def _as_declared(root: Path, it: Projected, config: Config, of: str | None) -> Projected:
    """The object with the session that its `.d` folder declares by now, which a person may have changed."""
    try:
        control = read_control(Triple.of(root, it.name))
    except GatewayError:
        return it
    model = config.models[of] if of is not None else None
    if control.session == it.session or (model is not None and model.role != "chat"):
        return it
    return replace(it, session=control.session, capabilities=capabilities(model, control.session))


def _project(config: Config, name: str, of: str | None) -> Projected:
    if of is None:
        return echo()
    model, settings = config.models[of], config.section(Ctx).models.get(of)
    path = model.path
    return projected(
        ObjectName("model", name),
        model,
        settings.driver if settings is not None else {},
        settings.session if settings is not None else "socket",
        int(path.stat().st_mtime) if path is not None and path.exists() else None,
    )


def _object(root: Path, it: Projected, session: Session) -> dict[str, _Wanted]:
    """session: as the configuration has it."""
    entry = str(it.name)
    native = "".join(f"{key}={value}\n" for key, value in it.native.items() if value is not None)
    files = {
        "id": f"{it.name.name}\n",
        "driver": it.routes.text(),
        "cap": "".join(f"{word}\n" for word in it.capabilities),
        "default": defaults_text(it.defaults),
        "session": f"{session}\n",
        "native": native,
    }
    wanted = _files_of(entry, it.metadata(shebang(root)), files)
    if it.session == "socket":
        # Only the gateway creates it: an unserved socket must not exist.
        wanted[f"{entry}.sock"] = _Wanted(SOCKET)
    return wanted


def _files_of(entry: str, metadata: str, files: Mapping[str, str]) -> dict[str, _Wanted]:
    """An object but for its socket. Its executable file comes last: whoever sees that one may run it at once."""
    folder = f"{entry}.d"
    wanted = {folder: _Wanted(FOLDER)} | {
        f"{folder}/{name}": _Wanted("file", text.encode()) for name, text in files.items()
    }
    wanted |= {f"{folder}/status": _Wanted(LIVE, b"offline\n"), f"{folder}/log": _Wanted(LIVE)}
    return wanted | {entry: _Wanted("file", metadata.encode(), 0o500)}


class _Sync:
    """One synchronisation. While a path changes, the manifest has both its marks, so that a crash loses nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest_file = root / MANIFEST
        self.report = Report()
        try:
            self.manifest: dict[str, list[str]] = json.loads(self.manifest_file.read_bytes())
        except FileNotFoundError:
            self.manifest = {}
        except ValueError as error:
            cure = "remove it; everything in the tree then counts as made by hand"
            raise ProviderUnavailable(f"{self.manifest_file} is damaged: {cure}") from error

    def run(self, wanted: dict[str, _Wanted]) -> Report:
        before = dict(self.manifest)
        for path, thing in wanted.items():
            mark = _mark(thing)
            if self.ours(path) or not os.path.lexists(self.root / path):
                self.manifest[path] = list(dict.fromkeys([*self.manifest.get(path, []), mark]))
        if self.manifest != before:
            self._save()
        # Remove first: a folder may become a file. Of an object, its executable file goes before its folder: whoever
        # runs it needs both.
        gone = [path for path in self.manifest if path not in wanted]
        folders = {path for path in gone if path.endswith(".d")}
        for path in sorted(gone, key=lambda path: (f"{path}.d" not in folders, -path.count("/"))):
            if self._remove(path):
                del self.manifest[path]
        for path, thing in wanted.items():
            self._make(path, thing)
        final = {
            path: [_mark(wanted[path])] if path in wanted and path not in self.report.kept else marks
            for path, marks in self.manifest.items()
        }
        if final != self.manifest or gone:
            self.manifest = final
            self._save()
        else:
            # Makes a running gateway check the tree again.
            os.utime(self.manifest_file)
        return self.report

    def ours(self, path: str) -> bool:
        """Whether we created the file and it hasn't been changed."""
        return path in self.manifest and self._present(path) in self.manifest[path]

    def _present(self, path: str) -> str | None:
        """The mark of what is at a path; None for nothing and for kinds of files that we never create."""
        place = self.root / path
        try:
            status = place.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            return f"-> {os.readlink(place)}"
        if stat.S_ISDIR(status.st_mode):
            return FOLDER
        if stat.S_ISSOCK(status.st_mode):
            return SOCKET
        if not stat.S_ISREG(status.st_mode):
            return None
        if LIVE in self.manifest.get(path, ()):
            return LIVE
        return hashlib.sha256(place.read_bytes()).hexdigest()

    def _make(self, path: str, thing: _Wanted) -> None:
        place = self.root / path
        present = self._present(path)
        if thing.kind == SOCKET or present == _mark(thing):
            return
        if present is None and not os.path.lexists(place):
            self.report.made.append(path)
        elif self.ours(path):
            self.report.changed.append(path)
        elif thing.kind == FOLDER:
            raise ProviderInvalidRequest(f"{place} is in the way: /ctx needs a folder there")
        else:
            if thing.kind != LIVE:
                self.report.kept.append(path)
            return
        if thing.kind == FOLDER:
            place.mkdir(mode=0o700)
        elif thing.kind == "link":
            aside = self.root / STATE / f"aside-{os.getpid()}"
            aside.unlink(missing_ok=True)
            os.symlink(os.fsdecode(thing.content), aside)
            os.replace(aside, place)
        else:
            write(self.root, path, thing.content, thing.mode)

    def _remove(self, path: str) -> bool:
        """Removes what is there if it is ours. Returns whether the manifest may forget the path."""
        place = self.root / path
        if not os.path.lexists(place):
            return True
        if not self.ours(path):
            self.report.kept.append(path)
            return True
        if self._present(path) != FOLDER:
            place.unlink()
        elif any(place.iterdir()):
            self.report.kept.append(path)
            return True
        else:
            place.rmdir()
        self.report.removed.append(path)
        return True

    def _save(self) -> None:
        text = json.dumps(self.manifest, indent=0, sort_keys=True)
        write(self.root, MANIFEST, text.encode(), 0o600)


def _mark(thing: _Wanted) -> str:
    if thing.kind == "file":
        return hashlib.sha256(thing.content).hexdigest()
    return f"-> {os.fsdecode(thing.content)}" if thing.kind == "link" else thing.kind
