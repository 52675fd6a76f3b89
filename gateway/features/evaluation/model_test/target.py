"""The test target: the endpoint, a gateway started for the run, and the facts for the results.

The benchmark uses HTTP. It gets what it needs of the configuration from `ctxgate models --json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.cli.spawned import spawned, stop
from gateway.config import ConfigError
from gateway.config.folders import USER
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.evaluation.model_test.cases import HERE, Json
from gateway.features.evaluation.model_test.run import Unreachable

_ROOT = HERE.parents[3]
CHECKOUT = _ROOT if (_ROOT / "benchmarks" / "baselines").is_dir() else None
"""The source checkout that this code runs from; None: it is installed."""
BASELINES = CHECKOUT / "benchmarks" / "baselines" if CHECKOUT is not None else USER.user_data_path / "model-test"
RUNS = CHECKOUT / "runs" if CHECKOUT is not None else USER.user_state_path / "runs"
"""The folder of results: beside the code in a source checkout, else in the user's folders."""


def cache() -> Path:
    """The user's cache folder of this benchmark."""
    return USER.user_cache_path / "model-test"


def configured(config: Path | None) -> Json:
    """`ctxgate models --json`: the models of config.yaml and where the gateway is. Raises Unreachable, and
    ProviderInvalidRequest for a configuration that can't be read."""
    done = subprocess.run(
        [*_ctxgate("models", config), "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == ConfigError.exit_code:
        raise ProviderInvalidRequest(done.stderr.strip())
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
    try:
        process, address = spawned(config, model, log)
    except ProviderUnavailable as error:
        raise Unreachable(error.message) from None
    try:
        yield f"{address}/v1"
    finally:
        stop(process)


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
