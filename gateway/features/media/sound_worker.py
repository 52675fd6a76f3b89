"""Hears or speaks: the process that holds the model of `sound_server.py`.

    python -P sound_worker.py RUNTIME MODEL THREADS

Takes one request a line on standard input, as JSON, and answers with lines of JSON: `{"ready": …}` once the model is in
memory; then for each request its pieces, and `{"end": …}` or `{"error": …}`. A line that comes during a request ends it
early. Runs as a script, by path, on the standard library and the packages of `ctxgate[audio]` alone.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

Json = dict[str, Any]

RATE = 16_000
"""Samples a second that whisper hears."""
SPOKEN_RATE = 24_000
MAX_FAILURES = 3
"""The process ends with the last of so many failures in a row, and the gateway starts another one."""
"""Samples a second of what is spoken: OpenAI's, which clients of `pcm` assume."""
CHUNK_SECONDS, QUIET_SECONDS = 300, 20
"""How much sound is in memory at a time; and the end of it, in whose quietest moment it is cut."""
CODECS = {
    "mp3": ("mp3", "libmp3lame"),
    "opus": ("ogg", "libopus"),
    "aac": ("adts", "aac"),
    "flac": ("flac", "flac"),
    "wav": ("wav", "pcm_s16le"),
    "pcm": ("s16le", "pcm_s16le"),
}
"""OpenAI's `response_format` → container and codec."""


class Refused(Exception):
    """A request that can't be answered; the client learns why."""

    def __init__(self, message: str, code: str, param: str) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class Engine(Protocol):
    def facts(self) -> Json:
        """What the server tells of the model."""
        ...

    def answer(self, asked: Json) -> Iterator[Json]:
        """The pieces of an answer, the last one `{"end": …}`. Raises Refused."""
        ...


