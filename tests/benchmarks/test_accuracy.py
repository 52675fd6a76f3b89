"""The benchmark of accuracy asks, keeps, resumes and counts; and a real model's calls are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import accuracy
from benchmarks.accuracy import Estimate, Figures, Needless, Options, Row, Share, goals_of, measure_all, reason, table
from benchmarks.harness import weights
from benchmarks.harness.ways import Loaded, NotMeasured, Served, Way, create_in_ollama
from gateway.features.evaluation.model_test import commands, fake, run
from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.cases import Case, Suite

Json = dict[str, Any]


@pytest.fixture(scope="module")
def smoke() -> Suite:
    return commands.suites(["smoke"])


class Server:
    """A way whose model always calls the first tool, or never calls any. asked: how many questions it got."""

    def __init__(self, *, calls: bool, broken: bool = False) -> None:
        self.calls, self.broken, self.asked = calls, broken, 0

    @contextmanager
    def __call__(self, model: Loaded) -> Iterator[Served]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send({"object": "list", "data": [{"id": model.name, "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.asked += 1
                tools = body.get("tools", ())
                name = tools[0]["function"]["name"] if tools and server.calls else None
                calls = (RawCall(name, "{}", "call_1"),) if name else ()
                finish = "tool_calls" if calls else "stop"
                answer = ModelAnswer("" if calls else "Hello.", calls=calls, finish=finish)
                if body["stream"]:
                    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in fake.chunks(answer, model.name)]
                    self.reply("text/event-stream", "".join([*events, "data: [DONE]\n\n"]))
                else:
                    self.send(fake.whole(answer, model.name))

            def send(self, body: Json) -> None:
                self.reply("application/json", json.dumps(body))

            def reply(self, kind: str, text: str) -> None:
                self.send_response(500 if server.broken else 200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        with fake.served(Handler) as url:
            yield Served(url, model.name, {"engine": "fake"})


@contextmanager
def absent(model: Loaded) -> Iterator[Served]:
    raise NotMeasured("it isn't\nhere")
    yield


def asked(
    ways: Mapping[str, Way], suite: Suite, out: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> list[Row]:
    monkeypatch.setattr(accuracy, "WAYS", ways)
    return measure_all(["test"], [*ways], [suite], Options(out, threads=1, quiet=True, **changed))


def figures(row: Row) -> Figures:
    assert not isinstance(row.figures, str), row.figures
    return row.figures


def counts(share: Share) -> tuple[int, int]:
    return share.k, share.n


def test_each_way_has_its_figures(smoke: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, Way] = {"bare": Server(calls=False), "ctxgate": Server(calls=True), "ollama": absent}
    *measured, ollama = asked(ways, smoke, tmp_path, monkeypatch)
    bare, through = map(figures, measured)
    assert (counts(bare.due), counts(bare.quiet)) == ((0, 15), (4, 4))
    assert (counts(through.due), counts(through.quiet)) == ((15, 15), (0, 4))
    needless = {name: counts(share) for name, share in through.needless_calls.items()}
    assert needless == {"abstain": (2, 2), "missing-param": (1, 1), "no-retool": (1, 1)}
    assert (len(through.needless), len(bare.needless)) == (4, 0)
    assert bare.gained is None
    assert through.gained is not None
    assert through.gained.value == pytest.approx(100 * (through.passed.k - bare.passed.k) / 20)
    assert through.gained.low < through.gained.value < through.gained.high
    assert ollama == Row("smoke", "test", "ollama", "it isn't here")


def test_what_was_asked_is_kept(smoke: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller selection first, then the rest of them, then nothing more."""
    server = Server(calls=True)
    asked({"bare": server}, smoke, tmp_path, monkeypatch, limit=5)
    few = server.asked
    first = asked({"bare": server}, smoke, tmp_path, monkeypatch)
    after = server.asked
    assert 5 <= few < after
    assert asked({"bare": server}, smoke, tmp_path, monkeypatch) == first
    assert server.asked == after
    asked({"bare": server}, smoke, tmp_path, monkeypatch, fresh=True)
    assert server.asked > after + 20


