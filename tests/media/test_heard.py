"""Chats with sound, for a model that reads text: another model hears it first."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gateway.config import Model
from tests.gateway.client import Answer, Client
from tests.gateway.double import Double, Json, Script, answers, completion
from tests.media.forms import form_of
from tests.media.running import in_front_of

SOUND = base64.b64encode(b"RIFFsound").decode()
PART: Json = {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}
HEARD = answers(b'{"text": "What is a library?"}')
SAYS = answers(completion("A house of books."))


async def asked(ears: Script, content: Any) -> tuple[Answer, Double, Double]:
    """The client's answer, and both engines with what they were asked."""
    async with Double(ears).serve() as hears, Double(SAYS).serve() as chats:
        urls = [f"http://127.0.0.1:{double.address.port}" for double in (hears, chats)]
        models = (
            Model(name="m", runtime="openai", base_url=urls[1], transcribe_with="ears"),
            Model(name="ears", runtime="openai", base_url=urls[0], role="transcription", model_name="whisper-1"),
        )
        with in_front_of(*models) as url:
            async with await Client.connect(int(url.rpartition(":")[2])) as client:
                body = {"messages": [{"role": "user", "content": content}]}
                return await client.ask(body), hears, chats


async def test_sound_becomes_text() -> None:
    content = [{"type": "text", "text": "Answer:"}, PART, PART]
    answer, hears, chats = await asked(HEARD, content)
    assert answer.status == 200
    assert answer.headers["x-ctxgate-healed"] == "sounds_transcribed=2"
    fields, files = form_of(hears.requests[-1])
    assert fields == {"model": ["whisper-1"], "response_format": ["json"]}
    assert files == {"file": ("sound.wav", "application/octet-stream", b"RIFFsound")}
    assert len(hears.requests) == 1
    text = "Answer:\n\nWhat is a library?\n\nWhat is a library?"
    assert chats.requests[-1].json["messages"] == [{"role": "user", "content": text}]


async def test_text_goes_on_as_it_is() -> None:
    answer, hears, chats = await asked(HEARD, "Hello")
    assert (answer.status, len(hears.requests), len(chats.requests)) == (200, 0, 1)
    assert "x-ctxgate-healed" not in answer.headers


LONG = answers(b'{"error": {"message": "too long"}}', status=400)
REFUSED: dict[str, tuple[Script, Json, int, str]] = {
    "no base64": (HEARD, {"data": "%", "format": "wav"}, 400, "must be base64"),
    "no format": (HEARD, {"data": SOUND}, 400, "needs data in base64, and a format"),
    "a strange format": (HEARD, {"data": SOUND, "format": '"\r\n'}, 400, "needs data in base64, and a format"),
    "the ears refuse": (LONG, {"data": SOUND, "format": "mp3"}, 400, "too long"),
    "the ears say nothing": (answers(b"{}"), {"data": SOUND, "format": "mp3"}, 502, "can't be read"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(name: str) -> None:
    ears, sound, status, message = REFUSED[name]
    answer, _, chats = await asked(ears, [{"type": "input_audio", "input_audio": sound}])
    assert (answer.status, len(chats.requests)) == (status, 0)
    assert message in answer.error["message"]
