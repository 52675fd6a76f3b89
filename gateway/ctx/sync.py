"""Makes the tree match the configuration.

`sync` owns the paths in its manifest and nothing else. It creates, changes and removes those, each file atomically. It
leaves what a person has created or changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gateway.config import Config
from gateway.config.projection import MAIN, Projection, projection
from gateway.ctx.control import defaults_text
from gateway.ctx.metadata import Projected, echo, projected
from gateway.ctx.objects import ObjectName
from gateway.ctx.tree import MANIFEST, RUNNER, STATE, locked, prepare, write
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable

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
    wanted = _wanted(root, config, wanted_tree)
    try:
        prepare(root)
        with locked(root / STATE / "sync.lock"):
            return _Sync(root).run(wanted)
    except OSError as error:
        raise ProviderUnavailable(f"the tree at {root} can't be written: {error}") from error


def _wanted(root: Path, config: Config, made: Projection) -> dict[str, _Wanted]:
    """Every path of the tree, folders before their entries."""
    wanted = {path: _Wanted(FOLDER) for path in ("bin", "model", "home", "shared")}
    wanted[RUNNER] = _Wanted("file", launcher(), 0o500)
    wanted["status"] = _Wanted(LIVE, b"offline\n")
    for name, of in made.objects.items():
        wanted.setdefault(f"model/{name.partition('/')[0]}", _Wanted(FOLDER))
        wanted |= _object(root, _project(config, name, of))
    own = os.geteuid()
    aliases = {"model": made.aliases}
    users: dict[int, dict[str, str]] = {own: {}}
    for user, names in (users | made.users).items():
        wanted[f"home/{user}"] = wanted[f"home/{user}/model"] = _Wanted(FOLDER)
        aliases[f"home/{user}/model"] = ({MAIN: made.aliases[MAIN]} if user == own else {}) | names
    for folder, names in aliases.items():
        for alias, target in names.items():
            wanted[f"{folder}/{alias}"] = _Wanted("link", os.fsencode(root / "model" / target))
    return wanted


def _project(config: Config, name: str, of: str | None) -> Projected:
    if of is None:
        return echo()
    model, settings = config.models[of], config.ctx.models.get(of)
    path = model.path
    return projected(
        ObjectName("model", name),
        model,
        settings.driver if settings is not None else {},
        settings.session if settings is not None else "socket",
        int(path.stat().st_mtime) if path is not None and path.exists() else None,
    )


def _object(root: Path, it: Projected) -> dict[str, _Wanted]:
    entry = str(it.name)
    native = "".join(f"{key}={value}\n" for key, value in it.native.items() if value is not None)
    files = {
        "id": f"{it.name.name}\n",
        "driver": it.routes.text(),
        "cap": "".join(f"{word}\n" for word in it.capabilities),
        "default": defaults_text(it.defaults),
        "session": f"{it.session}\n",
        "native": native,
    }
    wanted = {entry: _Wanted("file", it.metadata(shebang(root)).encode(), 0o500), f"{entry}.d": _Wanted(FOLDER)}
    wanted |= {f"{entry}.d/{name}": _Wanted("file", text.encode()) for name, text in files.items()}
    wanted |= {f"{entry}.d/status": _Wanted(LIVE, b"offline\n"), f"{entry}.d/log": _Wanted(LIVE)}
    if it.session == "socket":
        # Only the gateway creates it: an unserved socket must not exist.
        wanted[f"{entry}.sock"] = _Wanted(SOCKET)
    return wanted


def shebang(root: Path) -> str:
    # Only on Linux may a shebang name a script.
    return f"{root / RUNNER}" if sys.platform == "linux" else f"/usr/bin/env {root / RUNNER}"


def launcher() -> bytes:
    """The runner of this tree: a few lines for this Python, without `site`, so that it starts fast."""
    package = str(Path(__file__).parents[2])
    python = sys.executable
    head = f"#!{python} -IS\n"
    if len(os.fsencode(python)) > 120 or any(char.isspace() for char in python):
        # A shebang can't name it, but sh can. sh stops at exec; for Python that line is a string.
        quoted = "'" + python.replace("'", "'\"'\"'") + "'"
        head = f"#!/bin/sh\n'''exec' {quoted} -IS \"$0\" \"$@\"\n' '''\n"
    return (
        f"{head}import sys\nsys.path.append({package!r})\n"
        "from gateway.ctx.runner import main\nmain(__file__, sys.argv[1:])\n"
    ).encode()


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
            if self._ours(path) or not os.path.lexists(self.root / path):
                self.manifest[path] = list(dict.fromkeys([*self.manifest.get(path, []), mark]))
        if self.manifest != before:
            self._save()
        # Remove first: a folder may become a file.
        gone = [path for path in self.manifest if path not in wanted]
        for path in sorted(gone, key=lambda path: path.count("/"), reverse=True):
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

    def _ours(self, path: str) -> bool:
        """Whether we created what is there and nobody has changed it."""
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
        elif self._ours(path):
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
        if not self._ours(path):
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
