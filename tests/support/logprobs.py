"""The law of log-probabilities: what holds of every token of an answer."""

from __future__ import annotations

from tests.gateway.double import Json

HELLO: list[Json] = [{"role": "user", "content": "Hello"}]


def check(text: str, tokens: list[Json] | None, top: int) -> None:
    assert tokens, text
    assert "".join(token["token"] for token in tokens) == text
    for token in tokens:
        assert len(token["top_logprobs"]) == top
        assert token["logprob"] <= 0
        for one in (token, *token["top_logprobs"]):
            assert one["bytes"] == [*one["token"].encode()]
        if top:
            assert token["top_logprobs"][0]["token"] == token["token"], "at temperature 0"
            assert token["top_logprobs"][0]["logprob"] == token["logprob"]
        values = [one["logprob"] for one in token["top_logprobs"]]
        assert values == sorted(values, reverse=True)
