"""What the service runs, its state, and the manager that runs it."""

from __future__ import annotations

import contextlib
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from gateway.config.folders import whole
from gateway.errors import ProviderUnavailable

ANSWER_SECONDS = 90.0
"""Time limit for a command of systemd or launchd: longer than a gateway takes to stop."""
STOP_SECONDS = 45
"""Time for the gateway to end by itself; it needs 30 s at most."""
OPEN_FILES = 4096
"""Connections take up to half of them."""


class ServicePlan(Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    """Starts the gateway, which stays in the foreground."""
    environment: Mapping[str, str] = {}
    """No secrets: other users may read the files."""
    listen: tuple[str, ...] = ()
    """`address:port` or a socket's path, as systemd has them; empty: the gateway opens them itself."""
    writable: tuple[Path, ...] = ()
    """Folders in which the gateway writes."""
    sandbox: bool = True
    """Whether the rest of the file system is read-only to it, where the manager can do that."""
    private_tmp: bool = True
    """Whether the sandbox has a /tmp of its own."""
    linger: bool = False
    """Whether installing it made the user's services survive a logout."""


class State(Struct, frozen=True, kw_only=True):
    installed: bool
    running: bool = False
    opened: bool = False
    """Whether the manager opens the gateway's address."""
    pid: int | None = None
    text: str = ""
    """The manager's own words."""
    survives_logout: bool = False
    cure: str = ""
    """What to do if it doesn't run, if known."""


class Manager(ABC):
    """systemd or launchd, for one user. Methods raise ProviderUnavailable if its program is missing or refuses."""

    name: ClassVar[str]

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def files(self, plan: ServicePlan) -> dict[Path, bytes]:
        """The manager's files. Pure."""

    @abstractmethod
    def links(self) -> dict[Path, Path]:
        """Symbolic links beside the files: link → target. Pure."""

    @abstractmethod
    def present(self) -> None:
        """Raises ProviderUnavailable unless the manager runs services of this user here."""

    @abstractmethod
    def start(self) -> None:
        """Starts the written service, and stops an earlier one."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def forget(self) -> None:
        """Tells the manager that the files are gone."""

    @abstractmethod
    def state(self) -> State: ...

    @abstractmethod
    def logs(self, lines: int, follow: bool) -> list[str]:
        """The command that shows the last lines of the service's log."""

    @abstractmethod
    def linger(self, wanted: bool) -> bool:
        """Lets the user's services survive a logout, or not. Returns whether that changed anything."""

    def made_linger(self) -> bool:
        """Whether an existing installation with `linger` turned it on."""
        return False

    def write(self, plan: ServicePlan) -> None:
        for file, content in self.files(plan).items():
            file.parent.mkdir(parents=True, exist_ok=True)
            whole(file, content, 0o644)
        for link, target in self.links().items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def remove(self) -> list[Path]:
        """Removes what `write` wrote, and the folders that this leaves empty. Returns the files."""
        gone = [path for path in (*self.links(), *self.paths()) if path.is_symlink() or path.exists()]
        for path in gone:
            path.unlink()
        prune((path.parent for path in (*self.links(), *self.paths())), self.home)
        return [path for path in gone if path not in self.links()]

    def paths(self) -> tuple[Path, ...]:
        return tuple(self.files(ServicePlan(command=(), listen=("",))))


def prune(folders: Iterable[Path], home: Path) -> None:
    """Removes the folders inside `home` that are empty, and those above them that this leaves empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            while home in folder.parents:
                folder.rmdir()
                folder = folder.parent


def run(argv: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Raises ProviderUnavailable with the program's own words."""
    try:
        done = subprocess.run(  # noqa: S603 - programs of the system, no shell
            argv, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise ProviderUnavailable(f"{argv[0]} isn't on this machine; keep `ctxgate serve` running otherwise") from None
    except subprocess.TimeoutExpired:
        raise ProviderUnavailable(f"{' '.join(argv)} didn't end within {ANSWER_SECONDS:.0f} s") from None
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise ProviderUnavailable(f"{' '.join(argv)}: {'; '.join(said)}")
    return done