def test_answers_to_other_questions_are_not_continued(
    smoke: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked({"bare": Server(calls=True)}, smoke, tmp_path, monkeypatch, limit=2)
    with pytest.raises(run.OtherRun, match="max_tokens 200 there, 100 now"):
        asked({"bare": Server(calls=True)}, smoke, tmp_path, monkeypatch, limit=2, max_tokens=100)


def test_a_way_that_fails_has_no_figures(smoke: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = asked({"bare": Server(calls=True, broken=True)}, smoke, tmp_path, monkeypatch)
    assert isinstance(row.figures, str)
    assert "500" in row.figures


SEND = {"type": "function", "function": {"name": "email.send", "parameters": {"type": "object", "required": ["to"]}}}
USER = {"role": "user", "content": "Send an email to Ana about room 15."}
CALLED = {"id": "1", "type": "function", "function": {"name": "email.send", "arguments": '{"to": "Ana"}'}}
RESULT = ({"role": "assistant", "content": "", "tool_calls": [CALLED]}, {"role": "tool", "content": "sent"})
REASONS = {
    "invented": ((USER,), '{"to": "ana@example.com", "text": "Hi"}', "invents to, text"),
    "part of a word": ((USER,), '{"to": "ema", "room": 5}', "invents to, room"),
    "said": ((USER,), '{"to": "ana", "room": 15, "now": true}', "no tool does what was asked"),
    "the same again": ((USER, *RESULT), '{"to":"Ana"}', "repeats a call whose result is there"),
    "too little": ((USER,), '{"room": 15}', "leaves out to"),
    "another one": ((USER, *RESULT), '{"to": "Ana", "room": 15}', "goes on calling after the result"),
    "no object": ((USER,), "[", "its arguments aren't an object"),
}


@pytest.mark.parametrize(("messages", "arguments", "why"), REASONS.values(), ids=REASONS)
def test_a_needless_call_has_a_reason(messages: tuple[Json, ...], arguments: str, why: str) -> None:
    case = Case("x-001", "abstain", (SEND,), messages, ())
    assert reason(case, [("email.send", arguments)]) == why


NONE = Share.of([])
EMPTY = Figures({}, NONE, NONE, NONE, {"abstain": Share.of([True])}, None, 0.0)


def test_the_table_has_a_row_for_each_way() -> None:
    share = Share.of([True, False, True, True])
    needless = Needless("abstain-001", "abstain", "Order a pizza.", "f({})", "invents x")
    found = replace(EMPTY, passed=share, due=share, seconds=Estimate(2.0, 1.5, 2.5), gained=Estimate(3.25, -1.0, 7.0))
    row = Row("core", "test", "ctxgate", replace(found, needless=(needless,)))
    lines = table([row, Row("core", "test", "ollama", "none here")]).splitlines()
    shown = "3 of 4: 75.0 % (30.1 to 95.4)"
    assert lines[2] == (
        f"| core | test | ctxgate | {shown} | 3.2 (-1.0 to 7.0) | {shown} | none asked | abstain 1 of 1 "
        "| 2.0 (1.5 to 2.5) |"
    )
    assert lines[3] == "| core | test | ollama | not measured: none here | | | | | |"
    assert accuracy.needless_list([row]) == "test, ctxgate, abstain-001: 'Order a pizza.' → f({}): invents x"


@pytest.mark.parametrize(
    ("model", "due", "points", "met"),
    [
        ("qwen2.5-coder-0.5b", 9, 25.0, [True, True]),
        ("qwen2.5-coder-1.5b", 8, 24.9, [False, False]),
        ("smollm2", 0, 0.0, [True]),
        ("test", 10, -0.3, [False]),
    ],
)
def test_the_goals_are_the_coders_calls_and_no_loss_elsewhere(
    model: str, due: int, points: float, met: list[bool]
) -> None:
    share = Share.of([number < due for number in range(10)])
    found = replace(EMPTY, passed=share, due=share, gained=Estimate(points, points, points))
    row = Row("core", model, "ctxgate", found)
    assert [goal.met for goal in goals_of([row, replace(row, way="reading")])] == met
    assert goals_of([replace(row, suite="smoke"), replace(row, way="native_json"), replace(row, figures="no")]) == []


def test_ollama_gets_the_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    blobs: dict[str, bytes] = {}
    created: list[Json] = []

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/api/create":
            created.append(json.loads(request.content))
            return httpx.Response(200, json={"status": "success"})
        if request.method == "HEAD":
            return httpx.Response(200 if path in blobs else 404)
        blobs[path] = request.read()
        return httpx.Response(201)

    with httpx.Client(base_url="http://ollama", transport=httpx.MockTransport(answer)) as http:
        for _ in range(2):
            create_in_ollama(http, "tiny:latest", file, {"num_ctx": 512})
    ((place, content),) = blobs.items()
    digest = place.removeprefix("/api/blobs/")
    assert content == b"GGUF"
    wanted = {"model": "tiny:latest", "files": {"tiny.gguf": digest}, "parameters": {"num_ctx": 512}, "stream": False}
    assert created == [wanted, wanted]


def test_an_ollama_that_refuses_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    refusing = httpx.MockTransport(lambda request: httpx.Response(400))
    with httpx.Client(base_url="http://ollama", transport=refusing) as http, pytest.raises(NotMeasured, match="400"):
        create_in_ollama(http, "tiny:latest", file, {})


@pytest.mark.timeout(300)
def test_real_engines_answer_by_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    file = tmp_path / "rows.json"
    few = ["--models", "test", "--limit", "6", "--threads", "1", "--no-smoke"]
    assert accuracy.main([*few, "--out", str(tmp_path / "out"), "--json", str(file)]) == 0
    rows = json.loads(file.read_text("utf-8"))
    assert [row["way"] for row in rows] == ["bare", "ctxgate", "reading", "native_json", "ollama"]
    *measured, ollama = [row["figures"] for row in rows]
    assert [found["passed"]["n"] for found in measured] == [6, 6, 6, 6]
    formats = [found["served"].get("tool_call_format") for found in measured]
    assert formats == [None, "pythonic", "pythonic", "native_json"]
    assert ollama == "no Ollama answers at http://127.0.0.1:9, which OLLAMA_HOST names"
    assert "| core | test | ollama | not measured: no Ollama answers" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_calls_of_a_coder_are_read(tmp_path: Path) -> None:
    """It writes them without marks. llama.cpp's own parser reads none of them, except where a grammar forces a call.

    The answers are the same each time: temperature 0. Of the 15 due calls of smoke it writes 14; the bound leaves room
    for other builds of llama.cpp.
    """
    pytest.importorskip("xllamacpp")
    try:
        weights.path("qwen2.5-coder-0.5b")
    except weights.Unavailable as error:
        pytest.skip(f"no weights of Qwen2.5-Coder 0.5B: {error}")
    options = Options(tmp_path, threads=2, smoke=False)
    rows = measure_all(["qwen2.5-coder-0.5b"], ["bare", "ctxgate"], [commands.suites(["smoke"])], options)
    bare, through = map(figures, rows)
    assert bare.due.k <= 3
    assert through.due.k >= 11
    assert through.passed.k > bare.passed.k
