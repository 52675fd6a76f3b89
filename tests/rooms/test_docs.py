"""docs/rooms.md and the design page say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.rooms import room, service
from gateway.rooms.states import EVENTS, REFUSED
from gateway.turn import Bounds
from tests.cli.commands import config, serving
from tests.cli.test_commands import answering
from tests.ports import free_port
from tests.readme.examples import examples
from tests.rooms.test_end_to_end import CONFIG

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "gateway/rooms/design.md").read_text("utf-8")
SOURCES = "".join(path.read_text("utf-8") for path in sorted((ROOT / "gateway/rooms").glob("*.py")))


def test_the_example_prints_what_the_page_says(tmp_path: Path, test_model: Path) -> None:
    found = examples((ROOT / "docs/rooms.md").read_text("utf-8"))
    assert [example.kind for example in found] == ["python"]
    port = free_port()
    config(tmp_path, CONFIG.format(model=test_model, folder=tmp_path, port=port))
    with serving(tmp_path), answering(port):
        for example in found:
            assert example.run(f"127.0.0.1:{port}") == example.printed


@pytest.mark.parametrize("page", ["docs/rooms.md", "gateway/rooms/design.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text("utf-8"))
    assert links
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_design_names_every_event_and_no_other() -> None:
    named = set(re.findall(r"`((?:room|agent|tool|message|limit):[a-z_]+)`", DESIGN)) | {"error"}
    told = set(re.findall(r'"((?:room|agent|tool|message):[a-z_]+)"', SOURCES)) | set(EVENTS.values()) | {"error"}
    told |= {f"limit:{name}" for name in ("wall_time", *Bounds.__slots__[1:])}
    assert named == told


def test_the_design_names_every_code_and_no_other() -> None:
    table = DESIGN[DESIGN.index("| code | status |") :].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    codes = {code for refused in REFUSED.values() for code in refused.values()}
    codes |= set(re.findall(r'(?:code=|conflict\()"(\w+)"', SOURCES)) | {"turn_cut_off"}
    elsewhere = {"model_not_found", "insufficient_scope"}
    http = {"room_not_found", "not_found", "method_not_allowed", "request_timeout", "request_too_large"}
    assert named - elsewhere == codes - http


def test_the_design_names_the_bounds_of_the_code() -> None:
    assert f"{service.REPLAY} events at a time" in DESIGN
    assert room.MAX_ATTEMPTS == 3
    assert "the third that is cut off fails the room" in DESIGN
