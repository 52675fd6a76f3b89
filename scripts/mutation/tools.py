"""cosmic-ray and coverage, installed beside the environment of the tests: the tests run in what is locked for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements/mutants.txt"


def cache() -> Path:
    """The folder for all that this script keeps."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ctxgate/mutants"


def folder() -> Path:
    """Where cosmic-ray and coverage are, once installed."""
    return cache() / f"tools-{sys.version_info.major}.{sys.version_info.minor}"


def install() -> Path:
    """Makes cosmic-ray and coverage importable here; the folder that holds them. The first call takes the network."""
    place = folder()
    done = place / LOCK.name
    if not done.is_file() or done.read_bytes() != LOCK.read_bytes():
        print(f"installing {LOCK.relative_to(ROOT)} into {place}; this happens once", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        subprocess.run([*pip, "--target", place, "--require-hashes", "-r", LOCK], check=True)
        done.write_bytes(LOCK.read_bytes())
    # Last: where both have a package, the tests' own version counts.
    sys.path.append(str(place))
    return place
