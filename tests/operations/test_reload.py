"""A change of config.yaml while the gateway runs: real gateway processes, real engines."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from benchmarks import reloads
from gateway.app import build
from gateway.config import Config, load
from gateway.core import Gateway as Core
from gateway.core import reload
from gateway.core.reload import Reloader
from gateway.features.operations.endpoints import MAX_FILE
from tests.cli.commands import config as written
from tests.cli.commands import environment
from tests.gateway.client import Client, request
from tests.gateway.running import FAST
from tests.operations.running import gateway
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.provider.server import serve

needs_engine = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")

ECHO = "active_model: a\nmodels:\n  a: {runtime: echo}\n"


@needs_engine
@pytest.mark.parametrize("count", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_reloads_under_load_disturb_no_request(count: int, tmp_path: Path) -> None:
    figures = asyncio.run(reloads.measure(count, tmp_path, seconds_between=0.5))
    assert figures.load.failed == []
    assert len(set(figures.pids)) == 1
    assert figures.pids[0] is not None
    assert figures.replaced > 1
    assert {*figures.load.answered} == {"steady", "changing"}


def test_a_file_that_became_shorter_is_applied(tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO + "  b: {runtime: echo}\n") as running:
        assert running.names() == ["a", "b"]
        running.file.write_text(ECHO)
        running.until(lambda status: status["config"]["reloads"] == 1)
        assert running.names() == ["a"]


@pytest.mark.parametrize("how", ["written", "renamed"])
def test_a_saved_file_is_applied(how: str, tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO) as running:
        text = ECHO + "  b: {runtime: echo, aliases: [other]}\n"
        before = running.http.get("/-/status").json()["config"]["applied_at"]
        if how == "written":
            running.file.write_text(text)
        else:
            running.save(text)
        running.until(lambda status: status["config"]["reloads"] == 1 and status["config"]["applied_at"] > before)
        assert running.names() == ["a", "b"]
        assert "config.yaml: model b is added" in running.log.read_text()
        asked = {"model": "other", "messages": [{"role": "user", "content": "Hi"}]}
        assert running.http.post("/v1/chat/completions", json=asked).json()["model"] == "b"


def test_a_file_with_mistakes_leaves_the_last_good_one(tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO) as running:
        running.save("active_model: a\nmodels:\n  a: {runtim: echo}\n")
        status = running.until(lambda status: status["config"]["problems"])
        assert any(
            ':3:7: unknown key runtim in models.a\n    did you mean "runtime"?' in problem
            for problem in status["config"]["problems"]
        )
        assert "see `ctxgate status`" in running.http.get("/health").json()["config"]
        assert running.names() == ["a"]
        assert 'did you mean "runtime"?' in running.log.read_text()
        refused = running.http.post("/-/reload")
        assert refused.status_code == 422
        assert [(each["line"], each["column"]) for each in refused.json()["error"]["problems"]] == [(3, 3), (3, 7)]
        running.save(ECHO + "  b: {runtime: echo}\n")
        running.until(lambda status: not status["config"]["problems"])
        assert "config" not in running.http.get("/health").json()
        assert running.names() == ["a", "b"]


@needs_engine
def test_an_engine_does_not_give_way_to_missing_weights(test_model: Path, tmp_path: Path) -> None:
    text = f"active_model: a\nmodels:\n  a: {{runtime: llama.cpp, path: {test_model}, context_window: 512}}\n"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    with gateway(tmp_path, text) as running:
        assert running.http.post("/v1/chat/completions", json=chat).status_code == 200
        running.save(text.replace(str(test_model), "/nowhere/else.gguf"))
        refused = running.http.post("/-/reload")
        assert refused.status_code == 422
        assert "there is no file /nowhere/else.gguf" in refused.text
        assert running.http.post("/v1/chat/completions", json=chat).status_code == 200


def test_an_unwatched_file_waits_for_sighup(tmp_path: Path) -> None:
    text = ECHO + "server: {watch: false}\n"
    with gateway(tmp_path, text) as running:
        running.save(text.replace("  a:", "  b: {runtime: echo}\n  a:"))
        # Two looks of a watcher would fit in here.
        plan = running.http.get("/-/plan").json()
        assert [change["name"] for change in plan["models"]] == ["b"]
        assert running.names() == ["a"]
        running.process.send_signal(signal.SIGHUP)
        running.until(lambda status: status["config"]["reloads"] == 1)
        assert running.names() == ["b", "a"]


PLANTED = "5813-planted"
NUMBER = "471113"
NAMED = "active_model: a\nmodels:\n  a: {runtime: echo, aliases: ['${PLANTED}'], max_tokens: '${OWN}'}\n"


def planned(model: str = "", top: str = "", runtime: str = "echo", active: str = "a") -> str:
    return f"active_model: {active}\n{top}\nmodels:\n  a:\n    runtime: {runtime}\n    {model}\n"


V = '"${PLANTED}"'
SENT = {
    "runtime": planned(runtime=V),
    "a class": planned(runtime='"os.${NUMBER}:x"'),
    "the active model": planned(active=V),
    "a format": planned(f"tool_call_format: {V}"),
    "an alias elsewhere": planned(f"aliases: [other, {V}]"),
    "an alias beside": planned('aliases: ["${PLANTED}!"]'),
    "fallbacks": planned(f"fallbacks: [{V}]"),
    "service tier": planned(f"service_tier: {V}"),
    "an anchor": planned(f"aliases: [&v {V}]\n    tool_call_format: *v"),
    "merged": planned(f"<<: {{tool_call_format: {V}}}"),
    "twice": planned(f"tool_call_format: {V}\n    tool_call_format: {V}"),
    "a number": planned('temperature: "0.${NUMBER}"'),
    "the number elsewhere": planned('context_window: "${NUMBER}"'),
    "a number's range": planned('top_p: "${NUMBER}"'),
    "a port": planned(top='server: {port: "${NUMBER}"}'),
    "a host": planned(top='server: {host: "${PLANTED}.example"}'),
    "an origin": planned(top=f"server: {{cors_origins: [{V}]}}"),
    "a level": planned(top=f"log: {{level: {V}}}"),
    "a store": planned(top=f"store: {V}"),
    "a URL": planned(f"base_url: {V}", runtime="openai"),
    "weights": planned('path: "/nowhere/${PLANTED}"\n    context_window: 512', runtime="llama.cpp"),
    "an engine's option": planned(f"path: /nowhere\n    kv_cache_type: {V}", runtime="llama.cpp"),
    "a command": planned("base_url: http://127.0.0.1:9\n    command: '${PLANTED} \"'", runtime="openai"),
    "with a default": planned('temperature: "${NUMBER:-0.5}"'),
    "a key": planned(f"base_url: http://127.0.0.1:9\n    api_key: {V}", runtime="openai"),
}


def test_a_text_reads_no_variables(tmp_path: Path) -> None:
    """Whatever key names them; nor does anything tell a right guess from a wrong one."""
    with gateway(tmp_path, NAMED, PLANTED=PLANTED, NUMBER=NUMBER, OWN="99") as running:
        assert running.http.post("/-/plan", content=NAMED).json()["lines"] == [], "the file's own are filled in"
        for name, text in SENT.items():
            said = running.http.post("/-/plan", content=text)
            assert said.status_code in (200, 422), (name, said.text)
            assert not any(part in said.text for part in (PLANTED, NUMBER, "5813", "4711")), (name, said.text)
        guess = planned(active=V) + f"  {PLANTED}: {{runtime: echo}}\n"
        assert running.http.post("/-/plan", content=guess).status_code == 422
        default = running.http.post("/-/plan", content=SENT["with a default"]).json()
        assert "temperature: not given → 0.5" in default["lines"][0]
        assert running.http.post("/-/plan", content=SENT["a key"]).status_code == 200
        running.save("active_model: [\n")
        cured = running.http.post("/-/plan", content=NAMED)
        assert (cured.status_code, PLANTED in cured.text) == (422, False)
        assert "${OWN}" in cured.text


def test_a_plan_says_why_a_variable_is_not_filled_in(tmp_path: Path) -> None:
    """Instead of what follows from it: the same file may be right where it is checked with the environment."""
    values = {
        "base_url": "${URL}", "context_window": "${NUMBER}", "temperature": "0.${NUMBER}", "role": "${NAME}",
        "tool_call_format": "${NAME}", "fallbacks": ["${NAME}"], "ca_file": "${NAME}", "max_tokens": "${A}${B}",
    }  # fmt: skip
    environ = {"URL": "http://127.0.0.1:9", "NUMBER": "4096"}
    with gateway(tmp_path, ECHO, **environ) as running:
        for key, value in values.items():
            model = {"runtime": "openai", "base_url": "http://127.0.0.1:9", key: value}
            said = running.http.post("/-/plan", content=f"{ECHO}  b: {json.dumps(model)}\n")
            if said.status_code == 200:
                continue
            problems = said.json()["error"]["problems"]
            assert [each["message"].endswith("} isn't filled in") for each in problems] == [True], (key, problems)
            assert "same place" in problems[0]["cure"]
        checked = f"{ECHO}  b: {{runtime: openai, base_url: '${{URL}}', context_window: '${{NUMBER}}'}}\n"
        problems = running.http.post("/-/plan", content=checked).json()["error"]["problems"]
        assert [each["message"] for each in problems] == ["${URL} isn't filled in", "${NUMBER} isn't filled in"]


async def test_a_plan_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = load(written(tmp_path, ECHO))
    with serve(build(config, lambda text: config), lifespan="on", http=FAST) as url:
        port = int(url.rpartition(":")[2])
        with monkeypatch.context() as patch:
            patch.setattr("gateway.server.bodies.BODY_SECONDS", 0.2)
            async with await Client.connect(port) as client:
                await client.send(request(ECHO.encode(), "/-/plan")[:-5])
                late = await client.answer()
                assert (late.status, late.error["code"]) == (408, "request_timeout")
        async with await Client.connect(port) as client:
            large = await client.ask(b"#" * (MAX_FILE + 1), "/-/plan")
            assert (large.status, large.error["code"]) == (413, "request_too_large")
            assert (await client.ask(ECHO.encode(), "/-/plan")).status == 200


def test_bodies_are_kept_from_a_reload_on(tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO) as running:
        for bodies in (True, False):
            running.save(ECHO + f"log: {{bodies: {str(bodies).lower()}}}\n")
            assert running.http.post("/-/reload").status_code == 200
            chat = {"messages": [{"role": "user", "content": "Hi"}]}
            assert running.http.post("/v1/chat/completions", json=chat).status_code == 200
            assert running.http.get("/-/requests").json()["requests"][0]["recorded"] is bodies


def test_what_only_a_restart_changes_is_told(tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO) as running:
        running.save(ECHO + "server: {host: localhost}\nstate_dir: elsewhere\n")
        status = running.until(lambda status: status["config"]["reloads"] == 1)
        assert status["config"]["needs_restart"] == ["server.host", "state_dir"]
        assert "server.host: 127.0.0.1 → localhost: takes effect when the gateway is started again" in (
            running.log.read_text()
        )
        # It still does after another change.
        running.save(ECHO + "  b: {runtime: echo}\nserver: {host: localhost}\nstate_dir: elsewhere\n")
        status = running.until(lambda status: status["config"]["reloads"] == 2)
        assert status["config"]["needs_restart"] == ["server.host", "state_dir"]


def test_keys_of_callers_change_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO, CTXGATE_NEW="sesame") as running:
        running.save(ECHO + 'server: {api_keys: ["${CTXGATE_NEW}"]}\n')
        deadline = time.monotonic() + PATIENCE
        while running.http.get("/v1/models").status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        key = {"authorization": "Bearer sesame"}
        assert running.http.get("/v1/models", headers=key).status_code == 200
        for path in ("/metrics", "/-/status", "/-/plan", "/-/requests"):
            assert running.http.get(path).status_code == 401, path
            assert running.http.get(path, headers=key).status_code == 200, path
        assert running.http.post("/-/reload").status_code == 401
        assert "sesame" not in running.log.read_text()


def test_the_command_line_goes_before_a_changed_file(tmp_path: Path) -> None:
    with gateway(tmp_path, ECHO + "  b: {runtime: echo}\n", "--model", "b") as running:
        running.save(ECHO + "  b: {runtime: echo}\n  c: {runtime: echo}\n")
        status = running.until(lambda status: status["config"]["reloads"] == 1)
        assert [model["name"] for model in status["models"] if model["active"]] == ["b"]
        assert status["config"]["needs_restart"] == []


@needs_engine
def test_a_removed_engine_ends_after_its_answers(tmp_path: Path, test_model: Path) -> None:
    engine = json.dumps({"runtime": "llama.cpp", "path": str(test_model), "context_window": 1024})
    with gateway(tmp_path, ECHO + f"  tiny: {engine}\n") as running:
        assert running.http.get("/v1/models/tiny/ready").status_code == 200
        pid = next(m["engine"]["pid"] for m in running.http.get("/-/status").json()["models"] if m["engine"])
        asked = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            **{"max_tokens": 900, "temperature": 0, "ignore_eos": True},
        }
        with running.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            assert next(lines)
            running.save(ECHO)
            found = running.http.post("/-/reload").json()
            assert [(change["name"], change["effect"]) for change in found["models"]] == [("tiny", "removed")]
            rest = [*lines]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2] or '"finish_reason":"length"' in rest[-3]
        running.until(lambda status: not status["leaving"])
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_change_between_reading_and_serving_is_applied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As while `ctxgate serve` fetches weights."""
    monkeypatch.setattr(reload, "POLL_SECONDS", 0)
    file = written(tmp_path, ECHO)
    config = load(file)
    file.write_text(ECHO + "  b: {runtime: echo}\n")
    applied = asyncio.Event()
    async with asyncio.timeout(PATIENCE), Core(config) as core:
        core.on_change(applied.set)
        watching = asyncio.create_task(Reloader(core, lambda text: load(file)).watch())
        await applied.wait()
        assert [*core.config.models] == ["a", "b"]
        watching.cancel()


