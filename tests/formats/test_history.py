"""A conversation's past is mended before an engine sees it, and the answer says what was mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core import Gateway
from gateway.request.prepare import ModelCapabilities, RequestSettings, derive_terms, prepare
from gateway.request.repair_history import ID_LENGTH, repair_history
from gateway.schema.checker import compiled
from gateway.wire.chat import ChatRequest
from normalizers import registry
from normalizers.write.grammar import grammar
from tests.formats.asking import ASK, WEATHER, Json, ask, tool
from tests.formats.conftest import BUILDS, Serve, config, external

TOOLS = [tool(WEATHER)]


def call(call_id: str | None, arguments: Any = '{"city": "Paris"}', name: str = "get_weather") -> Json:
    one: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return one if call_id is None else {"id": call_id, **one}


def assistant(*calls: Json) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def result(call_id: str | None, content: Any = "22", **more: Any) -> Json:
    one = {"role": "tool", "content": content, **more}
    return one if call_id is None else {**one, "tool_call_id": call_id}


def healed(*messages: Json) -> tuple[list[Json], Json]:
    repaired, counts = repair_history(list(messages))
    return repaired, dict(counts)


SETTINGS = RequestSettings.of(
    "llama.cpp", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
)
HERMES = ModelCapabilities(registry.get("hermes"), registry.get("hermes"))


ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "an object in a string": ('{"a": 1}', None),
    "an object": ({"a": 1}, None),
    "nothing": ("", {}),
    "null": (None, {}),
    "null in a string": ("null", {}),
    "encoded twice": ('"{\\"a\\": 1}"', {"a": 1}),
    "Python's spelling": ("{'a': True, 'b': None}", {"a": True, "b": None}),
    "a trailing comma": ('{"a": 1,}', {"a": 1}),
    "cut": ('{"city": ', {"malformed": '{"city": '}),
    "text": ("Paris", {"malformed": "Paris"}),
    "a list": ("[1, 2]", {"malformed": "[1, 2]"}),
    "too deep to be read": ('{"a": ' + "[" * 5000, {"malformed": '{"a": ' + "[" * 5000}),
    "no number": ('{"a": NaN}', {"malformed": '{"a": NaN}'}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str) -> None:
    given, wanted = ARGUMENTS[name]
    (_, mended), counts = healed(ASK, assistant(call("call_1", given)))
    arguments = mended["tool_calls"][0]["function"]["arguments"]
    if wanted is None:
        assert (arguments, counts) == (given, {})
    else:
        assert (json.loads(arguments), counts) == (wanted, {"arguments": 1})


def test_an_id_for_several_calls() -> None:
    """The results belong to the calls in their order, within a turn and over turns."""
    turn = assistant(call("x", name="f"), call("x", name="g")), result("x", "of f"), result("x", "of g")
    messages, counts = healed(*turn, assistant(call("x", name="h")), result("x", "of h"))
    ids = [one["id"] for message in messages for one in message.get("tool_calls", ())]
    assert ids[0] == "x"
    assert len(set(ids)) == 3
    assert all(len(one) == ID_LENGTH for one in ids[1:])
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == ids
    assert counts == {"ids": 2}


RESULTS: dict[str, tuple[list[Json], list[Any], Json]] = {
    "in order": ([result("a"), result("b")], ["a", "b"], {}),
    "in another order": ([result("b"), result("a")], ["b", "a"], {}),
    "without ids": ([result(None), result(None)], ["a", "b"], {"ids": 2}),
    "by name": ([result("?", name="g"), result("??", name="f")], ["b", "a"], {"ids": 2}),
    "the last one left": ([result("a"), result("?")], ["a", "b"], {"ids": 1}),
    "of nobody": ([result("?", "lost")], ["Result of a tool:\nlost"], {"orphan_results": 1}),
    "twice": (
        [result("a"), result("b"), result("a", [{"type": "text", "text": "again"}])],
        ["a", "b", "Result of a tool:\nagain"],
        {"orphan_results": 1},
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    results, wanted, told = RESULTS[name]
    messages, counts = healed(ASK, assistant(call("a", name="f"), call("b", name="g")), *results)
    assert [m["content"] if m["role"] == "user" else m["tool_call_id"] for m in messages[2:]] == wanted
    assert counts == told


def test_a_result_without_any_call() -> None:
    messages, counts = healed(result("x", "22", name="get_weather"))
    assert messages == [{"role": "user", "content": "Result of get_weather:\n22"}]
    assert counts == {"orphan_results": 1}


def test_what_is_well_is_not_touched() -> None:
    raw = Raw(b'[ {"role":"assistant", "tool_calls":[]}, {"role":"user","content":"tool"} ]')
    request = ChatRequest.parse(b'{"messages": %b}' % bytes(raw))
    prepared = prepare(request, SETTINGS, HERMES, derive_terms(request, SETTINGS, HERMES))
    assert request.past_calls, "it may hold calls, and is looked at"
    assert not prepared.repairs
    assert bytes(prepared.fields["messages"]) == bytes(raw)
    assert not ChatRequest.parse(b'{"messages": [{"role": "user", "content": "no such thing"}]}').past_calls


ids = st.sampled_from(["a", "b", "", None])
some_calls = st.builds(call, ids, st.sampled_from(["{}", "{", "", "[]", '{"a": 1}', None]) | st.text(max_size=9))
messages = st.lists(
    st.one_of(
        st.builds(lambda calls: assistant(*calls), st.lists(some_calls, max_size=3)),
        st.builds(result, ids),
        st.just(ASK),
    ),
    max_size=8,
)


@given(messages)
def test_whatever_came_an_engine_can_read_it(messages: list[Json]) -> None:
    mended, counts = healed(*messages)
    assert len(mended) == len(messages)
    known: list[str] = []
    for message in mended:
        for one in message.get("tool_calls") or ():
            assert isinstance(json.loads(one["function"]["arguments"]), dict)
            known.append(one["id"])
        if message["role"] == "tool":
            assert message["tool_call_id"] in known
    assert len(set(known)) == len(known)
    assert healed(*mended) == (mended, {})
    assert counts or mended == messages


DROPS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}List of tools: [{% for tool in tools %}{{ tool | tojson }}{% endfor %}]\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("build", BUILDS)
async def test_a_template_that_drops_calls_gets_them_as_text(
    serve: Serve, build: str, test_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = tmp_path_factory.mktemp("template") / "drops.jinja"
    template.write_text(DROPS)
    url = serve(build, test_model, "--chat-template-file", str(template))
    past = ASK, assistant(call("call_1")), result("call_1")
    tokens = {}
    async with Gateway(config(external(url, "native_json", "engine"), external(url, "pythonic", "ours"))) as gateway:
        for model in ("engine", "ours"):
            for more in ({"tools": TOOLS}, {}):
                said = await ask(gateway, *past, model=model, max_tokens=4, **more)
                assert said.usage is not None
                tokens[model, bool(more)] = said.usage["prompt_tokens"]
    # <|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>
    for with_tools in (True, False):
        assert tokens["ours", with_tools] - tokens["engine", with_tools] >= 10


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", ["native_json", "pythonic"])
async def test_the_answer_tells(llama_cpp: str, format: str, stream: bool) -> None:
    past = ASK, assistant(call("call_1", '{"city": ')), result("call_1"), result("?")
    async with Gateway(config(external(llama_cpp, format))) as gateway:
        said = await ask(gateway, *past, tools=TOOLS, stream=stream)
    assert said.finish_reason
    assert said.ctxgate["healed"] == {"arguments": 1, "orphan_results": 1}
