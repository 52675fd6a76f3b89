"""What one real model says, another hears: faster-whisper and piper, started by the gateway."""

from __future__ import annotations

import base64
import io
import re
import time
import wave
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import psutil
import pytest
from openai import OpenAI

from benchmarks.harness.weights import cache
from gateway.config import Model
from gateway.engines.memory import estimate
from tests.patience import PATIENCE
from tests.support.sound import SENTENCE, ears, gateway, mouth, speak, states, words

SENTENCES = (
    SENTENCE,
    "Please close the window before you leave the house.",
    "We walked along the river until the sun went down.",
    "Her brother works as a doctor in a small hospital.",
    "The train to the city leaves every twenty minutes.",
    "I would like a cup of coffee and a piece of cake.",
    "They built the bridge more than a hundred years ago.",
    "Nobody knew the answer to the last question.",
    "The children played in the garden all afternoon.",
    "It will probably rain again tomorrow morning.",
    "You can find the keys in the top drawer.",
    "The meeting was moved from Monday to Thursday.",
    "He forgot to buy milk on the way home.",
    "The museum is free on the first Sunday of the month.",
    "She reads a new book almost every week.",
    "My neighbour has two dogs and an old cat.",
    "The road is closed because of heavy snow.",
    "Turn left at the church and go straight ahead.",
    "Our flight was late, but we arrived in time.",
    "Most people here speak at least two languages.",
)


@pytest.fixture(scope="module")
def client(tiny_whisper: Path, voice: Path) -> Iterator[OpenAI]:
    with gateway(ears(tiny_whisper), mouth(voice)) as found:
        yield found


def wrong(said: str, heard: str) -> int:
    """Words to change, add or remove: the Levenshtein distance."""
    a, b = words(said), words(heard)
    row: list[int] = [*range(len(b) + 1)]
    for at, one in enumerate(a, 1):
        before, row[0] = row[0], at
        for other in range(1, len(b) + 1):
            cost = min(row[other] + 1, row[other - 1] + 1, before + (one != b[other - 1]))
            before, row[other] = row[other], cost
    return row[-1]


def test_what_is_spoken_is_heard(client: OpenAI) -> None:
    spoken = speak(client)
    heard = client.audio.transcriptions.create(model="ears", file=("a.wav", spoken), response_format="verbose_json")
    assert words(heard.text) == words(SENTENCE)
    assert heard.language == "en"
    assert 1.5 < heard.duration < 5
    assert heard.segments
    events = list(client.audio.transcriptions.create(model="ears", file=("a.wav", spoken), stream=True))
    assert {event.type for event in events[:-1]} == {"transcript.text.delta"}
    assert events[-1].type == "transcript.text.done"
    assert words(events[-1].text) == words(SENTENCE)


def test_a_client_s_mistakes_are_named(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="there is no 'nobody'; there are: joe") as caught:
        client.audio.speech.create(model="joe", voice="nobody", input="Hi")
    assert (caught.value.code, caught.value.status_code) == ("voice_not_found", 400)
    with pytest.raises(openai.BadRequestError, match="this sound can't be read") as caught:
        client.audio.transcriptions.create(model="ears", file=("a.wav", b"RIFF but no sound"))
    assert caught.value.code == "invalid_audio"
    with pytest.raises(openai.BadRequestError, match="ears is for transcription, not for speech"):
        client.audio.speech.create(model="ears", voice="joe", input="Hi")
    with pytest.raises(openai.BadRequestError, match="echo is for chat, not for transcription"):
        client.audio.transcriptions.create(model="echo", file=("a.wav", b"a"))


def test_an_answer_is_spoken_while_it_comes(tiny_whisper: Path, voice: Path) -> None:
    """What the chat's model repeats, as OpenAI's client gets it, is heard again."""
    chat = Model(name="chat", runtime="echo", speak_with="joe")
    with gateway(chat, ears(tiny_whisper), mouth(voice)) as client:
        stream = client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": f"{SENTENCE} {SENTENCES[4]}"}],
            modalities=["text", "audio"],
            audio={"voice": "joe", "format": "pcm16"},
            stream=True,
        )
        sounds = [event.choices[0].delta.audio for event in stream if event.choices]
        sound = b"".join(base64.b64decode(each.data) for each in sounds if each and each.data)
        said = "".join(each.transcript or "" for each in sounds if each)
        file = io.BytesIO()
        with wave.open(file, "wb") as written:
            written.setparams((1, 2, 24_000, 0, "NONE", ""))
            written.writeframes(sound)
        heard = client.audio.transcriptions.create(model="ears", file=("a.wav", file.getvalue())).text
    assert words(said) == words(f"{SENTENCE} {SENTENCES[4]}")
    assert wrong(said, heard) <= 2, heard


def test_the_engine_stops_when_the_client_leaves(client: OpenAI) -> None:
    """Of a text that takes minutes to speak: the next one is spoken at once."""
    with client.audio.speech.with_streaming_response.create(
        model="joe", voice="joe", input=f"{SENTENCE} " * 500, response_format="pcm"
    ) as spoken:
        next(spoken.iter_bytes())
        left = time.monotonic()
    assert speak(client, "Yes.")
    # Half a second to stop, a reload at worst, and the word; all of the text would take minutes.
    assert time.monotonic() - left < PATIENCE / 4


