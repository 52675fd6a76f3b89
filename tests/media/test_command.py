"""`runtime: openai` with a `command`: any server is started, watched and unloaded as an engine is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gateway.config import load
from gateway.engines.machine import this_machine
from gateway.features.checks.commands.doctor import model_finding
from tests.support.sound import gateway, states

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200 if self.path == "/healthy" else 404, b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b'{"text": "Hello"}')

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *values):
        pass

HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def test_a_server_is_started_and_unloaded(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    model = {
        "runtime": "openai",
        "role": "transcription",
        "command": f"{sys.executable} {script}",
        "args": ["{host}", "{port}"],
        "health_check": "http://127.0.0.1/healthy",
    }
    written = {"active_model": "e", "models": {"e": {"runtime": "echo"}, "ears": model}}
    config = load(tmp_path / "config.yaml", text=json.dumps(written))
    finding = model_finding(config, config.models["ears"], this_machine(), None)
    assert (finding.state, finding.text) == ("ok", f"can be started by {sys.executable}")
    with gateway(config.models["ears"]) as client:
        assert states(client) == {"ears": "stopped"}
        assert client.audio.transcriptions.create(model="ears", file=("a.wav", b"sound")).text == "Hello"
        assert states(client) == {"ears": "ready"}
        client.post("/models/ears/unload", cast_to=object)
        assert states(client) == {"ears": "stopped"}
