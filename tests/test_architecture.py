"""docs/architecture.md agrees with the code: its names, its packages, and the path of a chat request."""

from __future__ import annotations

import re
import threading
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import pytest

from gateway.app import build
from gateway.backends.echo import EchoBackend
from gateway.config import Config, Model
from tests.allowed_imports import FEATURES, OURS
from tests.conftest import ROOT
from tests.gateway.running import FAST
from tests.provider.server import serve

PAGE = ROOT / "docs/architecture.md"
TEXT = PAGE.read_text("utf-8")

# A table row, or a paragraph with the list items in it: the files that it names are where its other names live.
BLOCKS = [
    block
    for part in re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    for block in (part.splitlines() if part.startswith("|") else re.split(r"\n(?=- )", part))
]
NAMES = [(block, code) for block in BLOCKS for code in re.findall(r"`([^`]+)`", block)]


def section(title: str) -> list[list[str]]:
    """The cells of the section's table, without its head."""
    found = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in found.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def module(path: str) -> Any:
    return import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def has(owner: Any, name: str) -> bool:
    for part in name.split("."):
        if not hasattr(owner, part):
            # A field of a class without a default is an annotation alone.
            return part in getattr(owner, "__annotations__", {})
        owner = getattr(owner, part)
    return True


PATHS = sorted({code for _, code in NAMES if re.fullmatch(r"[\w.]+/[\w./]*|[\w]+\.(md|py)", code)})


@pytest.mark.parametrize("path", PATHS)
def test_each_path_exists(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


NOT_IN_A_FILE = {"base_url", "stream", "tool_call_format", "ctxgate.features", "commands"}
"""A field of a request, keys of config.yaml, a group of entry points, and a field of a `Feature`."""

SYMBOLS = {
    code: [found for found in re.findall(r"`([\w/]+\.py)`", block) if found.startswith(("gateway/", "normalizers/"))]
    for block, code in NAMES
    if re.fullmatch(r"[A-Za-z_][\w.]*", code) and code not in {*PATHS, *NOT_IN_A_FILE}
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_each_name_is_in_a_file_beside_it(name: str) -> None:
    assert any(has(module(path), name) for path in SYMBOLS[name]), SYMBOLS[name]


def test_the_page_is_read() -> None:
    """The tests above look at something."""
    assert len(PATHS) > 50
    assert len(SYMBOLS) > 40


def test_the_table_lists_the_packages() -> None:
    found = {row[0].strip("`").rstrip("/") for row in section("Packages")}
    there = {
        f"gateway/{path.name}"
        for path in (ROOT / "gateway").iterdir()
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and not path.stem.startswith("__"))
    }
    assert found == there | {"normalizers"}


def test_the_table_lists_the_features() -> None:
    found = {row[0].strip("`"): set(re.findall(r"\w+", row[2])) for row in section("Features")}
    assert found == {f"gateway/features/{name}/": needs for name, needs in FEATURES.items()}


@pytest.mark.parametrize("row", section("Packages"), ids=lambda row: str(row[0]).strip("`"))
def test_a_package_imports_what_its_row_names(row: list[str]) -> None:
    package, _, imports = row
    allowed = OURS[package.strip("`").rstrip("/").removesuffix(".py").replace("/", ".")] - {"gateway"}
    assert set(re.findall(r"\w+", imports.partition(" (")[0])) == {name.removeprefix("gateway.") for name in allowed}


STEPS = section("A chat request, call by call")


def codes(path: str, name: str) -> set[CodeType]:
    """A function's code; for a method of `Backend`, that of the engine which answers here."""
    owner = module(path)
    kind, _, method = name.rpartition(".")
    if kind:
        owner = getattr(owner, kind)
        if issubclass(EchoBackend, owner):
            owner = EchoBackend
    return {getattr(owner, method).__code__}


def test_a_chat_takes_the_path_of_the_page() -> None:
    """The first calls, in their order, of a chat that is streamed over a socket by the echo."""
    steps = [(path.strip("`"), name.strip("`")) for _, path, name, _ in STEPS]
    names = {code: name for path, name in steps for code in codes(path, name)}
    called: dict[str, None] = {}

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (name := names.get(frame.f_code)) is not None:
            called.setdefault(name)

    config = Config(source=Path(__file__), active_model="echo", models={"echo": Model(name="echo", runtime="echo")})
    body = {"messages": [{"role": "user", "content": "hello there"}], "stream": True}
    threading.setprofile(record)
    try:
        with serve(build(config), lifespan="on", http=FAST) as url:
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    finally:
        threading.setprofile(None)
    assert "hello" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert list(called) == [name for _, name in steps]


def test_the_path_is_short() -> None:
    """At most twelve steps, each in a file of its own."""
    files = [path for _, path, _, _ in STEPS]
    assert len(files) == len(set(files)) <= 12
