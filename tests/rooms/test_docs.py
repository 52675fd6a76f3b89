"""docs/rooms.md and the design page say what the code does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gateway.features.agents.turn import Bounds
from gateway.features.rooms import room, service
from gateway.features.rooms.states import EVENTS, REFUSED
from tests.cli.commands import answering, config, serving
from tests.ports import free_port
from tests.readme.examples import examples
from tests.support.consoles import typed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/rooms.md").read_text("utf-8")
FILE = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
CONSOLES = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DESIGN = (ROOT / "gateway/features/rooms/design.md").read_text("utf-8")
SOURCES = "".join(path.read_text("utf-8") for path in sorted((ROOT / "gateway/features/rooms").glob("*.py")))


def test_the_examples_print_what_the_page_says(tmp_path: Path, test_model: Path) -> None:
    (program,) = [example for example in examples(PAGE) if example.kind == "python"]
    port = free_port()
    file = config(tmp_path, f"{FILE}state_dir: {tmp_path}/state\nserver: {{port: {port}}}\n")
    (file.parent / "test").mkdir()
    (file.parent / "test/ctxgate-test-tools.gguf").symlink_to(test_model)
    with serving(tmp_path), answering(port):
        assert program.run(f"127.0.0.1:{port}") == program.printed
        if missing := [name for name in ("curl", "jq") if shutil.which(name) is None]:
            pytest.skip(f"the other examples need {' and '.join(missing)}")
        for console in CONSOLES:
            typed(console, tmp_path, port)


@pytest.mark.parametrize("page", ["docs/rooms.md", "gateway/features/rooms/design.md"])
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
    elsewhere = {"model_not_found", "insufficient_scope", "origin_not_allowed"}
    http = {"room_not_found", "not_found", "method_not_allowed", "request_timeout", "request_too_large"}
    assert named - elsewhere == codes - http


def test_the_design_names_the_bounds_of_the_code() -> None:
    assert f"{service.REPLAY} events at a time" in DESIGN
    assert room.MAX_ATTEMPTS == 3
    assert "the third that is cut off fails the room" in DESIGN


def test_every_statement_of_the_protocol_has_a_test_or_a_reason() -> None:
    page = (ROOT / "tests/rooms/protocol.md").read_text("utf-8")
    rows = [
        line.split(" | ") for line in page.splitlines() if line.startswith("| ") and not line.startswith("| statement")
    ]
    assert len(rows) > 50
    for statement, here, tests in rows:
        found = re.findall(r"`([\w./]+)::(\w+)`", tests)
        assert found, f"{statement}: no test"
        for file, name in found:
            text = (ROOT / "tests/rooms" / file).read_text("utf-8")
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{file} has no {name}"
        assert not here.startswith("no") or re.match(r"no: .{30,}", here), f"{statement}: no reason"
