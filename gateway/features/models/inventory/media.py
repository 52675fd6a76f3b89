"""Models that hear, speak or draw: which engine reads which files, and their entries; no I/O but `kind_at`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from gateway.config.names import Role
from gateway.engines import memory
from gateway.engines.memory import Footprint
from gateway.errors import ProviderInvalidModel
from gateway.features.models.inventory.entry import Line
from gateway.features.models.inventory.source import Hub

MB = 1000 * 1000
ADDRESS = ("--host", "{host}", "--port", "{port}")
KOKORO = (
    "Kokoro runs in a server of its own: start kokoro-fastapi, then ctxgate add http://127.0.0.1:8880 --name kokoro"
)
MAX_SHOWN = 20
"""Files of a repository in a message."""
_WHISPER = re.compile(r"ggml-[\w.-]+\.bin", re.IGNORECASE)
_DRAWS = re.compile(
    r"stable[-_.]?diffusion|sdxl|(?<![a-z])sd[-_.]?(?:turbo|v?[123](?!\d))|(?<![a-z])flux(?![a-z])", re.IGNORECASE
)
_ROLES: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"whisper|parakeet|moonshine|transcri|(?<![a-z])stt(?![a-z])", re.IGNORECASE), "transcription"),
    (re.compile(r"kokoro|piper|orpheus|(?<![a-z])tts(?![a-z])", re.IGNORECASE), "speech"),
    (_DRAWS, "image"),
)


class Kind(Struct, frozen=True):
    """args, health: of a server that isn't part of ctxgate, whose program is `command`. base, factor: about how many
    bytes it needs for itself, and for each byte of its weights."""

    runtime: str
    role: Role
    command: str = ""
    args: tuple[str, ...] = ()
    health: str = ""
    base: int = memory.SOUND_PROCESS
    factor: float = 2.0

    def need(self, size: int) -> Footprint:
        """size: bytes of the weights."""
        return Footprint(self.base + int(self.factor * size))

    def lines(self, path: str, size: int) -> tuple[Line, ...]:
        """path: of the weights, as config.yaml has it."""
        if not self.command:
            return (Line("runtime", self.runtime), Line("path", path))
        return (
            Line("runtime", self.runtime),
            Line("role", self.role),
            Line("command", self.command),
            Line("path", path),
            Line("args", [*self.args]),
            Line("health_check", self.health),
            Line("memory", f"{self.need(size).ram // MB} MB", "by the size of its weights"),
        )


EARS = Kind("faster-whisper", "transcription")
MOUTH = Kind("piper", "speech")
WHISPER_CPP = Kind(
    "openai", "transcription", "whisper-server",
    ("--model", "{model_path}", *ADDRESS, "--inference-path", "/v1/audio/transcriptions"),
    "http://127.0.0.1/health", 300 * MB, 1.3,
)  # fmt: skip
SD_CPP = Kind(
    "openai", "image", "sd-server",
    ("--model", "{model_path}", "--listen-ip", "{host}", "--listen-port", "{port}"),
    "http://127.0.0.1/", 1500 * MB, 1.1,
)  # fmt: skip


class MediaChoice(Struct, frozen=True):
    """file: None for the whole repository, or folder."""

    kind: Kind
    file: str | None


def choices(repo: str, files: Sequence[str]) -> list[MediaChoice]:
    """The models that hear, speak or draw in a repository. Raises ProviderInvalidModel for one that needs a server."""
    if "kokoro" in repo.lower():
        raise ProviderInvalidModel(f"{repo}: {KOKORO}")
    there = {*files}
    if {"model.bin", "config.json"} <= there and "pytorch_model.bin" not in there:
        return [MediaChoice(EARS, None)]
    found = [MediaChoice(MOUTH, file) for file in files if file.endswith(".onnx") and f"{file}.json" in there]
    found += [MediaChoice(WHISPER_CPP, file) for file in files if _WHISPER.fullmatch(PurePosixPath(file).name)]
    found += [MediaChoice(SD_CPP, file) for file in files if file.endswith(".gguf") and _DRAWS.search(f"{repo}/{file}")]
    return found


def chosen(source: Hub, found: Sequence[MediaChoice]) -> MediaChoice:
    """The one whose file the source names, in full or in part. Raises ProviderInvalidModel, listing the choices."""
    wanted = (source.quant or "").lower()
    fits = [one for one in found if not wanted or wanted in _name(one).lower()]
    exact = [one for one in fits if wanted in _names(one)]
    fits = exact or fits
    if len(fits) == 1:
        return fits[0]
    names = [_name(one) for one in fits or found]
    more = f", and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    known = ", ".join(names[:MAX_SHOWN]) + more
    if not fits:
        raise ProviderInvalidModel(f"{source.repo} has no {source.quant}; it has: {known}")
    raise ProviderInvalidModel(f"{source.repo} has several files: write hf:{source.repo}:NAME, one of: {known}")


def kind_at(path: Path) -> Kind | None:
    """None for files of other models. Raises OSError if they can't be read."""
    if path.is_dir():
        return EARS if (path / "model.bin").is_file() and (path / "config.json").is_file() else None
    if path.suffix == ".onnx" and path.with_name(f"{path.name}.json").is_file():
        return MOUTH
    if _WHISPER.fullmatch(path.name):
        return WHISPER_CPP
    return SD_CPP if path.suffix == ".gguf" and _DRAWS.search(path.name) else None


def role_of(name: str) -> Role:
    """What a model of a server does, by its name."""
    return next((role for pattern, role in _ROLES if pattern.search(name)), "chat")


def _names(choice: MediaChoice) -> tuple[str, ...]:
    """What a user may call it: `ggml-base.bin`, `ggml-base` or `base`."""
    name = _name(choice).lower()
    stem = PurePosixPath(name).stem
    return name, stem, stem.removeprefix("ggml-")


def _name(choice: MediaChoice) -> str:
    return PurePosixPath(choice.file or "model.bin").name
