"""A PostgreSQL server of the test's own, where its programs are installed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.patience import PATIENCE
from tests.ports import free_port

_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


@dataclass
class Server:
    port: int
    folder: Path
    programs: Path
    user: str
    control: list[str] = field(default_factory=list)
    _names: Iterator[str] = field(default_factory=lambda: (f"test{number}" for number in itertools.count()))

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = next(self._names)
        command = [str(self.programs / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "ctxgate", name]
        subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True)
        return f"postgresql://ctxgate@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        """Ends the server as a crash does."""
        subprocess.run([*self.control, "-m", "immediate", "stop"], check=True, timeout=PATIENCE, cwd=self.folder)

    def restart(self) -> None:
        command = [*self.control, "-l", str(self.folder / "log"), "start"]
        subprocess.run(command, check=True, timeout=PATIENCE, cwd=self.folder)


@contextmanager
def start() -> Iterator[Server]:
    """Skips where PostgreSQL isn't installed, saying so."""
    found = next((folder for folder in _FOLDERS if (folder / "initdb").exists()), None)
    if found is None and (program := shutil.which("initdb")):
        found = Path(program).resolve().parent
    if found is None:
        pytest.skip("PostgreSQL's server isn't installed (Debian: postgresql)")
    # PostgreSQL refuses to run as root, and its user can't enter pytest's own folders.
    user = "postgres" if os.geteuid() == 0 else ""
    become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user else []
    folder = Path(tempfile.mkdtemp(prefix="ctxgate-postgresql-"))
    if user:
        shutil.chown(folder, user, user)
    port = free_port()
    data = folder / "data"
    new = ["-D", str(data), "-U", "ctxgate", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(
        [*become, str(found / "initdb"), *new], check=True, timeout=PATIENCE, capture_output=True, cwd=folder
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=50"
    control = [*become, str(found / "pg_ctl"), "-D", str(data), "-w", "-t", f"{PATIENCE:.0f}", "-o", options]
    server = Server(port, folder, found, user, control)
    server.restart()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def end_claims(connection: Connection) -> int:
    """Ends the sessions whose locks claim work in the database, as a restart of the server does; how many."""
    ended = connection.execute(
        text(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'ctxgate, pid %'"
        )
    )
    return ended.scalars().all().count(True)
