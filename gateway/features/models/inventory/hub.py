"""Lists the contents of a repository of the Hugging Face hub, and searches for repositories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.backends.about import About, about
from gateway.errors import ProviderInvalidModel
from gateway.features.models.inventory import facts, media
from gateway.features.models.inventory.facts import Facts
from gateway.features.models.inventory.media import Kind, MediaChoice
from gateway.features.models.inventory.source import Hub
from gateway.features.models.pull.hub import Remote, listed, parts, translated

PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q8_0")
"""Preferred quantisations if the source names none: small, and hardly worse than the full model."""
DESCRIBING = ("config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json", "tokenizer.json")
LARGEST_DESCRIBING = 64 * 1000 * 1000
MAX_FOUND = 20
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


class Found(Struct, frozen=True):
    """A model in a repository. file: None for the whole repository. files: what a pull brings. kind: of a model that
    hears, speaks or draws."""

    repo: str
    commit: str
    file: str | None
    sha256: str | None
    files: tuple[Remote, ...]
    facts: Facts
    kind: Kind | None = None


class Listed(Struct, frozen=True):
    """A repository of the hub, as a search finds it."""

    source: str
    downloads: int
    likes: int
    updated: str


class Variant(Struct, frozen=True):
    """One choice in a repository. source: as `add` takes it. size: bytes of its weights. preferred: what `add` takes if
    nobody chooses."""

    source: str
    name: str
    size: int
    preferred: bool


class Offer(Struct, frozen=True):
    """What a repository has. facts: of the preferred one; its size is that one's."""

    repo: str
    facts: Facts
    variants: tuple[Variant, ...]


def identify(source: Hub) -> Found:
    """Fetches only lists and small files. Raises ProviderInvalidModel for a repository without such a model, and what
    `gateway.features.models.pull.hub.translated` raises."""
    with translated(source.repo, source.revision):
        commit, files = listed(source.repo, source.revision, None)
        if found := media.choices(source.repo, [file.path for file in files]):
            return _media(source.repo, commit, media.chosen(source, found), files)
        weights = [file for file in files if file.path.endswith(".gguf") and not _other(file.path)]
        if weights:
            return _gguf(source, commit, weights)
        if not any(file.path.endswith(".safetensors") for file in files):
            raise ProviderInvalidModel(f"{source.repo} has neither GGUF files nor safetensors")
        if source.quant is not None:
            raise ProviderInvalidModel(f"{source.repo} has no GGUF files to choose {source.quant} from")
        return Found(source.repo, commit, None, None, (*files,), _of_folder(source.repo, commit, files))


def offer(source: Hub) -> Offer:
    """All choices of a repository, the smallest first. Raises what `identify` raises."""
    with translated(source.repo, source.revision):
        commit, files = listed(source.repo, source.revision, None)
        weights = [file for file in files if file.path.endswith(".gguf") and not _other(file.path)]
        if not weights or media.choices(source.repo, [file.path for file in files]):
            found = identify(source)
            name = "MLX" if found.kind is None else found.kind.role
            only = Variant(f"hf:{source.repo}", name, found.facts.size or 0, preferred=True)
            return Offer(source.repo, found.facts, (only,))
        first = _first(weights)
        found = _gguf(replace(source, revision=commit, quant=_quant(first)), commit, weights)
    sizes = {file.path: file.size for file in files}
    variants = [
        Variant(
            f"hf:{source.repo}:{name}", name, sum(sizes.get(part, 0) for part in parts(file.path) or ()), file is first
        )
        for name, file in _by_quant(weights).items()
    ]
    return Offer(source.repo, found.facts, tuple(sorted(variants, key=lambda each: each.size)))


