"""`ctxgate add` and `pull` of models that hear, speak and draw: local files, the hub, a server that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import load
from gateway.config.values import Model
from gateway.errors import ProviderInvalidModel
from gateway.features.models.inventory.media import EARS, MOUTH, SD_CPP, WHISPER_CPP, Kind, choices, chosen, role_of
from gateway.features.models.inventory.source import Hub
from tests.models.inventory.commands import ctxgate
from tests.models.pull.sources import serving
from tests.support.hub import REPO, hub

VOICE = "en/en_US/joe/medium/en_US-joe-medium.onnx"
VOICES = (VOICE, f"{VOICE}.json", "de/de_DE/eva/low/de_DE-eva-low.onnx", "de/de_DE/eva/low/de_DE-eva-low.onnx.json")
WHISPERS = ("ggml-base.bin", "ggml-base.en.bin", "ggml-tiny-q5_1.bin")


def added(config: Path, *args: str | Path, names: tuple[str, ...] = ()) -> tuple[dict[str, Model], str]:
    """The models of the file afterwards, and what was printed. names: of the files of a repository of the hub."""
    if names:
        with serving(hub(b"weights", names=names)) as source:
            done = ctxgate(config, "add", *args, hub=source)
    else:
        done = ctxgate(config, "add", *args)
    assert done.returncode == 0, done.stderr
    return {**load(config, {}).models}, done.stdout


def test_a_whisper_of_the_hub(config: Path) -> None:
    models, said = added(config, f"hf:{REPO}", names=("model.bin", "tokenizer.json"))
    model = models["tiny"]
    assert (model.runtime, model.role) == ("faster-whisper", "transcription")
    assert model.path is not None
    assert (model.path / "model.bin").read_bytes() == b"weights"
    assert (model.path / "tokenizer.json").exists()
    assert "  role      transcription\n" in said
    assert "dialect" not in said


def test_a_voice_of_the_hub(config: Path) -> None:
    """With its settings beside it, and fetched again by `pull` under another name."""
    models, _ = added(config, f"hf:{REPO}:joe", "--name", "joe", names=VOICES)
    model = models["joe"]
    assert (model.runtime, model.role) == ("piper", "speech")
    assert model.path == config.parent / "en_US-joe-medium.onnx"
    assert sorted(path.name for path in config.parent.glob("*.onnx*")) == [
        "en_US-joe-medium.onnx",
        "en_US-joe-medium.onnx.json",
    ]
    text = config.read_text().replace("path: en_US-joe-medium.onnx", "path: voices/other.onnx")
    config.write_text(text)
    with serving(hub(b"weights", names=VOICES)) as source:
        done = ctxgate(config, "pull", "joe", hub=source)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (config.parent / "voices").iterdir()) == ["other.onnx", "other.onnx.json"]


@pytest.mark.parametrize(
    ("written", "names", "kind", "file"),
    [("base", WHISPERS, WHISPER_CPP, "ggml-base.bin"), ("sd-turbo-q8_0.gguf", ("sd-turbo-q8_0.gguf",), SD_CPP, None)],
)
def test_models_of_other_servers(
    written: str, names: tuple[str, ...], kind: Kind, file: str | None, config: Path
) -> None:
    models, _ = added(config, f"hf:{REPO}:{written}", "--name", "other", names=names)
    model = models["other"]
    assert (model.runtime, model.role, model.engine.command) == ("openai", kind.role, (kind.command,))
    assert model.engine.args == kind.args
    assert model.path == config.parent / (file or written)
    assert model.residence.memory == kind.need(7).ram // 1_000_000 * 1_000_000


def test_local_files(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "whisper"
    folder.mkdir()
    for name in ("model.bin", "config.json"):
        (folder / name).write_text("{}")
    for name in ("joe.onnx", "joe.onnx.json", "ggml-tiny.bin", "sdxl-turbo.gguf"):
        (tmp_path / name).write_text("{}")
    found = {}
    for name in ("whisper", "joe.onnx", "ggml-tiny.bin", "sdxl-turbo.gguf"):
        models, _ = added(config, tmp_path / name)
        found[name] = models[Path(name).stem].runtime, models[Path(name).stem].role
    assert found == {
        "whisper": ("faster-whisper", "transcription"),
        "joe.onnx": ("piper", "speech"),
        "ggml-tiny.bin": ("openai", "transcription"),
        "sdxl-turbo.gguf": ("openai", "image"),
    }


NONE: dict[str, tuple[str, tuple[str, ...], str | None, str]] = {
    "kokoro": ("hexgrad/Kokoro-82M", ("kokoro-v1_0.pth",), None, "start kokoro-fastapi"),
    "several": (
        "a/whisper.cpp",
        WHISPERS,
        None,
        "write hf:a/whisper.cpp:NAME, one of: ggml-base.bin, ggml-base.en.bin",
    ),
    "several that fit": ("a/whisper.cpp", WHISPERS, "ggml", "has several files"),
    "none that fits": ("a/whisper.cpp", WHISPERS, "large", "has no large; it has: ggml-base.bin"),
    "many": ("a/b", tuple(f"ggml-{at}.bin" for at in range(30)), None, "ggml-19.bin, and 10 more"),
}


@pytest.mark.parametrize("name", NONE)
def test_what_can_t_be_chosen(name: str) -> None:
    repo, files, quant, message = NONE[name]
    with pytest.raises(ProviderInvalidModel, match=message):
        chosen(Hub(repo, quant), choices(repo, files))


OTHERS: dict[str, tuple[str, tuple[str, ...], list[Any]]] = {
    "chats": ("unsloth/Qwen3-4B-GGUF", ("Qwen3-4B-Q4_K_M.gguf",), []),
    "MLX": ("mlx-community/whisper-tiny", ("config.json", "weights.safetensors"), []),
    "ONNX of another kind": ("a/b", ("model.onnx",), []),
    "torch": ("openai/whisper-tiny", ("pytorch_model.bin", "config.json", "model.bin"), []),
    "a voice": ("a/b", VOICES[:2], [MOUTH]),
    "ears": ("Systran/faster-whisper-base", ("model.bin", "config.json"), [EARS]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_which_repositories_have_them(name: str) -> None:
    repo, files, kinds = OTHERS[name]
    assert [choice.kind for choice in choices(repo, files)] == kinds


def test_roles_of_a_server_s_models() -> None:
    names = {
        "transcription": ("whisper-1", "Systran/faster-distil-whisper-small.en", "my-stt"),
        "speech": ("kokoro", "tts-1", "speaches-ai/piper-en_US-amy"),
        "image": ("sd-turbo", "stable-diffusion-v1-5", "FLUX.1-schnell", "sdxl-base"),
        "chat": ("qwen2.5:3b", "gpt-4o", "Qwen3-4B-sd2000", "mistral-fluxional", "butts-7b"),
    }
    assert {name: role_of(name) for known in names.values() for name in known} == {
        name: role for role, known in names.items() for name in known
    }