@pytest.mark.slow
@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_is_heard(format: str, client: OpenAI) -> None:
    spoken = speak(client, format=format)
    if format == "pcm":
        size = len(spoken).to_bytes(4, "little")
        rate, bytes_a_second = (24_000).to_bytes(4, "little"), (48_000).to_bytes(4, "little")
        head = b"RIFF" + size + b"WAVEfmt \x10\0\0\0\x01\0\x01\0" + rate + bytes_a_second + b"\x02\0\x10\0data" + size
        spoken = head + spoken
    heard = client.audio.transcriptions.create(model="ears", file=(f"a.{format}", spoken))
    assert wrong(SENTENCE, heard.text) <= 1, heard.text
    assert heard.text


@pytest.mark.slow
@pytest.mark.parametrize("format", ["text", "srt", "vtt"])
def test_every_kind_of_text(format: str, client: OpenAI) -> None:
    heard = client.audio.transcriptions.create(
        model="ears",
        file=("a.wav", speak(client)),
        response_format=format,  # type: ignore[call-overload]
    )
    wanted = {"text": r"(.*)", "srt": r"1\n00:00:00,\d{3} --> 00:00:0\d,\d{3}\n(.*)"}
    wanted["vtt"] = r"WEBVTT\n\n00:00:00\.\d{3} --> 00:00:0\d\.\d{3}\n(.*)"
    found = re.fullmatch(wanted[format], heard.strip())
    assert found, heard
    assert words(found[1]) == words(SENTENCE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_round_trip_of_twenty_sentences(whisper: Path, voice: Path) -> None:
    with gateway(ears(whisper), mouth(voice)) as client:
        heard = [
            client.audio.transcriptions.create(model="ears", file=("a.wav", speak(client, sentence))).text
            for sentence in SENTENCES
        ]
    mistakes = sum(map(wrong, SENTENCES, heard))
    total = sum(len(words(sentence)) for sentence in SENTENCES)
    print(f"{mistakes} of {total} words wrong")
    assert mistakes <= 0.1 * total, heard


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
def test_a_chat_and_an_ear_take_turns_in_one_memory(tiny_whisper: Path, voice: Path) -> None:
    """A → B → A, where the gateway's own plan says that only one fits."""
    weights = cache() / "qwen2.5-coder-0.5b.gguf"
    if not weights.is_file():
        pytest.skip("no weights: python -m benchmarks.harness.weights qwen2.5-coder-0.5b")
    with gateway(mouth(voice)) as client:
        spoken = speak(client)
    chat = Model(name="coder", runtime="llama.cpp", path=weights, context_window=1024)
    needs = [estimate(model, on_gpu=False).ram for model in (chat, ears(tiny_whisper))]
    with gateway(chat, ears(tiny_whisper), memory=max(needs) + min(needs) // 2) as client:
        for _ in range(2):
            answer = client.chat.completions.create(
                model="coder", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
            )
            assert "hello" in (answer.choices[0].message.content or "").lower()
            assert states(client) == {"coder": "ready", "ears": "stopped"}
            heard = client.audio.transcriptions.create(model="ears", file=("a.wav", spoken))
            assert words(heard.text) == words(SENTENCE)
            assert states(client) == {"coder": "stopped", "ears": "ready"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
def test_an_hour_of_sound_does_not_stop_chats(tiny_whisper: Path, test_model: Path, voice: Path) -> None:
    chat = Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=1024)
    with gateway(chat, ears(tiny_whisper), mouth(voice)) as client:
        samples = speak(client, " ".join(SENTENCES), format="pcm")
        hour = io.BytesIO()
        with wave.open(hour, "wb") as file:
            file.setparams((1, 2, 24_000, 0, "NONE", ""))
            file.writeframes(samples * (3600 * 48_000 // len(samples)))
        stream = client.audio.transcriptions.create(
            model="ears", file=("hour.wav", hour.getvalue()), stream=True, timeout=600
        )
        heard = iter(stream)
        assert next(heard).type == "transcript.text.delta"
        for _ in range(5):
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=8
            )
            assert answer.choices
        assert next(heard).type == "transcript.text.delta"
        stream.close()
        # The engine takes the next sound at once: it doesn't go on with the hour.
        assert client.audio.transcriptions.create(model="ears", file=("a.wav", speak(client))).text


def listener() -> psutil.Process:
    """The process that holds the model which hears."""
    workers = [each for each in psutil.Process().children(recursive=True) if "faster-whisper" in each.cmdline()]
    return next(each for each in workers if any("sound_worker" in part for part in each.cmdline()))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_hearing_stops_within_a_second(whisper: Path, voice: Path) -> None:
    """In the middle of half a minute of sound, which whisper hears in one step. The best of three: others work, too."""
    taken = []
    with gateway(ears(whisper), mouth(voice)) as client:
        spoken = speak(client, " ".join(SENTENCES))
        assert client.audio.transcriptions.create(model="ears", file=("a.wav", speak(client))).text
        for _ in range(3):
            process = listener()
            before = process.cpu_times().user
            with pytest.raises(openai.APITimeoutError):
                client.with_options(timeout=2).audio.transcriptions.create(model="ears", file=("a.wav", spoken))
            left = time.monotonic()
            assert process.cpu_times().user > before
            process.wait(PATIENCE)
            taken.append(time.monotonic() - left)
            # The next sound is heard by another process, with the model loaded again.
            assert client.audio.transcriptions.create(model="ears", file=("a.wav", speak(client))).text
    print(f"stopped after {min(taken):.2f} s")
    assert min(taken) < 1