class Ears:
    """faster-whisper."""

    def __init__(self, model: Path, threads: int) -> None:
        from faster_whisper import WhisperModel

        self._model = WhisperModel(str(model), device="auto", compute_type="auto", cpu_threads=threads)

    def facts(self) -> Json:
        return {"languages": sorted(self._model.supported_languages)}

    def answer(self, asked: Json) -> Iterator[Json]:
        language, total = asked.get("language"), 0.0
        if language is not None and language not in self._model.supported_languages:
            known = ", ".join(sorted(self._model.supported_languages))
            raise Refused(
                f"language: there is no {language[:20]!r}; there are: {known}", "invalid_language", "language"
            )
        for sound in chunks(asked["path"]):
            segments, info = self._model.transcribe(
                sound,
                language=language,
                task=asked["task"],
                initial_prompt=asked.get("prompt"),
                temperature=asked.get("temperature") or [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
                word_timestamps=asked.get("words", False),
                # Silence makes whisper invent words.
                vad_filter=True,
                condition_on_previous_text=False,
            )
            language = language or info.language
            for segment in segments:
                yield {"segment": _shifted(segment, total)}
            total += len(sound) / RATE
        yield {"end": {"seconds": round(total, 2), "language": language}}


def _shifted(segment: Any, by: float) -> Json:
    found = {
        "start": round(segment.start + by, 2), "end": round(segment.end + by, 2), "text": segment.text,
        "seek": segment.seek, "tokens": list(segment.tokens), "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob, "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }  # fmt: skip
    if segment.words is not None:
        found["words"] = [
            {"word": word.word, "start": round(word.start + by, 2), "end": round(word.end + by, 2)}
            for word in segment.words
        ]
    return found


def chunks(path: str) -> Iterator[Any]:
    """The sound of a file, as arrays for whisper, cut where it is quiet. Raises Refused if it is no sound."""
    import av
    import numpy

    maximum, quiet = CHUNK_SECONDS * RATE, QUIET_SECONDS * RATE
    held: list[Any] = []
    size = 0
    try:
        with av.open(path, metadata_errors="ignore") as file:
            if not file.streams.audio:
                raise Refused("file: there is no sound in it", "invalid_audio", "file")
            resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
            for frame in _frames(file, resampler):
                held.append(frame.to_ndarray().reshape(-1))
                size += len(held[-1])
                if size >= maximum:
                    sound = numpy.concatenate(held)
                    at = size - quiet + _quietest(sound[-quiet:])
                    yield sound[:at].astype(numpy.float32) / 32768
                    held, size = [sound[at:]], size - at
    except (av.error.FFmpegError, ValueError) as error:
        reason = "file: this sound can't be read; send flac, mp3, mp4, mpeg, m4a, ogg, wav or webm"
        raise Refused(reason, "invalid_audio", "file") from error
    if held:
        yield numpy.concatenate(held).astype(numpy.float32) / 32768


def _frames(file: Any, resampler: Any) -> Iterator[Any]:
    import av

    decoded = file.decode(audio=0)
    while True:
        try:
            frame = next(decoded, None)
        except av.error.InvalidDataError:
            continue  # a damaged packet; the others are heard
        if frame is not None:
            frame.pts = None
        yield from resampler.resample(frame)
        if frame is None:
            return


def _quietest(sound: Any) -> int:
    """Where the quietest tenth of a second begins."""
    import numpy

    window = RATE // 10
    loud = numpy.square(sound[: len(sound) // window * window].astype(numpy.float32)).reshape(-1, window).mean(axis=1)
    return int(loud.argmin()) * window


class Mouth:
    """piper."""

    def __init__(self, model: Path, threads: int) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        from piper import PiperVoice

        self._voice = PiperVoice.load(model)
        speakers = self._voice.config.speaker_id_map or {}
        self._speakers: dict[str, int | None] = {**speakers} if len(speakers) > 1 else {_name(model): None}

    def facts(self) -> Json:
        return {"voices": [*self._speakers]}

    def answer(self, asked: Json) -> Iterator[Json]:
        from piper.config import SynthesisConfig

        voice = asked.get("voice") or next(iter(self._speakers))
        if voice not in self._speakers:
            known = ", ".join([*self._speakers][:20])
            raise Refused(f"voice: there is no {voice[:100]!r}; there are: {known}", "voice_not_found", "voice")
        settings = SynthesisConfig(speaker_id=self._speakers[voice], length_scale=1 / asked.get("speed", 1.0))
        made = bytearray()
        encoder = Encoder(asked["format"], made)
        seconds = 0.0
        for sentence in self._voice.synthesize(asked["input"], settings):
            seconds += len(sentence.audio_int16_bytes) / 2 / sentence.sample_rate
            encoder.feed(sentence.audio_int16_bytes, sentence.sample_rate)
            if made:
                yield _sound(made)
        encoder.finish()
        if made:
            yield _sound(made)
        yield {"end": {"seconds": round(seconds, 2)}}


def _name(model: Path) -> str:
    """en_US-joe-medium.onnx → joe."""
    parts = model.stem.split("-")
    return parts[1] if len(parts) == 3 else model.stem


def _sound(made: bytearray) -> Json:
    piece = {"sound": base64.b64encode(made).decode()}
    made.clear()
    return piece


class Encoder:
    """Appends to `made` what its feeds give in one of the CODECS."""

    def __init__(self, format: str, made: bytearray) -> None:
        import av

        container, codec = CODECS[format]
        self._out = av.open(_Sink(made), "w", format=container)
        self._stream = self._out.add_stream(codec, rate=SPOKEN_RATE, layout="mono")
        self._resampler: Any = None
        self._fifo = av.AudioFifo()

    def feed(self, samples: bytes, rate: int) -> None:
        import av
        import numpy

        sound = numpy.frombuffer(samples, numpy.int16).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(sound, format="s16", layout="mono")
        frame.sample_rate = rate
        if self._resampler is None:
            self._resampler = av.AudioResampler(format=self._stream.format, layout="mono", rate=SPOKEN_RATE)
        self._encode(self._resampler.resample(frame), last=False)

    def finish(self) -> None:
        if self._resampler is not None:
            self._encode(self._resampler.resample(None), last=True)
        self._out.mux(self._stream.encode(None))
        self._out.close()

    def _encode(self, frames: list[Any], *, last: bool) -> None:
        for frame in frames:
            frame.pts = None
            self._fifo.write(frame)
        size = self._stream.codec_context.frame_size or 1024
        while (frame := self._fifo.read(size, partial=last)) is not None:
            frame.pts = None
            self._out.mux(self._stream.encode(frame))


class _Sink:
    """A file that only grows."""

    def __init__(self, made: bytearray) -> None:
        self._made = made

    def write(self, data: bytes) -> int:
        self._made += data
        return len(data)


ENGINES: Mapping[str, Callable[[Path, int], Engine]] = {"faster-whisper": Ears, "piper": Mouth}


def main() -> None:
    runtime, model, threads = sys.argv[1:]
    # Libraries may print: their lines must not come between ours.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    engine = ENGINES[runtime](Path(model), int(threads))

    def tell(line: Json) -> None:
        out.write(json.dumps(line).encode() + b"\n")
        out.flush()

    tell({"ready": engine.facts()})
    failures = 0
    lines = _lines()
    for line in lines:
        if not line:
            continue  # to end an answer that had just ended
        try:
            for piece in engine.answer(json.loads(line)):
                tell(piece)
                if select.select([0], [], [], 0)[0] and "end" not in piece:
                    next(lines, None)
                    tell({"end": {}})
                    break
            failures = 0
        except Refused as error:
            tell({"error": {"message": str(error), "code": error.code, "param": error.param, "status": 400}})
        except Exception:
            failures += 1
            if failures == MAX_FAILURES:
                raise  # the model itself is broken, and another process may do better
            traceback.print_exc()  # the libraries' own, about one input: the next one is answered
            message = "the model failed on this input: the engine's log has it"
            tell({"error": {"message": message, "code": "engine_failed", "param": None, "status": 500}})


def _lines() -> Iterator[bytes]:
    """Unbuffered, so that `select` sees a line that has come."""
    line = b""
    while piece := os.read(0, 65536):
        line += piece
        *whole, line = line.split(b"\n")
        yield from whole


if __name__ == "__main__":
    main()
