"""Log-probabilities, as OpenAI gives them: beside each token as many others as were asked for, 0 by default."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.features.completions.reader import CompletionReader
from gateway.wire.completions import CreateCompletion
from gateway.wire.engine import Fixup
from gateway.wire.logprobs import LogprobsFixup
from tests.gateway.double import Exchange, Json, chunk, completion
from tests.gateway.running import running
from tests.patience import PATIENCE
from tests.support.logprobs import HELLO, check

TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
INCLUDE: Json = {"include": ["message.output_text.logprobs"]}


def ask(real: str, path: str, body: Json) -> httpx.Response:
    return httpx.post(f"{real}{path}", json={"model": "tiny", "temperature": 0, **body}, timeout=PATIENCE)


def payloads(answer: httpx.Response) -> list[Json]:
    """The whole answer, or the payloads of its stream."""
    if answer.text.startswith("{"):
        return [answer.json()]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def of_chat(answer: httpx.Response) -> tuple[str, list[Json] | None]:
    """The text of the first choice and its tokens; None without log-probabilities."""
    text, tokens = "", None
    for payload in payloads(answer):
        for choice in payload["choices"]:
            text += (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            if (logprobs := choice.get("logprobs")) is not None:
                assert {*logprobs} == {"content", "refusal"}
                tokens = (tokens or []) + logprobs["content"]
    return text, tokens


CHAT: dict[str, tuple[Json, int | None]] = {
    "left out": ({"logprobs": True}, 0),
    "null": ({"logprobs": True, "top_logprobs": None}, 0),
    "0": ({"logprobs": True, "top_logprobs": 0}, 0),
    "1": ({"logprobs": True, "top_logprobs": 1}, 1),
    "3": ({"logprobs": True, "top_logprobs": 3}, 3),
    "20": ({"logprobs": True, "top_logprobs": 20}, 20),
    "false": ({"logprobs": False}, None),
    "false, and 0": ({"logprobs": False, "top_logprobs": 0}, None),
    "0 alone": ({"top_logprobs": 0}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("stream", [False, True])
def test_chat(real: str, stream: bool) -> None:
    for name, (fields, top) in CHAT.items():
        answer = ask(real, "/v1/chat/completions", {"messages": HELLO, "stream": stream, "max_tokens": 4, **fields})
        assert answer.status_code == 200, (name, answer.text)
        text, tokens = of_chat(answer)
        assert text == "Hello!"
        if top is None:
            assert tokens is None, name
        else:
            check(text, tokens, top)


def test_chat_with_tools_and_choices(real: str) -> None:
    for top in (0, 2):
        asked = {"messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": top}
        check(*of_chat(ask(real, "/v1/chat/completions", {**asked, "tools": [TOOL]})), top)


REFUSED: dict[str, tuple[str, Json, str]] = {
    "below 0": ("/v1/chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    "no number": ("/v1/chat/completions", {"logprobs": True, "top_logprobs": "2"}, "top_logprobs"),
    "no flag": ("/v1/chat/completions", {"logprobs": 5}, "logprobs"),
    "others without tokens": ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    "others of no tokens": ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    "a completion below 0": ("/v1/completions", {"logprobs": -1}, "logprobs"),
    "a flag for a number": ("/v1/completions", {"logprobs": True}, "logprobs"),
    "a response below 0": ("/v1/responses", {"top_logprobs": -1}, "top_logprobs"),
    "a response's text": ("/v1/responses", {"top_logprobs": "2", **INCLUDE}, "top_logprobs"),
}


@pytest.mark.parametrize("stream", [False, True])
def test_refused_by_name(real: str, stream: bool) -> None:
    for name, (path, fields, param) in REFUSED.items():
        body = {"messages": HELLO, "prompt": "Hello"} if path != "/v1/responses" else {"input": "Hello"}
        body = {key: value for key, value in body.items() if (key == "prompt") == (path == "/v1/completions")}
        answer = ask(real, path, {**body, "stream": stream, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (name, answer.text)


RESPONSES: dict[str, tuple[Json, int | None]] = {
    "include alone": (INCLUDE, 0),
    "include and 0": ({**INCLUDE, "top_logprobs": 0}, 0),
    "include and null": ({**INCLUDE, "top_logprobs": None}, 0),
    "include and 2": ({**INCLUDE, "top_logprobs": 2}, 2),
    "2 alone": ({"top_logprobs": 2}, 2),
    "0 alone": ({"top_logprobs": 0}, None),
    "another include": ({"include": ["reasoning.encrypted_content"]}, None),
    "an empty include": ({"include": []}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("stream", [False, True])
def test_responses(real: str, stream: bool) -> None:
    for name, (fields, top) in RESPONSES.items():
        answer = ask(real, "/v1/responses", {"input": "Hello", "max_output_tokens": 4, "stream": stream, **fields})
        assert answer.status_code == 200, (name, answer.text)
        *events, last = payloads(answer)
        (part,) = (last["response"] if stream else last)["output"][0]["content"]
        places = [(part["text"], part["logprobs"])]
        if stream:
            deltas = [event for event in events if event["type"] == "response.output_text.delta"]
            logprobs = [token for event in deltas for token in event["logprobs"]]
            places.append(("".join(event["delta"] for event in deltas), logprobs))
            (done,) = (event for event in events if event["type"] == "response.output_text.done")
            places.append((done["text"], done["logprobs"]))
        for text, tokens in places:
            if top is None:
                assert tokens == [], name
            else:
                check(text, tokens, top)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 1, 5])
def test_completions(real: str, top: int | None, stream: bool) -> None:
    more = {} if top is None else {"logprobs": top}
    asked = {"prompt": "The result is", "max_tokens": 4, "stream": stream, **more}
    found = [choice for payload in payloads(ask(real, "/v1/completions", asked)) for choice in payload["choices"]]
    if top is None:
        assert [choice["logprobs"] for choice in found] == [None] * len(found)
        return
    tokens = [token for choice in found if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    others = [one for choice in found if choice["logprobs"] for one in choice["logprobs"]["top_logprobs"]]
    assert "".join(tokens) == "".join(choice["text"] for choice in found)
    assert len(tokens) == len(others)
    assert all(len(one) <= top for one in others)
    assert all(one for one in others) == (top > 0)


def entry(token: str, *others: str, **more: Any) -> Json:
    return {
        "token": token,
        "logprob": -0.5,
        **more,
        "top_logprobs": [{"token": one, "logprob": -0.5} for one in others],
    }


ENGINES: dict[str, tuple[Json, Json, Json]] = {
    "as many as were asked for": (
        {"top_logprobs": 2},
        entry("a", "a", "b"),
        entry("a", "a", "b", bytes=[97]),
    ),
    "more": ({"top_logprobs": 1}, entry("a", "a", "b", "c"), entry("a", "a", bytes=[97])),
    "some though none were asked for": ({}, entry("a", "a"), entry("a", bytes=[97])),
    "none in the engine's words": ({}, {"token": "a", "logprob": -0.5}, entry("a", bytes=[97])),
    "null": ({}, {"token": "a", "logprob": -0.5, "top_logprobs": None}, entry("a", bytes=[97])),
    "bytes of its own": ({}, entry("é", bytes=[195]), entry("é", bytes=[195])),
    "a part of a character": ({}, entry("\ufffd"), entry("\ufffd", bytes=None)),
    "an id": ({}, entry("a", id=7), entry("a", id=7, bytes=[97])),
}
"""Fields of a request, a token of an engine, and what becomes of it."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ENGINES)
async def test_other_engines(name: str, stream: bool) -> None:
    fields, said, expected = ENGINES[name]

    async def engine(exchange: Exchange) -> None:
        assert exchange.json["top_logprobs"] == (fields.get("top_logprobs") or 1), "some engines take 0 for no tokens"
        logprobs = {"content": [said]}
        if not stream:
            whole = completion(said["token"])
            whole["choices"][0]["logprobs"] = logprobs
            return await exchange.whole(whole)
        first = chunk(said["token"])
        first["choices"][0]["logprobs"] = logprobs
        await exchange.start()
        await exchange.event(first, chunk(reason="stop"))
        await exchange.end()

    async with running(engine) as gateway:
        answer = await gateway.ask({"messages": HELLO, "logprobs": True, "stream": stream, **fields})
        assert answer.status == 200, answer.body
        found = [json.loads(event) for event in answer.events[:-1]] if stream else [answer.json]
        tokens = [choice["logprobs"] for one in found for choice in one["choices"] if choice.get("logprobs")]
        for others in expected["top_logprobs"]:
            others.setdefault("bytes", [*others["token"].encode()])
        assert tokens == [{"content": [expected], "refusal": None}]


