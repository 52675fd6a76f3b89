"""What the page is served as, and the endpoints that it stands on."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import Config, Model
from gateway.core import Gateway as Core
from gateway.features.operations.live import LISTENERS, in_flight
from gateway.features.page.endpoints import FOLDER, POLICY, TYPES
from gateway.wire.chat import ChatRequest
from tests.gateway.double import Exchange, chunk
from tests.hostile.running import Gateway, Json, Upstream, configuration, polite, started
from tests.page.conftest import QUESTION, needs_engine
from tests.patience import PATIENCE

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY = "planted-key-of-the-page"


# Files


def test_an_address_that_is_none_is_refused(gateway: Gateway) -> None:
    for address in ("http://[", "http://[::1", "no"):
        answer = gateway.ask("GET", f"/-/clients?address={address}")
        assert (answer.status, b"must be a URL" in answer.body) == (400, True)


def test_a_browser_gets_the_page_and_a_program_what_it_got_before(gateway: Gateway) -> None:
    page, program = gateway.ask("GET", "/", headers=HTML), gateway.ask("GET", "/")
    assert (program.status, program.body) == (200, b"ctxgate is running")
    assert program.headers["content-type"] == "text/plain; charset=utf-8"
    assert (page.status, page.body) == (200, (FOLDER / "index.html").read_bytes())
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["vary"] == program.headers["vary"] == "Accept"
    assert gateway.ask("GET", "/v1/", headers=HTML).body == b"ctxgate is running"


@pytest.mark.parametrize("path", ["/", *(f"/ui/{one.name}" for one in FOLDER.iterdir() if one.suffix in TYPES)])
def test_what_a_browser_has_already_is_not_sent_again(path: str, gateway: Gateway) -> None:
    first = gateway.ask("GET", path, headers=HTML)
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["x-content-type-options"] == "nosniff"
    again = gateway.ask("GET", path, headers={**HTML, "If-None-Match": first.headers["etag"]})
    assert (first.status, again.status, again.body) == (200, 304, b"")


@pytest.mark.parametrize(
    ("encodings", "compressed"),
    [("gzip, deflate, br", True), ("br, GZIP", True), ("gzip;q=0", False), ("identity", False)],
)
def test_files_are_compressed_for_browsers(encodings: str, compressed: bool, gateway: Gateway) -> None:
    answer = gateway.ask("GET", "/ui/app.js", headers={"Accept-Encoding": encodings})
    plain = gateway.ask("GET", "/ui/app.js")
    assert plain.body == (FOLDER / "app.js").read_bytes()
    assert answer.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert (gzip.decompress(answer.body) if compressed else answer.body) == plain.body
    assert answer.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert (answer.headers["etag"] == plain.headers["etag"]) is not compressed
    again = gateway.ask(
        "GET", "/ui/app.js", headers={"Accept-Encoding": encodings, "If-None-Match": answer.headers["etag"]}
    )
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "name", ["nothing.js", "LICENSE-htm.txt", "README.md", "../app.py", "..%2fapp.py", "/etc/passwd"]
)
def test_nothing_else_is_served(name: str, gateway: Gateway) -> None:
    answer = gateway.ask("GET", f"/ui/{name}", headers=HTML)
    assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")


def test_it_can_be_turned_off_while_the_gateway_runs(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    config = configuration(upstream, tmp_path, test_model)
    with started(tmp_path, {**config, "server": {"page": False}}) as gateway:
        assert gateway.ask("GET", "/", headers=HTML).body == b"ctxgate is running"
        assert gateway.ask("GET", "/ui/app.js").status == 404
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        assert gateway.ask("POST", "/-/reload").status == 200
        assert gateway.ask("GET", "/", headers=HTML).body.startswith(b"<!doctype html>")


def test_the_files_need_no_key_and_the_figures_do(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    config = {**configuration(upstream, tmp_path, test_model), "server": {"api_keys": ["${PAGE_KEY}"]}}
    with started(tmp_path, config, PAGE_KEY=KEY) as gateway:
        assert gateway.ask("GET", "/", headers=HTML).status == gateway.ask("GET", "/ui/app.js").status == 200
        for path in ("/-/events", "/-/requests", "/-/formats", "/-/logs/m"):
            assert gateway.ask("GET", path).status == 401
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
        assert gateway.ask("POST", "/-/chat/completions", body).status == 401
        assert gateway.ask("POST", "/v1/chat/completions", body).status == 401
        key = {"Authorization": f"Bearer {KEY}"}
        # Strangers can't push the requests of others out of the log.
        assert gateway.ask("GET", "/-/requests", headers=key).json["requests"] == []


# Events


@contextmanager
def listening(gateway: Gateway, **headers: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
    """(event, id, data) of each event."""
    with httpx.stream(
        "GET", f"{gateway.url}/-/events?follow=true", headers=headers, timeout=PATIENCE, trust_env=False
    ) as answer:
        assert answer.status_code == 200

        def events() -> Iterator[tuple[str, str, Any]]:
            found: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line:
                    found[name] = value
                elif "data" in found:
                    yield found["event"], found["id"], json.loads(found["data"])
                    found = {}

        yield events()


def until(events: Iterator[tuple[str, str, Any]], name: str, holds: Any = lambda data: True) -> tuple[str, Any]:
    """The id and the data of the next such event."""
    return next((id, data) for event, id, data in events if event == name and holds(data))


def test_a_request_is_seen_while_it_waits_and_once_it_has_ended(gateway: Gateway, upstream: Upstream) -> None:
    go_on = threading.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("Hel"))
        await asyncio.to_thread(go_on.wait, PATIENCE)
        await exchange.event(chunk("lo"), chunk(reason="stop"))
        await exchange.end()

    upstream.script = slow
    with listening(gateway) as events:
        _, snapshot = until(events, "snapshot")
        assert [model["name"] for model in snapshot["status"]["models"]][:2] == ["m", "echo"]
        assert snapshot["running"] == []
        asking = threading.Thread(target=lambda: gateway.chat(stream=True, headers={"User-Agent": "tester/1.0"}))
        asking.start()
        _, [one] = until(events, "running", lambda data: data and data[0]["state"] == "writes")
        assert (one["model"], one["api"], one["client"], one["stream"]) == ("m", "chat", "tester", True)
        assert one["chunks"] == 1
        found = gateway.ask("GET", f"/-/requests/{one['key']}").json
        assert (found["running"], found["recording"]) == (True, None)
        go_on.set()
        id, ended = until(events, "ended")
        asking.join()
        assert (ended["key"], ended["outcome"], ended["error"]) == (one["key"], "ok", None)
        assert until(events, "running") == (id, [])
    assert gateway.ask("GET", f"/-/requests/{one['key']}").json["request"]["id"] == ended["id"]
    # Who comes back gets only what is new; who comes from another gateway gets all.
    upstream.script = polite
    gateway.chat()
    with listening(gateway, **{"Last-Event-ID": id}) as events:
        _, snapshot = until(events, "snapshot")
        assert snapshot["continued"]
        assert [entry["id"] for entry in snapshot["requests"]] == [ended["id"] + 1]
    with listening(gateway, **{"Last-Event-ID": "1." + id.split(".")[1]}) as events:
        _, snapshot = until(events, "snapshot")
        assert not snapshot["continued"]
        assert len(snapshot["requests"]) >= 2


def test_listeners_are_bounded_and_do_not_hold_up_the_end(upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        sockets = []
        for _ in range(LISTENERS):
            one = gateway.connect()
            one.sendall(b"GET /-/events?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
            text = b""
            while b"event: snapshot" not in text:
                text += one.recv(65536)
            sockets.append(one)
        refused = gateway.ask("GET", "/-/events")
        assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_listeners")
        sockets.pop().close()
        deadline = time.monotonic() + PATIENCE
        while (status := _status_line(gateway)) != b"HTTP/1.1 200 OK":
            assert time.monotonic() < deadline, status
        gateway.server.process.terminate()
        for one in sockets:
            with one:
                rest = b"".join(iter(lambda one=one: one.recv(65536), b""))  # type: ignore[misc]
            # The stream came to its end; it wasn't cut once the gateway had waited for it in vain.
            assert rest.endswith(b"0\r\n\r\n")
        gateway.server.process.wait(PATIENCE)


def _status_line(gateway: Gateway) -> bytes:
    with gateway.connect() as one:
        one.sendall(b"GET /-/events?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return one.recv(65536).split(b"\r\n")[0]


# The log of requests

REFUSED = [
    ("/v1/chat/completions", {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}, "chat", 404),
    ("/v1/chat/completions", {"model": "m", "messages": "Hi"}, "chat", 400),
    (
        "/v1/messages",
        {"model": "gpt-4o", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
        "messages",
        404,
    ),
    ("/v1/responses", {"model": "gpt-4o", "input": "Hi"}, "responses", 404),
    ("/api/chat", {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}, "ollama", 404),
    ("/v1/embeddings", {"model": "gpt-4o", "input": "Hi"}, "embeddings", 404),
]


@pytest.mark.parametrize(("path", "body", "api", "status"), REFUSED)
def test_a_request_that_no_model_got_is_in_the_log(
    path: str, body: Json, api: str, status: int, gateway: Gateway
) -> None:
    before = gateway.ask("GET", "/-/requests?limit=1").json["requests"]
    answer = gateway.ask("POST", path, body, {"User-Agent": "tester/1.0"})
    assert answer.status == status
    [entry] = gateway.ask("GET", f"/-/requests?after={before[0]['id'] if before else 0}").json["requests"]
    assert (entry["model"], entry["api"], entry["client"]) == (body["model"], api, "tester")
    assert entry["error"]["status"] == status
    assert entry["error"]["message"] in answer.body.decode().replace("\\u0027", "'")
    assert not entry["error"]["retryable"]
    # What a client names is no model: neither the status nor the metrics have it.
    assert "gpt-4o" not in gateway.ask("GET", "/metrics").body.decode()


def test_a_failed_answer_says_what_the_client_was_told(gateway: Gateway, upstream: Upstream) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.whole({"error": {"message": "the engine is on fire"}}, 500)

    upstream.script = breaks
    answer = gateway.chat()
    entry = gateway.ask("GET", "/-/requests?limit=1").json["requests"][0]
    assert "on fire" in entry["error"]["message"]
    assert entry["error"]["status"] == answer.status
    assert entry["outcome"] == entry["error"]["category"]


@needs_engine
@pytest.mark.parametrize("stream", [False, True])
def test_one_chat_is_recorded_though_the_others_are_not(stream: bool, gateway: Gateway) -> None:
    assert gateway.ask("POST", "/v1/chat/completions", {**QUESTION, "stream": stream}).status == 200
    answer = gateway.ask("POST", "/-/chat/completions", {**QUESTION, "stream": stream})
    assert answer.status == 200
    one, other = gateway.ask("GET", "/-/requests?limit=2").json["requests"]
    assert (one["recorded"], other["recorded"]) == (True, False)
    assert (one["called"], other["called"]) == (True, True)
    (tiny,) = (model for model in gateway.ask("GET", "/-/status").json["models"] if model["name"] == "tiny")
    assert tiny["calls"]["read"] >= 2
    found = gateway.ask("GET", f"/-/requests/{one['key']}").json
    recording = found["recording"]
    assert recording["request"]["messages"] == QUESTION["messages"]
    assert recording["sent"]["max_tokens"] == 64  # config.yaml's
    assert "messages" not in recording["sent"]  # unchanged
    assert sum(raw for _, raw, _ in recording["marks"]) == len(recording["raw"])
    assert sum(clean for _, _, clean in recording["marks"]) == len(recording["clean"])
    raw, clean = "".join(recording["raw"]), "".join(recording["clean"])
    assert "tool_call_start" in raw
    assert "tool_call_start" not in clean
    assert '"get_weather"' in clean
    # As another format reads it, the client would have got the model's text.
    other_format = gateway.ask("GET", f"/-/requests/{one['id']}?as=hermes").json["replayed"]
    assert "tool_call_start" in "".join(other_format["clean"])
    assert gateway.ask("GET", f"/-/requests/{one['id']}?as=nothing").json["error"]["param"] == "as"
    rest = gateway.ask("GET", f"/-/requests/{one['id']}?raw=1&clean=99999").json["recording"]
    assert (rest["raw"], rest["clean"]) == (recording["raw"][1:], [])


def test_a_recorded_chat_that_fails_keeps_what_was_asked(gateway: Gateway, upstream: Upstream) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.whole({"error": {"message": "no"}}, 400)

    upstream.script = breaks
    body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
    assert gateway.ask("POST", "/-/chat/completions", body).status == 400
    entry = gateway.ask("GET", "/-/requests?limit=1").json["requests"][0]
    found = gateway.ask("GET", f"/-/requests/{entry['id']}").json
    assert found["recording"]["request"]["messages"] == body["messages"]
    assert found["recording"]["raw"] == []


def test_formats_and_logs(gateway: Gateway) -> None:
    assert {"pythonic", "hermes", "native_json"} <= set(gateway.ask("GET", "/-/formats").json["formats"])
    log = gateway.ask("GET", "/-/logs/m")
    assert (log.status, log.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert gateway.ask("GET", "/-/logs/nothing").status == 404
    assert gateway.ask("GET", "/-/logs/..%2f..%2fkeys").status == 404


async def test_requests_that_wait_are_told_apart(tmp_path: Path) -> None:
    """A request that waits for its engine, and others that an engine has got and not begun."""
    model = Model(name="echo", runtime="echo")
    config = Config(source=tmp_path, active_model="echo", models={"echo": model}, state_dir=tmp_path)
    async with Core(config) as gateway:
        route = gateway.routes["echo"]
        request = ChatRequest.parse(b'{"messages": [{"role": "user", "content": "Hi"}]}')
        request.serving.tell(lambda: "queued for=memory position=1 waiting=2 held-by=other")
        route.requests.waiting[request] = time.monotonic() - 3
        route.requests.opening = dict.fromkeys([request, 1, 2], time.monotonic() - 3)
        waits, sent = in_flight(gateway)
        assert (waits["state"], waits["model"], waits["seconds"]) == ("waits", "echo", pytest.approx(3, abs=1))
        assert waits["progress"] == request.serving.describe()
        assert (sent["state"], sent["count"]) == ("sent", 2)
        route.requests.waiting.clear()
        shares = ChatRequest.parse(b'{"messages": [{"role": "user", "content": "Hi"}]}')
        shares.serving.tell(lambda: "queued for=prefix reads=1912 left=8")
        route.requests.opening = {shares: time.monotonic(), 1: time.monotonic()}
        waits, sent = in_flight(gateway)
        assert (waits["state"], waits["progress"], sent["count"]) == ("waits", shares.serving.describe(), 1)
        route.requests.opening.clear()
