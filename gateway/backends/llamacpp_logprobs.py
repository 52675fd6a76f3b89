"""The log-probabilities of a prompt's own tokens, which llama-server doesn't report.

It reports those of tokens that it writes, from the model's unchanged logits. So the gateway has it write the prompt
token by token, each forced by a bias. The server caches the prompt so far, so each step reads one token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway.backends.openai import malformed
from gateway.errors import ProviderInvalidResponse
from gateway.wire.completions import PromptLogprobs, likeliest

CERTAIN = 1e6
"""A bias that outweighs any logit."""


async def read(
    tokens: list[int], texts: list[str], top: int, post: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
) -> PromptLogprobs:
    """texts: of the tokens. top: how many of the likeliest tokens to tell at each place. post: asks `/completion`.

    The first token has none. Raises ProviderInvalidResponse if the server writes another token.
    """
    found = PromptLogprobs(texts, [None] * len(tokens), [None] * len(tokens))
    for at in range(1, len(tokens)):
        asked = {
            "prompt": tokens[:at],
            "n_predict": 1,
            "n_probs": max(1, top),
            "logit_bias": [[tokens[at], CERTAIN]],
            "temperature": 0,
            "cache_prompt": True,
        }
        answer = await post(asked)
        try:
            (written,) = answer["completion_probabilities"]
            if written["id"] != tokens[at]:
                raise ProviderInvalidResponse(f"the engine wrote token {written['id']} in place of {tokens[at]}")
            found.chosen[at] = written["logprob"]
            found.top[at] = likeliest(written["top_logprobs"][:top])
        except (KeyError, TypeError, ValueError) as error:
            raise malformed(error) from error
    return found
