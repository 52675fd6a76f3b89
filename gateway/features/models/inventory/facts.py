"""Facts about a model, from its files or from the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gateway.backends import gguf
from gateway.backends.about import About, about
from gateway.config.names import Role
from gateway.detection.choice import choose
from gateway.engines import memory
from gateway.errors import ProviderInvalidRequest
from normalizers import Detection

SHOWN_CHARS = 80
_QUANT = re.compile(r"(?i)(?<![a-z0-9])((?:I?Q\d(?:_[0-9A-Z]+)*)|BF16|F16|F32|MXFP4(?:_MOE)?)(?![a-z0-9])")
_ENCODERS = re.compile(r"bert|embedding", re.IGNORECASE)


class Facts(Struct, frozen=True):
    """size: bytes of the weights. context: tokens that it was trained on. evidence: what shows the dialect.
    derived: its fields, if it is derived from the template. read_back: how many of the template's conversations it
    reads.

    tools: whether its template has a place for tools, None if unknown. role: what it does. basename, finetune: of a
    GGUF file: the family, and what it was trained for. capabilities: in Ollama's words; () if its server doesn't say.
    window: tokens of context that its server uses if nobody says another number.
    """

    size: int | None = None
    architecture: str = ""
    parameters: str = ""
    quantization: str = ""
    context: int | None = None
    template: bool | None = None
    tools: bool | None = None
    dialect: Detection | None = None
    evidence: str = ""
    derived: dict[str, Any] | None = None
    read_back: int = 0
    role: Role = "chat"
    basename: str = ""
    finetune: str = ""
    capabilities: tuple[str, ...] = ()
    window: int | None = None


def printable(text: object, maximum: int = SHOWN_CHARS) -> str:
    """Text from a stranger's file, made safe for a terminal and for comments: one line, printable."""
    shown = "".join(char if char.isprintable() else "?" for char in str(text))
    return shown if len(shown) <= maximum else shown[: maximum - 1] + "…"


def quantization(name: str) -> str:
    """`Q4_K_M` of `Qwen3-4B-Q4_K_M.gguf`; "" without one."""
    found = _QUANT.findall(name)
    return str(found[-1]).upper() if found else ""


def of_path(path: Path) -> Facts:
    """Reads a GGUF file or an MLX folder. Raises ProviderInvalidRequest for anything else."""
    try:
        return _of_folder(path) if path.is_dir() else _of_gguf(path)
    except (OSError, ValueError) as error:  # NotGGUF and DecodeError are ValueErrors
        raise ProviderInvalidRequest(f"{path} can't be read as a model: {error}") from error


def of_about(known: About, **more: Any) -> Facts:
    """The facts in the template, the tokens and the architecture."""
    choice = choose(known)
    return Facts(
        architecture=printable(known.architecture),
        template=None if known.template is None else bool(known.template),
        tools=None if known.template is None else "tools" in known.template,
        dialect=choice.found,
        evidence=printable(known.source),
        derived=choice.fields,
        read_back=choice.probes,
        **more,
    )


def _of_gguf(path: Path) -> Facts:
    named = "general.architecture"
    architecture = str(gguf.metadata(path, {named}).get(named, ""))
    context, pooling = f"{architecture}.context_length", f"{architecture}.pooling_type"
    wanted = {context, pooling, "general.size_label", "general.basename", "general.finetune"}
    known = gguf.metadata(path, wanted, until="tokenizer.")
    encodes = pooling in known or _ENCODERS.search(architecture) is not None
    return of_about(
        about(path),
        size=sum(file.stat().st_size for file in memory.files(path)),
        parameters=printable(known.get("general.size_label", "")),
        quantization=quantization(path.name),
        context=_count(known.get(context)),
        role="embedding" if encodes else "chat",
        basename=printable(known.get("general.basename", "")),
        finetune=printable(known.get("general.finetune", "")),
    )


def _of_folder(folder: Path) -> Facts:
    weights = memory.files(folder)
    config: Any = msgspec.json.decode((folder / "config.json").read_bytes())
    if not isinstance(config, dict) or not weights:
        raise ValueError("an MLX folder has a config.json and .safetensors files")
    text = config.get("text_config")
    inner = {**config, **(text if isinstance(text, dict) else {})}
    quantized = config.get("quantization")
    bits = quantized.get("bits") if isinstance(quantized, dict) else None
    return of_about(
        about(folder),
        size=sum(file.stat().st_size for file in weights),
        quantization=f"{bits} bit" if isinstance(bits, int) else "",
        context=_count(inner.get("max_position_embeddings")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
