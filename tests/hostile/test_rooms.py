"""Rooms: what a model calls with, what an operator's schema costs, and a gateway that dies over a post."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ctxgate
from tests.hostile.conftest import Unharmed
from tests.hostile.rooms import Json, once, rested, results, room, turn
from tests.hostile.running import Gateway, Upstream, configuration, polite, started, warm
from tests.patience import PATIENCE
from tests.threaded import threaded


@pytest.fixture(scope="module")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that has had a turn with a tool."""
    folder = tmp_path_factory.mktemp("rooms")
    with started(folder, configuration(scripted, folder, test_model)) as running:
        warm(running)
        scripted.script = once("tool_mkdir", {"path": "/a"})
        assert results(turn(running, room(running)))[0]["ok"]
        scripted.script = polite
        yield running


def nested(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels):
        value = {"a": value}
    return value


ARGUMENTS: dict[str, Json] = {
    # A turn's bound on tokens allows some 30,000 characters.
    "a path nested deeply": {"url": nested(200)},
    "ten thousand headers": {"url": "http://a.example", "headers": {f"h{n}": n for n in range(10_000)}},
    "a thousand arguments": {f"a{n}": [n] * 10 for n in range(1000)},
    "a long address": {"url": "http://" + "a" * 30_000},
}


def test_a_model_calls_with_anything(gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    """Several rooms at once: the checks have threads and a process of their own, with bounds."""
    with unharmed(gateway), ThreadPoolExecutor(4) as threads:
        for what, arguments in ARGUMENTS.items():
            upstream.script = once("curl_get", arguments)
            for events in threads.map(lambda room: turn(gateway, room), [room(gateway) for _ in range(4)]):
                refused = [event for event in events if event["event_type"] == "tool:refused"]
                assert refused or not results(events)[0]["ok"], (what, events)
    assert "Traceback" not in gateway.log()


def test_an_operators_pattern_meets_a_models_text(
    gateway: Gateway, upstream: Upstream, unharmed: Unharmed, tmp_path: Path
) -> None:
    """The schemas of records are the operator's; the texts that their patterns search are not."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema), "utf-8")
    file = gateway.folder / "config.yaml"
    made = ctxgate("records", "define", "--config", file, "thing", tmp_path / "schema.json", cwd=gateway.folder)
    assert made.returncode == 0, made.stderr
    upstream.script = once("data_create", {"model": "thing", "record": {"a": "a" * 40 + "!"}})
    rooms = [room(gateway) for _ in range(2)]
    with unharmed(gateway), ThreadPoolExecutor(2) as threads:
        for events in threads.map(lambda room: turn(gateway, room), rooms):
            error = results(events)[0]["result"]["error"]
            assert error["code"] == "invalid_record"
            assert "can't be checked: it takes longer than 0.5 s" in error["message"]


class Posts(BaseHTTPRequestHandler):
    """Counts what is posted, and answers when it may."""

    arrived = 0
    came = threading.Event()
    may = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        Posts.arrived += 1
        Posts.came.set()
        Posts.may.wait(PATIENCE)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def posts() -> Iterator[int]:
    with threaded(Posts) as port:
        try:
            yield port
        finally:
            Posts.may.set()


def test_a_post_under_way_is_not_sent_again_after_a_kill(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    """`tests/rooms/test_posts.py` kills at random moments, a hundred times if asked."""
    with posts() as port:
        upstream.script = once("curl_post", {"url": f"http://127.0.0.1:{port}/", "body": "x"})
        config = configuration(upstream, tmp_path, test_model)
        config["rooms"] = {"tools": {"allow_hosts": [f"127.0.0.1:{port}"]}}
        with started(tmp_path, config) as first:
            id = room(first)
            assert first.ask("POST", f"/llm/room/{id}/messages", {"content": "Hi"}).status == 202
            assert Posts.came.wait(PATIENCE)
            os.kill(first.pid, signal.SIGKILL)
            first.server.process.wait(PATIENCE)
        with started(tmp_path, config) as second, unharmed(second):
            [result] = results(rested(second, id))
            assert result["result"]["error"]["code"] == "tool_interrupted"
        assert Posts.arrived == 1


def test_bodies_and_methods_of_rooms(upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed) -> None:
    """Their bound on bodies follows a reload; a 405 names the methods that there are."""
    config = configuration(upstream, tmp_path, test_model)
    said = {"content": "x" * 5000}
    with started(tmp_path, config) as gateway:
        warm(gateway)
        id = room(gateway)
        with unharmed(gateway):
            assert gateway.ask("POST", f"/llm/room/{id}/messages", said).status == 202
            config["server"] = {"max_body_bytes": 2048}
            (tmp_path / "config.yaml").write_text(json.dumps(config), "utf-8")
            assert gateway.ask("POST", "/-/reload").status == 200
            refused = gateway.ask("POST", f"/llm/room/{id}/messages", said)
            assert (refused.status, refused.json["code"]) == (413, "request_too_large")
            for path, allowed in (("/llm/room", "GET, POST"), (f"/llm/room/{id}/messages", "GET, POST")):
                answer = gateway.ask("PATCH", path)
                assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
                assert set(answer.headers["allow"].split(", ")) >= {"POST"}, allowed
