"""Requests for sound, pictures and a model's own endpoints, and their answers, before a scripted engine.

Pictures are shown by this double alone, which answers as stable-diffusion.cpp's sd-server is documented to: no
diffusion model small enough for a test was found.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gateway.config import Role
from gateway.features.media.settings import Media
from gateway.server.keys import FILE as FILE_NAME
from gateway.server.keys import KeyFile
from gateway.wire.limits import Limits
from tests.gateway.double import Exchange, Script, answers, chunked
from tests.gateway.running import Running, running
from tests.media.forms import BOUND, form_of, part, post
from tests.patience import PATIENCE

ROLES: tuple[Role, ...] = ("speech", "transcription", "image", "infill")
HEARS: dict[str, Any] = {"role": "chat", "more_roles": ROLES, "model_name": "engine/name"}
SOUND = bytes(range(256)) * 2000


def client(gateway: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--x--\r\n"


async def asked(gateway: Running, data: bytes) -> Any:
    async with await gateway.connect() as one:
        await one.send(data)
        return await one.answer()


HEARD = answers(b'{"text": "Hello", "usage": {"type": "duration", "seconds": 1.5}}')


async def test_sound_passes_to_the_engine_as_it_is() -> None:
    async with running(HEARD, defaults={"temperature": 0, "language": "de"}, **HEARS) as gateway:
        sound = ("a b.wav", SOUND, "audio/wav")
        async with client(gateway) as user:
            answer = await user.audio.transcriptions.create(
                model="m", file=sound, language="en", timestamp_granularities=["word", "segment"]
            )
        assert answer.text == "Hello"
        exchange = gateway.engine.requests[-1]
        fields, files = form_of(exchange)
        granularities = fields.pop("timestamp_granularities[]")
        assert (exchange.path, files["file"]) == ("/v1/audio/transcriptions", ("a b.wav", "audio/wav", SOUND))
        assert fields == {"model": ["engine/name"], "language": ["en"], "temperature": ["0"]}
        assert granularities == ["word", "segment"]
        await asked(gateway, post(form(part("file", SOUND, "a")), "/v1/audio/translations"))
        assert gateway.engine.requests[-1].path == "/v1/audio/translations"


@pytest.mark.parametrize("http", ["gateway.server.fast_protocol:FastProtocol", "httptools"])
async def test_the_model_may_stand_behind_the_file(http: str) -> None:
    async with running(HEARD, http=http, **HEARS) as gateway:
        sent = form(part("file", SOUND, "a.wav"), part("model", b"m"))
        answer = await asked(gateway, post(sent))
        assert (answer.status, answer.json["text"]) == (200, "Hello")
        assert answer.headers["content-security-policy"] == "sandbox"
        assert form_of(gateway.engine.requests[-1])[1]["file"][2] == SOUND


async def test_a_stream_comes_as_it_is_written() -> None:
    go_on = asyncio.Event()

    async def engine(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event({"type": "transcript.text.delta", "delta": "Hel"})
        await go_on.wait()
        done = {"type": "transcript.text.done", "text": "Hello", "usage": {"type": "duration", "seconds": 1}}
        await exchange.event(done)
        await exchange.end(done=False)

    async with running(engine, **HEARS) as gateway:
        events = []
        async with client(gateway) as user:
            stream = await user.audio.transcriptions.create(model="m", file=SOUND, stream=True)
            async for event in stream:
                events.append(event.type)
                go_on.set()
        assert events == ["transcript.text.delta", "transcript.text.done"]


async def test_speech() -> None:
    go_on = asyncio.Event()

    async def engine(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n")
        await exchange.send(chunked(b"first"))
        await go_on.wait()
        await exchange.send(chunked(b"second") + b"0\r\n\r\n")

    async with running(engine, **HEARS) as gateway:
        pieces = []
        async with client(gateway) as user:
            making = user.audio.speech.with_streaming_response.create(model="m", input="Hi", voice="alba")
            async with making as spoken:
                assert spoken.headers["content-type"] == "audio/mpeg"
                async for piece in spoken.iter_bytes():
                    pieces.append(piece)
                    go_on.set()
        assert b"".join(pieces) == b"firstsecond"
        assert pieces[0] == b"first"
        assert gateway.engine.requests[-1].json == {"model": "engine/name", "input": "Hi", "voice": "alba"}


PICTURE = {"created": 1, "data": [{"b64_json": "iVBORw0KGgo="}]}
"""As sd-server answers."""


async def test_pictures() -> None:
    async with running(answers(json.dumps(PICTURE).encode()), **HEARS) as gateway, client(gateway) as user:
        drawn = await user.images.generate(model="m", prompt="A cat", n=2, size="512x512")
        assert drawn.data is not None
        assert drawn.data[0].b64_json == "iVBORw0KGgo="
        assert gateway.engine.requests[-1].json["n"] == 2
        await user.images.edit(model="m", image=[("a.png", b"1"), ("b.png", b"2")], prompt="Bluer")
        fields, files = form_of(gateway.engine.requests[-1])
        assert fields["prompt"] == ["Bluer"]
        assert files["image[]"][2] == b"2"
        await asked(gateway, post(form(part("image", b"1", "a.png")), "/v1/images/variations"))
        assert gateway.engine.requests[-1].path == "/v1/images/variations"


async def test_other_endpoints() -> None:
    async with running(answers(b'{"tokens": [1]}'), **HEARS) as gateway:
        for path in ("/infill", "/v1/infill", "/tokenize", "/detokenize", "/apply-template"):
            answer = await gateway.ask({"model": "m", "content": "Hi"}, path)
            assert answer.json == {"tokens": [1]}
            exchange = gateway.engine.requests[-1]
            assert (exchange.path, exchange.json["model"]) == (path.removeprefix("/v1"), "engine/name")


Ask = Callable[[Running], Any]


def speaking(**fields: Any) -> Ask:
    return lambda gateway: gateway.ask(fields, "/v1/audio/speech")


def hearing(*parts: bytes, path: str = "/v1/audio/transcriptions") -> Ask:
    return lambda gateway: asked(gateway, post(form(*parts), path))


def other(body: Any, path: str) -> Ask:
    return lambda gateway: gateway.ask(body, path)


FILE = part("file", SOUND, "a")
INVALID = "invalid_request"
REFUSED: dict[str, tuple[Ask, int, str]] = {
    "a chat model asked to speak": (speaking(model="echo", input="Hi", voice="a"), 400, "wrong_role"),
    "a chat model asked to hear": (hearing(part("model", b"echo"), FILE), 400, "wrong_role"),
    "an unknown model": (hearing(FILE, part("model", b"x")), 404, "model_not_found"),
    "no file": (hearing(part("model", b"m")), 400, INVALID),
    "a file as text": (hearing(part("file", b"a")), 400, INVALID),
    "no form": (other({"model": "m"}, "/v1/audio/transcriptions"), 400, INVALID),
    "no input": (speaking(model="m", input=""), 400, INVALID),
    "many pictures": (other({"prompt": "a", "n": 11}, "/v1/images/generations"), 400, INVALID),
    "many edits": (hearing(part("image", b"a", "a"), part("n", b"99"), path="/v1/images/edits"), 400, INVALID),
    "a path that leads out": (other(b"", "/upstream/m/a/../../b"), 404, "not_found"),
    "a long upload": (hearing(part("file", bytes(700_000), "a")), 413, "request_too_large"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(name: str) -> None:
    ask, status, code = REFUSED[name]
    async with running(HEARD, media=Media(max_upload_bytes=600_000), **HEARS) as gateway:
        answer = await ask(gateway)
        assert (answer.status, answer.error["code"]) == (status, code), answer
        assert not gateway.engine.requests
    if code == "wrong_role":
        assert "echo is for chat, not for " in answer.error["message"]
        assert answer.error["message"].endswith("config.yaml has: m")


async def test_the_engine_s_refusal_is_the_client_s() -> None:
    refusal = b'{"error": {"message": "no such voice", "code": "voice_not_found", "param": "voice"}}'
    async with running(answers(refusal, status=400), **HEARS) as gateway, client(gateway) as user:
        with pytest.raises(openai.BadRequestError, match="no such voice") as caught:
            await user.audio.speech.create(model="m", input="Hi", voice="nobody")
        assert caught.value.code == "voice_not_found"


@pytest.mark.parametrize("body", [b'{"error":"failed to read audio data"}', b'{"error": {"message": "no sound"}}'])
@pytest.mark.parametrize("ask", [hearing(FILE), speaking(model="m", input="Hi")])
async def test_an_error_within_a_200_is_one(ask: Ask, body: bytes) -> None:
    """whisper.cpp's server says so what is wrong with the sound."""
    async with running(answers(body), **HEARS) as gateway:
        answer = await ask(gateway)
        heard = gateway.engine.requests[-1].path == "/v1/audio/transcriptions"
        said = "failed to read audio data" if b"failed" in body else "no sound"
        assert (answer.status, said in answer.error["message"]) == (400 if heard else 502, True), answer
        async with await gateway.connect() as one:
            await one.send(b"GET /-/requests HTTP/1.1\r\nHost: localhost\r\n\r\n")
            entry = (await one.answer()).json["requests"][0]
        assert (entry["outcome"], entry["units"]) == (answer.error["category"], {})


