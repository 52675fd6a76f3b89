"""The tree on disk: its place and its contents."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.control import (
    BadControlFile,
    Mistake,
    Routes,
    Session,
    parse_capabilities,
    parse_defaults,
    parse_session,
)
from gateway.features.ctx.errors import NotFound, NotPermitted
from gateway.features.ctx.objects import Kind, ObjectName, Triple
from gateway.features.ctx.projection import is_component
from gateway.features.ctx.settings import Ctx

STATE = ".ctxgate"
"""The gateway's folder in the tree: the manifest, locks, and the socket of executed objects."""
RUNNER = "bin/cortexfs-object-runner"
README = "README"
EXEC_SOCKET = f"{STATE}/exec.sock"
MANIFEST = f"{STATE}/manifest.json"
GATEWAY_LOCK = f"{STATE}/gateway.lock"

MAX_CONTROL_FILE = 64 * 1024
MAX_ROOT = 80
"""Bytes of the root's path: sockets below it must fit into a sockaddr, and the runner into a shebang."""
LOCK_SECONDS = 10.0


def find_root(given: Path | None, config: Config, environ: Mapping[str, str] = os.environ) -> Path:
    """The root: `given`, $CTX_ROOT, ctx.root, a writable /ctx, or a folder in the user's runtime folder.

    Raises ProviderInvalidRequest if there is none of these, or the path doesn't fit into sockets and shebangs.
    """
    named = given or environ.get("CTX_ROOT") or config.section(Ctx).root
    if named is None and os.path.isdir("/ctx") and os.access("/ctx", os.W_OK):
        named = Path("/ctx")
    if named is None and (runtime := environ.get("XDG_RUNTIME_DIR")):
        named = Path(runtime) / "ctx"
    if named is None:
        raise ProviderInvalidRequest(
            "no place for the tree: set --root, $CTX_ROOT, ctx.root in config.yaml or $XDG_RUNTIME_DIR, or make /ctx "
            "writable"
        )
    root = Path(os.path.abspath(named))
    if len(os.fsencode(root)) > MAX_ROOT or any(char.isspace() for char in str(root)):
        raise ProviderInvalidRequest(f"{root} can't be the root: use a path without spaces, at most {MAX_ROOT} bytes")
    return root


@dataclass(frozen=True, slots=True)
class Control:
    """The present contents of an object's `.d` folder."""

    id: str
    routes: Routes
    defaults: Mapping[str, Any]
    session: Session
    capabilities: tuple[str, ...]


def read_control(triple: Triple) -> Control:
    """Reads an object's `.d` folder. Raises NotFound, and BadControlFile with all mistakes of a file."""
    if not triple.entry.is_file():
        raise NotFound(f"no object {triple.name}")
    texts = {name: read_text(triple.control / name) for name in ("id", "driver", "default", "session", "cap")}
    return Control(
        id=texts["id"].strip(),
        routes=Routes.parse(texts["driver"]),
        defaults=parse_defaults(texts["default"]),
        session=parse_session(texts["session"] or "none"),
        capabilities=parse_capabilities(texts["cap"]),
    )


def read_text(path: Path) -> str:
    """The text of a file; empty if it is missing. Never waits, as for the writer of a pipe.

    Raises BadControlFile, and NotPermitted for a file that the gateway may not read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadControlFile(path.name, [Mistake("NotAFile", 0, "")])
            data = file.read(MAX_CONTROL_FILE + 1)
        if len(data) > MAX_CONTROL_FILE:
            raise BadControlFile(path.name, [Mistake("TooLong", 0, "")])
        return data.decode()
    except FileNotFoundError:
        return ""
    except IsADirectoryError:
        raise BadControlFile(path.name, [Mistake("NotAFile", 0, "")]) from None
    except PermissionError:
        raise NotPermitted(f"the gateway may not read {path}: chmod u+r, or give it to the gateway's user") from None
    except OSError as error:  # such as a loop of links
        raise BadControlFile(path.name, [Mistake("Unreadable", 0, str(error.strerror))]) from error
    except UnicodeDecodeError as error:
        raise BadControlFile(path.name, [Mistake("NotText", 0, "")]) from error


def objects(root: Path) -> Iterator[Triple]:
    """The models of the tree, whoever created them, sorted by name."""
    for provider in sorted((root / "model").glob("*/")):
        if is_component(provider.name) and not provider.is_symlink():
            for control in sorted(provider.glob("*.d")):
                name = control.name.removesuffix(".d")
                if is_component(name) and (provider / name).is_file() and not (provider / name).is_symlink():
                    yield Triple.of(root, ObjectName("model", f"{provider.name}/{name}"))


def others(root: Path) -> Iterator[Triple]:
    """The agents and tools of the tree, sorted by name."""
    kinds: tuple[Kind, ...] = ("agent", "tool")
    for kind in kinds:
        for control in sorted((root / kind).glob("*.d")):
            name = control.name.removesuffix(".d")
            if is_component(name) and (root / kind / name).is_file():
                yield Triple.of(root, ObjectName(kind, name))


def prepare(root: Path) -> None:
    """Creates the root and the gateway's folder in it, private to the owner. Raises ProviderInvalidRequest."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002:
        raise ProviderInvalidRequest(f"{root} isn't safe: it must be a folder of yours that not everyone can write")
    (root / STATE).mkdir(mode=0o700, exist_ok=True)
    status = (root / STATE).lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ProviderInvalidRequest(f"{root} belongs to another gateway: {STATE} isn't yours")


@contextmanager
def locked(path: Path, *, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Holds a file lock. Raises BlockingIOError if another process holds it for longer than `seconds`."""
    import time

    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as file:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        yield


def write(root: Path, path: str, content: bytes, mode: int) -> None:
    """Writes a file atomically: elsewhere first, then renamed."""
    aside = root / STATE / f"aside-{os.getpid()}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    try:
        os.replace(aside, root / path)
    except OSError:
        aside.unlink()
        raise
