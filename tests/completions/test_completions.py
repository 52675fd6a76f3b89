"""`/v1/completions` by the real engine: several choices, their usage, log-probabilities and the prompt repeated."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from gateway.errors import ProviderInvalidResponse
from gateway.features.completions.reader import CompletionReader
from gateway.wire.completions import MAXIMUM, CreateCompletion
from tests.gateway.double import Exchange, answers
from tests.gateway.running import running
from tests.patience import PATIENCE
from tests.support.writing import in_loop

PROMPT = "The result is"


@pytest.fixture
def client(real: str) -> Any:
    with OpenAI(base_url=f"{real}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as client:
        yield client


def ask(client: OpenAI, **more: Any) -> Any:
    return client.completions.create(**{"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, **more})


def test_ids_are_this_apis(client: OpenAI) -> None:
    assert ask(client).id.startswith("cmpl-")
    ids = {chunk.id for chunk in ask(client, prompt=[PROMPT, "One"], stream=True)}
    assert len(ids) == 1
    assert ids.pop().startswith("cmpl-")


@pytest.mark.parametrize(("prompt", "n"), [(PROMPT, 2), ([PROMPT, "Send an email"], 1), ([PROMPT, "One"], 2)])
def test_the_usage_adds_up(client: OpenAI, prompt: Any, n: int) -> None:
    prompts = [prompt] if isinstance(prompt, str) else prompt
    alone = [ask(client, prompt=one) for one in prompts]
    whole = ask(client, prompt=prompt, n=n)
    assert [choice.index for choice in whole.choices] == list(range(n * len(prompts)))
    assert [choice.text for choice in whole.choices] == [one.choices[0].text for one in alone for _ in range(n)]
    assert whole.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert whole.usage.completion_tokens == n * sum(one.usage.completion_tokens for one in alone)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    texts, reasons, usage = ["" for _ in whole.choices], {}, None
    for chunk in ask(client, prompt=prompt, n=n, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage or usage
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage is not None
    assert usage.total_tokens == whole.usage.total_tokens


def test_choices_of_one_seed_differ_but_are_repeated(client: OpenAI) -> None:
    asked = {"n": 3, "seed": 5, "temperature": 1.5, "max_tokens": 12}
    first, second = (sorted(choice.text for choice in ask(client, **asked).choices) for _ in range(2))
    assert len(set(first)) > 1
    assert len(set(first)) == len(set(second))


def test_logprobs_in_their_own_shape(client: OpenAI) -> None:
    (choice,) = ask(client, logprobs=2).choices
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert found.text_offset == [len("".join(found.tokens[:at])) for at in range(len(found.tokens))]
    assert all(value <= 0 for value in found.token_logprobs)
    for token, value, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert 1 <= len(top) <= 2, "control tokens have no text, so two of them share a key"
        assert top[token] == value, "the likeliest token is taken at temperature 0"
    assert ask(client, logprobs=0).choices[0].logprobs.top_logprobs[0] == {}
    tokens, offsets = [], []
    for chunk in ask(client, logprobs=1, stream=True):
        for part in chunk.choices:
            if part.logprobs is not None:
                tokens += part.logprobs.tokens
                offsets += part.logprobs.text_offset
    assert (tokens, offsets) == (found.tokens, found.text_offset)


def test_echo_repeats_the_prompt(client: OpenAI) -> None:
    plain = ask(client).choices[0].text
    assert ask(client, echo=True).choices[0].text == PROMPT + plain
    streamed = [choice.text for chunk in ask(client, echo=True, stream=True) for choice in chunk.choices]
    assert "".join(streamed) == PROMPT + plain
    nothing = ask(client, echo=True, max_tokens=0)
    assert nothing.choices[0].text == PROMPT
    assert nothing.usage.completion_tokens == 0
    assert ask(client, max_tokens=0).choices[0].text == ""


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "best_of": ("best_of", {"best_of": 3}),
    "best of fewer": ("best_of", {"n": 3, "best_of": 2}),
    "tokens repeated": ("echo", {"echo": True, "prompt": [1, 2]}),
    "no choice": ("n", {"n": 0}),
    "too many": ("n", {"n": MAXIMUM + 1}),
    "too many prompts": ("prompt", {"prompt": ["x"] * (MAXIMUM + 1)}),
    "a mixture": ("prompt", {"prompt": ["x", 1]}),
    "an empty one": ("prompt", {"prompt": ["x", ""]}),
    "penalty": ("presence_penalty", {"presence_penalty": 3}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(client: OpenAI, name: str) -> None:
    param, fields = REFUSED[name]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert (caught.value.param, str(caught.value.body["message"]).partition(":")[0]) == (param, param)  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_probabilities_of_a_prompt(client: OpenAI, stream: bool) -> None:
    """What lm-eval reads. Each is what the model would have said of that token had it written it."""
    asked = {"echo": True, "logprobs": 2, "max_tokens": 1, "stream": stream}
    answer = ask(client, **asked)
    parts = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    text = "".join(part.text for part in parts)
    tokens, values, tops, offsets = (
        [one for part in parts if part.logprobs is not None for one in getattr(part.logprobs, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert text.startswith(PROMPT)
    assert "".join(tokens) == text
    assert offsets == [len("".join(tokens[:at])) for at in range(len(tokens))]
    assert values[0] is None
    assert all(value <= 0 for value in values[1:])
    assert len(tokens) == len(values) == len(tops)
    for at in range(1, len(tokens)):
        # The likeliest next token after that much of the prompt, asked for on its own.
        (alone,) = ask(client, prompt=text[: offsets[at]], logprobs=1, max_tokens=1).choices
        (best,) = alone.logprobs.token_logprobs
        assert max(tops[at].values()) == pytest.approx(best, abs=0.02)
        assert values[at] <= best + 0.02


def test_a_prompt_of_tokens_is_measured_too(client: OpenAI) -> None:
    by_tokens = ask(client, prompt=[5, 6, 7], echo=True, logprobs=1, max_tokens=1).choices[0]
    assert len(by_tokens.logprobs.tokens) == 4
    assert by_tokens.text == "".join(by_tokens.logprobs.tokens)


def test_best_of_as_many_as_are_asked_for(client: OpenAI) -> None:
    assert len(ask(client, n=2, best_of=2).choices) == 2


def test_prompts_of_tokens(client: OpenAI) -> None:
    assert len(ask(client, prompt=[[5, 6], [7]]).choices) == 2
    assert len(ask(client, prompt=[5, 6]).choices) == 1


def test_too_long(real: str) -> None:
    body = {"model": "tiny", "prompt": ["Hi", "word " * 2000]}
    answer = httpx.post(f"{real}/v1/completions", json=body, timeout=PATIENCE)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.status_code == 400


async def test_a_runtime_that_can_t_tell_refuses_by_name() -> None:
    async with running(answers({}), runtime="mlx") as gateway, await gateway.connect() as client:
        answer = await client.ask({"prompt": "Hi", "echo": True, "logprobs": 1}, "/v1/completions")
    assert (answer.status, answer.error["param"]) == (400, "echo")


async def test_a_server_that_knows_echo_gets_it() -> None:
    """vLLM and others give the log-probabilities of a prompt; lm-eval lives on them."""
    own = {
        "tokens": ["Hi", "!"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"!": -1.0}],
        "text_offset": [0, 2],
    }

    async def script(exchange: Exchange) -> None:
        assert exchange.json["echo"] is True
        await exchange.whole({"id": "x", "choices": [{"index": 0, "text": "Hi!", "logprobs": own}]})

    async with running(script) as gateway, await gateway.connect() as client:
        body = {"prompt": "Hi", "echo": True, "logprobs": 1, "max_tokens": 1}
        answer = await client.ask(body, "/v1/completions")
    (choice,) = answer.json["choices"]
    assert (choice["text"], choice["logprobs"]) == ("Hi!", own)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"choices": [7]}', b'{"choices": 7}', b'"x"'])
def test_an_answer_that_is_none(body: bytes) -> None:
    (part,) = CreateCompletion.parse(b'{"prompt": "a"}').parts("openai")
    with pytest.raises(ProviderInvalidResponse, match="the engine's answer is not a completion"):
        CompletionReader(part, None).read(body)


async def test_nobody_waits_while_many_choices_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    places = in_loop(monkeypatch)
    choice = {"index": 0, "text": "x" * 100_000, "finish_reason": "length", "logprobs": None}
    async with running(*[answers({"object": "text_completion", "choices": [choice]})] * 3) as gateway:
        whole = await gateway.ask({"model": "m", "prompt": "Hi", "n": 3}, "/v1/completions")
    assert [(one["index"], len(one["text"])) for one in whole.json["choices"]] == [(at, 100_000) for at in range(3)]
    assert places == [False]
