"""Chromium: a page of another origin can neither write nor read; one of a configured origin streams a chat.

The pages come from a server of the test's own, under names that Chromium takes for this machine. Each tries what pages
can, and tells its server what came of it.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway, Upstream, configuration, started, warm
from tests.patience import PATIENCE

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium")

PAGE = """<!doctype html><meta charset="utf-8"><title>page</title><body><script>
const gateway = GATEWAY, chat = JSON.stringify({messages: [{role: "user", content: "Hi"}], stream: true});
const tried = {};

async function attempt(name, work) {
  try { tried[name] = await work(); } catch (error) { tried[name] = "refused"; }
}

async function read(path, options) {
  const answer = await fetch(gateway + path, options);
  return answer.type === "opaque" ? "unseen" : [answer.status, await answer.text()];
}

function element(tag, fields) {
  return new Promise((done, failed) => {
    const made = Object.assign(document.createElement(tag), fields);
    made.onload = () => done("loaded");
    made.onerror = () => done("refused");
    document.body.append(made);
  });
}

function form(path, text) {
  const frame = Object.assign(document.createElement("iframe"), {name: "frame" + Math.random()});
  const form = Object.assign(document.createElement("form"), {
    method: "post", enctype: "text/plain", action: gateway + path, target: frame.name,
  });
  form.append(Object.assign(document.createElement("input"), {name: text, value: ""}));
  document.body.append(frame, form);
  return new Promise((done) => { frame.onload = () => done("sent"); form.submit(); });
}

async function events() {
  const answer = await fetch(gateway + "/v1/chat/completions", {
    method: "POST", body: chat, headers: {"content-type": "application/json", "authorization": "Bearer x"},
  });
  const parts = [], decoder = new TextDecoder(), reader = answer.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(decoder.decode(part.value));
  return [answer.status, parts.join("")];
}

(async () => {
  const plain = {method: "POST", body: chat, headers: {"content-type": "text/plain"}};
  for (const path of WRITES) {
    await attempt("write " + path, () => read(path, plain));
    await attempt("write unseen " + path, () => read(path, {...plain, mode: "no-cors"}));
    await attempt("form " + path, () => form(path, chat.slice(0, -1) + ',"x":"'));
  }
  await attempt("beacon", async () => navigator.sendBeacon(gateway + "/v1/chat/completions", chat));
  for (const path of READS) {
    await attempt("read " + path, () => read(path));
    await attempt("read unseen " + path, () => read(path, {mode: "no-cors"}));
    await attempt("script " + path, () => element("script", {src: gateway + path}));
  }
  await attempt("image", () => element("img", {src: gateway + "/v1/models/m/ready"}));
  await attempt("stream", events);
  await fetch("/report", {method: "POST", body: JSON.stringify(tried)});
})();
</script>"""

WRITES = (
    *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions", "/api/chat", "/llm/room"),
    *("/-/reload", "/api/user/secrets"),
)
READS = ("/v1/models", "/-/status", "/-/requests", "/llm/room", "/metrics", "/health", "/api/tags", "/openapi.json")
REFUSED = {"refused", "unseen", "sent"}
"""The page sees nothing: a browser doesn't tell it whether what it sent was refused; the engine and the gateway's log
of requests do."""


class Pages:
    """Serves the page under every name, and keeps what pages report."""

    def __init__(self) -> None:
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.page = b""
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(pages.page)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                pages.reports.put(json.loads(body))
                self._answer(b"")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    @contextmanager
    def serve(self) -> Iterator[Pages]:
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def visit(self, origin: str, gateway: str) -> dict[str, Any]:
        """What became of all that the page of `origin` tried at `gateway`."""
        text = PAGE.replace("GATEWAY", json.dumps(gateway))
        self.page = text.replace("WRITES", json.dumps(WRITES)).replace("READS", json.dumps(READS)).encode()
        with browser(origin):
            return self.reports.get(timeout=PATIENCE)


@contextmanager
def browser(url: str) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", url]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with Pages().serve() as serving:
        yield serving


def handled(gateway: Gateway) -> int:
    """How many requests reached a model."""
    return len(gateway.ask("GET", "/-/requests").json["requests"])


@pytest.mark.parametrize("to", ["http://127.0.0.1:{}", "http://gateway.example:{}"])
def test_a_page_of_another_origin_can_neither_write_nor_read(
    to: str, pages: Pages, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    asked, before = upstream.asked, handled(gateway)
    with unharmed():
        tried = pages.visit(f"http://evil.example:{pages.port}/", to.format(gateway.port))
    assert len(tried) == 3 * len(WRITES) + 3 * len(READS) + 3
    seen = {name: what for name, what in tried.items() if name != "beacon" and what not in REFUSED}
    assert not seen
    assert upstream.asked == asked
    assert handled(gateway) == before
    assert gateway.ask("GET", "/llm/room").json["data"] == []


def test_a_page_of_another_port_of_this_machine_is_another(pages: Pages, gateway: Gateway, upstream: Upstream) -> None:
    asked = upstream.asked
    tried = pages.visit(f"http://localhost:{pages.port}/", f"http://localhost:{gateway.port}")
    assert not {name: what for name, what in tried.items() if name != "beacon" and what not in REFUSED}
    assert upstream.asked == asked


def test_a_rebound_name_reads_nothing(pages: Pages, gateway: Gateway) -> None:
    """The page's name leads to the gateway: to the browser that is the page's own server."""
    with browser_dump(f"http://evil.example:{gateway.port}/v1/models") as text:
        assert "host_not_allowed" in text
        assert '"data"' not in text


@contextmanager
def browser_dump(url: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        yield done.stdout


def test_a_page_of_a_configured_origin_streams_a_chat(
    pages: Pages, upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed
) -> None:
    origin = f"http://app.example:{pages.port}"
    config = {**configuration(upstream, tmp_path, test_model), "server": {"cors_origins": [origin]}}
    with started(tmp_path, config) as gateway:
        warm(gateway)
        with unharmed(gateway):
            tried = pages.visit(f"{origin}/", gateway.url)
        status, text = tried["stream"]
        assert status == 200
        assert "Hello" in text
        assert text.endswith("data: [DONE]\n\n")
        assert tried["write /v1/chat/completions"][0] == 200
        assert tried["read /v1/models"][0] == 200
        assert tried["read /-/status"][0] == 200
        # The same page of another origin.
        assert pages.visit(f"http://evil.example:{pages.port}/", gateway.url)["stream"] == "refused"
