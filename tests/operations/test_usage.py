"""Usage that lasts: what a gateway saves, when, and how it is shown."""

from __future__ import annotations

import csv
import io
import json
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import services as gateway_services
from gateway.app import build, wired
from gateway.config import Config, Model
from gateway.config.values import Log
from gateway.errors import ProviderUnavailable
from gateway.features.operations import usage_table as usage
from gateway.observe.request_log import LEFT, RequestLog, Total
from gateway.server.access import Access
from gateway.server.principal import LOCAL, MAX_CLIENTS, Callers, Principal, client_name
from gateway.services import Services
from gateway.store import Store
from gateway.wire.chat import NOBODY, Caller
from tests.cli.commands import config, ctxgate
from tests.gateway.running import FAST
from tests.operations.rows import row
from tests.patience import PATIENCE
from tests.provider.server import serve

SAY = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}
TOKENS = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
NOBODY_THERE = "server: {port: 1}\n"
CURL, HOST = (b"user-agent", b"curl/8"), (b"host", b"localhost")
ANN = Caller("1a2b", "OpenAI/Python")


def test_rows_become_totals_by_day_key_model_and_client() -> None:
    log = RequestLog()
    midnight = 20_000 * 86400.0 - 100.1  # the rows begin at 100.0
    rows = [
        row(caller=ANN, usage=TOKENS, seconds=0.05),
        row(caller=ANN, usage=TOKENS, outcome="provider_unavailable", seconds=0.05),
        row(caller=ANN, outcome=LEFT, stream=True, chunks=4, seconds=0.05),
        row(caller=ANN, seconds=0.5),
        row("n", caller=NOBODY, api="rooms", seconds=0.05),
        row("n", caller=NOBODY, seconds=0.05),
    ]
    log.add(rows, midnight)
    totals = log.usage.take()
    assert set(totals) == {
        ("2024-10-03", "1a2b", "m", "OpenAI/Python"),
        ("2024-10-04", "1a2b", "m", "OpenAI/Python"),
        ("2024-10-03", "", "n", "rooms"),
        ("2024-10-03", "", "n", ""),
    }
    first = totals["2024-10-03", "1a2b", "m", "OpenAI/Python"]
    assert first == Total(3, 1, 14, 6, 8, first.seconds)
    assert first.seconds == pytest.approx(0.15)
    assert log.usage.take() == {}


def test_sound_and_pictures_become_totals() -> None:
    log = RequestLog()
    heard, spoken = {"sound_seconds": 1.5}, {"characters": 7, "prompt_tokens": 2}
    log.add([row(api="audio", usage=heard), row(api="audio", usage=spoken), row(api="audio", usage=heard)], 0.0)
    log.add([row("brush", api="images", usage={"pictures": 3}), row("ears", api="ctx", usage=heard)], 0.0)
    found = {model: total for (_, _, model, _), total in log.usage.take().items()}
    units = {name: (total.sound_seconds, total.characters, total.pictures) for name, total in found.items()}
    assert units == {"m": (3.0, 7, 0), "brush": (0.0, 0, 3), "ears": (1.5, 0, 0)}
    assert (found["m"].requests, found["m"].prompt_tokens) == (3, 2)


@given(st.lists(st.lists(st.sampled_from(["m", "n"]), max_size=5), max_size=5), st.lists(st.booleans(), max_size=5))
def test_nothing_is_lost_or_counted_twice_if_the_store_fails(batches: list[list[str]], fails: list[bool]) -> None:
    log, saved = RequestLog(), 0
    for batch, failed in zip(batches, [*fails, *[False] * 5], strict=False):
        log.add([row(model) for model in batch], 0.0)
        totals = log.usage.take()
        if failed:
            log.usage.put_back(totals)
        else:
            saved += sum(total.requests for total in totals.values())
    saved += sum(total.requests for total in log.usage.take().values())
    assert saved == sum(map(len, batches))


