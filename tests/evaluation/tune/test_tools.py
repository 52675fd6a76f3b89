"""`ctxgate tune --tools`: the choice among the ways, and the command with a server that understands one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from gateway.config import load
from gateway.errors import ProviderInvalidRequest
from gateway.features.evaluation.model_test import oracle
from gateway.features.evaluation.model_test.cases import Case
from gateway.features.evaluation.model_test.commands import suites
from gateway.features.evaluation.model_test.fake import chunks, served, whole
from gateway.features.evaluation.tune.tools import WAYS, Share, Showing, Way, choose, note, read, ways
from tests.cli.commands import ctxgate
from tests.ports import free_port

FILE = """\
active_model: listed
server: {{port: {port}}}
state_dir: {folder}/state
models:
  listed:  # behind a server
    runtime: openai
    base_url: {url}
    tool_call_format: hermes
    tool_prompt: {way}  # mine
  braces: {{runtime: openai, base_url: "{url}", tool_call_format: hermes}}
  engine: {{runtime: openai, base_url: "{url}"}}
  vectors: {{runtime: openai, base_url: "{url}", role: embedding}}
# the end
"""
LISTS = "List of tools: ["
"""How our list in the system message begins."""


class Server(BaseHTTPRequestHandler):
    """A model that is right about the smoke suite if it sees our list of tools; else it answers in words."""

    protocol_version = "HTTP/1.1"
    cases: ClassVar[Mapping[str, Case]] = {str(case.messages[-1]["content"]): case for case in suites(["smoke"]).cases}

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "us"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        first, last = request["messages"][0], request["messages"][-1]
        case = self.cases.get(str(last["content"]))
        answer = oracle.never()
        if case is not None and first["role"] == "system" and LISTS in first["content"]:
            answer = oracle.leaky(oracle.answer(case, case.steps[0]))
        if not request.get("stream"):
            self._send(whole(answer, "m"))
            return
        data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(answer, "m")) + "data: [DONE]\n\n"
        self._send_as("text/event-stream", data.encode())

    def _send(self, body: object) -> None:
        self._send_as("application/json", json.dumps(body).encode())

    def _send_as(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def showing(prompt: str, passed: int, due: int, quiet: int, wording: str = "brief") -> Showing:
    return Showing(Way(prompt, wording), Share(passed, 20), Share(due, 15), Share(quiet, 4), 60.0)


OWN = showing("template", 10, 12, 2)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        pytest.param([], "template", id="nothing else"),
        pytest.param([showing("system", 10, 12, 2)], "template", id="the same"),
        pytest.param([showing("system", 12, 14, 1)], "system", id="gains more due calls than it loses"),
        pytest.param([showing("system", 12, 15, 0)], "system", id="three more due, two fewer quiet"),
        pytest.param([showing("system", 12, 13, 0)], "template", id="loses more needless ones than it gains"),
        pytest.param([showing("system", 9, 15, 4)], "template", id="decides better, passes less"),
        pytest.param([showing("system", 11, 12, 2), showing("both", 12, 12, 2)], "both", id="the better of two"),
        pytest.param([showing("system", 10, 13, 2), showing("both", 10, 12, 2)], "system", id="decides better"),
    ],
)
def test_the_choice_is_worse_in_nothing(others: list[Showing], chosen: str) -> None:
    assert choose([OWN, *others]).way.prompt == chosen


@pytest.mark.parametrize(
    ("prompt", "wording", "own"),
    [
        ("auto", "brief", Way("template")),
        ("template", "examples", Way("template")),
        ("system", "brief", Way("system")),
        ("system", "examples", Way("system", "examples")),
        ("both", "brief", Way("both")),
    ],
)
def test_every_way_is_tried_the_model_s_own_first(prompt: str, wording: str, own: Way) -> None:
    first, *others = ways(prompt, wording)
    assert (first, own in others) == (own, False)
    assert {own, *WAYS} == {first, *others}


def test_the_note_has_the_figures_of_all() -> None:
    chosen, other = showing("both", 12, 13, 3), showing("system", 9, 15, 0, "examples")
    assert note(chosen, [OWN, other, chosen], "smoke", "2026-11-25") == (
        "smoke 2026-11-25: passed 12 of 20, calls where due 13 of 15, quiet where due 3 of 4; "
        "template 10/12/2; system, examples 9/15/0"
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(Server) as base:
        yield base.removesuffix("/v1")


def written(folder: Path, url: str, way: str) -> Path:
    made = folder / "config.yaml"
    made.write_text(FILE.format(folder=folder, port=free_port(), url=url, way=way), "utf-8")
    return made


def test_tries_all_ways_and_writes_the_best_one(tmp_path: Path, url: str) -> None:
    file = written(tmp_path, url, "template")
    before = file.read_text("utf-8")
    done = ctxgate("tune", "--config", file, "--tools", "--apply", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split("  ") for line in done.stdout.splitlines() if " of 20 " in line]
    tried = [next(filter(None, (cell.strip("* ") for cell in row))) for row in rows]
    assert tried == [str(way) for way in WAYS], "the model's own first, and no tables of model-test"
    assert [row[0].startswith("*") for row in rows] == [False, True, False, False]
    after = file.read_text("utf-8")
    model = load(file).models["listed"]
    assert (model.tool_prompt, model.tool_wording) == ("system", "brief")
    line, wording = [line for line in after.splitlines() if "tool_" in line and "format" not in line]
    assert wording == "    tool_wording: brief"
    assert line.startswith("    tool_prompt: system  # smoke 2")
    assert "; template " in line
    assert line.endswith("  # mine")
    others = [each for each in after.splitlines() if each not in (line, wording)]
    assert others == [each for each in before.splitlines() if "tool_prompt" not in each]
    assert [path.name for path in tmp_path.glob(".tune*")] == []


@pytest.mark.slow
def test_what_is_best_already_stays(tmp_path: Path, url: str) -> None:
    file = written(tmp_path, url, "system")
    before = file.read_bytes()
    done = ctxgate("tune", "--config", file, "--tools", "--apply", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No way is better than system" in done.stdout
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("model", "says"), [("engine", "native_json"), ("vectors", "vectors")], ids=["the engine's own", "no chat"]
)
def test_refuses_what_the_gateway_does_not_decide(tmp_path: Path, url: str, model: str, says: str) -> None:
    done = ctxgate("tune", "--config", written(tmp_path, url, "auto"), "--tools", model, cwd=tmp_path)
    assert (done.returncode, says in done.stderr) == (ProviderInvalidRequest.exit_code, True)


def test_a_server_that_shows_the_tools_itself_is_added_as_it_is(tmp_path: Path, url: str) -> None:
    file = written(tmp_path, url, "auto")
    done = ctxgate(
        "add", "--config", file, f"{url}/v1", "--name", "own", "--try-tools", "--out", tmp_path, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "own has tool_call_format native_json: its engine shows the tools" in done.stdout
    assert "own" in load(file).models
    assert "tools in: " not in done.stderr


def test_reads_the_results_of_model_test() -> None:
    results = {
        "summary": {"overall": {"k": 3, "n": 5}},
        "metrics": {"call_recall": {"k": 2, "n": 4}, "specificity": {"k": 1, "n": 1}},
        "cases": {"a": {"ms": 1500}, "b": {"ms": 500}, "c": {}},
    }
    assert read(Way("both"), json.loads(json.dumps(results))) == Showing(
        Way("both"), Share(3, 5), Share(2, 4), Share(1, 1), 2.0
    )


@pytest.mark.parametrize("how", ["--tools", "--calls"])
def test_another_suite_is_refused(how: str, tmp_path: Path) -> None:
    done = ctxgate("tune", how, "--suite", "nope", cwd=tmp_path)
    assert (done.returncode, "'nope' is not one of 'smoke', 'core'" in done.stderr) == (2, True), done.stderr
