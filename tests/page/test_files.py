"""The files of the page: small, complete, licensed, and nothing from elsewhere."""

from __future__ import annotations

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.features.page.endpoints import FOLDER, INDEX, TYPES, files
from tests.conftest import ROOT

SERVED = sorted(path for path in FOLDER.iterdir() if path.suffix in TYPES)
VENDORED = "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"
LATER = {
    *("models.js", "model.js", "hub.js", "jobs.js", "playground.js", "markdown.js", "conversations.js", "connect.js"),
    *("rooms.js", "evaluations.js", "sides.js"),
}
"""Views that are loaded when somebody opens them."""
FIRST_BYTES, ALL_BYTES = 100_000, 180_000
"""Of what Live and an opened request load, and of all."""
OPENED = LATER | {"detail.js"}
"""What Live loads only when a request is opened, too."""
FIRST_COMPRESSED = 27_000
"""Of what Live loads at first, as it is sent to a browser."""


def test_they_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in SERVED}
    assert sum(size for name, size in sizes.items() if name not in LATER) <= FIRST_BYTES, sizes
    assert sum(sizes.values()) <= ALL_BYTES, sizes
    first = {name: found for name, found in files().items() if name not in OPENED}
    sent = {name: len(found.content if name == INDEX else found.compressed) for name, found in first.items()}
    assert sum(sent.values()) <= FIRST_COMPRESSED, sent


def test_the_vendored_file_is_that_of_the_package() -> None:
    """`preact/standalone.module.js` of htm 3.1.1."""
    assert hashlib.sha256((FOLDER / "preact.js").read_bytes()).hexdigest() == VENDORED
    assert "Apache License" in (FOLDER / "LICENSE-htm.txt").read_text()
    assert "MIT License" in (FOLDER / "LICENSE-preact.txt").read_text()


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.name)
def test_no_file_names_another_host_or_makes_markup_of_text(path: Path) -> None:
    text = path.read_text("utf-8")
    own = text if path.name != "preact.js" else ""
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink",
    }  # fmt: skip
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", own)


@pytest.mark.skipif(find_spec("hatchling") is None, reason="no hatchling, which builds the wheel")
def test_the_wheel_has_them_all() -> None:
    from hatchling.builders.wheel import WheelBuilder

    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"gateway/features/page/web/{path.name}" for path in FOLDER.iterdir()} <= packed
