"""`POST /v1/completions`: the request, and its parts, of which each is one to an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from gateway.errors import ProviderInvalidRequest
from gateway.wire import body
from gateway.wire.body import Name, Stop
from gateway.wire.chat import encode
from gateway.wire.limits import Tier
from gateway.wire.nulls import read_fields
from gateway.wire.values import MAX_TOKENS

Json = dict[str, Any]
Prompt = str | list[int]

MAXIMUM = 128
"""Choices of one request: `n` for each prompt."""

ECHOES = ("openai", "llama-cpp-python")
"""Runtimes that repeat the prompt with its log-probabilities."""

_OURS = ("prompt", "n", "best_of", "echo", "stream_options", "max_tokens", "logprobs", "seed")
"""Fields that the requests to the engine get from the gateway."""


class _StreamOptions(Struct):
    include_usage: bool | None = None


class Known(Struct):
    """The fields whose types the gateway validates before it asks an engine."""

    prompt: str | list[str | int | list[int]]
    model: Name | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    stop: Stop | list[Stop] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None


class PromptLogprobs(Struct):
    """A prompt's tokens as text, the log-probability of each, and those of the likeliest in its place.

    The first token has none: nothing comes before it.
    """

    tokens: list[str]
    chosen: list[float | None]
    top: list[dict[str, float] | None]


class Part(Struct, frozen=True):
    """One choice, which is one request to the engine.

    fields: of that request. echoed: text to put before the model's. reads: put the tokens of `prompt` with their
    log-probabilities there instead; `prompt` is "" otherwise. silent: the client wants none of the model's text. first:
    of its prompt, whose tokens count once.
    """

    index: int
    prompt: Prompt
    fields: dict[str, Raw]
    echoed: str
    reads: bool
    silent: bool
    first: bool


class CreateCompletion(Struct):
    """fields: every field of the request as JSON, unknown ones included."""

    model: str | None
    stream: bool
    fields: dict[str, Raw]
    known: Known
    tier: Tier | None = None
    """The service tier that it gets; the route sets it."""

    @classmethod
    def parse(cls, data: bytes) -> CreateCompletion:
        """Raises ProviderInvalidRequest, which names the invalid field."""
        from gateway.wire.rare import check_ranges

        known = body.read(_known_decoder, data, MAX_TOKENS)
        if not known.prompt:
            raise _invalid("prompt", "must not be empty")
        n = 1 if known.n is None else known.n
        if n < 1:
            raise _invalid("n", "must be at least 1")
        if known.best_of not in (None, 1, n):
            raise _invalid("best_of", "no engine ranks its answers; ask for n, and choose yourself")
        fields, _ = read_fields(data)
        check_ranges(fields)
        return cls(known.model, bool(known.stream), fields, known)

    @property
    def usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.known.stream_options is not None and self.known.stream_options.include_usage is True

    @property
    def prompts(self) -> Sequence[Prompt]:
        """Raises ProviderInvalidRequest for a list of both texts and numbers."""
        given = self.known.prompt
        if isinstance(given, str):
            return [given]
        if all(isinstance(token, int) for token in given):
            return [[token for token in given if isinstance(token, int)]]
        found = [one for one in given if not isinstance(one, int)]
        if len(found) != len(given) or not all(found):
            raise _invalid("prompt", "must be a text, a list of tokens, or a list of either, none of them empty")
        return found

    def without_prompt(self) -> CreateCompletion:
        """The same once its parts are known, which have what is needed of the prompt."""
        return replace(self, known=replace(self.known, prompt=""))

    def parts(self, runtime: str) -> list[Part]:
        """The requests to an engine, one for each choice. Raises ProviderInvalidRequest."""
        known, prompts, n = self.known, self.prompts, self.known.n or 1
        if len(prompts) * n > MAXIMUM:
            raise _invalid("n" if len(prompts) == 1 else "prompt", f"at most {MAXIMUM} choices, n for each prompt")
        measured = bool(known.echo) and known.logprobs is not None
        engine_echoes = measured and runtime in ECHOES
        reads = measured and not engine_echoes
        shared = {name: value for name, value in self.fields.items() if name not in _OURS}
        if self.stream:
            shared["stream_options"] = Raw(b'{"include_usage":true}')
        if known.logprobs is not None:
            # llama.cpp takes 0 for none. The client gets as many as it asked for.
            shared["logprobs"] = Raw(encode(max(1, known.logprobs)))
        if engine_echoes:
            shared["echo"] = Raw(b"true")
        silent = known.max_tokens == 0 and not engine_echoes
        if known.max_tokens is not None:
            shared["max_tokens"] = Raw(encode(1 if silent else known.max_tokens))
        found = []
        for place, prompt in enumerate(prompts):
            if known.echo and not measured and not isinstance(prompt, str):
                raise _invalid("echo", "a prompt of tokens can't be repeated as text; send text, or ask for logprobs")
            written = self.fields["prompt"] if prompt is known.prompt else Raw(encode(prompt))
            echoed = prompt if known.echo and not measured and isinstance(prompt, str) else ""
            for choice in range(n):
                fields = {**shared, "prompt": written}
                if known.seed is not None:
                    # The same seed for all would make all choices the same.
                    fields["seed"] = Raw(encode(known.seed + choice))
                kept = prompt if reads else ""
                found.append(Part(place * n + choice, kept, fields, echoed, reads, silent, choice == 0))
        return found


_known_decoder = msgspec.json.Decoder(Known)


def _invalid(param: str, message: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"{param}: {message}", param=param)


def likeliest(tokens: Iterable[Json]) -> dict[str, float]:
    """Text → log-probability, the likeliest first. Of tokens with one text, such as control tokens, the likeliest."""
    found: dict[str, float] = {}
    for token in tokens:
        found.setdefault(token["token"], token["logprob"])
    return found
