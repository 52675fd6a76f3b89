"""The log-probabilities of our server for MLX are those of the tokens that were written, streamed or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.running import running
from tests.support.logprobs import HELLO, check


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 1, 3])
async def test_each_token_has_its_own(mlx: str, top: int | None, stream: bool) -> None:
    more: dict[str, Any] = {} if top is None else {"top_logprobs": top}
    async with running(runtime="mlx", base_url=mlx) as gateway:
        body = {"messages": HELLO, "max_tokens": 4, "temperature": 0, "logprobs": True, "stream": stream, **more}
        answer = await gateway.ask(body)
        assert answer.status == 200, answer.body
        found = [json.loads(event) for event in answer.events[:-1]] if stream else [answer.json]
        choices = [choice for one in found for choice in one["choices"]]
        text = "".join((choice.get("message") or choice["delta"]).get("content") or "" for choice in choices)
        tokens = [token for choice in choices for token in (choice.get("logprobs") or {}).get("content", ())]
        assert text == "Hello!"
        check(text, tokens, top or 0)
        completion = await gateway.ask(
            {"prompt": "The result is", "max_tokens": 2, "temperature": 0, "logprobs": top}, "/v1/completions"
        )
        (choice,) = completion.json["choices"]
        if top is not None:
            assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
            assert all(len(one) <= top for one in choice["logprobs"]["top_logprobs"])


async def test_a_stop_word_ends_a_completion_too(mlx: str) -> None:
    async with running(runtime="mlx", base_url=mlx) as gateway:
        asked = {"prompt": "The result is", "max_tokens": 8, "temperature": 0}
        whole = (await gateway.ask(asked, "/v1/completions")).json["choices"][0]["text"]
        stop = whole[1:3]
        cut = (await gateway.ask({**asked, "stop": stop}, "/v1/completions")).json["choices"][0]
        assert (cut["text"], cut["finish_reason"]) == (whole[: whole.index(stop)], "stop")
