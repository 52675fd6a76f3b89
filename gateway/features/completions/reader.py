"""The answers of several requests to an engine as one."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import ProviderInvalidResponse
from gateway.wire.completions import Json, Part, PromptLogprobs, likeliest
from gateway.wire.shape import Repairs
from gateway.wire.usage import count
from gateway.wire.values import MAX_TOKENS, exceeds


class CompletionReader:
    """Turns an engine's answer to one part, whole or chunk by chunk, into the client's."""

    def __init__(self, part: Part, logprobs: int | None, model: str = "") -> None:
        self.usage: Json = {}
        self.before: PromptLogprobs | None = None
        """Of a part that `reads`; to be set before the first `read`."""
        self._part = part
        self._repairs = Repairs(model)
        self._top = logprobs
        self._begun = False
        self._offset = 0

    def read(self, payload: bytes, *, whole: bool = False) -> Json:
        """The answer, without its usage, which is in `usage` from then on. Raises ProviderInvalidResponse."""
        if exceeds(payload, MAX_TOKENS):
            raise ProviderInvalidResponse(f"the engine's answer has more than {MAX_TOKENS} JSON values")
        try:
            answer = self._repairs.completion(payload, whole=whole)
            if isinstance(usage := answer.pop("usage", None), dict):
                self.usage = usage
            answer["choices"] = [self._choice(choice) for choice in answer.get("choices") or ()]
            if isinstance(id := answer.get("id"), str):
                answer["id"] = "cmpl-" + id.removeprefix("chatcmpl-").removeprefix("cmpl-")
        except (AttributeError, TypeError, KeyError) as error:
            raise ProviderInvalidResponse(f"the engine's answer is not a completion: {error}") from error
        return answer

    def _choice(self, choice: Json) -> Json:
        part = self._part
        text = "" if part.silent else choice.get("text") or ""
        logprobs = None if part.silent else choice.get("logprobs")
        if self._top == 0 and isinstance(logprobs, dict) and isinstance(others := logprobs.get("top_logprobs"), list):
            logprobs = {**logprobs, "top_logprobs": [{} for _ in others]}
        if self._begun:
            if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
                logprobs = self._own_shape(logprobs["content"])
        else:
            self._begun, self._offset = True, len(part.echoed)
            before = self.before
            shape = self._prompt_shape(before) if before is not None else None
            if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
                logprobs = self._own_shape(logprobs["content"], shape)
            else:
                logprobs = shape if shape is not None else logprobs
            text = ("".join(before.tokens) if before is not None else part.echoed) + text
        return {**choice, "index": part.index, "text": text, "logprobs": logprobs}

    def _prompt_shape(self, prompt: PromptLogprobs) -> Json:
        offsets = []
        for text in prompt.tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": [*prompt.tokens],
            "token_logprobs": [*prompt.chosen],
            "top_logprobs": [*prompt.top],
            "text_offset": offsets,
        }

    def _own_shape(self, tokens: Iterable[Json], before: Json | None = None) -> Json:
        """Log-probabilities as this API writes them, from a chat's, which llama.cpp gives. before: the prompt's."""
        made: Json = before or {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            top = (token.get("top_logprobs") or [])[: self._top]
            made["tokens"].append(token["token"])
            made["token_logprobs"].append(token["logprob"])
            made["top_logprobs"].append(likeliest(top))
            made["text_offset"].append(self._offset)
            self._offset += len(token["token"])
        return made


def summed(read: Iterable[tuple[Part, Json]]) -> Json:
    """The usage of all parts: every completion, and each prompt once."""
    prompt = completion = cached = 0
    for part, usage in read:
        completion += 0 if part.silent else count(usage.get("completion_tokens"))
        if part.first:
            prompt += count(usage.get("prompt_tokens"))
            details = usage.get("prompt_tokens_details")
            cached += count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}
