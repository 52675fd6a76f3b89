"""Status, metrics, the request log and its replay: over HTTP and on the command line, with the real engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from gateway.features.operations.commands.replay import listed
from tests.cli.commands import ctxgate
from tests.operations.running import QUESTION, Gateway, gateway

pytestmark = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")

CALLS = [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "(city='Oslo')"}}]
BROKEN_PAST = [
    {"role": "user", "content": "Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "b", "content": "rain"},
]
HEALED = {"arguments": 1, "ids": 1}


@pytest.fixture(scope="module")
def running(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    engine = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 512, "tool_call_format": "pythonic"}
    models = {"tiny": engine, "echo": {"runtime": "echo"}}
    text = json.dumps({"active_model": "tiny", "models": models, "log": {"bodies": True}})
    with gateway(tmp_path_factory.mktemp("seeing"), text, PATH="") as running:
        for stream in (False, True):
            assert running.http.post("/v1/chat/completions", json={**QUESTION, "stream": stream}).status_code == 200
        bad = {**QUESTION, "messages": [{"role": "user", "content": "x " * 3000}]}
        assert running.http.post("/v1/chat/completions", json=bad).status_code == 400
        broken = {**QUESTION, "messages": [*BROKEN_PAST, *QUESTION["messages"]], "max_tokens": 2}
        answer = running.http.post("/v1/chat/completions", json=broken)
        assert answer.headers["x-ctxgate-healed"] == ", ".join(f"{kind}={count}" for kind, count in HEALED.items())
        yield running


def command(running: Gateway, *args: str | Path) -> subprocess.CompletedProcess[str]:
    folder = running.file.parents[1]
    url = ("--url", str(running.http.base_url))
    return ctxgate(*args, *url, cwd=folder, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])


def test_status(running: Gateway) -> None:
    status = running.http.get("/-/status").json()
    tiny, echo = status["models"]
    assert (tiny["name"], tiny["active"], tiny["state"]) == ("tiny", True, "ready")
    assert tiny["outcomes"] == {"ok": 3, "provider_invalid_request": 1}
    assert (tiny["in_flight"], tiny["waiting"]) == (0, 0)
    assert tiny["completion_tokens"] > 20
    assert tiny["generated"] >= tiny["completion_tokens"]
    assert tiny["engine"]["resident_bytes"] > 10_000_000
    os.kill(tiny["engine"]["pid"], 0)
    assert (echo["state"], echo["engine"], echo["requests"]) == ("built in", None, 0)
    assert status["pid"] == running.process.pid
    assert 10_000_000 < status["resident_bytes"] < 200_000_000


def test_status_on_the_command_line(running: Gateway) -> None:
    done = command(running, "status")
    assert (done.returncode, done.stderr) == (0, "")
    head, tiny, echo, empty, about = done.stdout.splitlines()
    assert head.split("  ")[0] == "MODEL"
    assert tiny.startswith("* tiny  ready")
    assert tiny.split()[-2:] == ["3", "1"]
    assert echo.startswith("  echo  built in")
    assert empty == ""
    assert str(running.file) in about
    assert "\x1b" not in done.stdout
    assert json.loads(command(running, "status", "--json").stdout)["models"][0]["name"] == "tiny"


def test_without_a_gateway_it_says_so(tmp_path: Path, running: Gateway) -> None:
    done = ctxgate("status", "--config", running.file, "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 69
    assert "no gateway answers at http://127.0.0.1:9" in done.stderr
    assert "ctxgate serve" in done.stderr


Labels = frozenset[str]


def metrics(running: Gateway) -> dict[tuple[str, Labels], float]:
    """By name and the values of the labels."""
    response = running.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in families(response.text)
        for sample in family.samples
    }


def test_metrics(running: Gateway) -> None:
    found = metrics(running)
    assert found["ctxgate_requests_total", frozenset(("tiny", "chat", "ok"))] == 3
    assert found["ctxgate_requests_total", frozenset(("tiny", "chat", "provider_invalid_request"))] == 1
    assert found["ctxgate_request_seconds_count", frozenset(("tiny",))] == 4
    assert found["ctxgate_time_to_first_token_seconds_count", frozenset(("tiny",))] == 1
    assert found["ctxgate_time_to_first_token_seconds_sum", frozenset(("tiny",))] > 0
    assert found["ctxgate_tokens_total", frozenset(("tiny", "completion"))] > 20
    assert found["ctxgate_tokens_total", frozenset(("tiny", "prompt"))] > 20
    assert found["ctxgate_chunks_total", frozenset(("tiny",))] > 5
    states = {labels: value for (name, labels), value in found.items() if name == "ctxgate_engine_state"}
    assert [labels for labels, value in states.items() if value] == [{"tiny", "ready"}]
    assert frozenset(("tiny", "draining")) in states
    assert found["ctxgate_engine_memory_bytes", frozenset(("tiny",))] > 10_000_000
    assert found["ctxgate_queue_length", frozenset(("tiny",))] == 0
    assert found["ctxgate_config_valid", frozenset(())] == 1


def test_repairs_are_metrics(running: Gateway) -> None:
    found = metrics(running)
    for what, count in HEALED.items():
        assert found["ctxgate_normalizer_repairs_total", frozenset(("tiny", "healed", what))] == count


def test_openmetrics_for_who_asks_for_it(running: Gateway) -> None:
    text = running.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}).text
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/-/nothing", 404, "not_found"),
        ("GET", "/-/requests/999", 404, "not_found"),
        ("GET", "/-/reload", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
    ],
)
def test_what_is_not_there(running: Gateway, method: str, path: str, status: int, code: str) -> None:
    response = running.http.request(method, path)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert ("allow" in response.headers) == (status == 405)


def test_the_request_log(running: Gateway) -> None:
    requests = running.http.get("/-/requests").json()["requests"]
    failed, streamed, whole = requests[-3:]
    assert [each["id"] for each in (failed, streamed, whole)] == [3, 2, 1]
    assert (whole["stream"], whole["outcome"], whole["first_seconds"], whole["recorded"]) == (False, "ok", None, True)
    assert (streamed["stream"], streamed["outcome"], streamed["recorded"]) == (True, "ok", True)
    assert 0 < streamed["first_seconds"] <= streamed["seconds"]
    assert (failed["outcome"], failed["recorded"]) == ("provider_invalid_request", True)
    found = running.http.get("/-/requests/2").json()
    assert found["recording"]["request"]["messages"] == QUESTION["messages"]
    assert "tool_call_start" in "".join(found["recording"]["raw"])
    assert "get_weather" in "".join(found["recording"]["clean"])
    name = json.loads(found["recording"]["clean"][0])["id"]
    assert running.http.get(f"/-/requests/{name}").json()["request"]["id"] == 2


@pytest.mark.parametrize("number", [1, 2], ids=["whole", "streamed"])
def test_replay_shows_both_readings(running: Gateway, number: int) -> None:
    done = command(running, "replay", str(number), "--as", "hermes")
    assert (done.returncode, done.stderr) == (0, "")
    wrote, got, read = done.stdout.split("\n\n")[1:]
    text = '  <|tool_call_start|>[get_weather(city="Paris", unit="celsius")]<|tool_call_end|>'
    assert wrote.splitlines()[:2] == ["the model wrote:", text]
    call = '  call get_weather {"city": "Paris", "unit": "celsius"}'
    assert got.splitlines() == ["the client got, read as pythonic:", call, "  finish_reason: tool_calls"]
    assert read.splitlines() == ["read as hermes:", text, "  finish_reason: stop"]


def test_replay_as_the_same_format_gives_the_same(running: Gateway) -> None:
    shown = json.loads(command(running, "replay", "2", "--as", "pythonic", "--json").stdout)
    assert shown["replayed"] == shown["recorded"]


def test_replay_lists_what_is_remembered(running: Gateway) -> None:
    lines = command(running, "replay").stdout.splitlines()
    assert lines[0].split() == ["ID", "TIME", "MODEL", "API", "OUTCOME", "SECONDS", "TOKENS", "RECORDED"]
    assert [line.split()[0] for line in lines[-3:]] == ["3", "2", "1"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("999", "--as", "hermes"), "the log has no request 999"),
        (("3", "--as", "hermes"), "no model answered request 3: This model's maximum context length is 512 tokens."),
        (("1", "--as", "hermse"), "Did you mean 'hermes'?"),
    ],
)
def test_replay_tells_what_it_can_t(running: Gateway, args: tuple[str, ...], said: str) -> None:
    done = command(running, "replay", *args)
    assert done.returncode == 2
    assert said in done.stderr


def test_plan_of_another_file(running: Gateway, tmp_path: Path) -> None:
    config = json.loads(running.file.read_text())
    config["models"]["tiny"]["context_window"] = 1024
    config["models"]["new"] = {"runtime": "echo"}
    config["server"] = {"port": 1}
    edited = tmp_path / "edited.yaml"
    edited.write_text(json.dumps(config))
    done = command(running, "plan", edited)
    assert (done.returncode, done.stderr) == (3, "")
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "MODEL EFFECT CHANGES",
        "tiny its engine restarts context_window: 512 → 1024",
        "new added",
    ]  # --port of the command line goes before server.port
    edited.write_text(running.file.read_text())
    done = command(running, "plan", edited)
    assert (done.returncode, done.stdout) == (0, "nothing would change\n")
    assert command(running, "plan").stdout == "nothing would change\n"


def test_plan_of_a_file_with_mistakes(running: Gateway, tmp_path: Path) -> None:
    edited = tmp_path / "edited.yaml"
    edited.write_text("active_model: a\nmodels:\n  a: {runtime: ech}\n")
    done = command(running, "plan", edited)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{edited}:3:16: models.a.runtime: ech is not a runtime\n")
    assert 'did you mean "echo"?' in done.stderr
    missing = command(running, "plan", tmp_path / "nothing.yaml")
    assert missing.returncode == 2
    assert "can't be read: No such file" in missing.stderr


def test_the_list_of_replay_does_not_call_an_unread_call_ok(capsys: pytest.CaptureFixture[str]) -> None:
    """As Live doesn't, which tests/page/test_browser.py shows."""
    entry = {"id": 1, "at": 0, "model": "m", "api": "chat", "seconds": 1.0, "recorded": True}
    entry |= {"prompt_tokens": 1, "completion_tokens": 1}
    entries = [("ok", []), ("ok", ["unread_call"]), ("client_left", ["unread_call"])]
    listed([{**entry, "outcome": outcome, "warnings": warnings} for outcome, warnings in entries])
    head, *lines = capsys.readouterr().out.splitlines()
    at = slice(head.index("OUTCOME"), head.index("SECONDS"))
    assert [line[at].strip() for line in lines] == ["ok", "call in text", "client_left"]
