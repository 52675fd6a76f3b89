"""Stop sequences: an empty one is refused by name on every API, and Anthropic's says which one ended an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.stopping import StopAt
from gateway.wire.chat import decode
from tests.backends.ollama_double import OllamaDouble
from tests.gateway.double import Exchange, Json, chunk, completion
from tests.gateway.running import running
from tests.patience import PATIENCE
from tests.support.stopping import HELLO, REPORTED, TOOL, asked, ended

APIS: dict[str, tuple[Json, str]] = {
    "/v1/chat/completions": ({"messages": HELLO}, "stop"),
    "/v1/completions": ({"prompt": "Hello"}, "stop"),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 9}, "stop_sequences"),
    "/api/chat": ({"messages": HELLO}, "options.stop"),
    "/api/generate": ({"prompt": "Hello"}, "options.stop"),
}
EMPTY: dict[str, tuple[Any, str]] = {
    "alone": ("", ""),
    "in a list": ([""], "[0]"),
    "first": (["", "zzz"], "[0]"),
    "last": (["zzz", ""], "[1]"),
    "twice": (["", ""], "[0]"),
    "null in a list": ([None], "[0]"),
    "a number": (5, ""),
    "an object": ({"a": 1}, ""),
    "a list in a list": ([["zzz"]], "[0]"),
}


def body(path: str, stop: Any, **more: Any) -> Json:
    asked, name = APIS[path]
    *inner, last = name.split(".")
    return {"model": "tiny", **asked, **({inner[0]: {last: stop}} if inner else {last: stop}), **more}


@pytest.mark.parametrize("path", APIS)
def test_an_empty_one_is_refused_by_name(real: str, path: str) -> None:
    for name, (stop, place) in EMPTY.items():
        for stream in (False, True):
            answer = httpx.post(f"{real}{path}", json=body(path, stop, stream=stream), timeout=PATIENCE)
            assert answer.status_code == 400, (name, answer.text)
            error = answer.json()["error"]
            param = APIS[path][1] + place
            assert (error if isinstance(error, str) else error["message"]).startswith(f"{param}: "), (name, error)
            if not isinstance(error, str):
                assert error["param"] == param


@pytest.mark.parametrize("path", APIS)
def test_others_end_the_answer(real: str, path: str) -> None:
    for stop in (["can I"], ["zzz", "can I"], []):
        answer = httpx.post(f"{real}{path}", json=body(path, stop, stream=False), timeout=PATIENCE)
        assert answer.status_code == 200, (stop, answer.text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tier", ["standard_only", None])
def test_llama_cpp(real: str, stream: bool, tier: str | None) -> None:
    for name, (fields, expected) in REPORTED.items():
        asked = {"model": "tiny", "max_tokens": 40, "messages": HELLO, "stream": stream, "service_tier": tier, **fields}
        answer = httpx.post(f"{real}/v1/messages", json=asked, timeout=PATIENCE)
        assert ended(answer) == expected, name
        assert "__verbose" not in answer.text


SERVERS: dict[str, tuple[Json, tuple[str, str | None]]] = {
    "vLLM": ({"stop_reason": "###"}, ("stop_sequence", "###")),
    "vLLM's end": ({"stop_reason": None}, ("end_turn", None)),
    "vLLM's token": ({"stop_reason": 151643}, ("end_turn", None)),
    "SGLang": ({"matched_stop": "###"}, ("stop_sequence", "###")),
    "SGLang's end": ({"matched_stop": 2}, ("end_turn", None)),
    "TabbyAPI": ({"stop_str": "###"}, ("stop_sequence", "###")),
    "TabbyAPI's end": ({"stop_str": ""}, ("end_turn", None)),
    "says nothing": ({}, ("end_turn", None)),
    "a call": (
        {
            "stop_reason": "###",
            "finish_reason": "tool_calls",
            "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        ("tool_use", None),
    ),
    "the limit": ({"stop_reason": "###", "finish_reason": "length"}, ("max_tokens", None)),
}
"""What servers add to the last choice, and what Anthropic's clients read."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SERVERS)
async def test_runtime_openai(name: str, stream: bool) -> None:
    told, expected = SERVERS[name]
    fields = {"finish_reason": "stop", **told}
    calls = fields.pop("tool_calls", None)

    async def engine(exchange: Exchange) -> None:
        assert exchange.json["stop"] == ["###"]
        if not stream:
            whole = completion("Hi", **({"tool_calls": calls} if calls else {}))
            whole["choices"][0] |= fields
            return await exchange.whole(whole)
        last = chunk(**({"tool_calls": calls} if calls else {}))
        last["choices"][0] |= fields
        await exchange.start()
        await exchange.event(chunk("Hi"), last)
        await exchange.end()

    async with running(engine) as gateway:
        answer = await asked(gateway, stop_sequences=["###"], stream=stream, tools=[TOOL])
        assert ended(answer) == ("Hi", *expected)


