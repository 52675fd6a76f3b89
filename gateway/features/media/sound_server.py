"""OpenAI's API for sound, from the packages of `ctxgate[audio]`: faster-whisper hears, piper speaks.

    python -P sound_server.py --runtime faster-whisper|piper --model PATH --host HOST --port PORT

The model is in a process of its own (`sound_worker.py`), which answers one request at a time. When a client leaves,
that process stops at the next sentence, or is ended after ENOUGH_SECONDS and started again. Prints the address that it
chose on standard output once the model is in memory. Runs as a script, by path, on the standard library,
python_multipart and `gateway/features/media/wire/form.py`.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import IO, Any

Json = dict[str, Any]

ENOUGH_SECONDS = 0.3
"""How long the model may go on once nobody waits for it."""
SIGN_SECONDS = 10.0
"""How often a request that takes long gets a sign of life: an interim response (RFC 9110 §15.2)."""
POLL_SECONDS = 0.1
MAX_JSON = 4 * 1024 * 1024
STEP = 256 * 1024
TEXTS = ("json", "text", "srt", "verbose_json", "vtt")
SOUNDS = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip
KINDS = {
    "json": "application/json",
    "verbose_json": "application/json",
    "vtt": "text/vtt",
    "srt": "application/x-subrip",
}


class Refused(Exception):
    """A request that can't be answered."""

    def __init__(
        self, message: str, code: str = "invalid_request", param: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.code, self.param, self.status = code, param, status

    def body(self) -> Json:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": str(self), "type": kind, "code": self.code, "param": self.param}
        return {"error": told}


class ClientLeft(Exception):
    pass


class Worker:
    """The model's process, and whose turn it is."""

    def __init__(self, arguments: list[str]) -> None:
        self.facts: Json = {}
        self._arguments = arguments
        self._turn = threading.Lock()
        self._rest = b""
        self._ending = False
        self.start()

    def start(self) -> None:
        script = str(Path(__file__).with_name("sound_worker.py"))
        command = [sys.executable, "-P", script, *self._arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
        self._rest = b""
        line = self._line(lambda: None)
        self.facts = line["ready"]

    @contextmanager
    def asked(self, request: Json, sign: Callable[[], None]) -> Iterator[Iterator[Json]]:
        """The pieces of an answer. sign: called every POLL_SECONDS while there is none; may raise ClientLeft."""
        while not self._turn.acquire(timeout=POLL_SECONDS):
            sign()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            pieces = self._pieces(sign)
            ended = False
            try:
                yield pieces
                ended = True
            finally:
                if not ended and not self._ended:
                    self._cancel()
        finally:
            self._turn.release()

    def _pieces(self, sign: Callable[[], None]) -> Iterator[Json]:
        self._ended = False
        while True:
            line = self._line(sign)
            self._ended = "end" in line or "error" in line
            if error := line.get("error"):
                raise Refused(error["message"], error["code"], error["param"], error["status"])
            yield line
            if self._ended:
                return

    def _cancel(self) -> None:
        """Returns once the model is free for the next request, or about to be."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        tries = [0.0]

        def patience() -> None:
            tries[0] += POLL_SECONDS
            if tries[0] > ENOUGH_SECONDS:
                raise ClientLeft

        try:
            while not {"end", "error"} & self._line(patience).keys():
                pass
        except ClientLeft:
            self._process.kill()
            self._process.wait()
            self.start()

    def _line(self, sign: Callable[[], None]) -> Json:
        """Ends this program if the model's process has ended by itself: the gateway starts it again."""
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        poll = select.poll()  # select.select knows no file beyond the 1,024th
        poll.register(out, select.POLLIN)
        while b"\n" not in self._rest:
            if not poll.poll(1000 * POLL_SECONDS):
                sign()
                continue
            piece = os.read(out, 1024 * 1024)
            if not piece:
                sys.stderr.write("sound_server: the model's process has ended\n")
                sys.stderr.flush()
                os._exit(1)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        found: Json = json.loads(line)
        return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SoundHTTPServer
    _silent = 0.0
    _begun = False

    def log_message(self, format: str, *values: object) -> None:
        """Says nothing: the gateway has a request log."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/models":
            self._json({"object": "list", "data": [{"id": self.server.name, "object": "model", "owned_by": "ctxgate"}]})
        elif path == "/v1/audio/voices" and "voices" in self.server.worker.facts:
            self._json({"voices": [{"id": voice, "name": voice} for voice in self.server.worker.facts["voices"]]})
        else:
            self._json({"status": "ok"} if path == "/health" else _missing(path), 200 if path == "/health" else 404)

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        try:
            self._authorize()
            if path in ("/v1/audio/transcriptions", "/v1/audio/translations") and self.server.runtime != "piper":
                self._hear("translate" if path.endswith("translations") else "transcribe")
            elif path == "/v1/audio/speech" and self.server.runtime == "piper":
                self._speak()
            else:
                self.close_connection = True
                self._json(_missing(path), 404)
        except Refused as error:
            self.close_connection = True
            if not self._begun:
                self._json(error.body(), error.status)
        except (ClientLeft, ConnectionError, TimeoutError):
            self.close_connection = True

    def _authorize(self) -> None:
        key = os.environ.get("LLAMA_API_KEY")
        if key and not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {key}"):
            raise Refused("a valid API key is needed", "invalid_api_key", status=401)

    # Listening

    def _hear(self, task: str) -> None:
        with tempfile.NamedTemporaryFile(prefix="sound-") as file:
            fields = self._form(file)
            format, stream = fields.get("response_format", "json"), fields.get("stream") == "true"
            if format not in TEXTS:
                raise Refused(f"response_format: must be one of {', '.join(TEXTS)}", param="response_format")
            words = "word" in fields.get("timestamp_granularities[]", "")
            asked = {
                "path": file.name,
                "task": task,
                "words": words,
                "temperature": _number(fields, "temperature", 0, 1),
            }
            asked |= {name: fields[name] for name in ("language", "prompt") if fields.get(name)}
            with self.server.worker.asked(asked, self._sign) as pieces:
                if stream:
                    self._stream_text(pieces)
                else:
                    *segments, last = [piece.get("segment") or piece["end"] for piece in self._signed(pieces)]
                    self._tell_text(format, task, segments, last)

    def _form(self, file: IO[bytes]) -> dict[str, str]:
        """The fields of the form; the file's content goes into `file`."""
        form = _beside("../wire/form.py")
        left, inside, seen = self._length(), False, False
        fields: dict[str, str] = {}
        try:
            reader = form.FormReader(self.headers.get("Content-Type", ""))
            while left:
                piece = self.rfile.read(min(left, STEP))
                if not piece:
                    raise ClientLeft
                left -= len(piece)
                for event in reader.feed(piece):
                    if isinstance(event, bytes):
                        if inside:
                            file.write(event)
                    elif isinstance(event, form.FileStart):
                        inside = event.name == "file"
                        seen = seen or inside
                    else:
                        fields[event.name] = f"{fields.get(event.name, '')} {event.value}".strip()
            reader.finish()
        except form.BadForm as error:
            raise Refused(f"the request body is not a valid form: {error}") from None
        if not seen:
            raise Refused("file: a file is required", param="file")
        file.flush()
        return fields

    def _stream_text(self, pieces: Iterable[Json]) -> None:
        texts = []
        for piece in pieces:
            if not self._begun:
                self._start(200, "text/event-stream")
            if "segment" in piece:
                texts.append(piece["segment"]["text"])
                self._event({"type": "transcript.text.delta", "delta": texts[-1] if texts[1:] else texts[-1].lstrip()})
            else:
                done = {"type": "transcript.text.done", "text": "".join(texts).strip()}
                self._event({**done, "usage": _usage(piece["end"])})
        self._end()

    def _tell_text(self, format: str, task: str, segments: list[Json], last: Json) -> None:
        text = "".join(segment["text"] for segment in segments).strip()
        if format == "json":
            body = json.dumps({"text": text, "usage": _usage(last)}).encode()
        elif format == "verbose_json":
            words = [word for segment in segments for word in segment.pop("words", ())]
            told = {"task": task, "language": last.get("language"), "duration": last["seconds"], "text": text}
            told |= {"segments": [{"id": at, **segment} for at, segment in enumerate(segments)], "usage": _usage(last)}
            body = json.dumps(told | ({"words": words} if words else {})).encode()
        elif format == "text":
            body = text.encode() + b"\n"
        else:
            body = _subtitles(segments, format).encode()
        kind = KINDS.get(format, "text/plain; charset=utf-8")
        self._whole(200, kind, body, {"ctxgate-sound-seconds": str(last["seconds"])})

    # Speaking

    def _speak(self) -> None:
        length = self._length()
        if length > MAX_JSON:
            raise Refused("the request body is too large", "request_too_large", status=413)
        try:
            fields = json.loads(self.rfile.read(length))
            text, format, sse = (
                fields["input"],
                fields.get("response_format") or "mp3",
                fields.get("stream_format") == "sse",
            )
        except (ValueError, TypeError, KeyError):
            raise Refused("the request body must be JSON with an input") from None
        if not isinstance(text, str) or not text.strip():
            raise Refused("input: a text is required", param="input")
        if format not in SOUNDS:
            raise Refused(f"response_format: must be one of {', '.join(SOUNDS)}", param="response_format")
        voice = fields.get("voice")
        voice = voice.get("id") if isinstance(voice, dict) else voice
        if not isinstance(voice, str | None):
            raise Refused("voice: must be a string", param="voice")
        asked = {"input": text, "format": format, "voice": voice}
        asked["speed"] = _number(fields, "speed", 0.25, 4) or 1.0
        with self.server.worker.asked(asked, self._sign) as pieces:
            for piece in pieces:
                if not self._begun:
                    self._start(200, "text/event-stream" if sse else SOUNDS[format])
                if sse and "sound" in piece:
                    self._event({"type": "speech.audio.delta", "audio": piece["sound"]})
                elif "sound" in piece:
                    self._chunk(b64decode(piece["sound"]))
                elif sse:
                    self._event({"type": "speech.audio.done", "usage": _usage(piece["end"])})
            self._end()

    # HTTP

    def _length(self) -> int:
        written = self.headers.get("Content-Length", "")
        if not written.isdigit():
            raise Refused("a Content-Length is required", status=411)
        return int(written)

    def _signed(self, pieces: Iterable[Json]) -> Iterator[Json]:
        for piece in pieces:
            self._silent = SIGN_SECONDS  # the model has made progress
            self._sign()
            yield piece

    def _sign(self) -> None:
        """Raises ClientLeft if the client is gone; tells it from time to time that the request is worked on."""
        with suppress(BlockingIOError):
            if not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise ClientLeft
        self._silent += POLL_SECONDS
        if self._silent >= SIGN_SECONDS and not self._begun:
            self._silent = 0.0
            self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n")

    def _start(self, status: int, kind: str) -> None:
        self._begun = True
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _event(self, value: Json) -> None:
        self._chunk(b"data: %b\n\n" % json.dumps(value).encode())

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self._begun = False

    def _json(self, value: Json, status: int = 200) -> None:
        self._whole(status, "application/json", json.dumps(value).encode(), {})

    def _whole(self, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class SoundHTTPServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], runtime: str, name: str, worker: Worker) -> None:
        self.runtime, self.name, self.worker = runtime, name, worker
        super().__init__(address, Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left is no error of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _usage(last: Json) -> Json:
    return {"type": "duration", "seconds": last.get("seconds", 0)}


def _subtitles(segments: list[Json], format: str) -> str:
    lines = ["WEBVTT\n"] if format == "vtt" else []
    mark = "." if format == "vtt" else ","
    for number, segment in enumerate(segments, 1):
        times = f"{_time(segment['start'], mark)} --> {_time(segment['end'], mark)}"
        head = f"{number}\n" if format == "srt" else ""
        lines.append(f"{head}{times}\n{segment['text'].strip()}\n")
    return "\n".join(lines)


def _time(seconds: float, mark: str) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{mark}{whole % 1000:03}"


def _number(fields: Json, name: str, least: float, maximum: float) -> float | None:
    if fields.get(name) is None or fields[name] == "":
        return None
    try:
        found = float(fields[name])
    except (ValueError, TypeError):
        found = least - 1
    if not least <= found <= maximum:
        raise Refused(f"{name}: must be a number from {least:g} to {maximum:g}", param=name)
    return found


def _missing(path: str) -> Json:
    return Refused(f"{path[:200]}: this model has no such endpoint", "unsupported_endpoint").body()


def _beside(name: str) -> ModuleType:
    """A module by its path from here: the engine's Python may not have the gateway."""
    path = Path(__file__).parent.joinpath(name).resolve()
    found = sys.modules.get(f"ctxgate_{path.stem}")
    if found is None:
        spec = spec_from_file_location(f"ctxgate_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        found = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("runtime", "model", "name", "host", "port", "threads"):
        parser.add_argument(f"--{name}", required=name in ("runtime", "model"))
    given = parser.parse_args()
    worker = Worker([given.runtime, given.model, given.threads or "1"])
    server = SoundHTTPServer(
        (given.host or "127.0.0.1", int(given.port or 0)), given.runtime, given.name or given.runtime, worker
    )
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    sys.stdout.write(json.dumps({"ctxgate": {"host": server.server_address[0], "port": server.server_port}}) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
