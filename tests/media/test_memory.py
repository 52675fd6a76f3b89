"""Ten clients upload long sound at once: the gateway keeps none of it in memory."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest

from tests.hostile.running import Gateway, started
from tests.media.forms import part, post
from tests.threaded import threaded

CLIENTS, SIZE, PER_SECOND = 10, 200_000_000, 1_000_000
PIECE = 100_000
GROWTH = 60_000_000


class Engine(BaseHTTPRequestHandler):
    """Reads what comes, and keeps none of it: the tests' double would keep all."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, PIECE)))
        body = b'{"text": "Hello"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        pass


def upload(gateway: Gateway, answers: list[bytes], size: int = SIZE) -> None:
    head = part("model", b"m") + b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    end = b"\r\n--x--\r\n"
    with gateway.connect() as one:
        one.sendall(post(head, size=len(head) + size + len(end)))
        began = time.monotonic()
        for sent in range(0, size, PIECE):
            time.sleep(max(0.0, began + sent / PER_SECOND - time.monotonic()))
            one.sendall(bytes(min(PIECE, size - sent)))
        one.sendall(end)
        answers.append(one.recv(65536))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_uploads_of_200_megabytes(tmp_path: Path) -> None:
    with threaded(Engine) as port:
        model = {"runtime": "openai", "base_url": f"http://127.0.0.1:{port}", "role": ["chat", "transcription"]}
        config = {"active_model": "m", "models": {"m": model}, "media": {"max_uploads_bytes": 3_000_000_000}}
        with started(tmp_path, config) as gateway:
            measured(gateway)


def measured(gateway: Gateway) -> None:
    # What the first request loads isn't growth.
    upload(gateway, [], 1)
    process = psutil.Process(gateway.pid)
    idle = maximum = process.memory_info().rss
    answers: list[bytes] = []
    threads = [threading.Thread(target=upload, args=(gateway, answers)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        maximum = max(maximum, process.memory_info().rss)
    print(f"{(maximum - idle) / 1e6:.0f} MB above idle")
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers), answers
    assert len(answers) == CLIENTS
    assert maximum - idle < GROWTH