@pytest.mark.parametrize(
    "body", [b'{"text": "an \\"error\\"", "error": null}', b'{"text": "%b"}' % (b"a" * 9000), b"{"]
)
async def test_other_json_passes_as_it_is(body: bytes) -> None:
    async with running(answers(body), **HEARS) as gateway:
        answer = await hearing(FILE)(gateway)
        assert (answer.status, answer.body) == (200, body)


async def endless(exchange: Exchange) -> None:
    await exchange.gone


@pytest.mark.parametrize("what", ["upload", "answer"])
async def test_a_client_that_leaves_costs_nothing(what: str) -> None:
    """Neither an engine's work nor the room of its upload."""
    scripts: list[Script] = [endless, HEARD] if what == "answer" else [HEARD]
    whole = form(part("model", b"m"), part("file", bytes(400_000), "a"))
    async with running(*scripts, media=Media(max_uploads_bytes=600_000), **HEARS) as gateway:
        async with await gateway.connect() as one:
            await one.send(post(whole[:300_000] if what == "upload" else whole, size=len(whole)))
            if what == "answer":
                exchange = await gateway.engine.asked()
                one.leave()
                async with asyncio.timeout(PATIENCE):
                    await exchange.gone
        while (answer := await asked(gateway, post(whole))).status == 503:
            assert answer.error["code"] == "too_many_bodies"
        assert answer.status == 200, answer
        assert len(gateway.engine.requests) == len(scripts)