OLLAMA: dict[str, tuple[Sequence[str], tuple[str, str, str | None]]] = {
    "one": (["said: "], ("You ", "stop_sequence", "said: ")),
    "none comes": (["zzz"], ("You said: Hello", "end_turn", None)),
    "none is given": ([], ("You said: Hello", "end_turn", None)),
    "over pieces": (["u s"], ("Yo", "stop_sequence", "u s")),
    "the first that comes": (["Hello", "You said"], ("", "stop_sequence", "You said")),
    "within a word": (["ell"], ("You said: H", "stop_sequence", "ell")),
    "the last character": (["o\n", "lo"], ("You said: Hel", "stop_sequence", "lo")),
    "only its beginning comes": (["Hello there"], ("You said: Hello", "end_turn", None)),
}


@pytest.mark.parametrize("stream", [False, True])
async def test_ollama(stream: bool) -> None:
    """Its server ends an answer without a word of why; so the gateway cuts it."""
    double = OllamaDouble({"m": ["completion"]})
    async with double.serve() as at, running(runtime="ollama", base_url=f"http://127.0.0.1:{at.port}") as gateway:
        for name, (stops, expected) in OLLAMA.items():
            answer = await asked(gateway, stop_sequences=stops, stream=stream)
            assert ended(answer) == expected, name
            assert all("stop" not in request.get("options", {}) for request in double.requests)
            usage = b"%s" % answer.body[answer.body.rindex(b'"usage"') :]
            assert b'"input_tokens":0' not in usage, name
        limited = await asked(gateway, stop_sequences=["zzz"], stream=stream, max_tokens=1)
        assert ended(limited) == ("You ", "max_tokens", None)


texts = st.text("abc", max_size=12)


@given(st.lists(texts, max_size=6), st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_cut_text_is_the_same_in_any_pieces(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    places = [(at, stop) for stop in stops if (at := whole.find(stop)) >= 0]
    cut, text = StopAt(stops), ""
    for piece in pieces:
        text += cut.feed(piece)
        assert whole.startswith(text)
    text += "" if cut.stopped_by is not None else cut.finish()
    if not places:
        assert (text, cut.stopped_by) == (whole, None)
        return
    assert cut.stopped_by is not None
    assert whole[len(text) :].startswith(cut.stopped_by)
    assert not any(stop in text for stop in stops)


def test_only_an_answer_that_names_it_asks_llama_cpp_for_details() -> None:
    """They hold the whole prompt."""
    from gateway.backends.fixups import StopWord
    from gateway.wire.chat import ChatRequest

    def asks(api: Any, **fields: Any) -> bool:
        request = ChatRequest.parse(json.dumps({"messages": HELLO, **fields}).encode(), api)
        sent = dict(request.fields)
        found = StopWord.asked(request, sent)
        assert (found is not None) == ("verbose" in sent and decode(sent["verbose"]) is True)
        return found is not None

    assert asks("messages", stop=["x"])
    assert not asks("messages")
    assert not asks("messages", stop=None)
    assert not asks("chat", stop=["x"])
    assert not asks("ollama", stop=["x"])
