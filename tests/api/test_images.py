"""Images for a model that reads text alone, on every API: a note, another model's description, or 400."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.core import Gateway
from gateway.features.media.describer import MAX_DESCRIBED, MAX_KEPT
from gateway.wire.chat import Caller, ChatRequest
from gateway.wire.images import NOTE, urls, with_texts
from tests.backends.ollama_double import OllamaDouble
from tests.gateway.before_ollama import before
from tests.gateway.client import Client
from tests.gateway.double import Double, Exchange, Json, Script, answers, chunk, completion
from tests.gateway.running import FAST, NO_COMMENTS, Running, running
from tests.patience import PATIENCE
from tests.provider.server import serve
from tests.responses.websocket import opened, turn

DATA = "iVBORw0KGgo="
URL = f"data:image/png;base64,{DATA}"
PART: Json = {"type": "image_url", "image_url": {"url": URL}}
BLOCK: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
INPUT: Json = {"type": "input_image", "image_url": URL}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
WHAT: Json = {"role": "user", "content": "What is there?"}
SEEN = {"role": "user", "content": f"Look:\n\n{NOTE}"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": f"seen\n\n{NOTE}"}


def past(*more: Json) -> list[Json]:
    return [WHAT, {"role": "assistant", "content": None, "tool_calls": [CALL]}, *more]


CASES: dict[str, tuple[str, Json, list[Json]]] = {
    "chat, a user's": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, PART]}]},
        [SEEN],
    ),
    "chat, alone": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [PART]}]},
        [{"role": "user", "content": NOTE}],
    ),
    "chat, two": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [PART, {"type": "image_url", "image_url": URL}]}]},
        [{"role": "user", "content": f"{NOTE}\n\n{NOTE}"}],
    ),
    "chat, a result's": (
        "/v1/chat/completions",
        {
            "messages": past(
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "seen"}, PART]}
            )
        },
        [RESULT],
    ),
    "chat, an earlier turn's": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [PART]}, {"role": "assistant", "content": "A cat."}, WHAT]},
        [{"role": "user", "content": NOTE}, {"role": "assistant", "content": "A cat."}, WHAT],
    ),
    "responses, a user's": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Look:"}, INPUT]}]},
        [SEEN],
    ),
    "responses, a result's": (
        "/v1/responses",
        {
            "input": [
                WHAT,
                {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
                {
                    **{"type": "function_call_output", "call_id": "call_1"},
                    "output": [{"type": "input_text", "text": "seen"}, INPUT],
                },
            ]
        },
        [RESULT],
    ),
    "messages, a user's": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, BLOCK]}]},
        [SEEN],
    ),
    "messages, a result's": (
        "/v1/messages",
        {
            "messages": [
                WHAT,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {
                            **{"type": "tool_result", "tool_use_id": "call_1"},
                            "content": [{"type": "text", "text": "seen"}, BLOCK],
                        }
                    ],
                },
            ]
        },
        [RESULT],
    ),
    "ollama, a user's": ("/api/chat", {"messages": [{"role": "user", "content": "Look:", "images": [DATA]}]}, [SEEN]),
    "ollama, alone": (
        "/api/chat",
        {"messages": [{"role": "user", "content": "", "images": [DATA]}]},
        [{"role": "user", "content": NOTE}],
    ),
    "ollama, a result's": (
        "/api/chat",
        {
            "messages": [
                WHAT,
                {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "look"}}]},
                {"role": "tool", "tool_name": "look", "content": "seen", "images": [DATA]},
            ]
        },
        [{**RESULT, "name": "look"}],
    ),
    "ollama, a prompt's": ("/api/generate", {"prompt": "Look:", "images": [DATA]}, [SEEN]),
}


def body(path: str, fields: Json, *, stream: bool) -> Json:
    needed: dict[str, Json] = {"/v1/responses": {"store": False}, "/v1/messages": {"max_tokens": 9}}
    more = needed.get(path, {})
    return {"model": "m", "stream": stream, **more, **fields}


def reads_text(text: str = "I see.") -> Script:
    """A server that refuses images in vLLM's words."""

    async def script(exchange: Exchange) -> None:
        if b"image_url" in exchange.body:
            refusal = {"error": {"message": "Qwen/Qwen3-4B is not a multimodal model"}}
            await exchange.whole(refusal, 400)
        elif exchange.json.get("stream"):
            await exchange.start()
            await exchange.event(chunk(text), chunk(reason="stop"))
            await exchange.end()
        else:
            await exchange.whole(completion(text))

    return script