async def test_upstream_passes_everything() -> None:
    async with running(answers(b"teapot", status=418, head=b"Content-Type: text/x-tea\r\n"), **HEARS) as gateway:
        answer = await gateway.ask(b"\x00body", "/upstream/m/a%20b/c?d=e&f", head="X-Mine: 1\r\n")
        assert (answer.status, answer.body, answer.headers["content-type"]) == (418, b"teapot", "text/x-tea")
        exchange = gateway.engine.requests[-1]
        assert (exchange.method, exchange.path, exchange.body) == ("POST", "/a%20b/c?d=e&f", b"\x00body")
        assert "x-mine" not in exchange.headers


SPOKEN = answers(b"sound", head=b"Content-Type: audio/mpeg\r\n")
UNITS: dict[str, tuple[Script, Ask, Any]] = {
    "a usage": (HEARD, hearing(FILE), {"sound_seconds": 1.5}),
    "a duration": (answers(b'{"duration": 2.25, "text": "a"}'), hearing(FILE), {"sound_seconds": 2.25}),
    "a duration at the beginning": (
        answers(b'{"duration": 8.470000267028809, "text": "%b", "segments": [{}]}' % (b"a " * 9000)),
        hearing(FILE),
        {"sound_seconds": 8.470000267028809},
    ),
    "an hour": (answers(b'{"text": "a", "usage": {"seconds": 3600.0}}'), hearing(FILE), {"sound_seconds": 3600.0}),
    "a header": (
        answers(b"a", head=b"Content-Type: text/plain\r\nCtxgate-Sound-Seconds: 3.0\r\n"),
        hearing(FILE),
        {"sound_seconds": 3.0},
    ),
    "nothing": (answers(b'{"text": "a"}'), hearing(FILE), {}),
    "a text": (SPOKEN, speaking(model="m", input="Hello"), {"characters": 5}),
    "pictures": (answers(b"{}"), other({"prompt": "a", "n": 3}, "/v1/images/generations"), {"pictures": 3}),
}


