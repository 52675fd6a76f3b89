"""Objects of models that hear, speak and draw: a double in the form of OpenAI's API behind `ctxgate serve`."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.features.media.wire.form import FileStart, FormReader
from tests.ctx.served import Tree, tree, types
from tests.media.conftest import tiny_whisper as tiny_whisper  # a fixture
from tests.media.conftest import voice as voice  # a fixture
from tests.patience import PATIENCE
from tests.support.sound import SENTENCE, words
from tests.threaded import threaded

SOUND = bytes(range(256)) * 1000
PICTURE = b"\x89PNG\r\n"


class Engine(BaseHTTPRequestHandler):
    """Hears how long a sound is, speaks SOUND, draws PICTURE. `left` is set once a client has left the endless one."""

    protocol_version = "HTTP/1.1"
    begun, left = threading.Event(), threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/audio/transcriptions":
            self.hear(body)
        elif self.path == "/v1/audio/speech":
            self.speak(json.loads(body))
        else:
            picture = base64.b64encode(PICTURE).decode()
            self.answer("application/json", json.dumps({"data": [{"b64_json": picture}]}).encode())

    def hear(self, body: bytes) -> None:
        size, stream, name = 0, False, ""
        for event in FormReader(self.headers["Content-Type"]).feed(body):
            if isinstance(event, bytes):
                size += len(event)
            elif isinstance(event, FileStart):
                name = event.filename
            elif event.name == "stream":
                stream = event.value == "true"
        assert stream
        if name == "whole.wav":
            self.answer("application/json", b'{"text": "all at once"}')
            return
        events: list[Any] = [{"type": "transcript.text.delta", "delta": text} for text in ("bytes: ", str(size))]
        if name != "short.wav":
            events.append({"type": "transcript.text.done", "text": "", "usage": {"type": "duration", "seconds": 2.5}})
        self.answer("text/event-stream", b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events))

    def speak(self, asked: Any) -> None:
        if asked["input"] == "endless":
            self.begun.set()
            self.send_response(200)
            self.send_header("Content-Type", "audio/wav")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(SOUND)
            except OSError:
                self.left.set()
            return
        if asked.get("voice", "joe") != "joe":
            self.answer("application/json", b'{"error": {"message": "there is no such voice"}}', 400)
        else:
            self.answer(f"audio/{asked['response_format']}", SOUND)

    def answer(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture(scope="module")
def made(module_short: Path) -> Iterator[Tree]:
    with threaded(Engine) as port:
        server = {"runtime": "openai", "base_url": f"http://127.0.0.1:{port}"}
        roles = {"ears": "transcription", "joe": "speech", "brush": "image"}
        models = {name: {**server, "role": role} for name, role in roles.items()}
        objects = {name: {"object": f"acme/{name}"} for name in roles}
        config = {"active_model": "e", "models": {"e": {"runtime": "echo"}, **models}, "ctx": {"models": objects}}
        config["media"] = {"max_upload_bytes": 1_000_000}
        (module_short / "a.wav").write_bytes(SOUND)
        with tree(module_short, config) as made:
            yield made


def test_sound_becomes_text(made: Tree) -> None:
    for asked in ("-f a.wav", "< a.wav", "- < a.wav"):
        done = made.sh(f"/ctx/model/acme/ears -t {asked}")
        assert (done.returncode, done.stdout) == (0, f"bytes: {len(SOUND)}\n"), done
    frames = [json.loads(line) for line in made.sh("/ctx/model/acme/ears -f a.wav").stdout.splitlines()]
    assert set(types(frames)) == {"start", "delta", "message", "done"}
    assert frames[-2]["content"][0]["text"] == f"bytes: {len(SOUND)}"
    done = made.sh("cp a.wav whole.wav; /ctx/model/acme/ears -t -f whole.wav")
    assert done.stdout == "all at once\n"


@pytest.mark.parametrize(("name", "wanted"), [("joe", SOUND), ("brush", PICTURE)])
def test_text_becomes_sound_or_a_picture(name: str, wanted: bytes, made: Tree) -> None:
    made.sh(f"/ctx/model/acme/{name} 'Hello' > out; echo Hello | /ctx/model/acme/{name} > piped")
    assert [(made.folder / file).read_bytes() for file in ("out", "piped")] == [wanted, wanted]
    frames = [json.loads(line) for line in made.sh(f"/ctx/model/acme/{name} --jsonl Hello").stdout.splitlines()]
    assert set(types(frames)) == {"start", "media", "done"}
    assert b"".join(base64.b64decode(frame["data"]) for frame in frames[1:-1]) == wanted
    assert frames[1]["content_type"] == {"joe": "audio/wav", "brush": "image/png"}[name]


def test_what_one_object_says_another_hears(made: Tree) -> None:
    done = made.sh("/ctx/model/acme/joe Hello | /ctx/model/acme/ears -t")
    assert (done.returncode, done.stdout) == (0, f"bytes: {len(SOUND)}\n"), done


@pytest.mark.slow
def test_what_a_real_model_says_another_hears(short: Path, tiny_whisper: Path, voice: Path) -> None:
    """By a file and by a pipe."""
    models = {
        "e": {"runtime": "echo"},
        "ears": {"runtime": "faster-whisper", "path": str(tiny_whisper)},
        "joe": {"runtime": "piper", "path": str(voice)},
    }
    with tree(short, {"active_model": "e", "models": models}) as made:
        made.sh(f"/ctx/model/local/joe '{SENTENCE}' > said.wav")
        done = made.sh("/ctx/model/local/ears -t -f said.wav")
        assert words(done.stdout) == words(SENTENCE), done
        mp3 = json.dumps({"input": SENTENCE, "response_format": "mp3"})
        done = made.sh(f"echo '{mp3}' | /ctx/model/local/joe | /ctx/model/local/ears -t")
        assert words(done.stdout) == words(SENTENCE), done


REFUSED = {
    "a text for one that hears": ("ears -t hello", 2, "EINVAL: the input is sound: one file, with -f or on"),
    "two files": ("ears -t -f a.wav -f a.wav", 2, "EINVAL: the input is sound: one file"),
    "no file": ("ears -t -f none.wav", 2, "EINVAL: none.wav can't be read"),
    "an empty file": ("ears -t", 2, "EINVAL: the input is empty: the input is sound"),
    "a long file": ("ears -t -f long.wav", 2, "EINVAL: "),
    "a cut stream": ("ears -t -f short.wav", 69, "the engine's stream ended before the answer did"),
    "no such voice": (
        """joe '{"input": "a", "voice": "x"}'""",
        2,
        "EINVAL: the engine answered 400: there is no such",
    ),
    "no text": ("joe ''", 2, "EINVAL: no input"),
    "an option of chats": ("joe --system x hello", 2, "EINVAL: --system and --schema are for chats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, made: Tree) -> None:
    asked, exit_code, message = REFUSED[name]
    (made.folder / "long.wav").write_bytes(bytes(1_100_000))
    (made.folder / "short.wav").write_bytes(SOUND)
    done = made.sh(f"/ctx/model/acme/{asked}")
    assert done.returncode == exit_code, done
    assert message in done.stderr


def test_the_engine_stops_when_the_caller_does(made: Tree) -> None:
    done = made.sh("/ctx/model/acme/joe endless | head -c 1000 | wc -c")
    assert done.stdout.strip() == "1000"
    assert Engine.left.wait(PATIENCE)


def test_what_is_counted(made: Tree) -> None:
    made.sh("/ctx/model/acme/ears -t -f a.wav; /ctx/model/acme/joe Hello > out")
    entries = httpx.get(f"http://127.0.0.1:{made.port}/-/requests").json()["requests"]
    units = {entry["model"]: (entry["api"], entry["units"]) for entry in entries[:2]}
    assert units == {"ears": ("ctx", {"sound_seconds": 2.5}), "joe": ("ctx", {"characters": 5})}
