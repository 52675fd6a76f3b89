"""What the pages of docs/clients tell to write and to set, done as they tell it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT

FOLDER = ROOT / "docs/clients"
ADDRESS = "http://127.0.0.1:4000"
MODEL = "ctxgate-test-tools"
"""The address and the model that every page uses, but for those of coding agents, which need more."""
MODELS = {
    "aider": "lfm25-1.2b",
    "claude-code": "qwen3-4b-64k",
    "cline": "lfm25-1.2b",
    "codex": "lfm25-1.2b",
    "opencode": "lfm25-1.2b",
    "qwen-code": "lfm25-1.2b",
}
"""Page → the model of the shipped configuration that it names."""


def model_of(page: str) -> str:
    return MODELS.get(page, MODEL)


_BLOCK = re.compile(r"^(?:`(?P<file>~[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[tuple[str | None, str, str]]:
    """File, language and text of each block of code; the file stands above it in backquotes, with `~`."""
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    return [(found["file"], found["kind"], found["text"]) for found in _BLOCK.finditer(text)]


def configured(page: str, url: str, model: str, home: Path, key: str = "unused") -> dict[str, str]:
    """Writes the page's files below `home`; the variables that the page exports."""
    variables: dict[str, str] = {}
    for file, kind, text in blocks(page):
        text = here(text, url, model, page).replace("unused", key)
        if file is not None:
            place = home / file.removeprefix("~/").replace(".config/", "config/", 1)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        elif kind == "sh":
            variables |= dict(re.findall(r"^export (\w+)=(\S+)$", text, re.M))
    return variables


def here(text: str, url: str, model: str, page: str) -> str:
    return text.replace(ADDRESS, url).replace(model_of(page), model)