def test_the_log_hands_each_answer_to_the_usage_once() -> None:
    log = RequestLog(2)
    for _ in range(3):
        log.rows.append(row(caller=ANN, usage=TOKENS))
        log.settle()
    (total,) = log.usage.take().values()
    assert (total.requests, total.prompt_tokens) == (3, 21)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"OpenAI/Python 1.97.0", "OpenAI/Python"),
        (b"Anthropic/JS 0.30.1", "Anthropic/JS"),
        (b"curl/8.5.0", "curl"),
        (b"claude-cli/1.0.2 (external, cli)", "claude-cli"),
        (b"Mozilla/5.0 (X11)", "Mozilla"),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"a" * 300, "a" * 64),
    ],
)
def test_the_name_of_a_program(agent: bytes, name: str) -> None:
    assert client_name(agent) == name


def test_callers_are_made_once_and_their_names_are_bounded() -> None:
    callers, key = Callers(), Principal(key="k")
    made = {agent: callers.add(agent, LOCAL) for agent in (b"curl/8", b"", b"curl/9")}
    assert [caller.client for caller in made.values()] == ["curl", "", "curl"]
    for agent in (b"curl/8", b"curl/8", b"", b"curl/9", b"curl/8"):
        assert callers.known(agent, LOCAL) is made[agent]
    assert callers.known(b"curl/8", key) is callers.known(b"wget/1", LOCAL) is None
    assert (callers.add(b"curl/8", key).key, made[b"curl/8"].key) == ("k", "")
    assert callers.known(b"curl/8", Principal(key="k")) is None  # its limits may be others
    names = {callers.add(b"x%d" % at, LOCAL).client for at in range(3000)}
    assert len(names) <= MAX_CLIENTS + 1
    assert "other" in names
    assert callers.add(b"claude-cli/2", key).client == "claude-cli", "another key's programs keep their names"


SITE, ORIGIN = (b"sec-fetch-site", b"none"), (b"origin", b"http://x")


@pytest.mark.parametrize(
    "headers", [[CURL, HOST], [HOST, CURL], [HOST, CURL, ORIGIN], [ORIGIN, HOST, CURL], [SITE, CURL, HOST]]
)
def test_the_program_is_found_wherever_its_header_stands(headers: list[tuple[bytes, bytes]]) -> None:
    access = Access(["*"], ["*"])
    access.admit(headers)
    assert access.agent == CURL[1]
    access.admit([HOST])
    assert access.agent == b""


def config_of(state: Path, **log: Any) -> Config:
    models = {"echo": Model(name="echo", runtime="echo")}
    return Config(source=state / "config.yaml", active_model="echo", models=models, state_dir=state, log=Log(**log))


def ask(url: str, count: int = 1, agent: str = "Mine/2.0") -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE, headers={"user-agent": agent}) as http:
        for at in range(count):
            assert http.post("/v1/chat/completions", json={**SAY, "stream": bool(at % 2)}).status_code == 200


async def stored(state: Path, by: usage.By) -> list[dict[str, Any]]:
    store = await Store.open(f"sqlite:///{state / 'ctxgate.db'}")
    try:
        return await usage.report(store, by, "2026-01-01" if by == "day" else "0")
    finally:
        await store.aclose()


async def test_a_gateway_saves_at_its_end_and_goes_on_from_there(tmp_path: Path) -> None:
    for _ in range(2):
        with serve(build(config_of(tmp_path)), lifespan="on", http=FAST) as url:
            ask(url, 3)
    (found,) = await stored(tmp_path, "client")
    # Streams without `include_usage` have 4 or 5 chunks for 3 words.
    assert (found["client"], found["requests"], found["errors"], found["prompt_tokens"]) == ("Mine", 6, 0, 12)
    assert found["seconds"] > 0


async def test_it_saves_by_the_minute_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_services, "USAGE_SECONDS", 0.05)
    saved: list[int] = []
    came = threading.Event()
    real = usage.add

    async def counted(store: Store, rows: Any) -> None:
        saved.append(len(rows))
        came.set()
        await real(store, rows)

    monkeypatch.setattr(usage, "add", counted)
    with serve(build(config_of(tmp_path)), lifespan="on", http=FAST) as url:
        ask(url, 20)
        assert came.wait(PATIENCE)
    (found,) = await stored(tmp_path, "model")
    assert found["requests"] == 20
    assert set(saved) == {1}  # one row a time, not one for each request