def message(answer: Json) -> str:
    return answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CASES)
async def test_a_note_in_the_place_of_each(name: str, stream: bool) -> None:
    path, fields, expected = CASES[name]
    async with running(reads_text()) as gateway:
        answer = await gateway.ask(body(path, fields, stream=stream), path)
        sent = gateway.engine.requests[-1].json["messages"]
        assert len(gateway.engine.requests) == 2
    assert answer.status == 200
    assert b"I see." in answer.body
    assert sent[-len(expected) :] == expected
    count = sum(json.dumps(each).count(NOTE) for each in expected)
    assert answer.headers["x-ctxgate-healed"] == f"images_left_out={count}"
    if path == "/v1/chat/completions" or path.startswith("/api/"):
        lines = [line.removeprefix(b"data: ") for line in answer.body.splitlines() if line]
        told = [json.loads(line).get("ctxgate", {}).get("warnings") for line in lines if line != b"[DONE]"]
        warning = {"code": "images_left_out", "text": f"images left out, since the model reads text: {count}"}
        assert [each for each in told if each] == [[warning]]


@pytest.mark.parametrize("name", CASES)
async def test_refused_if_config_says_so(name: str) -> None:
    path, fields, _ = CASES[name]
    async with running(reads_text(), images="refuse") as gateway:
        for stream in (False, True):
            answer = await gateway.ask(body(path, fields, stream=stream), path)
            assert (answer.status, "multimodal" in message(answer.json)) == (400, True)
        assert len(gateway.engine.requests) == 2


@pytest.mark.parametrize("name", ["chat, a user's", "messages, a result's", "responses, a result's", "ollama, alone"])
async def test_echo_reads_text(name: str) -> None:
    path, fields, _ = CASES[name]
    async with running(answers()) as gateway:
        answer = await gateway.ask({**body(path, fields, stream=False), "model": "echo"}, path)
    assert (answer.status, answer.headers["x-ctxgate-healed"]) == (200, "images_left_out=1")


@pytest.mark.parametrize("name", ["chat, a user's", "chat, a result's", "messages, a user's", "ollama, a user's"])
@pytest.mark.parametrize("model", ["plain", "sees", "old"])
async def test_on_an_ollama(name: str, model: str) -> None:
    path, fields, _ = CASES[name]
    ollama = OllamaDouble({"plain": ["completion"], "sees": ["completion", "vision"], "old": None})
    async with before(ollama, model) as gateway:
        answer = await gateway.ask(body(path, fields, stream=False), path)
    assert answer.status == 200
    sent = ollama.requests[-1]["messages"][-1]
    assert (NOTE in sent["content"]) is (model == "plain")
    assert ("images" in sent) is (model != "plain")


async def test_an_address_is_left_out_too() -> None:
    """Of which Ollama wouldn't take any, and the gateway fetches none."""
    ollama = OllamaDouble({"plain": ["completion"], "sees": ["completion", "vision"]})
    content = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    for model, status in (("plain", 200), ("sees", 400)):
        async with before(ollama, model) as gateway:
            asked = {"model": "m", "messages": [{"role": "user", "content": content}]}
            assert (await gateway.ask(asked)).status == status


@pytest.mark.parametrize("name", CASES)
def test_with_the_real_engine(name: str, real: str) -> None:
    """It needn't refuse anything first: the gateway starts it without a projector."""
    path, fields, _ = CASES[name]
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        answer = http.post(path, json={**body(path, fields, stream=False), "model": "tiny"})
    assert answer.status_code == 200, answer.text
    assert "images_left_out=" in answer.headers["x-ctxgate-healed"]


def test_a_conversation_goes_on(real: str) -> None:
    """On the turn with the image, and on the one that follows, which the gateway makes of what it stored."""
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        _, fields, _ = CASES["responses, a result's"]
        first = http.post("/v1/responses", json={"model": "tiny", **fields})
        assert first.status_code == 200
        more = {"model": "tiny", "input": "And now?", "previous_response_id": first.json()["id"]}
        second = http.post("/v1/responses", json=more)
        assert (second.status_code, second.headers["x-ctxgate-healed"]) == (200, "images_left_out=1")


async def test_over_websocket() -> None:
    _, fields, expected = CASES["responses, a result's"]
    async with running(reads_text()) as gateway, opened(gateway) as client:
        events = await turn(client, store=False, **fields)
        assert events[-1]["type"] == "response.completed"
        assert gateway.engine.requests[-1].json["messages"][-1:] == expected


