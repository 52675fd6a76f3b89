"""`call_threshold` and `tool_examples` on real llama.cpp: whether an answer calls is decided before it is written."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from gateway.config import Model
from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.request.prepare import LONGEST_TOOLS
from normalizers import registry
from tests.formats.asking import ASK, Json, ask, chat_request
from tests.formats.conftest import config, external
from tests.support.deciding import HELLO, RESULT, SHORT, TOOLS, UNIT, both

FORMATS = ["pythonic", "hermes", "qwen3_coder", "mistral", "llama3_json", "kimi_k2"]


def deciding(url: str, format: str, threshold: float | None, **settings: Any) -> Model:
    return replace(external(url, format), call_threshold=threshold, **settings)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("question", [ASK, HELLO], ids=["due", "needless"])
async def test_above_the_threshold_an_answer_is_calls(llama_cpp: str, format: str, question: Json) -> None:
    async with Gateway(config(deciding(llama_cpp, format, 0.0))) as gateway:
        # One call: a model that knows the format no better than this one goes on for ever.
        said = await both(gateway, question, tools=SHORT, max_tokens=200, parallel_tool_calls=False)
    assert said.calls
    assert said.finish_reason == "tool_calls"
    for name, arguments in said.parsed:
        jsonschema.validate(arguments, {"convert": UNIT, "now": {}}[name])
    assert said.content == ""
    assert said.ctxgate["call_threshold"] == 0.0


@pytest.mark.parametrize("format", [name for name in FORMATS if registry.get(name).openers[0][0] != "["])
async def test_below_it_no_call_begins(llama_cpp: str, format: str) -> None:
    spec = registry.get(format)
    async with Gateway(config(deciding(llama_cpp, format, 1.0))) as gateway:
        said = await both(gateway, ASK, tools=TOOLS)
    assert said.calls == []
    assert said.content
    assert said.content[0] not in "{[`<"
    assert not any(mark in said.content for mark in spec.openers)
    assert 0 <= said.ctxgate["call_probability"] <= 1


@pytest.mark.parametrize("of_model", [None, 0.0, 1.0])
@pytest.mark.parametrize("of_request", [None, 0, 0.0, 1, 1.0])
async def test_a_request_has_its_own_threshold(
    llama_cpp: str, of_model: float | None, of_request: float | None
) -> None:
    async with Gateway(config(deciding(llama_cpp, "pythonic", of_model))) as gateway:
        said = await both(gateway, HELLO, tools=TOOLS, max_tokens=60, call_threshold=of_request)
    wanted = of_model if of_request is None else of_request
    assert said.ctxgate.get("call_threshold") == wanted
    if wanted is not None:
        assert bool(said.calls) is (wanted == 0)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "0.5", True, [], {}])
async def test_a_wrong_threshold_is_refused_by_name(llama_cpp: str, wrong: object) -> None:
    with pytest.raises(ProviderInvalidRequest, match="call_threshold"):
        chat_request(HELLO, tools=TOOLS, call_threshold=wrong)


@pytest.mark.parametrize(("runtime", "format"), [("llama.cpp", "native_json"), ("openai", "pythonic")])
async def test_where_no_answer_can_be_held_to_it_it_is_refused(llama_cpp: str, runtime: str, format: str) -> None:
    model = replace(external(llama_cpp, format), runtime=runtime)
    async with Gateway(config(model)) as gateway:
        with pytest.raises(ProviderInvalidRequest) as refused:
            await ask(gateway, HELLO, tools=TOOLS, call_threshold=0.5)
        assert refused.value.param == "call_threshold"
        assert (await ask(gateway, HELLO, tools=TOOLS, call_threshold=None)).finish_reason


async def test_the_probability_tells_what_the_model_would_do(llama_cpp: str) -> None:
    async with Gateway(config(deciding(llama_cpp, "pythonic", 0.5))) as gateway:
        due = await both(gateway, ASK, tools=TOOLS)
        needless = await both(gateway, HELLO, tools=TOOLS)
    assert due.ctxgate["call_probability"] > 0.5 > needless.ctxgate["call_probability"]
    assert due.calls
    assert not needless.calls


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none"},
        {"tool_choice": "required"},
        {"logprobs": True, "stream": False},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"1": -1}},
    ],
    ids=str,
)
async def test_a_request_that_says_how_it_is_answered_keeps_its_meaning(llama_cpp: str, fields: Json) -> None:
    """The same answer as without a threshold, and none is told."""
    answers = []
    for threshold in (None, 0.0, 1.0):
        async with Gateway(config(deciding(llama_cpp, "pythonic", threshold))) as gateway:
            request = chat_request(ASK, tools=TOOLS, max_tokens=24, seed=1, **fields)
            with await gateway.chat(request) as run:
                if request.stream:
                    answers.append([json.loads(each)["choices"] for each in await run.payloads()])
                else:
                    answers.append([choice["message"] for choice in json.loads(await run.whole())["choices"]])
                assert run.answer.report.decided is None
    for answer in answers:
        for message in answer:
            for call in message.get("tool_calls") or ():
                call["id"] = ""
    assert answers[0] == answers[1] == answers[2]


async def test_without_tools_nothing_is_decided(llama_cpp: str) -> None:
    async with Gateway(config(deciding(llama_cpp, "pythonic", 0.0))) as gateway:
        said = await both(gateway, HELLO)
    assert said.ctxgate == {}
    assert said.calls == []


async def test_examples_are_left_out_where_they_would_cut_the_prompt(llama_cpp: str) -> None:
    """Each more of the words brings the prompt closer to the window of 1,024 tokens, and the last one beyond it."""
    examples = ("ask", "chain", "hello")
    sizes = []
    async with (
        Gateway(config(external(llama_cpp, "pythonic"))) as plain,
        Gateway(config(replace(external(llama_cpp, "pythonic"), tool_examples=examples))) as with_examples,
    ):
        for words in range(0, 2000, 20):
            asked = {"role": "user", "content": "Say hello. " * words + "Hi"}
            fields = {
                "tools": TOOLS,
                "max_tokens": 1,
                "stream": words % 40 == 0,
                "stream_options": {"include_usage": True},
            }
            try:
                usage = (await ask(plain, asked, **fields)).usage
            except ProviderInvalidRequest:
                with pytest.raises(ProviderInvalidRequest, match="maximum context length"):
                    await ask(with_examples, asked, **fields)
                break
            assert usage is not None
            longer = (await ask(with_examples, asked, **fields)).usage
            assert longer is not None
            sizes.append(longer["prompt_tokens"] - usage["prompt_tokens"])
    assert sizes[0] > 0
    assert sizes[-1] == 0
    assert {*sizes} == {0, sizes[0]}
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("of_request", [None, 0.0, 1.0])
@pytest.mark.parametrize("lost", ["by a long prompt", "by long tools"])
async def test_a_threshold_goes_with_the_examples_that_it_was_fitted_with(
    llama_cpp: str, of_request: float | None, lost: str
) -> None:
    """The request's own one stays. The prompt is as if there were neither."""
    if lost == "by a long prompt":
        kept, without = ({"asked": words * "Say hello. " + "Hi", "tools": TOOLS} for words in (1, 185))
    else:
        kept, without = ({"asked": "Hi", "tools": sized(LONGEST_TOOLS + more)} for more in (0, 1))
    model = external(llama_cpp, "pythonic")
    examples = replace(model, tool_examples=("ask", "hello"))
    async with (
        Gateway(config(model)) as plain,
        Gateway(config(replace(examples, call_threshold=1.0))) as gateway,
    ):

        async def read(by: Gateway, given: Json, threshold: float | None = None) -> tuple[int, float | None]:
            """The tokens of the prompt, and the threshold that counted."""
            asked = {"role": "user", "content": given["asked"]}
            options = {"max_tokens": 8, "call_threshold": threshold}
            said = await ask(by, asked, tools=given["tools"], **options)
            assert said.usage is not None
            return said.usage["prompt_tokens"], said.ctxgate.get("call_threshold")

        with_them, threshold = await read(gateway, kept, of_request)
        assert with_them > (await read(plain, kept))[0]
        assert threshold == (1.0 if of_request is None else of_request)
        assert await read(gateway, without, of_request) == ((await read(plain, without))[0], of_request)