def test_the_engine_s_own_fixup_goes_first() -> None:
    class Inner(Fixup):
        def answer(self, answer: Json) -> None:
            answer["choices"][0]["logprobs"] = {"content": [entry("a", "b")]}

        def chunk(self, chunk: Json) -> None:
            self.answer(chunk)

    for read in ("answer", "chunk"):
        inner = Inner()
        inner.warnings = [{"code": "c", "text": "t"}]
        fixup = LogprobsFixup(0, inner)
        body: Json = {"choices": [{}]}
        getattr(fixup, read)(body)
        assert body == {"choices": [{"logprobs": {"content": [entry("a", bytes=[97])], "refusal": None}}]}
        assert fixup.warnings is inner.warnings


@pytest.mark.parametrize(
    "choice", [{}, {"logprobs": None}, {"logprobs": {}}, {"logprobs": {"content": None}}, {"logprobs": 5}, None]
)
def test_what_has_none_stays(choice: Any) -> None:
    body: Json = {"choices": [choice]}
    LogprobsFixup(0, None).answer(body)
    assert body == {"choices": [choice]}


def test_a_completion_of_another_server_has_none_if_none_were_asked_for() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0]}
    payload = json.dumps({"choices": [{"text": "a", "logprobs": logprobs}]}).encode()
    for top, others in ((0, [{}]), (1, [{"a": -0.5}])):
        wanted = CreateCompletion.parse(json.dumps({"prompt": "x", "logprobs": top}).encode())
        (part,) = wanted.parts("openai")
        assert json.loads(bytes(part.fields["logprobs"])) == 1
        assert CompletionReader(part, top).read(payload)["choices"][0]["logprobs"] == {
            **logprobs,
            "top_logprobs": others,
        }