@pytest.mark.parametrize("name", UNITS)
async def test_what_is_counted(name: str) -> None:
    script, ask, units = UNITS[name]
    async with running(script, **HEARS) as gateway:
        assert (await ask(gateway)).status == 200
        async with await gateway.connect() as one:
            for path in (b"/-/requests", b"/metrics"):
                await one.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            entry = (await one.answer()).json["requests"][0]
            metrics = (await one.answer()).body.decode()
        assert (entry["outcome"], entry["units"]) == ("ok", units)
        for unit, amount in units.items():
            assert f'ctxgate_units_total{{model="m",unit="{unit}"}} {float(amount)}' in metrics


async def test_voices() -> None:
    async with running(answers(b'{"voices": ["alba"]}'), **HEARS) as gateway, await gateway.connect() as one:
        await one.send(b"GET /v1/audio/voices?model=m HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await one.answer()).json == {"voices": ["alba"]}


async def test_a_key_s_limits_and_scopes_hold() -> None:
    """Of one that may ask once a minute, of one for another model, and of one without the scope of /upstream."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running(HEARD, keys=("sk-owner",), **HEARS))
        file = KeyFile(gateway.config.state_dir / FILE_NAME)
        stack.callback(file.path.unlink)  # other tests have the same folder
        _, once = file.add(scopes=("models",), limits=Limits(requests_per_minute=1))
        _, other_model = file.add(scopes=("models",), limits=Limits(models=("echo",)))
        _, upstream = file.add(scopes=("upstream",), limits=Limits(requests_per_minute=1))

        async def status(key: str, path: str = "/v1/audio/transcriptions") -> tuple[int, str | None]:
            head = f"Authorization: Bearer {key}\r\n{BOUND}"
            answer = await asked(gateway, post(form(part("model", b"m"), FILE), path, head=head))
            return answer.status, None if answer.status == 200 else answer.error["code"]

        assert [await status(once), await status(once)] == [(200, None), (429, "rate_limit_exceeded")]
        assert await status(other_model) == (403, "model_not_allowed")
        assert await status(once, "/upstream/m/a") == (403, "insufficient_scope")
        assert await status(upstream) == (403, "insufficient_scope")
        assert await status(upstream, "/upstream/m/a") == (200, None)
        assert await status(upstream, "/upstream/m/a") == (429, "rate_limit_exceeded")
        assert len(gateway.engine.requests) == 2


ELSEWHERE = "http://169.254.169.254/latest"
PARTS: dict[str, dict[str, Any]] = {
    "a picture": {"type": "image_url", "image_url": {"url": ELSEWHERE}},
    "a picture's bare address": {"type": "image_url", "image_url": ELSEWHERE},
    "a sound": {"type": "input_audio", "input_audio": {"url": ELSEWHERE}},
    "a sound's address": {"type": "audio_url", "audio_url": {"url": ELSEWHERE}},
    "a film": {"type": "video_url", "video_url": {"url": ELSEWHERE}},
    "a file of this machine": {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    "a path": {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
}


@pytest.mark.parametrize("name", PARTS)
async def test_no_address_reaches_llama_cpp(name: str) -> None:
    """Which fetches what it leads to: neither by a chat nor by what only makes its prompt."""
    asking = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, PARTS[name]]}]}
    twice = json.dumps(asking).replace('"image_url": {', '"image_url": {"url": "data:image/png;base64,", ')
    async with running(answers(b'{"prompt": "a"}'), runtime="llama.cpp") as gateway:
        for path in ("/v1/chat/completions", "/v1/apply-template", "/apply-template"):
            for body in (json.dumps(asking), twice, twice.replace("image_url", "image\\u005furl")):
                answer = await gateway.ask(body.encode(), path)
                assert (answer.status, answer.error["code"]) == (400, "unsupported_content_block"), (path, answer)
        others: tuple[Any, ...] = ("x", [1], {"content": []})
        for messages in others:
            refused = await gateway.ask({"model": "m", "messages": messages}, "/apply-template")
            assert refused.status == 400, refused
        data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        allowed = {"model": "m", "messages": [{"role": "user", "content": [data]}]}
        assert (await gateway.ask(allowed, "/apply-template")).status == 200
        sent = [exchange for exchange in gateway.engine.requests if exchange.body]
        assert not [exchange for exchange in sent if b"169.254" in exchange.body or b"passwd" in exchange.body]


AROUND: dict[str, bytes] = {
    **{
        f"n={number}": part("n", number.encode())
        for number in ("0", "00", "01", "0010", "000199999", "11", "+1", " 1", "1.0")
    },
    **{f"n={number!r}": part("n", number.encode()) for number in ("", "٣", "1\n", "1e1", "1_0")},
    "n as a file": part("n", b"99", "f"),
    "n as one of several": part("n[]", b"99"),
    "a model as a file": part("model", b"other", "f"),
    "streaming as a file": part("stream", b"true", "f"),
    "a tier as a file": part("service_tier", b"priority", "f"),
    "what is set as a file": part("size", b"9x9", "f"),
    "what is set as several files": part("size[]", b"9x9", "f"),
}


@pytest.mark.parametrize("name", AROUND)
async def test_no_field_of_a_form_goes_round_what_is_checked(name: str) -> None:
    async with running(answers(b"{}"), force_params={"size": "1x1"}, **HEARS) as gateway:
        for path in ("/v1/images/edits", "/v1/images/variations"):
            pictures = (part("image", b"a", "a"), part("mask", b"b", "b"), AROUND[name])
            whole = form(*([] if "model" in name else [part("model", b"m")]), *pictures)
            answer = await asked(gateway, post(whole, path))
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), answer
        assert not gateway.engine.requests


async def test_ten_pictures_are_counted_as_they_are_asked_for() -> None:
    async with running(answers(b"{}"), **HEARS) as gateway:
        whole = form(part("model", b"m"), part("image[]", b"a", "a"), part("image[]", b"b", "b"), part("n", b"10"))
        assert (await asked(gateway, post(whole, "/v1/images/edits"))).status == 200
        assert form_of(gateway.engine.requests[-1])[0]["n"] == ["10"]


LEFT_OUT: dict[str, tuple[bytes, ...]] = {
    "a field": (part("quality", b"hd"),),
    "one of several": (part("quality[]", b"hd"),),
    "several": (part("quality[]", b"hd"), part("quality[]", b"low")),
    "a file": (part("quality", b"hd", "f"),),
    "one of several files": (part("quality[]", b"hd", "f"),),
    "several files": (part("quality[]", b"hd", "f"), part("quality[]", b"low", "g")),
    "all of them": (part("quality[]", b"hd"), part("quality", b"hd", "f"), part("quality[]", b"low", "g")),
}


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("setting", ["quality", "quality[]"])
async def test_a_form_leaves_out_what_the_model_doesn_t_take(setting: str, name: str) -> None:
    """However the client writes it: most can't write it otherwise."""
    async with running(answers(b"{}"), strip_params=frozenset({setting}), **HEARS) as gateway:
        for path in ("/v1/images/edits", "/v1/images/variations"):
            others = (part("model", b"m"), part("image", b"a", "a"), part("qualities[]", b"1"))
            whole = form(*others, *LEFT_OUT[name], part("mask", b"b", "b"))
            answer = await asked(gateway, post(whole, path))
            assert answer.status == 200, answer
            fields, files = form_of(gateway.engine.requests[-1])
            assert fields == {"model": ["engine/name"], "qualities[]": ["1"]}
            assert {file: content for file, (_, _, content) in files.items()} == {"image": b"a", "mask": b"b"}


async def test_openai_s_list_is_left_out() -> None:
    settings: dict[str, Any] = {"strip_params": frozenset({"timestamp_granularities"})}
    async with running(HEARD, **settings, **HEARS) as gateway, client(gateway) as user:
        sound = ("a.wav", SOUND)
        await user.audio.transcriptions.create(model="m", file=sound, timestamp_granularities=["word", "segment"])
        assert form_of(gateway.engine.requests[-1])[0] == {"model": ["engine/name"]}


@pytest.mark.parametrize("given", [(), ("word",), ("word", "segment")])
async def test_a_list_of_a_form_is_set_as_a_field_is(given: tuple[str, ...]) -> None:
    """Where the request leaves it out, or whatever it says."""
    parts = (part("model", b"m"), part("file", SOUND, "a"), *(part("x[]", value.encode()) for value in given))
    cases: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({"defaults": {"x[]": "default"}}, [*given] or ["default"]),
        ({"force_params": {"x[]": "forced"}}, ["forced"]),
    )
    for settings, sent in cases:
        async with running(HEARD, **settings, **HEARS) as gateway:
            assert (await asked(gateway, post(form(*parts)))).status == 200
            assert form_of(gateway.engine.requests[-1])[0]["x[]"] == sent