def sized(size: int) -> list[Json]:
    """A tool whose JSON has so many bytes without the spaces that a request has in it; its prompt shows few of them."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}, "x-note": ""}
    tool["x-note"] = "x" * (size - len(json.dumps([tool], separators=(",", ":"))))
    return [tool]


async def test_after_a_result_the_model_decides(llama_cpp: str) -> None:
    async with Gateway(config(deciding(llama_cpp, "pythonic", 0.0))) as gateway:
        said = await both(gateway, *RESULT, tools=TOOLS)
    assert "call_probability" not in said.ctxgate


async def test_a_model_that_may_think_first_decides_itself(llama_cpp: str) -> None:
    """Where the prompt opens the reasoning, the first token is none of the answer's."""
    template = {"chat_template_kwargs": {"enable_thinking": True}}
    async with Gateway(config(deciding(llama_cpp, "pythonic", 1.0))) as gateway:
        said = await both(gateway, ASK, tools=TOOLS, **template)
    assert said.finish_reason


async def test_the_prompt_is_read_once(llama_cpp: str) -> None:
    """Whoever asks for the first token reads the prompt; the answer reads one token again."""
    async with Gateway(config(deciding(llama_cpp, "pythonic", 0.5))) as gateway:
        first = await ask(gateway, ASK, tools=TOOLS)
        assert first.usage is not None
        details = first.usage["prompt_tokens_details"]
        assert details["cached_tokens"] >= first.usage["prompt_tokens"] - 1


async def test_examples_stand_behind_the_system_message(llama_cpp: str) -> None:
    """They count as tokens of the prompt, and the same tools give the same ones."""
    system = {"role": "system", "content": "Be brief."}
    used = []
    for examples in ((), ("ask", "call", "hello")):
        model = deciding(llama_cpp, "pythonic", None, tool_examples=examples)
        async with Gateway(config(model)) as gateway:
            said = await ask(gateway, system, ASK, tools=TOOLS)
            again = await ask(gateway, system, HELLO, tools=TOOLS)
        assert said.usage is not None
        assert again.usage is not None
        used.append((said.usage["prompt_tokens"], again.usage["prompt_tokens_details"]["cached_tokens"]))
    (without, _), (with_them, kept) = used
    assert with_them > without + 40
    assert kept > with_them - 40