async def test_a_store_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, services = wired(config_of(tmp_path), None)
    services.gateway.request_log.rows.append(row("echo", usage=TOKENS))
    real = usage.add

    async def broken(store: Store, rows: Any) -> None:
        raise ProviderUnavailable("the disk is full")

    try:
        monkeypatch.setattr(usage, "add", broken)
        with pytest.raises(ProviderUnavailable, match="disk is full"):
            await services.save_usage()
        monkeypatch.setattr(usage, "add", real)
        await services.save_usage()
        await services.save_usage()
    finally:
        await services.aclose()
        await services.gateway.aclose()
    (found,) = await stored(tmp_path, "model")
    assert (found["requests"], found["prompt_tokens"]) == (1, 7)


def test_without_days_nothing_is_kept(tmp_path: Path) -> None:
    with serve(build(config_of(tmp_path, usage_days=0.0)), lifespan="on", http=FAST) as url:
        ask(url)
    assert not (tmp_path / "ctxgate.db").exists()


async def test_a_gateway_that_answered_nothing_opens_no_store(tmp_path: Path) -> None:
    services: Services
    _, services = wired(config_of(tmp_path), None)
    services.keep_usage()
    await services.aclose()
    await services.gateway.aclose()
    assert not (tmp_path / "ctxgate.db").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a gateway has answered requests of two programs, and runs no more."""
    folder = tmp_path_factory.mktemp("usage")
    config(
        folder,
        f"active_model: echo\nmodels: {{echo: {{runtime: echo}}}}\nstate_dir: {folder / 'state'}\n" + NOBODY_THERE,
    )
    loaded = config_of(folder / "state")
    with serve(build(loaded), lifespan="on", http=FAST) as url:
        ask(url, 3, "curl/8.5.0")
        ask(url, 1, "OpenAI/Python 1.97.0")
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            shown = http.get("/-/usage", params={"by": "client", "since": "1d"}).json()
            assert [each["client"] for each in shown["usage"]] == ["OpenAI/Python", "curl"]
            for wrong in ({"by": "month"}, {"since": "tomorrow"}):
                refused = http.get("/-/usage", params=wrong)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
    return folder


def test_the_table(folder: Path) -> None:
    done = ctxgate("usage", "--by", "client", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["CLIENT", "REQUESTS", "ERRORS", "PROMPT", "CACHED", "COMPLETION", "SECONDS"]
    assert [line[:2] for line in lines[1:3]] == [["OpenAI/Python", "1"], ["curl", "3"]]
    assert lines[-1][0] == "total"


def test_csv_and_json_have_the_same_rows(folder: Path) -> None:
    as_csv = ctxgate("usage", "--by", "model", "--csv", cwd=folder)
    as_json = ctxgate("usage", "--by", "model", "--json", "--since", "7d", cwd=folder)
    (of_csv,) = csv.DictReader(io.StringIO(as_csv.stdout))
    (of_json,) = json.loads(as_json.stdout)["usage"]
    assert of_csv == {name: str(value) for name, value in of_json.items()}
    assert of_json["model"] == "echo"


@pytest.mark.parametrize(
    ("args", "said"),
    [(("--since", "soon"), "is not a day: write 2026-11-23"), (("--csv", "--json"), "exclude each other")],
)
def test_mistakes(folder: Path, args: tuple[str, ...], said: str) -> None:
    done = ctxgate("usage", *args, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_after_a_kill_all_but_the_last_minute_is_there(tmp_path: Path) -> None:
    """The command asks the running gateway, which saves first; then the gateway is killed."""
    from tests.cli.commands import serving

    config(
        tmp_path,
        f"active_model: echo\nmodels: {{echo: {{runtime: echo}}}}\nstate_dir: {tmp_path / 'state'}\n" + NOBODY_THERE,
    )
    with serving(tmp_path, "--port", "0") as process:
        assert process.stderr is not None
        url = next(word for word in process.stderr.readline().split() if word.startswith("http")).removesuffix("/v1")
        ask(url, 2)
        shown = ctxgate("usage", "--json", "--url", url, cwd=tmp_path)
        assert json.loads(shown.stdout)["usage"][0]["requests"] == 2
        ask(url, 1)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    after = ctxgate("usage", "--json", cwd=tmp_path)
    assert json.loads(after.stdout)["usage"][0]["requests"] == 2