def search(words: str) -> list[Listed]:
    """The repositories that match, the most downloaded first: GGUF files, and MLX folders where MLX is installed."""
    from huggingface_hub import HfApi

    kinds = ["gguf", *(["mlx"] if find_spec("mlx_lm") is not None else [])]
    with translated(f"the search for {words!r}"):
        found = {
            one.id: Listed(
                f"hf:{one.id}", int(one.downloads or 0), int(one.likes or 0),
                one.last_modified.date().isoformat() if one.last_modified is not None else "",
            )
            for kind in kinds
            for one in HfApi().list_models(
                search=words, filter=kind, sort="downloads", limit=MAX_FOUND,
                expand=["downloads", "likes", "lastModified"],
            )
        }  # fmt: skip
    return sorted(found.values(), key=lambda one: -one.downloads)[:MAX_FOUND]


def _other(path: str) -> bool:
    """A projector, or a further part of a model in several files."""
    part = _PART.search(path)
    return "mmproj" in path.lower() or (part is not None and part[1] != "00001")


def _media(repo: str, commit: str, choice: MediaChoice, files: Sequence[Remote]) -> Found:
    wanted = {choice.file, f"{choice.file}.json"} if choice.file is not None else {file.path for file in files}
    its = tuple(file for file in files if file.path in wanted)
    size = sum(file.size for file in its)
    sha256 = next((file.sha256 for file in files if file.path == choice.file), None)
    return Found(repo, commit, choice.file, sha256, its, Facts(size=size, role=choice.kind.role), choice.kind)


def _gguf(source: Hub, commit: str, weights: Sequence[Remote]) -> Found:
    file = chosen(source, weights)
    _, all_parts = listed(source.repo, commit, parts(file.path))
    from huggingface_hub import HfApi

    info: Any = HfApi().model_info(source.repo, revision=commit, expand=["gguf"]).gguf or {}
    known = info if isinstance(info, dict) else {}
    template, context = known.get("chat_template"), known.get("context_length")
    told = About(
        template if isinstance(template, str) else ("" if known else None),
        str(known.get("architecture") or ""),
        source="the hub",
    )
    found = facts.of_about(
        told,
        size=sum(part.size for part in all_parts),
        quantization=facts.quantization(file.path),
        context=context if isinstance(context, int) else None,
    )
    return Found(source.repo, commit, file.path, file.sha256, (*all_parts,), found)


def chosen(source: Hub, weights: Sequence[Remote]) -> Remote:
    """The file that the source names, else the most preferred. Raises ProviderInvalidModel, listing the choices."""
    by_quant = _by_quant(weights)
    choices = ", ".join(by_quant)
    if source.quant is not None:
        wanted = source.quant.lower()
        exact = [file for name, file in by_quant.items() if name.lower() == wanted]
        named = [file for file in weights if file.path.lower() in (wanted, f"{wanted}.gguf")]
        if not exact and not named:
            raise ProviderInvalidModel(f"{source.repo} has no {source.quant}; it has: {choices}")
        return [*exact, *named][0]
    for name in PREFERRED:
        if name in by_quant:
            return by_quant[name]
    if len(weights) > 1 and len(by_quant) > 1:
        raise ProviderInvalidModel(f"{source.repo} has several files: write hf:{source.repo}:NAME, one of: {choices}")
    return weights[0]


def _by_quant(weights: Sequence[Remote]) -> dict[str, Remote]:
    by_quant: dict[str, Remote] = {}
    for file in weights:
        by_quant.setdefault(_quant(file), file)
    return by_quant


def _quant(file: Remote) -> str:
    return facts.quantization(file.path) or file.path


def _first(weights: Sequence[Remote]) -> Remote:
    """The most preferred one; without any, the smallest."""
    by_quant = _by_quant(weights)
    return next((by_quant[name] for name in PREFERRED if name in by_quant), min(weights, key=lambda file: file.size))


def _of_folder(repo: str, commit: str, files: Sequence[Remote]) -> Facts:
    """Fetches the small files that describe the model."""
    from huggingface_hub import hf_hub_download

    wanted = [file.path for file in files if file.path in DESCRIBING and file.size <= LARGEST_DESCRIBING]
    with TemporaryDirectory(prefix="ctxgate-") as folder:
        for path in wanted:
            hf_hub_download(repo, path, revision=commit, local_dir=folder)
        told = about(Path(folder))
        size = sum(file.size for file in files if file.path.endswith(".safetensors"))
        return facts.of_about(told, size=size)
