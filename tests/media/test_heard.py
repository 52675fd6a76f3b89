"""Chats with sound, for a model that reads text: another model hears it first."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.errors import ProviderModelNotLoaded
from gateway.wire.chat import ChatRequest, encode
from tests.gateway.client import Answer, Client
from tests.gateway.double import Double, Exchange, Json, Script, answers, completion
from tests.media.forms import form_of
from tests.media.running import in_front_of
from tests.patience import PATIENCE

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


TEXT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("stays", [True, False])
async def test_the_model_may_change_while_another_hears(stays: bool, tmp_path: Path) -> None:
    came, go = asyncio.Event(), asyncio.Event()

    async def ears(exchange: Exchange) -> None:
        came.set()
        await go.wait()
        await HEARD(exchange)

    async with asyncio.timeout(PATIENCE), Double(ears).serve() as hears, Double(SAYS).serve() as chats:
        urls = [f"http://127.0.0.1:{double.address.port}" for double in (hears, chats)]
        heard = Model(name="ears", runtime="openai", base_url=urls[0], role="transcription")
        model = Model(name="m", runtime="openai", base_url=urls[1], transcribe_with="ears")
        models = {"m": model, "ears": heard, "e": Model(name="e", runtime="echo")}
        config = Config(source=tmp_path / "x", active_model="e", models=models, state_dir=tmp_path)
        body = encode({"model": "m", "messages": [{"role": "user", "content": [PART]}]})

        async def ask(gateway: Gateway) -> Any:
            with await gateway.chat(ChatRequest.parse(body)) as run:
                return json.loads(await run.whole())

        async with Gateway(config) as gateway:
            # Its server has a connection, which the end of its route closes.
            with await gateway.chat(ChatRequest.parse(encode({"model": "m", "messages": TEXT}))) as run:
                await run.whole()
            asking = asyncio.create_task(ask(gateway))
            await came.wait()
            changed = {"m": replace(model, display_name="another")} if stays else {}
            gateway.apply(replace(config, models={"ears": heard, "e": models["e"], **changed}))
            await asyncio.gather(*gateway.leaving)
            go.set()
            if stays:
                assert (await asking)["choices"][0]["message"]["content"] == "A house of books."
            else:
                with pytest.raises(ProviderModelNotLoaded, match="'m' was just removed"):
                    await asking