def test_they_count_as_their_notes(real: str) -> None:
    """And not as the data that the model doesn't get."""
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        counts = []
        for data in (DATA, DATA * 500):
            source = {**BLOCK["source"], "data": data}
            content = [{"type": "text", "text": "Look:"}, {**BLOCK, "source": source}]
            asked = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
            answer = http.post("/v1/messages/count_tokens", json=asked)
            counts.append(answer.json()["input_tokens"])
            assert "x-ctxgate-estimate" not in answer.headers
    assert counts[0] == counts[1]


# Descriptions


def sees(*texts: str) -> Script:
    """A server that describes one image after the other."""
    left = [*texts]

    async def script(exchange: Exchange) -> None:
        assert exchange.json["messages"][0]["content"][1]["type"] == "image_url"
        await exchange.whole(completion(left.pop(0)))

    return script


@asynccontextmanager
async def describing(eyes: Script, text: Script | None = None) -> AsyncIterator[tuple[Running, Double]]:
    """The gateway's model `m` reads text, and `eyes` describes images for it."""
    async with asyncio.timeout(PATIENCE), Double(eyes).serve() as seer, Double(text or reads_text()).serve() as reader:
        at = [f"http://127.0.0.1:{double.address.port}" for double in (reader, seer)]
        m = Model(name="m", runtime="openai", base_url=at[0], images="describe", describe_with="eyes")
        models = {"m": m, "eyes": Model(name="eyes", runtime="openai", base_url=at[1])}
        config = Config(source=Path(__file__), active_model="m", models=models, server=Server(**NO_COMMENTS))
        with ExitStack() as stack:
            url = stack.enter_context(serve(build(config), lifespan="on", http=FAST))
            try:
                yield Running(config, reader, int(url.rpartition(":")[2])), seer
            finally:
                await asyncio.to_thread(stack.close)


CAT = "[image, as eyes describes it: A cat.]"


@pytest.mark.parametrize("name", [name for name in CASES if "two" not in name and "earlier" not in name])
async def test_a_description_in_the_place_of_each(name: str) -> None:
    """Made once: agents send their images again with every turn."""
    path, fields, expected = CASES[name]
    async with describing(sees("A cat.")) as (gateway, eyes):
        for stream in (False, True):
            answer = await gateway.ask(body(path, fields, stream=stream), path)
            assert (answer.status, answer.headers["x-ctxgate-healed"]) == (200, "images_described=1")
            sent = gateway.engine.requests[-1].json["messages"]
            assert sent[-1] == {**expected[-1], "content": expected[-1]["content"].replace(NOTE, CAT)}
        assert len(eyes.requests) == 1


UNSEEN: dict[str, Script] = {
    "a failure": answers({"error": {"message": "out of memory"}}, 500),
    "nothing": answers(completion("")),
    "a model that reads text itself": reads_text("A cat?"),
}


@pytest.mark.parametrize("why", UNSEEN)
async def test_what_nobody_describes_is_left_out(why: str) -> None:
    async with describing(UNSEEN[why]) as (gateway, _):
        path, fields, expected = CASES["chat, a user's"]
        answer = await gateway.ask(body(path, fields, stream=False), path)
        assert (answer.status, answer.headers["x-ctxgate-healed"]) == (200, "images_left_out=1")
        assert gateway.engine.requests[-1].json["messages"] == expected


async def test_the_last_images_are_described() -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"{URL}{at}"}} for at in range(MAX_DESCRIBED + 2)]
    async with describing(answers(completion("A cat."))) as (gateway, eyes):
        answer = await gateway.ask({"model": "m", "messages": [{"role": "user", "content": parts}]})
        assert len(eyes.requests) == MAX_DESCRIBED
        sent = gateway.engine.requests[-1].json["messages"][0]["content"]
        assert sent == "\n\n".join([NOTE] * 2 + [CAT] * MAX_DESCRIBED)
        assert answer.headers["x-ctxgate-healed"] == f"images_left_out=2, images_described={MAX_DESCRIBED}"
        await gateway.ask({"model": "m", "messages": [{"role": "user", "content": parts}]})
        assert len(eyes.requests) == MAX_DESCRIBED + 2


