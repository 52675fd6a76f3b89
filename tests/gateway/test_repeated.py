"""With a `call_threshold`, a call that repeats one whose result has just come becomes an answer in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Model
from gateway.core import Gateway
from gateway.request.repeats import answered
from gateway.wire.chat import ChatRequest
from tests.formats.asking import Json, ask, chat_request, tool
from tests.formats.conftest import config
from tests.gateway.double import Double, Exchange

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [tool({"name": "get_weather", "parameters": CITY})]
QUESTION: Json = {"role": "user", "content": "How warm is it in Rome?"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'


def called(city: str = "Rome", id: str = "c1") -> Json:
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str = "c1") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": '{"temp_c": 21}'}


class Engine:
    """A llama.cpp that writes these answers, one after the other."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.grammars: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path == "/props":
            await exchange.whole({"chat_template": "{{ tools }} {{ tool_calls }}"})
        elif exchange.path == "/apply-template":
            await exchange.whole({"prompt": "<|im_start|>user"})
        elif exchange.path == "/tokenize":
            await exchange.whole({"tokens": [1]})
        else:
            assert exchange.path == "/v1/completions"
            self.grammars.append(exchange.json.get("grammar", ""))
            await exchange.start()
            text = self._answers.pop(0)
            for at in range(0, len(text), 5):
                await exchange.event({"choices": [{"index": 0, "text": text[at : at + 5], "finish_reason": None}]})
            await exchange.event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
            await exchange.end()


async def said(engine: Engine, *messages: Json, threshold: float | None = 0.5, **fields: Any) -> Any:
    async with Double(engine).serve() as double:
        url = f"http://127.0.0.1:{double.address.port}"
        model = Model(name="m", runtime="llama.cpp", base_url=url, tool_call_format="hermes", call_threshold=threshold)
        async with Gateway(config(model)) as gateway:
            return await ask(gateway, *messages, tools=TOOLS, **fields)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_repeated_call_becomes_words(stream: bool) -> None:
    engine = Engine(CALL % "Rome", "It is 21 degrees.")
    answer = await said(engine, QUESTION, called(), result(), stream=stream)
    assert (answer.content, answer.calls, answer.finish_reason) == ("It is 21 degrees.", [], "stop")
    assert answer.ctxgate["healed"] == {"repeated_calls": 1}
    first, second = engine.grammars
    assert first != second  # the second one begins no call


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("messages", "city"),
    [
        ([QUESTION, called(), result()], "Oslo"),
        ([QUESTION, called("Oslo"), result(), QUESTION, called(id="c2"), result("c2")], "Oslo"),
        ([QUESTION, called()], "Rome"),
        ([QUESTION], "Rome"),
    ],
    ids=["other arguments", "another turn's", "no result", "first"],
)
async def test_any_other_call_stays(messages: list[Json], city: str, stream: bool) -> None:
    answer = await said(
        Engine(CALL % city), *messages, threshold=0.5 if messages[-1]["role"] == "tool" else None, stream=stream
    )
    assert answer.parsed == [("get_weather", {"city": city})]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_without_a_threshold_it_is_a_call(stream: bool) -> None:
    answer = await said(Engine(CALL % "Rome"), QUESTION, called(), result(), threshold=None, stream=stream)
    assert answer.parsed == [("get_weather", {"city": "Rome"})]


async def test_words_pass_at_once() -> None:
    """The first piece leaves before the engine has written the rest."""
    answer = await said(Engine("It is 21 degrees."), QUESTION, called(), result(), stream=True)
    assert answer.content == "It is 21 degrees."
    assert answer.ctxgate.get("healed") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "tool_call_id"]), JSON), max_size=4))
def test_odd_histories_break_nothing(odd: list[Json]) -> None:
    messages = [QUESTION, *({**message, "role": str(message.get("role"))} for message in odd), result()]
    body = json.dumps({"messages": messages, "tools": TOOLS})
    if "NaN" not in body and "Infinity" not in body:
        assert answered(ChatRequest.parse(body.encode())) == frozenset()


def test_spelling_does_not_matter() -> None:
    spaced = called()
    spaced["tool_calls"][0]["function"]["arguments"] = '{ "city" :"Rome"}'
    one, other = (answered(chat_request(QUESTION, call, result(), tools=TOOLS)) for call in (called(), spaced))
    assert one == other == {("get_weather", '{"city":"Rome"}')}
