"""The configuration that comes with ctxgate, for an installation that has none yet."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.config.folders import USER, whole
from gateway.config.loader import load as load_file
from gateway.config.values import Config

OFFLINE_MODEL = "ctxgate-test-tools"
"""The model that comes with ctxgate, for a first start without a network."""
ACTIVE = "active_model: smollm2-135m-instruct\n"
SCHEMA = "config.schema.json"
"""Beside the file: editors find it by the file's first line."""


def place() -> Path:
    """The path of the user's own configuration, which may not exist yet."""
    return USER.user_config_path / "config.yaml"


def models_dir() -> Path:
    return USER.user_data_path / "models"


def text() -> str:
    """The commented default: the checkout's own, with the weights in the user's data folder."""
    shipped = (_shipped() / "config.yaml").read_text("utf-8")
    folder = json.dumps(str(models_dir()), ensure_ascii=False)
    weights = f"\n# The folder of the weights: the paths below start there.\nmodels_dir: {folder}\n"
    return shipped.replace(ACTIVE, ACTIVE + weights, 1)


def load() -> Config:
    """The default configuration as `write` would write it; writes nothing."""
    return load_file(place(), text=text())


def untouched(file: Path) -> bool:
    """Whether the file is the user's own, and still as `write` wrote it."""
    try:
        return file == place() and file.read_text("utf-8") == text()
    except (OSError, UnicodeDecodeError):
        return False


def write() -> bool:
    """Writes the default and its schema to `place()`, and the test model to `models_dir()`.

    Returns False, and keeps the file, if there is one. Raises OSError if a folder can't be written.
    """
    from gateway.config import schema

    file, model = place(), Path("test") / f"{OFFLINE_MODEL}.gguf"
    if file.exists():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    (models_dir() / model).parent.mkdir(parents=True, exist_ok=True)
    if not (models_dir() / model).exists():
        whole(models_dir() / model, (_shipped() / model).read_bytes())
    whole(file.parent / SCHEMA, schema.text().encode())
    # Last: the next start takes it for a finished configuration. Two first starts at once write the same.
    whole(file, text().encode())
    return True


def shipped() -> None:
    """Raises OSError unless the installation has what `write` copies."""
    for name in ("config.yaml", f"test/{OFFLINE_MODEL}.gguf"):
        (_shipped() / name).open("rb").close()


def _shipped() -> Path:
    """The folder with the default: inside the installed package, or `_models` of the checkout."""
    package = Path(__file__).parents[1]
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent / "_models"
