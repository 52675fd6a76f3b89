"""The gateway for the programs that `ctxgate launch` starts: the one that runs, else one for them all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.cli.client import PROBE_SECONDS, base_url, foreign, transport
from gateway.cli.running import candidates, listens
from gateway.cli.spawned import START_SECONDS, STOP_SECONDS, spawned
from gateway.errors import ProviderAuthentication, ProviderInvalidRequest, ProviderUnavailable
from gateway.server.keys import FILE as KEYS
from gateway.server.keys import KeyFile

if TYPE_CHECKING:
    from gateway.config import Config, Server

POLL_SECONDS = 0.05
SPARE_SECONDS = 5.0
NEEDS_KEY = "asks for a key: set CTXGATE_KEY to one (`ctxgate keys add` makes one)"


class Place(Struct, frozen=True):
    """Of a gateway. note: what a person should know of it. process: the gateway's, if this process started it."""

    address: str
    note: str
    process: subprocess.Popen[bytes] | None = None


def running(config: Config, key: str | None) -> str | None:
    """The address of the gateway that serves this configuration; None if none runs.

    Raises ProviderAuthentication if it refuses the key, ProviderInvalidRequest if other programs can't reach it.
    """
    for server in candidates(config.server, config.source):
        if not listens(server) or not _serves(server, config, key):
            continue
        if server.uds is not None:
            raise ProviderInvalidRequest(
                f"the gateway listens on {server.uds}, which other programs can't use: let it listen on a port"
            )
        if server.https is not None:
            raise ProviderInvalidRequest(
                f"the gateway at {base_url(server)} has a certificate that other programs don't know: start it with "
                "`ctxgate serve --no-tls`"
            )
        return base_url(server)
    return None


def _serves(server: Server, config: Config, key: str | None) -> bool:
    """Whether the gateway of this configuration is what listens there."""
    import httpx

    try:
        with httpx.Client(
            transport=transport(server), base_url=base_url(server), timeout=PROBE_SECONDS, trust_env=False
        ) as http:
            answer = http.get("/-/status", headers={"authorization": f"Bearer {key}"} if key is not None else {})
            found = answer.json()
    except (httpx.HTTPError, ValueError):
        return False
    error = found.get("error") if isinstance(found, dict) else None
    if answer.status_code == 401 and isinstance(error, dict) and "category" in error:
        raise ProviderAuthentication(f"the gateway at {base_url(server)} {NEEDS_KEY}")
    # A key for models alone isn't told whose configuration it is.
    return answer.status_code == 403 or (isinstance(found, dict) and _is_of(found, config))


def _is_of(status: dict[str, Any], config: Config) -> bool:
    return "models" in status and "config" in status and foreign(status, config.source) is None


@contextlib.contextmanager
def shared(config: Config, model: str, key: str | None) -> Iterator[Place]:
    """The gateway of this configuration, while the context lasts. Starts it if none runs, and then model is the active
    one.

    A gateway that was started so ends with the last context that uses it, in whichever process that is: each holds a
    shared lock on one file, and the last one can make it its own. Raises as `running`, and ProviderUnavailable.
    """
    name = hashlib.sha256(str(config.source.resolve()).encode()).hexdigest()[:12]
    folder = config.state_dir / "launch"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.json").open("a+") as users:
        _lock(users, fcntl.LOCK_SH, STOP_SECONDS)
        with (folder / f"{name}.lock").open("a") as start:
            _lock(start, fcntl.LOCK_EX, START_SECONDS)
            place = _started_unless_running(users, folder / f"{name}.log", config, model, key)
        try:
            yield place
        finally:
            if _locked(users, fcntl.LOCK_EX):
                _end(users)
                if place.process is not None:
                    place.process.poll()


def _lock(file: IO[str], kind: int, seconds: float) -> None:
    """Waits for another `ctxgate launch` to start or to end the gateway; each is bounded by so many seconds."""
    deadline = time.monotonic() + seconds + SPARE_SECONDS
    while not _locked(file, kind):
        if time.monotonic() > deadline:
            raise ProviderUnavailable(f"another `ctxgate launch` holds {file.name} for too long")
        time.sleep(POLL_SECONDS)


def _started_unless_running(users: IO[str], log: Path, config: Config, model: str, key: str | None) -> Place:
    if (address := running(config, key)) is not None:
        return Place(address, "runs already")
    if key is None and KeyFile(config.state_dir / KEYS).read():
        raise ProviderAuthentication(f"the gateway {NEEDS_KEY}")
    log.unlink(missing_ok=True)
    server = config.server
    taken = server.uds is not None or listens(replace(server, tls=None))
    process, address = spawned(config.source, model, log, 0 if taken else server.port)
    import psutil

    users.truncate(0)
    json.dump({"pid": process.pid, "began": psutil.Process(process.pid).create_time()}, users)
    users.flush()
    return Place(address, f"started for this, ends with it; its log: {log}", process)


def _end(users: IO[str]) -> None:
    """Ends the gateway that the file names, if it still runs."""
    import psutil

    users.seek(0)
    with contextlib.suppress(ValueError, KeyError, psutil.Error):
        known = json.load(users)
        process = psutil.Process(known["pid"])
        if process.create_time() == known["began"]:
            process.terminate()
            process.wait(STOP_SECONDS)
    users.truncate(0)


def _locked(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
