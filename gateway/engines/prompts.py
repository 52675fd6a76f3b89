"""Connects saved prompts to one engine process: determines what its cache depends on."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Model
from gateway.engines import memory
from gateway.engines.recipe import Recipe
from gateway.prompts import key
from gateway.prompts.saved import SavedPrompts

HASHES = "hashes.json"
"""Of weights, beside the folder of the saved prompts."""
OF_THE_MACHINE = ("CUDA_VISIBLE_DEVICES", "LLAMA_ARG_SSL_CERT_FILE", "LLAMA_ARG_SSL_KEY_FILE")
"""Variables that differ between machines and don't affect the cache."""

if TYPE_CHECKING:
    from gateway.prompts.live import LivePrompts


async def live(model: Model, recipe: Recipe, saved: SavedPrompts | None) -> LivePrompts | None:
    """The prompts of a process that is about to start; None if it can't save any.

    It fingerprints the weights now, since the files may change after the engine has read them.
    """
    if saved is None or f"{saved.path}/" not in recipe.argv:
        return None
    from gateway.prompts.live import LivePrompts  # the gateway's start needn't wait for it

    try:
        began_with = await asyncio.to_thread(prints, model, recipe)
    except OSError as error:
        saved.troubles.failed(error)
        return None
    await saved.check_ahead(model.name)
    return LivePrompts(
        saved, model.name, lambda: prints(model, recipe), began_with, lambda: anywhere(model, recipe, saved)
    )


def prints(model: Model, recipe: Recipe) -> list[str]:
    """Everything that affects the cache, except what the engine itself reports. Raises OSError."""
    return [
        key.fingerprint(_files(model, recipe)),
        *key.options((arg for arg in recipe.argv[1:] if arg != str(model.path)), (*key.PLACES, *key.STEPS)),
        *(f"{name}={value}" for name, value in key.environment({**os.environ, **recipe.env}).items()),
        f"xllamacpp {version_of('xllamacpp')}" if recipe.engine == "xllamacpp" else recipe.engine,
    ]


def anywhere(model: Model, recipe: Recipe, saved: SavedPrompts) -> list[str]:
    """As `prints`, but the same on every machine whose engines may read each other's files. Reads the weights whole,
    once. Raises OSError."""
    hashes = saved.path.parent / HASHES
    program, *files = _files(model, recipe)
    embedded = recipe.engine == "xllamacpp"
    variables = key.environment({**os.environ, **recipe.env})
    return [
        key.contents(files, hashes),
        *key.options(
            (_without_folder(arg, files) for arg in recipe.argv[1:]), (*key.PLACES, *key.STEPS, *key.OF_THE_MACHINE)
        ),
        *(f"{name}={value}" for name, value in variables.items() if name not in OF_THE_MACHINE),
        f"xllamacpp {version_of('xllamacpp')}" if embedded else key.contents([program], hashes),
    ]


def _without_folder(arg: str, files: list[Path]) -> str:
    """Where the file is differs between machines; what is in it is in its hash."""
    for file in (*files, Path(__file__).parent):
        arg = arg.replace(str(file), file.name)
    return arg


def _files(model: Model, recipe: Recipe) -> Iterator[Path]:
    """The engine's program, the weights, and all files that options name, such as adapters."""
    assert model.path is not None
    yield Path(recipe.argv[0])
    yield from memory.files(model.path)
    if model.mmproj_path is not None:
        yield model.mmproj_path
    yield from model.engine.files.values()
    for arg in model.engine.args:
        for part in re.split(r"[=,:]", arg):
            if "/" in part and (path := Path(part)).is_file():
                yield path


def version_of(project: str) -> str:
    """Of an installed wheel, as the name of the folder beside it says: `importlib.metadata` takes longer to load than
    all else that happens before an engine starts."""
    spec = find_spec(project)
    if spec is not None and spec.origin is not None:
        beside = [folder.name for folder in Path(spec.origin).parents[1].glob(f"{project}-*.dist-info")]
        if len(beside) == 1:
            return beside[0].removeprefix(f"{project}-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(project)
    except PackageNotFoundError:
        return "unknown"