async def test_what_keeps_a_reload_from_its_end_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def fails(text: str | None) -> Config:
        raise ZeroDivisionError("a bug")

    async with Core(load(written(tmp_path, ECHO))) as core:
        await Reloader(core, fails).try_reload()
    assert "the configuration can't be applied" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


async def test_each_change_of_the_file_is_applied_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether it gets longer or shorter; mistakes and bugs end no watch."""
    monkeypatch.setattr(reload, "POLL_SECONDS", 0)
    file = written(tmp_path, ECHO)
    loads: list[str] = []

    def read(text: str | None) -> Config:
        loads.append("")
        loads[-1] = file.read_text("utf-8")
        if "bug" in loads[-1]:
            raise ZeroDivisionError("a bug")
        return load(file)

    async def turns() -> None:
        """Lets the watcher look a few times, and read."""
        for _ in range(20):
            await asyncio.to_thread(len, "")

    def reloads(count: int) -> bool:
        return reloader.reloads >= count

    def read_last(text: str) -> bool:
        return loads[-1] == text

    async def until(holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - nothing tells of a reload
            await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE), Core(load(file)) as core:
        reloader = Reloader(core, read)
        watching = asyncio.create_task(reloader.watch())
        await turns()
        assert (loads, reloader.reloads) == ([], 0)
        longer, same_length = ECHO + "  b: {runtime: echo}\n", ECHO + "  c: {runtime: echo}\n"
        for number, text in enumerate((longer, ECHO, same_length, longer), 1):
            began = time.time()
            file.write_text(text, "utf-8")
            await until(partial(reloads, number))
            assert began <= reloader.applied_at <= time.time()
            assert [*core.config.models] == [*load(file).models]
            await turns()
            assert len(loads) == number
        file.unlink()
        await turns()
        for text in (ECHO + "mistake: 1\n", "bug: here\n", ECHO):
            file.write_text(text, "utf-8")
            await until(partial(read_last, text))
        await until(partial(reloads, 5))
        assert (reloader.problems, [*core.config.models]) == ((), ["a"])
        assert len(loads) == 7, "a file that is missing isn't read"
        watching.cancel()


def test_a_terminal_that_closes_ends_the_gateway(tmp_path: Path) -> None:
    """SIGHUP means a reload, but for the terminal that the gateway was started in."""
    written(tmp_path, ECHO)
    port = free_port()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "serve", "--port", str(port)]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"]),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        try:
            os.close(theirs)
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=PATIENCE)
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                else:
                    break
            os.close(ours)
            process.send_signal(signal.SIGHUP)
            assert process.wait(PATIENCE) is not None
        finally:
            process.kill()
