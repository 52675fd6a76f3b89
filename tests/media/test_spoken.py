"""Chats whose answers another model speaks, in OpenAI's shape, before two scripted engines."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from gateway.config import Model
from gateway.features.media.speaker import MAX_SAID, Memory
from gateway.features.media.wire.spoken import MAX_SENTENCE, Sentences
from gateway.wire.chat import Caller
from tests.gateway.double import Double, Exchange, Json, Script, answers, chunk, completion, streams
from tests.media.running import in_front_of
from tests.patience import PATIENCE

TEXT = "A library is a house of books. It opens early in the morning."
ASKED: Json = {"model": "m", "messages": [{"role": "user", "content": "What is a library?"}]}
SOUND: Json = {"modalities": ["text", "audio"], "audio": {"voice": "joe", "format": "wav"}}
STREAMED: Json = {**SOUND, "audio": {"voice": "joe", "format": "pcm16"}, "stream": True}


async def spoken(exchange: Exchange) -> None:
    """The text in capitals, as a sound of an odd number of bytes."""
    await exchange.whole(exchange.json["input"].upper().encode(), head=b"Content-Type: audio/pcm\r\n")


@asynccontextmanager
async def asking(
    chat: Script, speech: Script = spoken, **model: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Double, Double]]:
    async with Double(chat).serve() as chats, Double(speech).serve() as speaks:
        urls = [f"http://127.0.0.1:{double.address.port}" for double in (chats, speaks)]
        models = (
            Model(name="m", runtime="openai", base_url=urls[0], **({"speak_with": "joe"} | model)),
            Model(name="joe", runtime="openai", base_url=urls[1], role="speech", model_name="tts-1"),
        )
        with in_front_of(*models) as url:
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=PATIENCE) as client:
                yield client, chats, speaks


async def streamed(client: AsyncOpenAI, **more: Any) -> AsyncStream[ChatCompletionChunk]:
    found: Any = await client.chat.completions.create(**{**ASKED, **STREAMED, **more})
    return cast(AsyncStream[ChatCompletionChunk], found)


async def test_a_whole_answer() -> None:
    async with asking(answers(completion(TEXT))) as (client, chats, speaks):
        raw = await client.chat.completions.with_raw_response.create(**ASKED, **SOUND)
        message = raw.parse().choices[0].message
        assert message.audio is not None
        assert (message.content, message.audio.transcript) == (None, TEXT)
        assert base64.b64decode(message.audio.data) == TEXT.upper().encode()
        assert message.audio.expires_at > raw.parse().created
        assert raw.headers["x-ctxgate-spoken-by"] == "joe"
        assert speaks.requests[-1].json == {
            "model": "tts-1", "input": TEXT, "voice": "joe", "response_format": "wav",
        }  # fmt: skip
        assert not {"modalities", "audio"} & chats.requests[-1].json.keys()

        # Clients name the sound in place of what was said.
        before: Any = {"role": "assistant", "audio": {"id": message.audio.id}}
        after: Any = {"role": "user", "content": "Go on."}
        await client.chat.completions.create(model="m", messages=[*ASKED["messages"], before, after], **SOUND)
        assert chats.requests[-1].json["messages"][1] == {"role": "assistant", "content": TEXT}


async def test_the_first_sentence_is_spoken_while_the_text_comes() -> None:
    go_on = asyncio.Event()

    async def chat(exchange: Exchange) -> None:
        await exchange.start()
        first, _, rest = TEXT.partition(". ")
        await exchange.event(chunk(role="assistant"))
        await exchange.event(chunk(first + ". "))
        await go_on.wait()
        await exchange.event(chunk(rest))
        await exchange.event(chunk(reason="stop"))
        await exchange.event(
            {**chunk(), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
        )
        await exchange.end()

    async with asking(chat) as (client, _, speaks):
        stream = await streamed(client, stream_options={"include_usage": True})
        text, ends, pieces = "", [], []
        async for event in stream:
            if not event.choices:
                ends.append("usage")
                continue
            assert event.choices[0].delta.content is None
            audio = event.choices[0].delta.audio
            text += (audio and audio.transcript) or ""
            if audio and audio.data:
                pieces.append(base64.b64decode(audio.data))
                go_on.set()
            if audio and audio.expires_at:
                ends.append("expires_at")
            if reason := event.choices[0].finish_reason:
                ends.append(reason)
        sound = b"".join(pieces)
        assert text == TEXT
        assert ends == ["expires_at", "stop", "usage"]
        assert all(len(piece) % 2 == 0 for piece in pieces)
        inputs = [exchange.json["input"] for exchange in speaks.requests]
        assert inputs == ["A library is a house of books.", "It opens early in the morning."]
        assert sound == b"".join(text.upper().encode()[: len(text) // 2 * 2] for text in inputs)


async def test_a_chunk_without_choices_may_come_first() -> None:
    """Azure begins with the results of its filter."""
    filter = {**chunk(), "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    chat = streams(filter, chunk(role="assistant"), chunk(TEXT), chunk(reason="stop"))
    async with asking(chat) as (client, _, speaks):
        events = [event async for event in await streamed(client)]
        assert not events[0].choices
        assert events[0].model_extra == {"prompt_filter_results": [{"prompt_index": 0}]}
        sounds = [event.choices[0].delta.audio for event in events[1:]]
        assert "".join((audio and audio.transcript) or "" for audio in sounds) == TEXT
        assert any(audio and audio.data for audio in sounds)
        assert events[-1].choices[0].finish_reason == "stop"
        assert len(speaks.requests) == 2


async def test_a_call_is_not_spoken() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = streams(chunk(tool_calls=[{"index": 0, **call}]), chunk(reason="tool_calls"))
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with asking(chat) as (client, _, speaks):
        events = [event async for event in await streamed(client, tools=[tool])]
        assert events[-1].choices[0].finish_reason == "tool_calls"
        assert any(event.choices[0].delta.tool_calls for event in events)
        assert not speaks.requests


async def test_both_engines_stop_when_the_client_leaves() -> None:
    async def chat(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk(f"{TEXT} "))
        await exchange.gone

    async def speech(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await exchange.gone

    async with asking(chat, speech) as (client, chats, speaks):
        stream = await streamed(client)
        async for event in stream:
            if (audio := event.choices[0].delta.audio) and audio.data:
                break
        await stream.close()
        async with asyncio.timeout(PATIENCE):
            await chats.requests[-1].gone
            await speaks.requests[-1].gone


NO_VOICE = answers(b'{"error": {"message": "voice: there is no such voice"}}', status=400)
REFUSED: dict[str, tuple[Json, Script, Json, str]] = {
    "a model that only writes": (SOUND, spoken, {"speak_with": None}, "modalities: answers come as text alone"),
    "sound alone": ({**SOUND, "modalities": ["audio"]}, spoken, {}, "modalities: must be"),
    "no format": ({**SOUND, "audio": {"voice": "joe"}}, spoken, {}, "audio.format: must be one of wav"),
    "a file in pieces": ({**SOUND, "stream": True}, spoken, {}, "audio.format: must be pcm16"),
    "two answers": ({**SOUND, "n": 2}, spoken, {}, "n: a spoken answer is one"),
    "a voice without a name": ({**SOUND, "audio": {"voice": 1, "format": "wav"}}, spoken, {}, "audio.voice: must be"),
    "no such voice": (SOUND, NO_VOICE, {}, "there is no such voice"),
    "what was said long ago": (
        {**SOUND, "messages": [{"role": "assistant", "audio": {"id": "audio_x"}}]},
        spoken,
        {},
        "messages: what was said isn't known any more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(name: str) -> None:
    fields, speech, model, message = REFUSED[name]
    async with asking(answers(completion(TEXT)), speech, **model) as (client, _, _):
        with pytest.raises(openai.BadRequestError, match=message):
            await client.chat.completions.create(**{**ASKED, **fields})


async def test_an_error_in_the_middle_ends_the_stream() -> None:
    async with asking(streams(chunk(f"{TEXT} "), chunk(reason="stop")), NO_VOICE) as (client, _, _):
        stream = await streamed(client)
        with pytest.raises(openai.APIError, match="there is no such voice"):
            _ = [event async for event in stream]


CUT: dict[str, list[str]] = {
    "Yes. No. That is what I have to say.": ["Yes. No. That is what I have to say."],
    'He said "that is how it has always been." Then he left.': [
        'He said "that is how it has always been." ',
        "Then he left.",
    ],
    "これはとても長い文章で、途中で終わることはありません。そうです。": [
        "これはとても長い文章で、途中で終わることはありません。",
        "そうです。",
    ],
    "The value of pi is about 3.14159 and so on": ["The value of pi is about 3.14159 and so on"],
    "- a line of a list that goes on\n- another": ["- a line of a list that goes on\n", "- another"],
    "\n\n": [],
}


@pytest.mark.parametrize("text", CUT)
@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_sentences(text: str, cuts: list[int]) -> None:
    """However the text comes."""
    sentences = Sentences()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = [one for begin, end in pairwise(places) for one in sentences.feed(text[begin:end])]
    assert found + sentences.finish() == CUT[text]


def test_a_text_without_an_end_is_cut() -> None:
    sentences = Sentences()
    text = "one two three, " * 200
    found = [*sentences.feed(text), *sentences.finish()]
    assert "".join(found) == text
    assert max(map(len, found)) <= MAX_SENTENCE
    assert all(part.endswith(" ") for part in found)
    assert max(map(len, Sentences().feed("a" * 5000))) == MAX_SENTENCE


def test_nobody_s_answers_take_the_place_of_another_s() -> None:
    memory, ann, bob = Memory(), Caller("k1"), Caller("k2")
    memory.keep("first", "Hello.", ann)
    for number in range(MAX_SAID + 1):
        memory.keep(f"b{number}", "Ho.", bob)
    assert memory.of(ann) == {"first": "Hello."}
    assert [*memory.of(bob)] == [f"b{number}" for number in range(1, MAX_SAID + 1)]
    assert memory.of(Caller("k3")) == {}
