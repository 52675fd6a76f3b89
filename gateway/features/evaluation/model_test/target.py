"""The test target: the endpoint, a gateway started for the run, and the facts for the results.

The benchmark uses HTTP. It gets what it needs of the configuration from `ctxgate models --json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.config.folders import USER
from gateway.features.evaluation.model_test.cases import HERE, Json
from gateway.features.evaluation.model_test.run import Unreachable

_CHECKOUT = HERE.parents[1]
_IN_CHECKOUT = (_CHECKOUT / "benchmarks" / "baselines").is_dir()
BASELINES = _CHECKOUT / "benchmarks" / "baselines" if _IN_CHECKOUT else USER.user_data_path / "model-test"
RUNS = _CHECKOUT / "runs" if _IN_CHECKOUT else USER.user_state_path / "runs"
"""The folder of results: beside the code in a source checkout, else in the user's folders."""

START_SECONDS = 30
STOP_SECONDS = 20
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/v1")


def cache() -> Path:
    """The user's cache folder of this benchmark."""
    return USER.user_cache_path / "model-test"


def configured(config: Path | None) -> Json:
    """`ctxgate models --json`: the models of config.yaml and where the gateway is. Raises Unreachable."""
    done = subprocess.run(
        [*_ctxgate("models", config), "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise Unreachable(f"ctxgate models: {done.stderr.strip() or done.returncode}")
    report: Json = json.loads(done.stdout)
    return report


def _ctxgate(command: str, config: Path | None) -> list[str]:
    return [sys.executable, "-m", "gateway", command, *(["--config", str(config)] if config else [])]


@contextlib.contextmanager
def gateway(config: Path | None, model: str, log: Path) -> Iterator[str]:
    """`ctxgate serve` on a free port of this machine, for as long as the context lasts. Its words go to `log`.

    Raises Unreachable where it doesn't come up.
    """
    # It takes a free port and says which; one that we chose could be another's by then.
    command = [*_ctxgate("serve", config), "--host", "127.0.0.1", "--port", "0", "--no-tls", "--model", model]
    log.parent.mkdir(parents=True, exist_ok=True)
    before = log.stat().st_size if log.exists() else 0
    with (
        log.open("ab") as out,
        # A session of its own: Ctrl-C ends it after the run has written what it has, not at once.
        subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True) as process,
    ):
        try:
            yield _address(process, log, before)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes], log: Path, before: int) -> str:
    """What it says of where it is, in its log behind so many bytes; it listens by then."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        said = log.read_bytes()[before:].decode("utf-8", "replace")
        if (found := ADDRESS.search(said)) is not None and not ended:
            return found[0]
        if ended:
            raise Unreachable(f"ctxgate serve ended: {said.strip()[-500:]}")
        time.sleep(0.05)
    raise Unreachable(f"ctxgate serve didn't say where it is within {START_SECONDS} s")


def facts(report: Json | None, model: str) -> Json:
    """Facts about the model from the configuration, for results."""
    entry = next((row for row in (report or {}).get("models", ()) if row["name"] == model), None)
    if entry is None:
        return {"model": model}
    made: Json = {"model": model, "runtime": entry["runtime"], "tool_call_format": entry["tool_call_format"]}
    made["context_window"] = entry["context_window"]
    if entry["path"] and Path(entry["path"]).is_file():
        made["file"] = Path(entry["path"]).name
        made["file_sha256"] = file_sha256(Path(entry["path"]))
    from gateway import __version__

    made["gateway"] = __version__
    return made


def file_sha256(file: Path) -> str:
    """Kept from one run to the next while the file's size and time stay: 16 GB take a minute."""
    status = file.stat()
    place = cache() / "hashes.json"
    key = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    try:
        known: dict[str, str] = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError):
        known = {}
    if key not in known:
        with file.open("rb") as opened:
            known[key] = hashlib.file_digest(opened, "sha256").hexdigest()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(known, indent=1), "utf-8")
    return known[key]


def host() -> Json:
    """The machine, without its name."""
    cpu = platform.processor() or platform.machine()
    ram = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    with contextlib.suppress(ValueError, OSError, AttributeError):
        ram = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return {"cpu": cpu, "threads": os.cpu_count(), "ram_gb": ram, "system": f"{platform.system()} {platform.machine()}"}