async def test_users_share_no_description() -> None:
    """How soon an answer comes would tell one what another has sent."""
    async with Double(sees("A cat.", "A cat.")).serve() as eyes, Double(reads_text()).serve() as reader:
        at = [f"http://127.0.0.1:{double.address.port}" for double in (reader, eyes)]
        m = Model(name="m", runtime="openai", base_url=at[0], images="describe", describe_with="eyes")
        models = {"m": m, "eyes": Model(name="eyes", runtime="openai", base_url=at[1])}
        async with Gateway(Config(source=Path(__file__), active_model="m", models=models)) as gateway:
            for owner, described in (("one", 1), ("two", 2), ("one", 2)):
                path, fields, _ = CASES["chat, a user's"]
                asked = json.dumps(body(path, fields, stream=False)).encode()
                request = ChatRequest.parse(asked, caller=Caller(owner=owner))
                with await gateway.chat(request) as run:
                    await run.whole()
                assert len(eyes.requests) == described


async def test_nobody_s_descriptions_take_the_place_of_another_s() -> None:
    async with Double(answers(completion("A cat."))).serve() as eyes, Double(reads_text()).serve() as reader:
        at = [f"http://127.0.0.1:{double.address.port}" for double in (reader, eyes)]
        m = Model(name="m", runtime="openai", base_url=at[0], images="describe", describe_with="eyes")
        models = {"m": m, "eyes": Model(name="eyes", runtime="openai", base_url=at[1])}
        async with Gateway(Config(source=Path(__file__), active_model="m", models=models)) as gateway:

            async def ask(owner: str, number: int) -> int:
                """How many descriptions have been asked for by then."""
                images = [b64encode(f"{owner} {number} {at}".encode()).decode() for at in range(MAX_DESCRIBED)]
                urls = [{"url": f"data:image/png;base64,{image}"} for image in images]
                parts = [{"type": "image_url", "image_url": url} for url in urls]
                asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
                with await gateway.chat(ChatRequest.parse(asked, caller=Caller(owner=owner))) as run:
                    await run.whole()
                return len(eyes.requests)

            before = await ask("one", 0)
            for number in range(MAX_KEPT // MAX_DESCRIBED + 1):
                before = await ask("two", number)
            assert await ask("one", 0) == before
            assert await ask("two", 0) > before, "they have to go somewhere"


async def test_the_fallback_sees_the_image() -> None:
    """Of a request that the first model's server fails with a note in its place."""

    async def fails(exchange: Exchange) -> None:
        if b"image_url" in exchange.body:
            await exchange.whole({"error": {"message": "Qwen/Qwen3-4B is not a multimodal model"}}, 400)
        else:
            await exchange.whole({"error": {"message": "busy"}}, 503)

    async with running(fails) as first, Double(answers(completion("A cat."))).serve() as eyes:
        at = [first.engine.address.port, eyes.address.port]
        urls = [f"http://127.0.0.1:{port}" for port in at]
        models = {
            "m": Model(name="m", runtime="openai", base_url=urls[0], fallbacks=("eyes",)),
            "eyes": Model(name="eyes", runtime="openai", base_url=urls[1]),
        }
        config = Config(source=Path(__file__), active_model="m", models=models, server=Server(**NO_COMMENTS))
        with ExitStack() as stack:
            url = stack.enter_context(serve(build(config), lifespan="on", http=FAST))
            async with await Client.connect(int(url.rpartition(":")[2])) as client:
                answer = await client.ask({"model": "m", "messages": [{"role": "user", "content": [PART]}]})
            await asyncio.to_thread(stack.close)
    assert (answer.status, answer.headers["x-ctxgate-fallback"]) == (200, "eyes")
    assert "x-ctxgate-healed" not in answer.headers
    assert eyes.requests[-1].json["messages"][0]["content"] == [PART]


# The rule itself


def test_other_parts_stay() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA=="}}
    messages: list[Json] = [{"role": "user", "content": [PART, audio]}, {"role": "user", "content": "Hi"}]
    found, kinds = with_texts(messages, {})
    assert found == [{"role": "user", "content": [{"type": "text", "text": NOTE}, audio]}, messages[1]]
    assert (kinds, urls(messages), urls(found)) == ({"images_left_out": 1}, [URL], [])


def test_images_behind_a_result_belong_to_it() -> None:
    tool = {"role": "tool", "tool_call_id": "a", "content": ""}
    found, kinds = with_texts([tool, {"role": "user", "content": [PART, PART]}, WHAT], {URL: "[a cat]"})
    assert found == [{**tool, "content": "[a cat]\n\n[a cat]"}, WHAT]
    assert kinds == {"images_described": 2}
