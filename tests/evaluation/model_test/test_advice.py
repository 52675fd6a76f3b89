"""Calls that came out as text: `model-test` and `ctxgate add` say what to try, and don't end with 0."""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gateway.features.evaluation.commands.model_test import main
from gateway.features.evaluation.model_test.advice import DOCS, advice, unread
from gateway.features.evaluation.model_test.answers import ModelAnswer
from gateway.features.evaluation.model_test.cases import SUITES, Json, load
from gateway.features.evaluation.model_test.fake import chunks, served, whole
from normalizers import registry
from normalizers.write.render import render_calls
from tests.cli.commands import config, ctxgate

ROOT = Path(__file__).parents[3]
CORE = {case.id: case for case in load(SUITES / "core").cases}
CALL: Json = {"function": {"name": "get_weather", "arguments": '{"city": "Oslo", "unit": "celsius"}'}}


def sample(text: str, kind: str | None = "text_tool_call", detail: str = "", id: str = "single-001") -> Json:
    return {"case": id, "kind": kind, "detail": detail, "answers": [{"content": text}]}


def result(**target: Any) -> Json:
    return {"target": {"model": "m", **target}}


@pytest.mark.parametrize("format", ["hermes", "mistral", "llama3_json", "qwen3_coder", "kimi_k2", "pythonic"])
def test_the_format_that_reads_the_texts_is_named(format: str) -> None:
    text = render_calls(registry.get(format), [CALL])
    head, example, *lines = advice(result(tool_call_format="harmony"), [sample(text), sample("", None)], CORE)
    assert head.startswith("CALLS AS TEXT: 1 of 2 answers")
    assert "single-001" in example
    tried = [line.split("tool_call_format: ")[1].split()[0] for line in lines if "reads 1 of 1" in line]
    assert tried
    for name in tried:
        reader = registry.normalizer(name, CORE["single-001"].tools)
        reader.feed(text)
        reader.finish("stop")
        assert reader.called
    assert all("instead of harmony" in line for line in lines if "reads 1 of 1" in line)
    assert "tool_prompt: system" in "\n".join(lines)
    assert "unmarked: last" in "\n".join(lines)
    assert DOCS in lines[-1]
    assert (ROOT / DOCS).is_file()


def test_names_that_went_out_with_underscores() -> None:
    call = {"function": {"name": "filesystem_list_dir", "arguments": '{"path": "/tmp"}'}}
    text = render_calls(registry.get("mistral"), [call])
    assert "reads 1 of 1" in "\n".join(advice(result(), [sample(text, id="recover-001")], CORE))


def test_what_nothing_reads_gets_the_other_cures() -> None:
    lines = advice(result(tool_call_format="hermes"), [sample("[TOOL_CALL] get_weather, please")], CORE)
    assert not [line for line in lines if "reads 1 of" in line]
    assert "{like: hermes, unmarked: last}" in "\n".join(lines)


@pytest.mark.parametrize(
    ("kind", "detail", "counts"),
    [
        ("text_tool_call", "<tool_call>", True),
        ("chain_broken@2", "text_tool_call: <tool_call>", True),
        ("chain_broken@2", "no_call: wanted text_tool_call", False),
        ("no_call", "text_tool_call", False),
        (None, "", False),
    ],
)
def test_which_samples_count(kind: str | None, detail: str, counts: bool) -> None:
    assert bool(unread([sample("<tool_call>", kind, detail)])) is counts
    assert bool(advice(result(), [sample("<tool_call>", kind, detail)], CORE)) is counts


def run(out: Path, *args: str) -> int:
    return main(["run", "--out", str(out), "--quiet", "--no-png", "--no-html", "--baseline", "none", *args])


def test_a_run_ends_with_the_advice_and_its_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "leaky", "--fake", "leaky", "--suite", "smoke") == 6
    shown = capsys.readouterr().out
    assert shown.rstrip().splitlines()[-1].strip().startswith(DOCS)
    assert "tool_call_format: hermes" in shown
    assert run(tmp_path / "json", "--fake", "leaky", "--suite", "smoke", "--json") == 6
    both = capsys.readouterr()
    assert json.loads(both.out)["metrics"]["kinds"] == {"text_tool_call": 15}
    assert "CALLS AS TEXT" in both.err
    assert run(tmp_path / "never", "--fake", "never", "--suite", "smoke") == 1, "a case that must pass fails"
    assert "CALLS AS TEXT" not in capsys.readouterr().out


def test_a_missed_target_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "missed", "--fake", "leaky", "--suite", "smoke", "--min", "overall=90") == 1
    assert "CALLS AS TEXT" in capsys.readouterr().out
    assert run(tmp_path / "met", "--fake", "leaky", "--suite", "smoke", "--min", "overall=10") == 6


def test_a_regression_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "right", "--fake", "oracle") == 0
    assert run(tmp_path / "worse", "--fake", "leaky", "--baseline", str(tmp_path / "right"), "--allow-mismatch") == 1
    assert "CALLS AS TEXT" in capsys.readouterr().out


class Leaky(BaseHTTPRequestHandler):
    """Answers every question with a call in marks that nobody reads, whole or streamed."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "leaky", "object": "model", "owned_by": "x", "created": 0}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = ModelAnswer(content="[TOOL_CALL] get_weather, please", finish="stop")
        if not request.get("stream"):
            self._send(whole(answer, "leaky"))
            return
        events = [*(json.dumps(each) for each in chunks(answer, "leaky")), "[DONE]"]
        self._respond("".join(f"data: {event}\n\n" for event in events).encode(), "text/event-stream")

    def _send(self, body: Json) -> None:
        self._respond(json.dumps(body).encode(), "application/json")

    def _respond(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.slow
def test_add_ends_with_the_advice_and_the_same_exit_code(tmp_path: Path) -> None:
    config(tmp_path, "models:\n  other: {runtime: echo}\nactive_model: other\n")
    with served(Leaky) as url:
        done = ctxgate("add", url, "--name", "mine", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    assert re.search(r"CALLS AS TEXT: \d+ of 21 answers", done.stdout)
    assert "under models: mine" in done.stdout
    assert "mine now" in done.stdout, "the entry stays"
